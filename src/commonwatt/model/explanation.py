"""Why placement decided as it did: a typed reason with its numbers, and the sentence they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from commonwatt.model.units import DAY_S, amount_of, chance, money, plural, span, span_at_most, span_between

__all__ = ["CONDITION", "PlacementExplanation", "Reason"]

_DUE_BEFORE, _UNKNOWN = "it was submitted at its due date or later", "no run time is known yet"
_PLANNED = {"runs": "would run", "is": "would be"}


class Reason(StrEnum):
    """Why a job got what it got."""

    CHEAPEST_IN_TIME = "cheapest-in-time"
    IN_TIME = "in-time"
    FASTEST = "fastest"
    LATE = "late"
    KEPT = "kept"
    PACKED = "packed"
    AS_REQUESTED = "as-requested"
    FIRST_FREE = "first-free"
    NO_ROOM = "no-room"
    HELD_BACK = "held-back"
    NOT_YET = "not-yet"
    RESERVED = "reserved"
    NEXT = "next"
    NODES_DOWN = "nodes-down"
    DISPLACED = "displaced"
    LOWER_PRICE = "lower-price"
    LESS_CARBON = "less-carbon"
    POWER_CAP = "power-cap"
    CPUS_OR_MEMORY = "cpus-or-memory"
    OVER_SHARE = "over-share"


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """Why a job got what it got: a typed reason with its numbers, and the sentence they make.

    Attributes
    ----------
    job
        Its name.
    nodes
        Names of the nodes it runs on; where it is displaced, of those it leaves.
    gpus
        GPUs it runs with; where it waits, the fewest it can run with.
    cost, cheapest_cost
        Energy cost of running it to its end, and of the cheapest configuration in time; ``None``: not weighed.
        Where it waits: the least for which it could start now.
    alternative_fits
        Whether a better configuration would fit; ``None``: there is none.
    takers, other_takers
        Jobs of its tenant that get its GPUs, and how many jobs of other tenants do.
    restart_s
        How much longer it takes, at least, when it is restarted; ``None``: it cannot run in another configuration.
    due_at_submission
        Whether it was due no later than it was submitted.
    spare_s
        From its expected end to its due date, negative if late; where it waits, at most. ``None``: no due date.
    expected_s, likely_s
        How much longer it is expected to run, and the range of 8 cases in 10, where that is not certain.
    similar_jobs, unknown
        From how many jobs that have ended these come; ``None``: not from any. Whether no run time is known yet.
    in_time
        Probability that it meets its due date, where that is not certain; ``None``: it is, or there is none.
    by_limit
        Whether its end is that of its declared limit, so that it may end earlier; ``False``: it has none, and its end
        is a guess; ``None``: neither.
    starts_within_s
        In how long the GPUs reserved for it are free, or the price is lower; ``None``: neither.
    for_oldest
        Whether the GPUs it could have are reserved for the oldest job that cannot start.
    unstopped
        Limits of the policy that keep running jobs on GPUs which would be room for it.
    saved, saved_part
        What it saves by waiting for that price, in currency, or kg of CO2 where carbon is minimised; and as a part of
        what it would cost.
    currency
        Of the costs; empty: unknown.
    tenant, received_gpus, entitled_gpus
        Its tenant, the GPUs that has with this decision, and those it is entitled to, by the weights of their types;
        ``None``: that is not why it waits.
    used_share, half_life_s
        The tenant's part of all past use over its part of all weights, and the half-life with which that counts.
    lacks, needs, left
        Where it waits for CPUs, memory or another resource: which, how much it needs on each of its nodes, and how much
        the node that is nearest to it (``nodes``) has left. Memory and storage in GiB; empty: not known.
    shared_w
        What services and fractional jobs draw under the power cap that it waits for; ``None``: nothing.
    power_limit
        Of its GPUs, as a part of their highest.
    gone
        Nodes it ran on that do not have the GPUs of their jobs any more.
    """

    reason: Reason
    job: str
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    cost: float | None = None
    cheapest_cost: float | None = None
    alternative_fits: bool | None = None
    takers: tuple[str, ...] = ()
    other_takers: int = 0
    restart_s: float | None = None
    due_at_submission: bool = False
    spare_s: float | None = None
    expected_s: float | None = None
    likely_s: tuple[float, ...] = ()
    similar_jobs: int | None = None
    unknown: bool = False
    in_time: float | None = None
    by_limit: bool | None = None
    starts_within_s: float | None = None
    for_oldest: bool = False
    unstopped: tuple[str, ...] = ()
    saved: float | None = None
    saved_part: float | None = None
    currency: str = ""
    tenant: str = ""
    received_gpus: float | None = None
    entitled_gpus: float | None = None
    used_share: float | None = None
    half_life_s: float | None = None
    shared_w: float | None = None
    lacks: tuple[str, ...] = ()
    needs: tuple[float, ...] = ()
    left: tuple[float, ...] = ()
    power_limit: float = 1.0
    gone: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> PlacementExplanation:
        """Return the explanation with these fields, as ``facts`` and JSON give them; those missing have defaults."""
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in facts.items()}
        return cls(**values | {"reason": Reason(facts["reason"])})

    def facts(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as ``of`` takes them; reason and job are always there."""
        values = ((name, getattr(self, name), default) for name, default in _FIELDS)
        return {name: value for name, value, default in values if value is not default and value != default}

    @property
    def waits(self) -> bool:
        """Whether the job does not run."""
        return self.reason in _WAITS

    @property
    def sentence(self) -> str:
        """The reason in words."""
        return f"{self.job} {self._told()}"

    @property
    def planned_sentence(self) -> str:
        """The same, of a decision that a dry run does not carry out."""
        verb, _, rest = self._told().partition(" ")
        return f"{self.job} {_PLANNED.get(verb, verb)} {rest}"

    def _told(self) -> str:
        if not self.waits:
            return self._running()
        learnt = self.unknown or (self.likely_s and self.similar_jobs is not None)
        return f"{self._waiting()}; {self._likely()}" if learnt else self._waiting()

    def _likely(self) -> str:
        jobs, more = plural(self.similar_jobs or 0, "similar job"), " more" if self.reason is Reason.KEPT else ""
        if self.unknown:
            return _UNKNOWN if self.similar_jobs is None else f"it has run longer than {jobs}"
        return (
            f"it runs about {span_between(*self.likely_s)}{more}{'' if self.similar_jobs is None else f', by {jobs}'}"
        )

    def _running(self) -> str:
        ends = _DUE_BEFORE if self.due_at_submission else self._ends()
        limited = "" if self.power_limit == 1.0 else f" limited to {self.power_limit:.0%} of their power"
        head = f"runs on {_names(self.nodes)} with {_gpus(self.gpus)}{limited}"
        if self.reason is Reason.PACKED:
            return f"{head}, which another job has too, until one of the two ends"
        if self.reason is Reason.KEPT:
            return f"{head}, where it is; {ends}"
        if self.reason is Reason.AS_REQUESTED:
            return f"{head}, as its owner requested; {ends}"
        if self.reason is Reason.FIRST_FREE:
            return f"{head}: a free configuration, as none that it requested can be had; {ends}"
        if self.unknown:  # cheaper, faster or in time: all that is by a time that nobody knows
            return f"{head}; {ends}"
        if self.reason is Reason.CHEAPEST_IN_TIME:
            why = "the cheapest configuration" + ("" if self.spare_s is None else " that meets its due date")
            return f"{head}: {why} ({self._money(self.cost)} for energy); {ends}"
        if self.reason is Reason.FASTEST:
            late = "late in any case" if self._certain else "expected to be late"
            return f"{head}: the fastest one, as it is {late}; {ends}"
        why_not = "is free, but no better schedule was found with it" if self.alternative_fits else "does not fit now"
        if self.reason is Reason.LATE:
            return f"{head}: a faster configuration {why_not}; {ends}"
        meets = "" if self.spare_s is None else "it meets its due date there; "
        least, dearer = self._money(self.cheapest_cost), self._money(self.cost)
        prices = "" if least == dearer else f" ({least} instead of {dearer})"
        return f"{head}: {meets}a cheaper configuration{prices} {why_not}; {ends}"

    def _money(self, amount: float | None) -> str:
        return money(amount or 0.0, self.currency)

    @property
    def _certain(self) -> bool:
        return self.expected_s is None and self.by_limit is None

    def _ends(self) -> str:
        if self.unknown or self.expected_s is None:
            return self._likely() if self.unknown else _ends(self.spare_s, self.by_limit)
        likely = self._likely()
        if self.similar_jobs is None:
            between = f"{span_between(*self.likely_s)} in 8 of 10 cases"
            likely = f"it is expected to run {span(self.expected_s)} more ({between})"
        due = None if self.spare_s is None else self.in_time
        return f"{likely}{'; it has no due date' if due is None else f', and is {chance(due)} likely to be in time'}"

    def _saves(self) -> str:
        carbon = self.reason is Reason.LESS_CARBON
        part = "" if self.saved_part is None else f" ({100 * self.saved_part:.0f}%)"
        saved = f"it saves {f'{self.saved:.4g} kg of CO2' if carbon else self._money(self.saved)}{part}"
        what = "electricity of less carbon" if carbon else "a lower price of electricity"
        return f"{what} in {span(self.starts_within_s or 0.0)}{'' if self.unknown else f'; {saved}'}"

    def _beside(self) -> str:
        """What of the power cap is not left to jobs."""
        return "" if self.shared_w is None else f", of which services and fractional jobs draw {self.shared_w:.0f} W"

    def _in_time(self) -> str:
        if self.spare_s is None:
            return "; it has no due date"
        surely = "ends" if self._certain else "is expected to end"
        return f", and {surely} {span(self.spare_s)} before its due date or earlier"

    def _waiting(self) -> str:
        late = ""
        if self.due_at_submission:
            late = f"; {_DUE_BEFORE}"
        elif self.spare_s is not None and self.spare_s < 0:
            sure = "will" if self._certain else "is expected to"
            late = f"; it {sure} be late by {span(-self.spare_s)} or more"
        if self.reason is Reason.DISPLACED:
            whom, s = _listed(self.takers, self.other_takers), self.restart_s
            cause = f": its GPUs on {_names(self.nodes)} go to {whom}" if whom else f" on {_names(self.nodes)}"
            if self.gone:
                cause = f": too few usable GPUs are left on {_names(self.gone)}, as on a node that is lost"
            least = "as long as its configuration allows" if s is None else f"at least {span(s)} more"
            return f"is preempted{cause}; restarting from its last checkpoint takes {least}{self._beyond('; ')}{late}"
        if self.reason is Reason.NODES_DOWN:
            return f"waits: too many of its GPUs are down, drained or allocated to services{late}"
        if self.reason in (Reason.RESERVED, Reason.NEXT):
            whose = "the oldest that cannot start" if self.reason is Reason.RESERVED else "the next in order"
            sure = "starts" if self.expected_s is None else "is expected to start"
            begins = "nobody knows yet when it starts"
            if self.starts_within_s is not None:
                begins = f"it {sure} within {span_at_most(self.starts_within_s)}"
            return f"waits: {_gpus(self.gpus)} on {_names(self.nodes)} are reserved for it, {whose}; {begins}{late}"
        if self.reason in (Reason.LOWER_PRICE, Reason.LESS_CARBON) and self.starts_within_s is not None:
            head = f"is preempted on {_names(self.nodes)}, and waits" if self.nodes else "waits"
            return f"{head} for {self._saves()}{self._in_time()}"
        if self.reason is Reason.POWER_CAP:
            head = f"is preempted on {_names(self.nodes)}:" if self.nodes else f"waits: with {_gpus(self.gpus)} more,"
            return f"{head} the nodes would draw more than their power cap allows{self._beside()}{late}"
        if self.reason is Reason.CPUS_OR_MEMORY:
            if not set(self.lacks) <= {"cpu", "memory"}:
                return f"waits: nodes with {_gpus(self.gpus)} free do not take it: {self._short()}{late}"
            few = f"nodes with {_gpus(self.gpus)} free have too few CPUs or too little memory for it"
            return f"waits: {few}{f': {self._short()}' if self.lacks else ''}{late}"
        if self.reason is Reason.HELD_BACK and self.for_oldest:
            ends = "may" if self.unknown else "would"
            oldest = f"those are reserved for the oldest job that cannot start, and it {ends} not end in time"
            return f"waits although {_gpus(self.gpus)} are free: {oldest}{late}"
        if self.reason is Reason.NOT_YET and not self.unknown:
            in_time = " it would still be in time" if self.spare_s is not None and not late else " it may still start"
            added = f"starting now adds {self._money(self.cost)} of energy to this decision"
            return f"waits although {_gpus(self.gpus)} would fit: {added}, and at the next one{in_time}{late}"
        if self.reason in (Reason.HELD_BACK, Reason.NOT_YET):  # the latter without a time to reckon with
            return f"waits although {_gpus(self.gpus)} would fit: the room is kept for other jobs{late}"
        if self.reason is Reason.OVER_SHARE:
            return f"waits: too few GPUs are free, it needs at least {_gpus(self.gpus)}{self._beyond(', and ')}{late}"
        kept = " or ".join(_UNSTOPPED[name] for name in self.unstopped)
        kept = kept and f"; there would be enough with those of jobs that are not stopped, as they {kept}"
        return f"waits: too few GPUs are free, it needs at least {_gpus(self.gpus)}{kept}{late}"

    def _short(self) -> str:
        """What the nearest node lacks for it, and how much."""
        parts = []
        for name, needed, left in zip(self.lacks, self.needs, self.left, strict=True):
            if name.startswith(CONDITION):
                parts.append(f"has the {name}, which its pods do not tolerate")
            else:
                parts.append(f"has {amount_of(name, left)} left, and it needs {amount_of(name, needed)} there")
        return f"{_names(self.nodes)} {', and '.join(parts)}"

    def _beyond(self, before: str) -> str:
        """How its tenant is served, where jobs within their tenant's share come before it."""
        if self.entitled_gpus is None or self.received_gpus is None:
            return ""
        used = ""
        if self.used_share is not None and self.half_life_s is not None and self.used_share >= _USED_MORE:
            half = span(self.half_life_s) if self.half_life_s < 2 * DAY_S else f"{self.half_life_s / DAY_S:.3g} days"
            used = f", as it has used {self.used_share:.2g} times its share (half-life {half})"
        has = f"{self.tenant} has {_gpus(self.received_gpus)}, and is entitled to {self.entitled_gpus:.3g}{used}"
        return f"{before}it is beyond its tenant's share: {has}"


_FIELDS, _USED_MORE = tuple((part.name, part.default) for part in fields(PlacementExplanation)), 1.05
_UNSTOPPED = {
    "min_run_s": "have not run for long enough (min_run_s)",
    "wait_for_price": "run in the hours planned for them (wait_for_price)",
    "max_starts": "were started as often as they may be (max_starts)",
}
_WAITS = (
    Reason.NO_ROOM, Reason.HELD_BACK, Reason.RESERVED, Reason.NEXT, Reason.NODES_DOWN, Reason.DISPLACED,
    Reason.LOWER_PRICE, Reason.LESS_CARBON, Reason.POWER_CAP, Reason.CPUS_OR_MEMORY, Reason.NOT_YET,
    Reason.OVER_SHARE,
)  # fmt: skip

CONDITION = "taint "
"""Beginning of the names of resources that are conditions of a node."""


def _listed(names: Sequence[str], others: int) -> str:
    unnamed = "a job of another tenant" if others == 1 else f"{others} jobs of other tenants" if others else ""
    return " and ".join(filter(None, (_names(names), unnamed)))


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _gpus(count: float) -> str:
    return "1 GPU" if count == 1 else f"{count:.6g} GPUs"


def _ends(spare_s: float | None, by_limit: bool | None) -> str:
    if spare_s is None:
        return "it has no due date"
    when = f"{span(abs(spare_s))} {'before' if spare_s >= 0 else 'after'} its due date"
    if by_limit:
        return f"it ends by its time limit, {when} at the latest"
    return f"it ends {when}" if by_limit is None else f"it is expected to end {when}"
