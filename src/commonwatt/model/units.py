"""Constants of conversion, and counts in words. The package computes in seconds, watts, joules and GPUs."""

import math
import re

from commonwatt.model.errors import FieldError

__all__ = [
    "DAY_S",
    "HOUR_S",
    "J_PER_KWH",
    "MICRO",
    "NANO",
    "WEEK_S",
    "amount_of",
    "chance",
    "digits",
    "memory_gib",
    "money",
    "plural",
    "slurm_time_s",
    "span",
    "span_at_most",
    "span_between",
    "welfare_name",
    "welfare_shown",
]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
J_PER_KWH = 3.6e6
MICRO = 1_000_000
NANO = 1_000_000_000


def plural(number: int, noun: str) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_SPACE = "\N{NO-BREAK SPACE}"
_MINUS = "\N{MINUS SIGN}"
_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£"}


def money(value: float | None, currency: str) -> str:
    """Return *value* in *currency*: ``€12.30``, ``€1.25 million``, ``12.30 CHF``."""
    if value is None or not math.isfinite(value):
        return "unknown"
    size, sign = abs(value), _MINUS if value < 0 else ""
    if size >= 999_950:
        text = _million(size)
    elif size >= 999.995:
        text = f"{size:,.0f}"
    elif size >= 0.0995 or size == 0:
        text = f"{size:.2f}"
    elif size >= 0.000_1:
        text = f"{size:.2g}"
    else:
        sign, text = (">" if value < 0 else "<") + sign, "0.0001"
    symbol = _SYMBOLS.get(currency)
    return f"{sign}{symbol}{text}" if symbol else f"{sign}{text}{_SPACE}{currency}".rstrip()


def _million(size: float) -> str:
    for limit, word in ((1e9, "billion"), (1e6, "million")):
        if size >= limit * 0.999_95:
            return f"{digits(size / limit)}{_SPACE}{word}"
    return f"{size:,.0f}"


def digits(size: float) -> str:
    """Return three significant digits, none after the point from 100 on."""
    if size >= 99.95:
        return f"{size:,.0f}"
    if size >= 9.995:
        return f"{size:.1f}"
    return f"{size:.2f}" if size >= 0.995 else f"{size:.2g}"


_MEASURED = {"cpu": "CPUs", "memory": "GiB of memory", "ephemeral-storage": "GiB of ephemeral storage", "pods": "pods"}


def amount_of(resource: str, amount: float) -> str:
    """Return so much of a resource, as Kubernetes calls it, in words; memory and storage are in GiB."""
    name = _MEASURED.get(resource, f"GiB of {resource}" if resource.startswith("hugepages-") else f"of {resource}")
    return f"{max(0.0, amount):.6g} {name}"


def span(seconds: float) -> str:
    """Return a span of time: ``90 s``, ``10 min``, ``2.1 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def span_at_most(seconds: float) -> str:
    """Return a span of time that is not rounded down."""
    unit_s = 1.0 if seconds < 120 else 60.0 if seconds < 7200 else 360.0
    return span(unit_s * math.ceil(seconds / unit_s - 1e-6))


def span_between(low_s: float, high_s: float) -> str:
    """Return an interval of time: ``3 to 15 s``, ``90 s to 10 min``, or one span where both are shown alike."""
    low, high = span(low_s), span(high_s)
    if low == high:
        return high
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def chance(probability: float) -> str:
    """Return a probability as a share of a few outcomes can tell it: never none, never certainty."""
    if 0.1 <= probability <= 0.9:
        return f"{100 * probability:.0f}%"
    return "over 90%" if probability > 0.5 else "under 10%"


_SLURM_TIME = re.compile(r"(?:(?P<days>\d{1,5})-)?(?P<clock>\d{1,6}(?::\d{1,4}){0,2})", re.ASCII)


def slurm_time_s(text: str) -> float | None:
    """Return a time of ``sbatch --time`` (M, M:S, H:M:S, D-H, D-H:M or D-H:M:S), s; ``None`` if it is none."""
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        return None
    parts = [int(part) for part in match["clock"].split(":")]
    if match["days"] is not None:
        hours, minutes, rest = (*parts, 0, 0)[:3]
        return float(int(match["days"]) * DAY_S + hours * 3600 + minutes * 60 + rest)
    if len(parts) == 3:
        return float(parts[0] * 3600 + parts[1] * 60 + parts[2])
    minutes, rest = (*parts, 0)[:2]
    return float(minutes * 60 + rest)


def welfare_name(kind: str) -> str:
    """Return the name of a welfare as in a sentence: Nash is a person."""
    return kind.replace("nash", "Nash")


def welfare_shown(kind: str, value: float) -> str:
    """Return a welfare as shown: Nash welfare, whose logarithm is kept, as the weighted geometric mean."""
    return f"{math.exp(value) if 'nash' in kind else value:.4g}"


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.I)


def memory_gib(text: str) -> float:
    """Return a size as Slurm writes it, such as 500M or 64G (without a unit: MiB), in GiB; raises ``ValueError``."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise FieldError("a size such as 500M or 64G", value=text)
    return float(match[1]) * 1024.0 ** ("KMGT".index(match[2].upper() or "M") - 2)
