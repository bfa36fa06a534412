"""What chapter 5 claims, as functions of the inputs it does not print.

Configurations and user sets of chapter 5, from ``market.yaml``. F and retiring rates there are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from commonwatt.model.arrays import Floats
from commonwatt.partitioning import (
    Equilibrium,
    Market,
    choose_configuration,
    solve,
    utilization,
    weighted_equal_speedup,
)

__all__ = [
    "CHOSEN",
    "CONFIGURATIONS",
    "EQUAL",
    "IN_TURNS",
    "SAMPLE",
    "SETS",
    "WEIGHTS",
    "Case",
    "Inputs",
    "MarketConfiguration",
    "Study",
    "claims",
    "drawn",
    "fully_parallel",
    "market",
    "stated",
    "study",
]


@dataclass(frozen=True)
class MarketConfiguration:
    """A column of Table 5.3."""

    name: str
    cores: tuple[int, ...]
    threads: tuple[int, ...]
    fpu: tuple[bool, ...]
    mhz: tuple[float, ...]


@dataclass(frozen=True)
class Inputs:
    """What the thesis does not print: parallel fractions, and how much slower floating point is without an FPU."""

    f: dict[str, float]
    slowdown: dict[str, float]


_DATA: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("market.yaml").read_text(encoding="utf-8"))
_KEYS = {"f": "parallel_fraction", "slowdown": "slowdown_without_fpu"}

CONFIGURATIONS = tuple(MarketConfiguration(**column) for column in _DATA["configurations"])
SAMPLE = MarketConfiguration(**_DATA["sample"])
SETS: dict[int, tuple[tuple[str, ...], ...]] = {
    number: tuple(tuple(row) for row in rows) for number, rows in _DATA["user_sets"].items()
}
WEIGHTS: tuple[float, ...] = tuple(_DATA["weights"])


def stated() -> Inputs:
    """Return the values the figures are made with."""
    return Inputs(**{name: {load: row["value"] for load, row in _DATA[key].items()} for name, key in _KEYS.items()})


def drawn(rng: np.random.Generator) -> Inputs:
    """Return other values that fit the words as well."""
    return Inputs(
        **{
            name: {load: float(rng.uniform(*row["between"])) for load, row in _DATA[key].items()}
            for name, key in _KEYS.items()
        }
    )


def market(
    configuration: MarketConfiguration, users: tuple[tuple[str, ...], ...], inputs: Inputs, *, threads: bool,
    weights: tuple[float, ...] = WEIGHTS,
) -> Market:  # fmt: skip
    """Return the market of *users* on *configuration*; a PE is a hardware thread, or else a core."""
    pes = [c * (t if threads else 1) for c, t in zip(configuration.cores, configuration.threads, strict=True)]
    rate: Floats = np.array(
        [
            [
                mhz / 100.0 / (1.0 if fpu else inputs.slowdown.get(load, 1.0))
                for load, fpu, mhz in zip(row, configuration.fpu, configuration.mhz, strict=True)
            ]
            for row in users
        ]
    )
    return Market.make(pes, weights, rate, [[inputs.f[load] for load in row] for row in users])


_SOME = 0.01  # of a core cluster: less is nothing
_ALIKE = 1e-6  # how much speedups may differ by and count as the same: what is left when the solver stops
EQUAL = 1e-9  # prices and utilization that differ by less are the same
_STRICTLY = 0.01  # 4 to 1
_TWICE, _UP_TO = 0.1, 0.02  # of 2 times; of 10% more utilization
_COMPARABLE, _SAME = 0.02, 0.005  # parts of utilization
CHOSEN = (
    f"Thresholds of ours, Fisher market: less than {_SOME:.0%} of a core cluster is none; speedups that differ by "
    f"{_ALIKE:g} of them are the same, and one lower by less is not slower, one higher by less not faster; 4 to 1 is "
    f"strictly so within {_STRICTLY:.0%}; up to 2 times is a largest one within {_TWICE:.0%} of it, up to 10% a "
    f"largest one within {100 * _UP_TO:g} points; comparable is within {_COMPARABLE:.0%}, the same utilization within "
    f"{100 * _SAME:g} points, and prices, and the highest utilization, within {EQUAL:g}. All of these are the same for "
    "shares of space and for shares as turns of time."
)


@dataclass(frozen=True)
class Case:
    """A user set on a configuration, divided in three ways."""

    market: Market
    equilibrium: Equilibrium
    equal: Floats  # shares of weighted equal speedup

    def speeds(self, *, turns: bool = False) -> Floats:
        """Return speedups of the market. Shape [N]."""
        return self.in_turns(self.equilibrium.shares) if turns else self.equilibrium.utilities

    def ratios(self, *, turns: bool = False) -> Floats:
        """Return speedups of the market over those of entitlements. Shape [N]."""
        entitled = self.market.entitlement()
        return self.speeds(turns=turns) / (self.in_turns(entitled) if turns else self.market.total(entitled))

    def used(self, *, turns: bool = False) -> dict[str, float]:
        """Return the utilization under each mechanism."""
        whole = self.market if turns else None
        return {
            "market": utilization(self.market, self.equilibrium.shares, whole),
            "entitlement": utilization(self.market, self.market.entitlement(), whole),
            "equal speedup": utilization(self.market, self.equal, whole),
        }

    def in_turns(self, shares: Floats) -> Floats:
        """Return speedups where each part of a core cluster is so much time on all of it, as the thesis runs jobs."""
        whole = np.broadcast_to(self.market.pe_count, shares.shape)
        return np.asarray((shares / whole * self.market.speedups(whole)).sum(axis=1))

    def parts(self) -> Floats:
        """Return the market's shares as parts of each core cluster. Shape [N, C]."""
        return self.equilibrium.shares / self.market.pe_count


Study = dict[tuple[int, str], Case]


def study(inputs: Inputs, *, threads: bool) -> Study:
    """Divide every configuration among every user set."""
    done: Study = {}
    for number, users in SETS.items():
        for configuration in CONFIGURATIONS:
            made = market(configuration, users, inputs, threads=threads)
            done[number, configuration.name] = Case(made, solve(made), weighted_equal_speedup(made))
    return done


def claims(of: Study) -> dict[str, tuple[bool, str]]:
    """Return whether each claim holds, and the figures that say so."""
    names = [configuration.name for configuration in CONFIGURATIONS]
    alike = np.full(len(WEIGHTS), 1.0 / len(WEIGHTS))  # Definition 3.4.6 multiplies utilities without weights
    best = {
        n: names[choose_configuration([of[n, name].equilibrium.utilities for name in names], alike).best] for n in SETS
    }
    first = {name: float(of[1, name].parts()[0, :2].max()) for name in ("CFG1", "CFG2")}
    second = {name: float(of[2, name].parts()[0, :2].max()) for name in ("CFG1", "CFG2")}
    moved = of[2, "CFG3"].parts()[0, :2].sum() - of[1, "CFG3"].parts()[0, :2].sum()
    equal = {case: each.market.total(each.equal) for case, each in of.items()}
    four = [float(u[1] / u[0]) for u in equal.values()]
    serial = [
        bool((each.equal[2] / each.market.pe_count).mean() > each.parts()[2].mean())
        for (n, _), each in of.items() if n == 1
    ]  # fmt: skip
    return {
        "user set 1: CFG2 has the largest Nash welfare": (best[1] == "CFG2", f"{best[1]} has"),
        "user set 1: user 1 is excluded from the FPU core clusters of CFG1 and CFG2": (
            max(first.values()) < _SOME, _parts(first)),
        **_figure_5_4(of),
        "user set 2: user 1 receives some of the FPU core clusters of CFG1 and CFG2": (
            min(second.values()) > _SOME, _parts(second)),
        "user set 2: in CFG3 user 1 has more of core clusters 1 and 2 than in user set 1": (
            bool(moved > 0), f"{50 * moved:+.1f} percentage points"),
        **_speedups(of, turns=False),
        **_speedups(of, turns=True),
        **_utilization(of, turns=False),
        **_utilization(of, turns=True),
        "equal speedup: user 2 has 4 times the speedup in all cases": (
            max(abs(r / 4 - 1) for r in four) < _STRICTLY, f"{min(four):.3f} to {max(four):.3f}"),
        "equal speedup: the serial user has more of the PEs than in the market (user set 1)": (
            all(serial), f"in {sum(serial)} of 3 configurations"),
    }  # fmt: skip


_BY = f"(by more than {_ALIKE:g} of it)"
IN_TURNS = ", shares as turns of time"


def _speedups(of: Study, *, turns: bool) -> dict[str, tuple[bool, str]]:
    """What the thesis says of speedups, with shares of space, or with shares run as it runs jobs: in turns of time."""
    how = IN_TURNS if turns else ""
    thirds = [each.speeds(turns=turns) for (number, _), each in of.items() if number == 3]
    four = [float(u[1] / u[0]) for u in thirds]
    ratio = {case: each.ratios(turns=turns) for case, each in of.items()}
    lowest, highest = min(float(r.min()) for r in ratio.values()), max(float(r.max()) for r in ratio.values())
    first = {name: float(ratio[1, name][0]) for name in ("CFG1", "CFG2")}
    said = f"least ratio {lowest:.7f}"
    return {
        f"user set 3: users 1 and 3 have the same speedup{how}": (
            bool(max(abs(u[0] / u[2] - 1) for u in thirds) < _ALIKE), "equal tenants"),
        f"user set 3: speedups are strictly proportional to weights, 4 to 1 (within {_STRICTLY:.0%}){how}": (
            max(abs(r / 4 - 1) for r in four) < _STRICTLY, f"{min(four):.2f} to {max(four):.2f} to 1"),
        f"no user is slower than with its entitlement {_BY}{how}": (lowest > 1 - _ALIKE, said),
        f"every user is faster than with its entitlement {_BY} in all cases{how}": (lowest > 1 + _ALIKE, said),
        f"user set 1: in CFG1 and CFG2 user 1 is faster than with its entitlement {_BY}{how}": (
            min(first.values()) > 1 + _ALIKE, ", ".join(f"{r:.2f} times in {name}" for name, r in first.items())),
        f"the market is up to 2 times as fast as entitlements ({2 * (1 - _TWICE):.1f} to {2 * (1 + _TWICE):.1f}){how}":
            (abs(highest / 2 - 1) <= _TWICE, f"largest ratio {highest:.2f}"),
    }  # fmt: skip


def _utilization(of: Study, *, turns: bool) -> dict[str, tuple[bool, str]]:
    """What the thesis says of utilization, with shares of space or as turns of time."""
    how = IN_TURNS if turns else ""
    used = {case: each.used(turns=turns) for case, each in of.items()}
    other = {case: max(u["entitlement"], u["equal speedup"]) for case, u in used.items()}
    ahead = {case: u["market"] / other[case] - 1.0 for case, u in used.items()}
    points = max(u["market"] - other[case] for case, u in used.items())
    set1, set2 = (min(part for (number, _), part in ahead.items() if number == n) for n in (1, 2))
    set3 = max(max(u.values()) - min(u.values()) for (n, _), u in used.items() if n == 3)
    return {
        f"user set 1: the market's utilization is the highest in all configurations{how}": (
            set1 > -EQUAL, f"{100 * set1:+.1f}% in the worst"),
        f"user set 2: the market's utilization is at least comparable (within {_COMPARABLE:.0%}) in all "
        f"configurations{how}": (set2 > -_COMPARABLE, f"{100 * set2:+.1f}% in the worst"),
        f"utilization is up to 10% higher ({0.1 - _UP_TO:.0%} to {0.1 + _UP_TO:.0%} of it){how}": (
            abs(max(ahead.values()) - 0.1) <= _UP_TO, f"{100 * max(ahead.values()):+.1f}% over the better at most"),
        f"utilization is up to 10 percentage points higher ({10 - 100 * _UP_TO:g} to {10 + 100 * _UP_TO:g}){how}": (
            abs(points - 0.1) <= _UP_TO, f"{100 * points:+.1f} over the better at most"),
        f"user set 3: all mechanisms have the same utilization{how}": (
            set3 < _SAME, f"they differ by up to {100 * set3:.1f} percentage points"),
    }  # fmt: skip


def _figure_5_4(of: Study) -> dict[str, tuple[bool, str]]:
    """What the thesis says of the shares in Fig. 5.4."""
    fpu = {name: of[1, name].parts() for name in ("CFG1", "CFG2")}
    third = of[1, "CFG3"].parts()[0]
    both = {name: float(parts[1:, :2].max(axis=1).min()) for name, parts in fpu.items()}
    later = {name: float(parts[0, 2:].min()) for name, parts in fpu.items()}
    entitled = WEIGHTS[0] / sum(WEIGHTS)
    most = {c.name: of[1, c.name].equilibrium.shares.sum(axis=1) for c in CONFIGURATIONS}
    return {
        "user set 1: users 2 and 3 share the FPU core clusters of CFG1 and CFG2": (
            min(both.values()) > _SOME, f"of the one that has less, {_parts(both)}"),
        "user set 1: in CFG1 and CFG2 user 1 has more than its entitlement of core clusters 3 and 4": (
            min(later.values()) > entitled,
            f"{100 * entitled:.1f}%; the smaller: " + ", ".join(f"{100 * p:.1f}% in {n}" for n, p in later.items())),
        "user set 1: in CFG3 user 1 has more of core cluster 4 than of any other": (
            bool(third[3] > third[:3].max()), f"{100 * third[3]:.1f}%, and {100 * third[:3].max():.1f}% of another"),
        "user set 1: user 2 receives a higher proportion (of all PEs, than user 3) in all configurations": (
            all(bool(pes[1] > pes[2]) for pes in most.values()),
            "PEs of users 1, 2, 3: "
            + "; ".join(f"{name}: " + ", ".join(f"{p:.1f}" for p in pes) for name, pes in most.items())),
    }  # fmt: skip


def _parts(parts: dict[str, float]) -> str:
    return "its largest part of one: " + ", ".join(f"{100 * part:.1f}% in {name}" for name, part in parts.items())


def fully_parallel(inputs: Inputs) -> Inputs:
    """Return *inputs* with F = 1 for Resnet."""
    return replace(inputs, f=inputs.f | {"resnet": 1.0})
