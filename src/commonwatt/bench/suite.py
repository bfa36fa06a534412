"""A suite of problems, those that enter it, and their scores.

A score is a ratio to a bound or to a baseline's value on the same problem, less is better, and the same wherever it is
run: no budget is a time, problems and solvers are seeded. Processor time is reported beside it, as a ratio to that
of the suite's reference solver in the same run, and is no part of a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import process_time
from typing import Any, Literal, get_args

from commonwatt import __version__
from commonwatt.model.errors import ArgumentError, InputError, PluginError
from commonwatt.model.names import one_of
from commonwatt.model.plugins import Group, Plugin, plugins_of, refused
from commonwatt.model.suite_results import BenchResult, BenchScore, BenchSolver, BenchSuite

__all__ = [
    "YARDSTICK",
    "Bench",
    "BenchCase",
    "BenchOutcome",
    "Entrant",
    "Regression",
    "Suite",
    "check_comparable",
    "save_bench",
    "worse",
]

Kind = Literal["ours", "baseline", "peer", "plugin"]
TOLERANCE = 0.01
"""Part by which a score may be above the recorded one."""


@dataclass(frozen=True)
class BenchOutcome:
    """What a solver reached on a problem.

    Attributes
    ----------
    evaluations
        Candidates it evaluated; ``None``: it does not count them.
    apart_s
        Processor time it took in other processes.
    """

    value: float
    evaluations: int | None = None
    apart_s: float = 0.0


@dataclass(frozen=True)
class BenchCase:
    """A problem with its name, and the bound its values are divided by.

    ``bound`` is computed once, when the suite is run; ``None``: the reference solver's value takes its place.
    """

    name: str
    problem: Any
    bound: Callable[[], float] | None = None


@dataclass(frozen=True)
class Entrant:
    """A solver under its name.

    Attributes
    ----------
    solve
        Takes a problem and a seed.
    packages
        Distributions it needs; those of a peer are its origin.
    few
        Whether it is left out where only the first problems are run: it takes long.
    """

    name: str
    kind: Kind
    solve: Callable[[Any, int], BenchOutcome]
    packages: tuple[str, ...] = ()
    plugin: Plugin | None = None
    few: bool = False

    @property
    def lacks(self) -> str | None:
        """The first package that is not installed."""
        for package in self.packages:
            try:
                version(package)
            except PackageNotFoundError:
                return package
        return None

    @property
    def origin(self) -> str | None:
        """Where it comes from; ``None``: it is ours."""
        if self.plugin is not None:
            return self.plugin.distribution
        if self.kind != "peer":
            return None
        if self.lacks is not None:
            return ", ".join(self.packages)
        return ", ".join(f"{package} {version(package)}" for package in self.packages)


@dataclass(frozen=True)
class Suite:
    """Problems of one kind.

    Attributes
    ----------
    version
        Raised whenever a problem, a budget or the score changes: scores of different versions cannot be compared.
    metric, against
        What a value is, with its unit; what it is divided by.
    reference
        Name of the entrant whose processor time is 1, and whose value is the bound where there is none.
    cases
        Problems, all or the first few.
    entrants
        Ours, baselines and peers.
    group, plug
        Plugins that may enter, and what makes an entrant's ``solve`` of what one gives; ``None``: none may.
    taken
        Names of ours that a plugin cannot have, beside those of the entrants.
    larger_is_better
        Whether the ratio is the bound over the value.
    """

    name: str
    version: int
    title: str
    metric: str
    against: str
    reference: str
    cases: Callable[[bool], list[BenchCase]]
    entrants: Callable[[bool], list[Entrant]]
    group: Group | None = None
    taken: Callable[[], Collection[str]] = tuple
    plug: Callable[[Plugin, bool], Callable[[Any, int], BenchOutcome]] | None = None
    larger_is_better: bool = False

    def all_entrants(self, quick: bool) -> list[Entrant]:
        """Return ours, baselines, peers and plugins, the reference first."""
        own = [entrant for entrant in self.entrants(quick) if not (quick and entrant.few)]
        own.sort(key=lambda entrant: entrant.name != self.reference)
        if self.group is None or self.plug is None:
            return own
        plug = self.plug

        def entering(plugin: Plugin) -> Entrant:
            def solve(problem: Any, seed: int) -> BenchOutcome:  # noqa: ANN401
                with plugin.blamed("gave no valid answer"):
                    return plug(plugin, quick)(problem, seed)

            return Entrant(plugin.name, "plugin", solve, plugin=plugin)

        return [*own, *(entering(plugin) for plugin in plugins_of(self.group, self._taken()))]

    def _taken(self) -> set[str]:
        return {*self.taken(), *(entrant.name for entrant in self.entrants(False))}  # noqa: FBT003

    def refused(self) -> list[BenchSolver]:
        """Return the plugins whose names cannot be used."""
        if self.group is None:
            return []
        return [
            _not_run(plugin.name, "plugin", plugin.distribution, "failed", f"{why} ({plugin.sentence})")
            for plugin, why in refused(self.group, self._taken()).items()
        ]


def _not_run(
    name: str, kind: Kind, origin: str | None, state: Literal["missing", "failed"], reason: str
) -> BenchSolver:  # fmt: skip
    return BenchSolver(
        name=name, kind=kind, origin=origin, state=state, reason=reason, score=None, worst=None, evaluations=None,
        time_ratio=None,
    )  # fmt: skip


@dataclass
class Bench:
    """Suites to be run.

    Attributes
    ----------
    suites
        All suites that are known.
    seed
        Seed of the solvers.
    quick
        Whether to run the first problems only.
    ended
        Called as each entrant has ended.
    """

    suites: Sequence[Suite]
    seed: int = 0
    quick: bool = False
    ended: Callable[[], None] = field(default=lambda: None)

    def picked(self, names: Sequence[str], solvers: Sequence[str]) -> list[tuple[Suite, list[Entrant]]]:
        """Return the suites called *names*, all if empty, with the entrants called *solvers* and their references.

        Raises ``InputError`` for an unknown name. With *solvers*, suites that know none of them are left out.
        """
        by_name = {suite.name: suite for suite in self.suites}
        for name in names:
            if name not in by_name:
                raise ArgumentError(one_of(by_name, name), field="suites", value=name)
        entering = [
            (suite, suite.all_entrants(self.quick)) for suite in self.suites if not names or suite.name in names
        ]
        everybody = {entrant.name for _, entrants in entering for entrant in entrants}
        for name in solvers:
            if name not in everybody:
                refusals = {solver.name: solver.reason for suite, _ in entering for solver in suite.refused()}
                if name in refusals:
                    raise ArgumentError(f"another name: {refusals[name]}", field="solvers", value=name)
                raise ArgumentError(one_of(sorted(everybody), name), field="solvers", value=name)
        if not solvers:
            return entering
        kept = [
            (suite, [e for e in entrants if e.name in solvers or e.name == suite.reference])
            for suite, entrants in entering
        ]
        return [(suite, entrants) for suite, entrants in kept if any(e.name in solvers for e in entrants)]

    def run(self, names: Sequence[str] = (), solvers: Sequence[str] = ()) -> BenchResult:
        """Run the suites called *names* with the entrants called *solvers*; all where these are empty."""
        suites = tuple(
            self._run(suite, entrants, all_of=not solvers) for suite, entrants in self.picked(names, solvers)
        )
        extra = "".join([*(f" --suite {name}" for name in names), *(f" --solver {name}" for name in solvers)])
        return BenchResult(
            version=__version__,
            command=f"commonwatt bench{' --quick' if self.quick else ''}{extra} --seed {self.seed}",
            seed=self.seed,
            extent="quick" if self.quick else "default",
            suites=suites,
        )

    def _run(self, suite: Suite, entrants: Sequence[Entrant], *, all_of: bool) -> BenchSuite:
        cases = suite.cases(self.quick)
        bounds = {case.name: case.bound() for case in cases if case.bound is not None}
        solvers: list[BenchSolver] = []
        scores: list[BenchScore] = []
        unit_s: float | None = None
        for entrant in entrants:
            solver, own, spent_s = self._enter(suite, entrant, cases, bounds)
            if entrant.name == suite.reference:
                unit_s = spent_s
            if solver.state == "done" and unit_s:
                solver = solver.model_copy(update={"time_ratio": spent_s / unit_s})
            solvers.append(solver)
            scores += own
            self.ended()
        solvers += suite.refused() if all_of else []
        return BenchSuite(
            name=suite.name, version=suite.version, title=suite.title, metric=suite.metric, against=suite.against,
            reference_solver=suite.reference, problems=tuple(case.name for case in cases),
            solvers=tuple(sorted(solvers, key=lambda s: (s.score is None, s.score or 0.0, s.name))),
            scores=tuple(scores),
        )  # fmt: skip

    def _enter(
        self, suite: Suite, entrant: Entrant, cases: Sequence[BenchCase], bounds: dict[str, float]
    ) -> tuple[BenchSolver, list[BenchScore], float]:
        if (lacks := entrant.lacks) is not None:
            return _not_run(entrant.name, entrant.kind, entrant.origin, "missing", f"{lacks} is not installed"), [], 0.0
        scores, spent_s, evaluations = [], 0.0, 0
        counted = True
        try:
            entrant.solve(cases[0].problem, self.seed)  # compiled before it is timed
            for case in cases:
                began_s = process_time()
                outcome = entrant.solve(case.problem, self.seed)
                spent_s += process_time() - began_s + outcome.apart_s
                _check(entrant, case, outcome)
                reference = bounds.setdefault(case.name, outcome.value)  # the reference solver enters first
                ratio = reference / outcome.value if suite.larger_is_better else outcome.value / reference
                scores.append(
                    BenchScore(
                        problem=case.name, solver=entrant.name, value=outcome.value, reference=reference, ratio=ratio
                    )
                )
                counted = counted and outcome.evaluations is not None
                evaluations += outcome.evaluations or 0
        except PluginError as error:
            return _not_run(entrant.name, entrant.kind, entrant.origin, "failed", str(error)), [], 0.0
        except ImportError as error:  # a package is there, and something that it needs is not
            if entrant.kind != "peer":
                raise
            return _not_run(entrant.name, entrant.kind, entrant.origin, "missing", str(error)), [], 0.0
        except Exception as error:
            if entrant.kind != "peer":
                raise
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return _not_run(entrant.name, entrant.kind, entrant.origin, "failed", said), [], 0.0
        ratios = [score.ratio for score in scores]
        return (
            BenchSolver(
                name=entrant.name, kind=entrant.kind, origin=entrant.origin, state="done", reason=None,
                score=math.exp(math.fsum(map(math.log, ratios)) / len(ratios)), worst=max(ratios),
                evaluations=evaluations if counted else None, time_ratio=None,
            ),
            scores,
            spent_s,
        )  # fmt: skip


def _check(entrant: Entrant, case: BenchCase, outcome: BenchOutcome) -> None:
    """Raise ``PluginError`` for a value that is no positive number."""
    if not (math.isfinite(outcome.value) and outcome.value > 0):
        msg = f"{entrant.name} reached {outcome.value} on {case.name}"
        raise PluginError(msg)


YARDSTICK = "the yardstick"


@dataclass(frozen=True)
class Regression:
    """A score, or a ratio on one *problem* ("" for a score), that is above the recorded one by more than the tolerance.

    ``None`` as that of *now*: it is gone. ``YARDSTICK`` as the solver: what values of a problem are divided by is
    another, so that ratios cannot tell.
    """

    suite: str
    solver: str
    recorded: float
    now: float | None
    problem: str = ""


def check_comparable(recorded: BenchResult, *, quick: bool, seed: int, versions: Mapping[str, int]) -> None:
    """Raise ``InputError`` unless a run can be compared with *recorded*; *versions* are those of its suites by name."""
    if (recorded.extent == "quick") != quick:
        expected = "no --quick, as recorded" if quick else "it, as the recorded result has the first problems only"
        raise ArgumentError(expected, field="quick", value=quick)
    if recorded.seed != seed:
        raise ArgumentError(f"{recorded.seed}, as recorded", field="seed", value=seed)
    recorded_versions = {suite.name: suite.version for suite in recorded.suites}
    if not recorded_versions.keys() & versions.keys():
        expected = f"one of the recorded suites: {', '.join(recorded_versions)}"
        raise ArgumentError(expected, field="suites", value=", ".join(versions))
    for name, own in versions.items():
        if recorded_versions.get(name, own) != own:
            expected = f"version {recorded_versions[name]} of suite {name}, as recorded; record it again"
            raise InputError(expected, field="version", value=own)


def worse(
    recorded: BenchResult, now: BenchResult, tolerance: float = TOLERANCE, *, every_suite: bool = True
) -> list[Regression]:
    """Return the scores of ours and of baselines in *recorded*, and their ratios on a problem, that got worse.

    The worst come first. Peers and plugins belong to others and are not compared. A suite that is not in *now* is gone,
    unless not *every_suite* was to be run. Raises ``InputError`` if the two results are not of the same problems:
    another extent, seed, or version of a suite, or no suite in common.
    """
    suites = {suite.name: suite for suite in now.suites}
    versions = {name: suite.version for name, suite in suites.items()}
    check_comparable(recorded, quick=now.extent == "quick", seed=now.seed, versions=versions)
    regressions: list[Regression] = []
    for suite in recorded.suites:
        other = suites.get(suite.name)
        if other is not None and suite.problems != other.problems:
            expected = f"the problems of suite {suite.name}, as recorded; record it again"
            raise InputError(expected, field="problems", value=", ".join(other.problems))
        if other is not None or every_suite:
            regressions += _worse(suite, other, tolerance)
    return sorted(regressions, key=lambda w: -math.inf if w.now is None else w.recorded / w.now)


def _worse(suite: BenchSuite, now: BenchSuite | None, tolerance: float) -> list[Regression]:
    solvers, ratios, yardsticks = _figures(suite)
    others, other_ratios, other_yardsticks = ({}, {}, {}) if now is None else _figures(now)
    regressions = [
        Regression(suite.name, name, score, others.get(name)) for name, score in solvers.items()
        if name not in others or others[name] > score * (1 + tolerance)
    ]  # fmt: skip
    regressions += [
        Regression(suite.name, name, ratio, other_ratios[name, problem], problem)
        for (name, problem), ratio in ratios.items()
        if (name, problem) in other_ratios and other_ratios[name, problem] > ratio * (1 + tolerance)
    ]  # fmt: skip
    regressions += [
        Regression(suite.name, YARDSTICK, value, other_yardsticks[problem], problem)
        for problem, value in yardsticks.items()
        if problem in other_yardsticks and abs(other_yardsticks[problem] - value) > abs(value) * tolerance
    ]  # fmt: skip
    return regressions


def _figures(suite: BenchSuite) -> tuple[dict[str, float], dict[tuple[str, str], float], dict[str, float]]:
    """Return the scores of ours and of baselines, their ratios by problem, and the yardstick of each problem."""
    own = {s.name: s.score for s in suite.solvers if s.kind in ("ours", "baseline") and s.score is not None}
    ratios = {(each.solver, each.problem): each.ratio for each in suite.scores if each.solver in own}
    return own, ratios, {each.problem: each.reference for each in suite.scores}


def save_bench(result: BenchResult, path: Path) -> None:
    """Draw the score of every solver, suite by suite, and save it to *path*. Raises as ``saved``."""
    from commonwatt.report.pictures import policy_colour, saved

    suites = [(suite, [s for s in suite.solvers if s.score is not None]) for suite in result.suites]
    rows = [max(1, len(solvers)) for _, solvers in suites]
    with saved(path, (8.0, 0.6 + 0.24 * sum(rows) + 0.7 * len(rows))) as figure:
        grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[n + 1.5 for n in rows])[:, 0]
        for axes, (suite, solvers) in zip(grid, suites, strict=True):
            scores = [solver.score or 0.0 for solver in solvers]
            colours = [policy_colour(get_args(Kind).index(solver.kind)) for solver in solvers]
            axes.barh(range(len(solvers)), scores, color=colours, height=0.7)
            axes.axvline(1.0, color="black", linewidth=0.8)
            if scores and max(scores) > 20 * min(scores):
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter("{x:g}")
            axes.set_yticks(range(len(solvers)), [f"{s.name} ({s.kind})" for s in solvers], fontsize=7)
            axes.invert_yaxis()
            axes.set_title(f"{suite.name}: over {suite.against}; less is better", fontsize=8)
