"""Numbers as text a person reads at a glance. Unknown (``None``, NaN, infinite) is "unknown", never 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from commonwatt.model.units import DAY_S, HOUR_S, digits, money, plural

__all__ = [
    "UNKNOWN",
    "carbon",
    "column",
    "count",
    "cycles",
    "duration",
    "energy",
    "is_finite",
    "money",
    "percent",
    "plural",
    "power_unit",
    "ratio",
    "savings",
    "typical",
]

UNKNOWN = "unknown"
_SPACE = "\N{NO-BREAK SPACE}"
_MINUS = "\N{MINUS SIGN}"
_TIMES = (("s", 1.0, 99.5), ("min", 60.0, 99.5 * 60), ("h", HOUR_S, 2 * DAY_S), ("days", DAY_S, math.inf))


def is_finite(value: float | None) -> bool:
    """Whether *value* is a finite number."""
    return value is not None and math.isfinite(value)


def column(show: Callable[[float | None, float | None], str], values: Iterable[float | None]) -> list[str]:
    """Return what *show* (``energy``, ``carbon``, ``duration``) makes of each of *values*, all in one unit."""
    values = list(values)
    like = typical(values)
    return [show(value, like) for value in values]


def typical(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the sizes that are known and not 0, whose unit suits all; ``None`` without any."""
    logs = [math.log(abs(value)) for value in values if value and math.isfinite(value)]
    return math.exp(sum(logs) / len(logs)) if logs else None


def energy(kwh: float | None, like: float | None = None) -> str:
    """Return energy given in kWh in the unit that suits it, or that suits *like*: Wh, kWh, MWh, GWh."""
    return _scaled(kwh, (("GWh", 1e6), ("MWh", 1e3), ("kWh", 1.0), ("Wh", 1e-3)), like)


def carbon(kg: float | None, like: float | None = None) -> str:
    """Return a mass given in kg in the unit that suits it, or that suits *like*: g, kg, t."""
    return _scaled(kg, (("t", 1e3), ("kg", 1.0), ("g", 1e-3)), like)


def power_unit(watts: float) -> tuple[str, float]:
    """Return a unit that suits *watts*, and how many watts it is."""
    for unit, size in (("MW", 1e6), ("kW", 1e3)):
        if watts >= 2 * size:
            return unit, size
    return "W", 1.0


def duration(seconds: float | None, like: float | None = None) -> str:
    """Return a length of time in the unit that suits it, or that suits *like*: ``42 s``, ``4.2 min``, ``2.4 days``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    size, sign = abs(seconds), _MINUS if seconds < 0 else ""
    if like is None and size < 0.05:
        return f"0{_SPACE}s"
    unit, one = next((unit, one) for unit, one, upto in _TIMES if (size if like is None else like) < upto)
    text = f"{size:,.0f}" if unit == "s" and size >= 10 else digits(size / one)
    return f"{sign}{text}{_SPACE}{unit}"


def percent(share: float | None, *, signed: bool = False) -> str:
    """Return *share* (1 is the whole) in percent."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    size = abs(share) * 100
    text = f"{size:,.0f}" if size >= 99.95 or size == 0 else f"{size:.1f}"
    if 0 < size < 0.05:
        text = "less than 0.1"
    sign = (_MINUS if share < 0 else "+" if share > 0 else "") if signed else (_MINUS if share < 0 else "")
    return f"{sign}{text}%"


def ratio(value: float | None) -> str:
    """Return how many times as large: ``1.04 times``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}×" if value >= 99.5 else f"{value:.1f}×" if value >= 9.95 else f"{value:.2f}×"


def savings(saved: Mapping[str, float | str | None], currency: str, *, dry: bool = False) -> str:
    """Return what was *saved* against the baseline, as the control plane estimates it, in a sentence or two."""
    sizes = {name: value for name, value in saved.items() if isinstance(value, float | int)}

    def part(name: str, what: str, show: Callable[[float], str]) -> str:
        if (value := sizes.get(name)) is None:
            return f"{what} unknown"
        whole = sizes.get(f"baseline_{name}")
        share = f" ({percent(abs(value) / whole)})" if whole else ""
        return f"{show(abs(value))}{share} {'less' if value >= 0 else 'more'} {what}"

    parts = [part("energy_kwh", "energy", energy), part("cost", "cost", partial(money, currency=currency))]
    if sizes.get("tardiness_cost"):
        parts.append(part("tardiness_cost", "tardiness cost", partial(money, currency=currency)))
    jobs, period_s = sizes.get("jobs"), sizes.get("period_s")
    basis = f", simulated on {plural(int(jobs), 'job')} of the last {duration(period_s)}" if jobs and period_s else ""
    text = f"{'Would save' if dry else 'Saves'} against {saved.get('baseline')}{basis}: {', '.join(parts)}."
    plans = [saved.get("capacity"), saved.get("baseline_capacity")]
    if any(plans):
        on = [f"nodes follow the capacity plan {plan}" if plan else "all nodes stay on" for plan in plans]
        text += f" With this policy {on[0]}, with the baseline {on[1]}."
    return f"{text} No forecast is included: {saved['no_forecast']}." if saved.get("no_forecast") else text


def count(value: float | None) -> str:
    """Return a whole number with thousands separated."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.0f}"


def cycles(value: float) -> str:
    """Return a number of cycles with thousands separated; a small one, which may be a part of one, as it is."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _scaled(value: float | None, units: tuple[tuple[str, float], ...], like: float | None) -> str:
    """Return *value* in the first unit that it, or *like*, is at least one of, else the last."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size, sign = abs(value), _MINUS if value < 0 else ""
    unit, one = next((pair for pair in units if (size if like is None else like) >= 0.9995 * pair[1]), units[-1])
    return f"{sign}{digits(size / one)}{_SPACE}{unit}"
