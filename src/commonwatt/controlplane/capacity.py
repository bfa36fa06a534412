"""The capacity plan of a live cluster: which nodes stay on, forecast from the demand so far; and power commands.

These wait for nothing: a refusal is logged once, and nothing else waits for it. A node that did not wake is down for a
while, so that decisions turn to others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from commonwatt import forecasting
from commonwatt.capacity import calibration_steps, check_spec
from commonwatt.control.capacity import Capacity
from commonwatt.control.engine import Engine, NodeView, SetPower
from commonwatt.control.events import EventKind
from commonwatt.engines.kubernetes.user_requests import LateError
from commonwatt.model.arrays import Bools
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.demand import DemandSeries
from commonwatt.model.electricity import Tariff
from commonwatt.model.errors import CommonwattError, EngineDownError, EngineError, InputError
from commonwatt.model.nodes import Cluster
from commonwatt.model.pools import Pools
from commonwatt.model.units import DAY_S, plural
from commonwatt.planning.capacity import (
    FitCache,
    Past,
    check_capacity,
    check_forecaster,
    demand_of_samples,
    make_capacity,
)
from commonwatt.store.records import EventRow, SampleRow

__all__ = ["PowerCommands", "check_plan", "live_capacity", "since_s"]

_RENEW_S = 3600.0
_NEARLY = 0.95

log = logging.getLogger("commonwatt.capacity")


def check_plan(plan: CapacitySpec, cluster: Cluster, folder: Path, *, knows_the_future: bool = False) -> None:
    """Raise, before anything runs, on a plan that cannot work here whatever the demand will be.

    Only a simulation of the past *knows_the_future*.

    Raises
    ------
    InputError
        For a policy that needs the future, states no node has or that are too slow, and an unknown forecaster.
    MissingExtraError
        If a package the forecaster needs is not installed.
    """
    if plan.policy == "foresight" and not knows_the_future:
        raise InputError("a policy that needs no future", field="capacity.policy", value=plan.policy)
    check_spec(plan, cluster)
    check_forecaster(plan, folder)


def live_capacity(
    plan: CapacitySpec, cluster: Cluster, samples: Sequence[SampleRow], folder: Path, seed: int, now_s: float,
    fits: FitCache, tariff: Tariff | None = None,
) -> Capacity:  # fmt: skip
    """Build a plan that ``check_plan`` accepted, from the *samples* so far.

    While its forecaster cannot be fitted to them (too few, or any other reason), the demand of now stays on, and the
    plan is due for renewal in an hour. The predictor in *fits* is reused until twice as much demand is known, for a day
    at most; then the plan is due for renewal. So it is pool by pool: samples from before the configuration had pools do
    not say what each of them wanted.
    """
    pools = Pools.of(plan, cluster)
    if len(pools) > 1:
        return _of_pools(plan, cluster, pools, samples, folder, seed, now_s, fits, tariff)
    plan = plan.model_copy(update={"pools": None, "share": ()})  # one pool: all demand is its
    demand = demand_of_samples(samples, plan.step_s)
    past = Past({} if demand is None else {(plan.step_s, plan.history_days): demand}, folder)
    try:
        check_capacity(plan, cluster, past)
        _check_enough(plan, demand)
        return _made(plan, cluster, past, seed, now_s, fits, tariff)
    except Exception as error:  # the libraries' own errors, too: jobs must be placed all the same
        if not plan.forecasts:
            raise
        ours = isinstance(error, CommonwattError)
        log.warning("no forecast yet: what is wanted now stays on", extra={"cause": str(error)}, exc_info=not ours)
    plain = make_capacity(_plain(plan), cluster, past, seed, tariff=tariff)
    plain.renew_s = now_s + _RENEW_S
    return plain


def _plain(plan: CapacitySpec) -> CapacitySpec:
    return plan.model_copy(update={"policy": "last-value", "delay_price": None})


def _of_pools(
    plan: CapacitySpec, cluster: Cluster, pools: Pools, samples: Sequence[SampleRow], folder: Path, seed: int,
    now_s: float, fits: FitCache, tariff: Tariff | None,
) -> Capacity:  # fmt: skip
    """Build a plan with pools; in those that cannot be forecast yet, the demand of now stays on."""
    key, parts = (plan.step_s, plan.history_days), {}
    for name in pools.names:
        demand = demand_of_samples(samples, plan.step_s, name)
        parts[str(plan.pools), name] = Past({} if demand is None else {key: demand}, folder)
    due, plain = now_s >= fits.due_s, []
    if due:
        fits.forget()

    def otherwise(name: str, error: Exception) -> None:
        plain.append(name)
        ours = isinstance(error, CommonwattError)
        cause = {"cause": str(error), "pool": name}
        log.warning("no forecast yet: what is wanted now stays on", extra=cause, exc_info=not ours)

    def check(name: str) -> None:
        _check_enough(plan, parts[str(plan.pools), name].demand(plan))

    past = Past({}, folder, pools=parts)
    made = make_capacity(plan, cluster, past, seed, fits=fits, tariff=tariff, check=check, otherwise=otherwise)
    if plain:
        fits.due_s = now_s + _RENEW_S
    elif _learns(plan) and due:
        length = min(len(demand) for part in parts.values() if (demand := part.demand(plan)) is not None)
        fits.due_s = now_s + min(DAY_S, max(_RENEW_S, plan.step_s * length))
    if plain or _learns(plan):
        made.renew_s = fits.due_s
    return made


def _made(
    plan: CapacitySpec, cluster: Cluster, past: Past, seed: int, now_s: float, fits: FitCache, tariff: Tariff | None
) -> Capacity:
    """Build the plan, refitting what is due, and set its renewal to when that will be due again."""
    due, demand = now_s >= fits.due_s, past.demand(plan)
    if due:
        fits.forget()
    made = make_capacity(plan, cluster, past, seed, fits=fits, tariff=tariff)
    if demand is not None and _learns(plan):
        if due:
            fits.due_s = now_s + min(DAY_S, max(_RENEW_S, plan.step_s * len(demand)))
        made.renew_s = fits.due_s
    return made


def _learns(plan: CapacitySpec) -> bool:
    known = forecasting.PREDICTORS
    return plan.forecasts and plan.forecaster in known and known[plan.forecaster].learns


def _check_enough(plan: CapacitySpec, demand: DemandSeries | None) -> None:
    """Raise ``InputError`` while the forecaster would learn next to nothing and more demand will be recorded."""
    if demand is None or not _learns(plan):
        return
    least, most = forecasting.PREDICTORS[plan.forecaster].least, plan.history_days * DAY_S / plan.step_s
    fitted = len(demand) - calibration_steps(plan, len(demand))
    if fitted < least and len(demand) < _NEARLY * most:  # the first and the last steps are seldom whole
        expected = f"{plural(least, 'step')} of demand to fit to, besides those it is calibrated on"
        raise InputError(expected, field="capacity.forecaster", value=plural(fitted, "step"))


def since_s(plan: CapacitySpec, now_s: float) -> float:
    """Return the time from which samples count for *plan*."""
    return now_s - plan.history_days * DAY_S


# -- power


_power_log = logging.getLogger("commonwatt.power_commands")

_RETRY_S = 600.0
"""How long a node that could not be put to sleep stays on before that is tried again, which takes time."""
_FIRST_S, _LONGEST_S = 60.0, 3600.0
"""How long a node that did not wake is down before that is tried again, and at most, as it is doubled each time."""


class _Unwoken(NamedTuple):
    """A node that did not wake: why, for how long it is down, and until when."""

    cause: str
    pause_s: float
    until_s: float


@dataclass
class PowerCommands:
    """Gives power commands one by one, and remembers refusals, and nodes that did not wake.

    Parameters
    ----------
    engine
        Where the nodes are.
    now_s
        The time.
    """

    engine: Engine
    now_s: Callable[[], float]
    _reported: dict[int, set[str]] = field(default_factory=dict)  # causes by node since it last obeyed
    _refused_s: dict[int, float] = field(default_factory=dict)  # when a node could not be put to sleep
    _fresh: dict[tuple[float, str], list[int]] = field(default_factory=dict)  # nodes by time and cause, to be reported
    _given: dict[str | None, list[int]] = field(default_factory=dict)  # nodes by the state they were ordered to, or on
    _waking: set[int] = field(default_factory=set)  # nodes with an order to wake
    _unwoken: dict[int, _Unwoken] = field(default_factory=dict)  # until they are on
    _news: bool = False  # one of them is new

    def give(self, commands: Collection[SetPower]) -> None:
        """Give *commands*; raises ``EngineDownError`` if the engine does not answer."""
        for command in commands:
            n, now_s = command.node, self.now_s()
            if command.state is not None and now_s < self._refused_s.get(n, -_RETRY_S) + _RETRY_S:
                continue
            try:
                self.engine.apply([command])
            except EngineDownError:
                raise
            except EngineError as error:
                if command.state is not None:
                    self._refused_s[n] = now_s
                elif not isinstance(error, LateError):  # which may be executed
                    self._waking.discard(n)
                    before = self._unwoken.get(n, _Unwoken("", _FIRST_S / 2, now_s))
                    pause_s = min(_LONGEST_S, 2 * before.pause_s)
                    self._unwoken[n], self._news = _Unwoken(str(error), pause_s, now_s + pause_s), True
                self._refuse(n, str(error), now_s)
            else:
                self._given.setdefault(command.state, []).append(n)
                (self._waking.add if command.state is None else self._waking.discard)(n)
                self._reported.pop(n, None)
                self._refused_s.pop(n, None)

    def has_news(self) -> bool:
        """Return whether decisions have to turn from a node that did not wake; says so once."""
        news, self._news = self._news, False
        return news

    def look(self) -> None:
        """Ask why nodes sleep again although they were ordered to wake."""
        if not self._waking:
            return
        with suppress(EngineError):  # at the next look
            view = self.engine.nodes()
            slept = [n for n in sorted(self._waking) if view.power_state[n] >= 0]
            self._waking -= {*slept, *(n for n in self._waking if _is_on(view, n))}
            self.give([SetPower(n, None) for n in slept])

    def forget_orders(self) -> None:
        """Drop the orders to wake: a dry run begins."""
        self._waking.clear()

    @property
    def unwoken(self) -> Mapping[int, str]:
        """Nodes that are down now as they did not wake, and why."""
        now_s = self.now_s()
        return {n: one.cause for n, one in self._unwoken.items() if now_s < one.until_s}

    def offered(self, view: NodeView) -> NodeView:
        """Return *view* for decisions: nodes that did not wake are down for a while."""
        for n in [n for n in self._unwoken if _is_on(view, n)]:
            del self._unwoken[n]
        if not (down := list(self.unwoken)):
            return view
        usable, wait_s, states = view.usable_gpus.copy(), view.wait_s.copy(), view.power_state.copy()
        up: Bools = view.usable_gpus > 0 if view.up is None else view.up.copy()
        usable[down], wait_s[down], states[down], up[down] = 0, 0.0, -1, False
        return replace(view, usable_gpus=usable, wait_s=wait_s, power_state=states, up=up)

    def take(self, names: Sequence[str]) -> list[EventRow]:
        """Return what was ordered since the last call, and the refusals, each node and cause once.

        *names* are those of the nodes.
        """
        fresh, self._fresh = self._fresh, {}
        given, self._given = self._given, {}
        rows = []
        for state, nodes in given.items():
            kind = EventKind.WOKEN if state is None else EventKind.ASLEEP
            verb = "woken" if state is None else f"put to sleep ({state})"
            text = f"{plural(len(nodes), 'node')} {'is' if len(nodes) == 1 else 'are'} {verb}"
            named = tuple(names[n] for n in sorted(set(nodes)))
            rows.append(EventRow(0, self.now_s(), kind, None, named, 0, "capacity-plan", text))
        for (at_s, cause), nodes in fresh.items():
            named = tuple(names[n] for n in nodes)
            sentence = f"a power command failed: {cause}"
            _power_log.warning("nodes are not put to sleep or woken", extra={"nodes": list(named), "cause": cause})
            rows.append(EventRow(0, at_s, EventKind.NOT_POWERED, None, named, 0, "refused", sentence))
        return rows

    def _refuse(self, n: int, cause: str, now_s: float) -> None:
        reported = self._reported.setdefault(n, set())
        if cause not in reported:
            reported.add(cause)
            same = next((key for key in self._fresh if key[1] == cause), (now_s, cause))
            self._fresh.setdefault(same, []).append(n)


def _is_on(view: NodeView, n: int) -> bool:
    return bool(view.power_state[n] < 0 and view.wait_s[n] <= 0 and view.usable_gpus[n] > 0)
