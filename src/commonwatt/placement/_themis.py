"""Themis: GPUs are auctioned every round among the jobs furthest from their fair finish time.

The finish-time fairness of a job is ``rho = (age + time to its end) / time of the whole job with an equal share`` of
the GPUs of every class. Each round, as leases on all GPUs end:

1. The part ``1 - f`` of all jobs with the largest ``rho`` is offered all GPUs.
2. Each bids ``V = 1 / rho`` for the GPUs it asks for on each class, and for having none in this round.
3. The winners are those whose product of ``V`` is the largest (proportional fairness): an integer program.
4. A winner pays for what it keeps from others: of what it won it gets the part ``c``, the product of the others' ``V``
   with it in the auction over that without it. A job that needs all its GPUs at once gets them with probability ``c``.
5. GPUs that are left go to the jobs that were not offered any, then to the losers, at random.

Source: K. Mahajan et al., "Themis: Fair and efficient GPU cluster scheduling" (NSDI 2020), sections 4 and 5. Where ours
differs: one job is one application; the bid for nothing is for one round of waiting; steps 4 and 5 give whole jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from commonwatt.model.arrays import Floats, Ints
from commonwatt.optimize import KeepGoing, Program, ranked
from commonwatt.placement._gavel import equal_share
from commonwatt.placement._peers import Entry, Menu, Peer
from commonwatt.placement._problem import PlacementProblem

__all__ = ["Auction", "Themis"]

GAP = 1e-9  # relative, of the product of bids: payments are ratios of it


@dataclass(frozen=True)
class Auction:
    """What winning is worth to the bidders: logarithms of ``V`` over that of having nothing, -inf where one cannot.

    Attributes
    ----------
    worth
        Of each bidder on each class. Shape [B, K].
    gpus
        Of each bidder, [B].
    room
        GPUs of each class, [K].
    """

    worth: Floats
    gpus: Ints
    room: Ints

    def winners(self, but: int = -1) -> Ints:
        """Return the class each bidder wins, -1 for none, without bidder *but*. Shape [B]."""
        won = np.full(len(self.gpus), -1, dtype=np.int64)
        bidder, klass = np.nonzero((self.worth > 0) & (np.arange(len(self.gpus)) != but)[:, None])
        if not len(bidder):
            return won
        program = Program()
        x = program.columns(-self.worth[bidder, klass], high=1.0, whole=True)
        program.rows(bidder, x, 1.0, np.full(len(won), -np.inf), np.ones(len(won)))
        room = self.room.astype(float)
        program.rows(klass, x, self.gpus[bidder].astype(float), np.full(len(room), -np.inf), room)
        solution = program.minimise(gap=GAP).x
        if solution is not None:
            won[bidder[solution > 0.5]] = klass[solution > 0.5]
        return won

    def paid(self, won: Ints, but: int = -1) -> float:
        """Return the logarithm of the product of all bids but *but*'s."""
        return float(sum(self.worth[b, k] for b, k in enumerate(won.tolist()) if k >= 0 and b != but))

    def kept(self, won: Ints) -> Floats:
        """Return the part ``c`` of what it won that each bidder keeps; 1 where it won nothing. Shape [B]."""
        kept = np.ones(len(won))
        for b in np.flatnonzero(won >= 0).tolist():
            kept[b] = min(1.0, math.exp(self.paid(won, b) - self.paid(self.winners(b))))
        return kept


@dataclass(frozen=True)
class Themis(Peer):
    """Themis with its auction.

    Attributes
    ----------
    fairness_knob
        ``f``: the part of all jobs, those of the least ``rho``, that is not offered GPUs; from 0, less than 1.
    """

    fairness_knob: float = 0.8

    def entries(
        self, problem: PlacementProblem, menu: Menu, rng: Generator, keep_going: KeepGoing  # noqa: ARG002
    ) -> Sequence[Entry]:  # fmt: skip
        """Winners that keep what they won, then the jobs that were offered nothing, then losers, at random."""
        able = np.flatnonzero((menu.row >= 0).any(axis=1))
        if not len(able):
            return []
        share_s = 1.0 / (equal_share(menu) / menu.whole_s).sum(axis=1)[able]
        age_s = np.maximum(0.0, problem.now_s - problem.submit_s[able])
        none_s = age_s + problem.interval_s + menu.left_s[able].min(axis=1)
        order = ranked(-none_s / share_s, problem.submit_s[able])
        bidders = order[: max(1, math.ceil((1 - self.fairness_knob) * len(able) - 1e-9))]
        with np.errstate(divide="ignore"):
            worth = np.log(none_s[bidders, None] / (age_s[bidders, None] + menu.left_s[able[bidders]]))
        auction = Auction(worth, menu.gpus[able[bidders]], menu.room)
        won = auction.winners()
        keeps = rng.random(len(bidders)) < auction.kept(won)
        taken = [(int(able[bidders[b]]), int(won[b])) for b in np.flatnonzero((won >= 0) & keeps)]
        lost = bidders[(won < 0) | ~keeps]
        rest = [*rng.permutation(order[len(bidders) :]), *rng.permutation(lost)]
        return taken + [entry for i in rest for entry in menu.by_speed(int(able[i]), stay=True)]
