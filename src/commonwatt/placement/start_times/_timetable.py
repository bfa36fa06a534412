"""What is free over time: GPUs of each node, and power under a cap, in equal pieces of time.

And in which pieces a job runs at least cost if it may pause, each pause costing a restart. Ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commonwatt.model.arrays import Bools, Floats, Ints
from commonwatt.model.electricity import StepIntegral
from commonwatt.optimize import njit, ranked
from commonwatt.placement._problem import PlacementProblem

__all__ = ["PAUSED", "RUNNING", "WAITING", "Power", "Timetable", "cheapest_pieces"]

PIECES_S = (300.0, 900.0, 1800.0, 3600.0, 7200.0)
MOST_PIECES = 600
ROUNDING_W = 1e-6


@dataclass(frozen=True)
class Power:
    """What configurations and nodes draw, and how much they may.

    Attributes
    ----------
    busy_w
        Busy GPUs of each configuration, over all its nodes, [C].
    share_w
        The same with the part of their nodes' idle power that these GPUs stand for, [C].
    idle_w
        Each node while jobs are on it, without its busy GPUs, [N].
    rest_w
        Each node without jobs, as it is now, [N].
    cap_w
        Most that all nodes may draw together, over time; ``None``: no limit.
    shared_w
        Of ``rest_w``, what GPUs draw that no job has alone.
    spare_w
        Power left free by what starts: those GPUs may draw so much more.
    """

    busy_w: Floats
    share_w: Floats
    idle_w: Floats
    rest_w: Floats
    cap_w: StepIntegral | None = None
    shared_w: float = 0.0
    spare_w: float = 0.0


class Timetable:
    """Free GPUs of each node, [N, B], and power drawn, [B], in pieces of time of which a job takes whole ones."""

    def __init__(self, problem: PlacementProblem, power: Power, until_s: float) -> None:
        self.problem, self.power, self.until_s = problem, power, until_s
        now_s = problem.now_s
        self.piece_s = next((p for p in PIECES_S if (until_s - now_s) / p <= MOST_PIECES), PIECES_S[-1])
        self.from_s = np.floor(now_s / self.piece_s) * self.piece_s
        pieces = max(1, int(np.ceil((until_s - self.from_s) / self.piece_s)))
        self.edges_s = self.from_s + self.piece_s * np.arange(pieces + 1)
        self.free = np.repeat(problem.node_gpus[:, None], pieces, axis=1)
        self.drawn_w = np.full(pieces, power.rest_w.sum())
        self.used = np.zeros(self.free.shape, dtype=np.int64)  # jobs of each node
        self._taken: dict[tuple[int, int], Ints] = {}  # by class and GPUs: pieces without room before each edge
        self.from_now_s = np.concatenate(([now_s], self.edges_s[1:]))
        cap_w = power.cap_w
        self._least_cap_w = None if cap_w is None else cap_w.least_within(self.from_now_s) - power.spare_w

    def starts_s(self) -> Floats:
        """Return now and the beginnings of all later pieces."""
        return np.concatenate(([self.problem.now_s], self.edges_s[1:-1]))

    def fits(self, row: int, starts_s: Floats, time_s: float) -> Bools:
        """Whether configuration *row* has room for *time_s* from each of *starts_s* ([S]), or to the profile's end."""
        return self.fits_in(row, *self.pieces(starts_s, time_s))

    def fits_in(self, row: int, first: Ints, end: Ints) -> Bools:
        """Whether configuration *row* has room from each piece *first* to before *end*, [S]."""
        problem = self.problem
        nodes = np.flatnonzero(problem.node_class == problem.klass[row])
        full = self._without_room(int(problem.klass[row]), int(problem.per_node[row]), nodes)
        fits: Bools = (full[:, end] == full[:, first]).sum(axis=0) >= problem.width[row]
        if self._least_cap_w is not None:
            over = self.drawn_w + self.most_w[row] > self._least_cap_w + ROUNDING_W
            count = np.concatenate(([0], np.cumsum(over)))
            fits &= count[end] == count[first]
        return fits

    def taken_part(self) -> float:
        """Part of all GPU time that is taken."""
        total = float(self.problem.node_gpus.sum()) * self.free.shape[1]
        return 1.0 - float(self.free.sum()) / total if total > 0 else 1.0

    def room(self, row: int) -> Bools:
        """Pieces in which configuration *row* has room, [B]."""
        problem = self.problem
        nodes = np.flatnonzero(problem.node_class == problem.klass[row])
        full = self._without_room(int(problem.klass[row]), int(problem.per_node[row]), nodes)
        room: Bools = (np.diff(full, axis=1) == 0).sum(axis=0) >= problem.width[row]
        if self._least_cap_w is not None:
            room &= self.drawn_w + self.most_w[row] <= self._least_cap_w + ROUNDING_W
        return room

    def take_pieces(self, row: int, on: Bools) -> None:
        """Give configuration *row* the pieces that are *on*, in which it has room; on other nodes where it must."""
        problem = self.problem
        nodes = np.flatnonzero(problem.node_class == problem.klass[row])
        padded = np.diff(np.concatenate(([False], on, [False])).astype(np.int64))
        for first, end in zip(np.flatnonzero(padded == 1), np.flatnonzero(padded == -1), strict=True):
            least = self.free[nodes, first:end].min(axis=1)
            whole = (least >= problem.per_node[row]).sum() >= problem.width[row]
            for begin, stop in [(first, end)] if whole else [(b, b + 1) for b in range(first, end)]:
                self._give_tightest(row, nodes, int(begin), int(stop))

    def take(self, row: int, start_s: float, time_s: float) -> Ints:
        """Give configuration *row* the nodes with least sufficient room, which ``fits`` says it has; return them."""
        first, end = (int(at[0]) for at in self.pieces(np.array([start_s]), time_s))
        nodes = np.flatnonzero(self.problem.node_class == self.problem.klass[row])
        return self._give_tightest(row, nodes, first, end)

    def give(self, row: int, nodes: Ints, start_s: float, time_s: float, *, jobs: int = 1) -> None:
        """Give configuration *row* these *nodes* from *start_s* on, or take them back (*jobs* is -1)."""
        first, end = (int(at[0]) for at in self.pieces(np.array([start_s]), time_s))
        self._give(row, nodes, first, end, jobs)

    def keep(self, job: int, row: int, time_s: float) -> None:
        """Leave a running *job* its GPUs for *time_s* from now."""
        self.add(row, self.problem.nodes_held(job), time_s)

    def add(self, row: int, nodes: Ints, time_s: float) -> None:
        """Give configuration *row* these *nodes* for *time_s* from now."""
        self.give(row, nodes, self.problem.now_s, time_s)

    def under_cap(self) -> bool:
        """Whether no piece draws more than the cap."""
        return self._least_cap_w is None or bool((self.drawn_w <= self._least_cap_w + ROUNDING_W).all())

    def has_power(self, row: int, nodes: Ints, *, time_s: float = 0.0, now_only: bool = False) -> bool:
        """Whether configuration *row* on *nodes* stays below the cap for *time_s* from now, or at this moment only."""
        if self.power.cap_w is None or self._least_cap_w is None:
            return True
        first, end = (int(at[0]) for at in self.pieces(np.array([self.problem.now_s]), time_s))
        wakes_w = (self.power.idle_w - self.power.rest_w)[nodes]
        if now_only:
            more_w = self.power.busy_w[row] + ((self.used[nodes, 0] == 0) * wakes_w).sum()
            return bool(self.drawn_w[0] + more_w <= self.power.cap_w.at(self.problem.now_s) + ROUNDING_W)
        more_w = self.power.busy_w[row] + ((self.used[nodes, first:end] == 0) * wakes_w[:, None]).sum(axis=0)
        return bool((self.drawn_w[first:end] + more_w <= self._least_cap_w[first:end] + ROUNDING_W).all())

    def free_by_class(self) -> Floats:
        """Return the free GPUs of each class of nodes in each piece, [K, B]."""
        free = np.zeros((self._kinds, self.free.shape[1]))
        np.add.at(free, self.problem.node_class, self.free)
        return free

    def free_w(self) -> Floats:
        """Return the power that is left below the cap in each piece, [B]; infinity without one."""
        if self._least_cap_w is None:
            return np.full(len(self.drawn_w), np.inf)
        return np.maximum(0.0, self._least_cap_w - self.drawn_w)

    @property
    def _kinds(self) -> int:
        """Classes of nodes, those of which there is no node now among them."""
        return int(max(self.problem.node_class.max(initial=-1), self.problem.klass.max(initial=-1))) + 1

    @cached_property
    def gpus(self) -> Ints:
        """GPUs of each configuration, [C]."""
        gpus: Ints = self.problem.width * self.problem.per_node
        return gpus

    @cached_property
    def most_w(self) -> Floats:
        """Power that each configuration adds if its nodes have no other jobs, [C]."""
        problem, power = self.problem, self.power
        wakes_w = np.zeros(self._kinds)
        np.maximum.at(wakes_w, problem.node_class, power.idle_w - power.rest_w)
        return np.asarray(power.busy_w + problem.width * wakes_w[problem.klass])

    def on(self, nodes: Ints) -> Bools:
        """Which of *nodes* have jobs now."""
        on: Bools = self.used[nodes, 0] > 0
        return on

    def _give_tightest(self, row: int, nodes: Ints, first: int, end: int) -> Ints:
        """Give configuration *row* those of *nodes* with the least sufficient room, and return them."""
        least = self.free[nodes, first:end].min(axis=1)
        enough = least >= self.problem.per_node[row]
        given: Ints = nodes[enough][ranked(least[enough])][: self.problem.width[row]]
        self._give(row, given, first, end)
        return given

    def _give(self, row: int, nodes: Ints, first: int, end: int, jobs: int = 1) -> None:
        """Give configuration *row* these *nodes*, or take them back (-1)."""
        problem, power = self.problem, self.power
        self.free[nodes, first:end] -= jobs * problem.per_node[row]
        before = self.used[nodes, first:end] > 0
        self.used[nodes, first:end] += jobs
        woken = (self.used[nodes, first:end] > 0).astype(np.int64) - before
        wakes_w = (power.idle_w - power.rest_w)[nodes]
        self.drawn_w[first:end] += jobs * power.busy_w[row] + (woken * wakes_w[:, None]).sum(axis=0)
        klass = int(problem.klass[row])
        self._taken = {key: full for key, full in self._taken.items() if key[0] != klass}

    def pieces(self, starts_s: Floats, time_s: float) -> tuple[Ints, Ints]:
        """Return the first piece of *time_s* from each of *starts_s*, and the one after the last, [S] each."""
        last = len(self.edges_s) - 1
        first = np.floor((starts_s - self.from_s) / self.piece_s + 1e-9).astype(np.int64)
        end = np.ceil((starts_s + time_s - self.from_s) / self.piece_s - 1e-9).astype(np.int64)
        return np.minimum(np.maximum(first, 0), last - 1), np.minimum(np.maximum(end, 1), last)

    def _without_room(self, klass: int, gpus: int, nodes: Ints) -> Ints:
        """Number of pieces before each edge in which each of *nodes* has fewer than *gpus* free, [nodes, B + 1]."""
        if (klass, gpus) not in self._taken:
            full = np.zeros((len(nodes), self.free.shape[1] + 1), dtype=np.int64)
            np.cumsum(self.free[nodes] < gpus, axis=1, out=full[:, 1:])
            self._taken[klass, gpus] = full
        return self._taken[klass, gpus]


# -- pieces with pauses


PAUSED, RUNNING, WAITING = 0, 1, 2  # what a job did before a piece of time; one that waits was not stopped by us
MOST_PAUSES = 8


@njit(cache=True, nogil=True)
def cheapest_pieces(
    cost: Floats, open_: Bools, need: int, again: int, state: int, delay: float
) -> tuple[float, Bools]:  # fmt: skip
    """Return the least cost of *need* pieces of work, infinity if they do not fit, and the pieces it runs in, [B].

    A dynamic program over pieces, the work left, and what the job did before. To run after a pause adds *again* pieces
    of work; a piece in which it does not run costs *delay*. Of equals, it runs earlier.

    Parameters
    ----------
    cost
        Of running in each piece, [B].
    open_
        Pieces in which it may run, [B].
    state
        ``RUNNING`` if it runs now, else ``WAITING``.
    """
    pieces, most = len(cost), need + again * MOST_PAUSES
    runs = np.zeros((pieces, most + 1, 3), dtype=np.bool_)
    later = np.full((most + 1, 3), np.inf)
    later[0] = 0.0
    for b in range(pieces - 1, -1, -1):
        now = np.full((most + 1, 3), np.inf)
        now[0] = 0.0
        for left in range(1, most + 1):
            for before in range(3):
                off = delay + later[left, WAITING if before == WAITING else PAUSED]
                todo = left + again if before == PAUSED else left
                on = np.inf
                if open_[b] and todo <= most:
                    on = cost[b] + later[todo - 1, RUNNING]
                runs[b, left, before] = on < np.inf and on <= off + 1e-12 * abs(off)
                now[left, before] = on if runs[b, left, before] else off
        later = now
    chosen = np.zeros(pieces, dtype=np.bool_)
    left, before = need, state
    total = later[need, state]
    if total < np.inf:
        for b in range(pieces):
            if left == 0:
                break
            if runs[b, left, before]:
                left = (left + again if before == PAUSED else left) - 1
                chosen[b], before = True, RUNNING
            elif before != WAITING:
                before = PAUSED
    return total, chosen
