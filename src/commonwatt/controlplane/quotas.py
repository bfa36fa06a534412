"""Limits of what tenants and accounts have at once and use in a period: which jobs may not start, and why."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Literal

from commonwatt.control.controller import Controller
from commonwatt.control.events import Event, EventKind
from commonwatt.control.quotas import Quota, Use
from commonwatt.control.scheduling import JobCondition
from commonwatt.model.live import AccountLimits, LiveSpec, TenantLimits
from commonwatt.model.units import NANO, plural
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import JobRow

__all__ = ["SETTING", "Quotas", "period_of"]

SETTING = "budget_period"
_UJ_PER_KWH, _US_PER_HOUR = 3.6e12, 3.6e9

Usage = Mapping[str, int | None]
"""What a tenant has used, by column of the ledger; ``None``: unknown."""


@dataclass(frozen=True)
class _Account:
    """Key of an account, which is never that of a tenant."""

    name: str


@dataclass(frozen=True)
class _Array:
    """Key of the tasks of a tenant's array, by the number of its first job."""

    tenant: str
    first: int


def _named(key: Hashable) -> str:
    if isinstance(key, _Array):
        return f"array {key.first}"
    return f"account {key.name}" if isinstance(key, _Account) else f"tenant {key}"


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum; ``None`` if any is unknown."""
    known = list(amounts)
    return None if None in known else sum(amount for amount in known if amount is not None)


def period_of(now_s: float, kind: Literal["day", "week", "month"]) -> tuple[float, float]:
    """Return when the period began that *now_s* is in, and when it ends; seconds since 1970, by the calendar in UTC."""
    today = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if kind == "day":
        begin, end = today, today + timedelta(days=1)
    elif kind == "week":
        begin = today - timedelta(days=today.weekday())
        end = begin + timedelta(days=7)
    else:
        begin = today.replace(day=1)
        end = (begin + timedelta(days=32)).replace(day=1)
    return begin.timestamp(), end.timestamp()


@dataclass
class Quotas:
    """Keeps a controller from starting jobs of tenants that have as much as they may have.

    Running jobs are left alone: a budget that is used up keeps others from starting until the next period. It counts
    from the beginning of the period, or from when the store first saw a budget.
    """

    live: LiveSpec
    store: ControllerStore
    controller: Controller
    _arrays: dict[int, tuple[_Array, int]] = field(default_factory=dict)  # by handle, with the most that may run
    _why: dict[int, str] = field(default_factory=dict)  # of jobs that may not start: the reason, by handle
    _end_s: float | None = None  # of the period, while a budget is used up

    def next_s(self) -> float | None:
        """When jobs may start that may not now, though nothing happens before."""
        return self._end_s

    def add(self, handle: int, row: JobRow) -> None:
        """Take note of a job that was registered: a task of an array may have to wait for others of it."""
        batch = row.file.batch
        if batch is not None and batch.array is not None and batch.array_most is not None:
            self._arrays[handle] = _Array(row.tenant, batch.array[0] or row.id), batch.array_most

    def look(self, tick: Tick, now_s: float) -> bool:
        """Mark the jobs that may not start now; the log says why, once. Returns whether they are others than before."""
        limits = self._limits()
        quotas, jobs = self.controller.quotas, self.controller.registry
        quotas.groups = {name: [_Account(of) for of in self.live.accounts_of(name)] for name in jobs.tenants}
        self._arrays = {handle: of for handle, of in self._arrays.items() if handle in jobs.active}
        quotas.of_jobs = {handle: (array,) for handle, (array, _) in self._arrays.items()}
        for array, most in sorted(self._arrays.values(), key=itemgetter(1), reverse=True):
            limits[array] = TenantLimits(running_jobs=most)  # the least that any task says
        quotas.limits = {key: Quota(of.running_jobs, of.gpus) for key, of in limits.items()}
        used_up = dict(self._used_up(limits, tick, now_s))
        marked: dict[int, str] = {}
        use = quotas.use(self.controller.gpus)
        for handle in sorted(jobs.active - jobs.nodes.keys()) if limits else ():
            own = [key for key in quotas.keys(handle, -1) if key in limits]
            why = next((used_up[key] for key in own if key in used_up), None)
            for key in own:
                why = why or self._beyond(_named(key), limits[key], use.get(key, Use()), self._least(handle))
            if why is not None:
                marked[handle] = why[0]
                self._say(handle, *why, now_s)
        for handle in self._why.keys() - marked.keys():
            self.controller.explain_again(handle)
            self.controller.decide_anew()
        self.controller.scheduling.mark_only(marked, JobCondition.QUOTA)
        others = marked.keys() != self._why.keys()
        self._why = marked
        return others

    def _limits(self) -> dict[Hashable, TenantLimits | AccountLimits]:
        """Return what limits running jobs, by tenant and account."""
        limits: dict[Hashable, TenantLimits | AccountLimits] = {
            name: self.live.limits_of(name) for name in self.controller.registry.tenants
        }
        limits |= {_Account(name): account for name, account in self.live.accounts.items()}
        return {key: own for key, own in limits.items() if own.of_running}

    def _say(self, handle: int, reason: str, sentence: str, now_s: float) -> None:
        if self._why.get(handle) != reason:
            name = self.controller.registry.names[handle]
            event = Event(now_s, EventKind.WAITS, handle, reason=reason, text=f"{name} waits: {sentence}")
            self.controller.log.append(event)

    def _least(self, handle: int) -> int:
        """Return the fewest GPUs a job can run with."""
        jobs = self.controller.registry
        first, count = int(jobs.job("first")[handle]), int(jobs.job("count")[handle])
        rows = slice(first, first + count)
        return int((jobs.row("width")[rows] * jobs.row("per_node")[rows]).min())

    @staticmethod
    def _beyond(
        whose: str, limits: TenantLimits | AccountLimits, use: Use, gpus: int
    ) -> tuple[str, str] | None:  # fmt: skip
        """Return why a job with so many GPUs would exceed a quota; ``None`` if it would not."""
        frees = "it can start when one of them ends"
        if limits.running_jobs is not None and use.jobs >= limits.running_jobs:
            has = plural(use.jobs, "running job")
            return "quota", f"{whose} has {has} and may have {limits.running_jobs}; {frees}"
        if limits.gpus is not None and use.gpus + gpus > limits.gpus:
            needs = f"the job needs {gpus}"
            return "quota", f"jobs of {whose} use {use.gpus} of {limits.gpus} GPUs, and {needs}; {frees}"
        return None

    def _used_up(
        self, limits: Mapping[Hashable, TenantLimits | AccountLimits], tick: Tick, now_s: float
    ) -> Iterator[tuple[Hashable, tuple[str, str]]]:
        """Yield the tenants and accounts that have used up a budget, each with the reason and a sentence."""
        budgets = {key: own for key, own in limits.items() if own.has_budget}
        self._end_s = None
        if not budgets:
            return
        begin_s, end_s = period_of(now_s, self.live.budget_period)
        used = self.store.tenant_usage()
        before = self._before(used, tick, begin_s)
        since, until = (datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d") for at_s in (begin_s, end_s))
        for key, of in budgets.items():
            tenants = of.tenants if isinstance(of, AccountLimits) else (str(key),)
            for what, unit, budget, scale in (
                ("gpu_us", "GPU h", of.gpu_hours, _US_PER_HOUR), ("energy_uj", "kWh", of.energy_kwh, _UJ_PER_KWH),
                ("cost_n", "of electricity cost", of.cost, NANO),
            ):  # fmt: skip
                now, then = (_sum(usage.get(name, {}).get(what, 0) for name in tenants) for usage in (used, before))
                if budget is None or now is None or then is None or (now - then) / scale < budget:
                    continue
                self._end_s = end_s
                spent = f"has used {(now - then) / scale:.6g} of {budget:g} {unit} since {since}"
                yield key, ("budget", f"{_named(key)} {spent}; the next period begins on {until} (UTC)")
                break

    def _before(self, used: Mapping[str, Usage], tick: Tick, begin_s: float) -> Mapping[str, Usage]:
        """Return what tenants had used when the period began; written down when a new one begins."""
        kept = self.store.settings().get(SETTING)
        if kept is None or kept["since_s"] < begin_s:
            kept = tick.settings[SETTING] = {"since_s": begin_s, "used": {name: dict(of) for name, of in used.items()}}
        usage: Mapping[str, Usage] = kept["used"]
        return usage
