"""The figures of ETF's evaluation, reproduced: rows, points and plots of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from commonwatt.data.tx2 import TX2_ROWS
from commonwatt.model.timeslice_results import TimesliceRunResult
from commonwatt.reproduce.papers import etf_plots as plots
from commonwatt.reproduce.papers.etf_runs import (
    ALIKE,
    CLOCKS_MHZ,
    MOBILENET_RATIO,
    RESNET50_W,
    EtfFigure,
    RealRun,
    Runs,
    between,
    closed_phi_fair,
    gain,
    gpu_here,
    grows_with_disparity,
    largest_fair,
    power_ratio,
    run_really,
    share,
    tenant,
)
from commonwatt.reproduce.topic import Extent, TopicAnswer, TopicRequest
from commonwatt.timeslicing import Etf, QuantumProblem

__all__ = ["EtfFigure", "run_topic"]

_QUANTA: dict[Extent, int] = {"quick": 80, "default": 200, "full": 2000}
_LONG_QUANTA: dict[Extent, int] = {"quick": 40, "default": 200, "full": 2000}
_LONG_S = 1.0  # quantum where inferences take half a second
_PHIS = tuple(i / 10 for i in range(11))
_PUT_IN = "put in: power at each clock is the published profile's, an input of the simulated device and no result of it"
NOTES = (
    (
        "Virtual time: the run-time scheduler drives a simulated device whose steps take what the published profiles "
        "of a Jetson TX2 say, kernel by kernel where those files are available, else inference by inference."
    ),
    (
        "The profile of MobileNet-V2 is not public. In its place a tenant of stated power, so that F_E under TF is "
        "the 0.19 the paper prints in Fig. 5: ResNet50 at 1300 MHz draws 5.26 times as much. Section 6.4 says about "
        "4 times, and F_S(EF) = 0.21 means 4.8. ResNet18 at 726 MHz, which has a profile, draws 2.8 times less."
    ),
)


def run_topic(request: TopicRequest, figures: tuple[str, ...]) -> TopicAnswer:
    """Run the figures called *figures*."""
    runs = Runs(request.seed, _QUANTA[request.extent], [], _LONG_QUANTA[request.extent])
    done = []
    with request.progress(len(figures), 1.0) as bar:
        for number in figures:
            done.append(_FIGURES[number](runs))
            bar.done()
    return TopicAnswer(
        seeds=(request.seed,),
        digests=tuple(runs.digests),
        rows=tuple(row for figure in done for row in figure.rows),
        notes=NOTES,
        points=tuple(point for figure in done for point in figure.points),
        x_name="x" if any(figure.points for figure in done) else None,
        draw=lambda path: _draw(done, path),
    )


def _draw(figures: list[EtfFigure], path: Path) -> None:
    plots.draw([(f"Fig. {figure.number}", panel) for figure in figures for panel in figure.panels], path)


def _two(ratio: float | None, **first: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """ResNet50 at 1300 MHz beside MobileNet-V2's stand-in, *ratio* less in power; ``None``: beside ResNet18."""
    other = {} if ratio is None else {"power_w": RESNET50_W / ratio}
    return [tenant("A1", "resnet50", 1300, **first), tenant("A2", "resnet18", 726, **other)]


def _figure_1(runs: Runs) -> EtfFigure:  # noqa: ARG001
    figure = EtfFigure("1")
    lines = {model: [mw * 1e-3 for _, _, mw in rows] for model, rows in TX2_ROWS.items()}
    for model, line in lines.items():
        for clock, power_w in zip(CLOCKS_MHZ, line, strict=True):
            figure.point(model, "power against the clock in MHz", clock, power_w, "W")
        figure.row(f"power of {model} at the highest clock", None, line[-1], "W", comparable=False)
    apart = min(max(powers) / min(powers) for powers in zip(*lines.values(), strict=True))
    figure.row(
        "models draw different power at the same clock", paper=True, ours=apart > 1, comparable=False,
        note=f"put in: the profiles are the paper's, public for two of its four; by a factor of {apart:.2f} or more",
    )  # fmt: skip
    panel = partial(plots.lines, x="clock, MHz", y="power, W", at=CLOCKS_MHZ, named=lines, top=None)
    figure.panels.append(panel)
    return figure


def _figure_2(runs: Runs) -> EtfFigure:
    figure = EtfFigure("2")
    for policy, what in (("tf", "time-fair"), ("ef", "energy-fair")):
        result = runs.run(policy, 1.0, _two(MOBILENET_RATIO))
        a = share(result, "A1")
        figure.row(f"{what}: share of time of ResNet50 at 1300 MHz", 0.5 if policy == "tf" else None, a[0])
        figure.row(f"{what}: share of energy of ResNet50 at 1300 MHz", None, a[1])
        if policy == "ef":
            figure.row(f"{what}: both have the same energy", paper=True, ours=(result.energy_fairness or 0) > 1 - ALIKE)
        figure.panels.append(partial(plots.bars, title=what, results={what: result}))
    return figure


def _figure_3(runs: Runs) -> EtfFigure:  # noqa: ARG001
    figure = EtfFigure("3")
    problem = QuantumProblem.make(30, [1, 1, 1], [2, 3, 8])
    slices = Etf(0.7).slices(problem)
    paper = {"A": (14, 28), "B": (9, 27), "C": (7, 56)}
    for (name, (units, joules)), time, power_w in zip(
        paper.items(), slices.tolist(), problem.powers_w.tolist(), strict=True
    ):
        figure.row(f"time slice of {name}", units, time, "units")
        figure.row(f"energy of {name}", joules, time * power_w, "J")
    sure = Etf(0.7).guarantee(problem)
    for name, units, power_w, joules in zip(paper, sure.tolist(), problem.powers_w.tolist(), (14, 21, 56), strict=True):
        figure.row(f"guaranteed time slice of {name}", 7, units, "units")
        figure.row(f"energy of {name} in its guaranteed time", joules, units * power_w, "J")
    first = Etf(21 / 25).slices(QuantumProblem.make(25, [1, 1, 1], [2, 3, 8])).tolist()  # 21 sure units and 4 more
    figure.row("time slice of A after round 1", 11, first[0], "units")
    figure.row("energy of A after round 1", 22, 2 * first[0], "J")
    gluttonous = Etf(0.7).slices(QuantumProblem.make(30, [1, 1, 1], [2, 3, 10])).tolist()[2]
    figure.row("energy of C if it drew 10 W (section 4.4)", 70, 10 * gluttonous, "J")
    figure.panels.append(
        partial(
            plots.example,
            names=list(paper),
            sure=sure.tolist(),
            slices=slices.tolist(),
            powers_w=problem.powers_w.tolist(),
        )
    )
    return figure


def _figure_5(runs: Runs) -> EtfFigure:
    figure = EtfFigure("5")
    results = {
        name: runs.run(policy, 0.7, _two(MOBILENET_RATIO))
        for name, policy in (("TF", "tf"), ("EF", "ef"), ("ETF", "etf"))
    }
    fair = {name: result.system_fairness or 0.0 for name, result in results.items()}
    figure.row(
        "F_E under TF", 0.19, results["TF"].energy_fairness, comparable=False,
        note="put in: the power of A2 is stated so that it comes out",
    )  # fmt: skip
    figure.row(
        "F_S under EF", 0.21, fair["EF"], note="equals F_E under TF for two tenants, so the paper's differ by 10%"
    )
    figure.row(
        "F_S under ETF, phi = 0.7", 0.42, fair["ETF"],
        note="follows from the ratio: F_E = 0.65/0.35 * 0.19 = 0.353; 0.42 means a ratio of 4.4",
    )  # fmt: skip
    for name, printed in (("TF", 0.19), ("EF", 0.21)):
        figure.row(f"improvement of F_S by ETF over {name}", 0.42 / printed, fair["ETF"] / fair[name], "x",
                   note=f"0.42 over {printed:g}, as printed; the text: twice")  # fmt: skip
    own = {policy: runs.run(policy, 0.7, _two(None)).system_fairness for policy in ("tf", "ef", "etf")}
    for policy, value in own.items():
        figure.row(
            f"F_S under {policy.upper()} with ResNet18 as A2", None, value, comparable=False, note="a profile in full"
        )
    figure.panels.append(partial(plots.bars, title="phi 0.7", results=results))
    return figure


def _figure_6(runs: Runs) -> EtfFigure:
    figure, long_s = EtfFigure("6"), _LONG_S * runs.long_quanta
    lines: dict[str, list[float]] = {"TF": [], "EF": [], "ETF": []}
    for clock in CLOCKS_MHZ:
        tenants = [tenant("A1", "resnet50", 1300), tenant("A2", "resnet50", clock)]
        for name, policy in (("TF", "tf"), ("EF", "ef"), ("ETF", "etf")):
            value = runs.run(policy, 0.7, tenants, _LONG_S, duration_s=long_s).system_fairness or 0.0
            lines[name].append(value)
            figure.point(name, "system fairness F_S against A2's clock in MHz", clock, value)
    figure.row("power ratio at 114 MHz", 7.9, 1 / lines["TF"][0], comparable=False, note=_PUT_IN)
    for name, paper in (("TF", 2.0), ("EF", 1.6)):
        figure.row(
            f"improvement of F_S by ETF over {name} at 114 MHz", paper, lines["ETF"][0] / lines[name][0], "x",
            note="for two tenants TF and EF are equally unfair on paper: both are 0.65/0.35 = 1.86",
        )  # fmt: skip
    figure.row("all alike at 1300 MHz: F_S of the worst", 1.0, min(line[-1] for line in lines.values()))
    grows, said = grows_with_disparity(lines)
    figure.row("the improvement of F_S by ETF over TF and EF grows with the disparity", paper=True, ours=grows,
               note=said)  # fmt: skip
    figure.panels.append(partial(plots.lines, x="A2's clock, MHz", y="system fairness F_S", at=CLOCKS_MHZ, named=lines))
    return figure


def _against_phi(figure: EtfFigure, runs: Runs, tenants: list[dict[str, Any]]) -> dict[float, TimesliceRunResult]:
    """Run ETF at every phi, and EF and TF for comparison; the shares of both tenants against phi."""
    results = {phi: runs.run("etf", phi, tenants) for phi in _PHIS}
    for what, place in (("time", 0), ("energy", 1)):
        lines = {
            name: [share(result, name)[place] for result in results.values()] for name in ("A1", "A2")
        }  # fmt: skip
        for name, line in lines.items():
            for phi, value in zip(_PHIS, line, strict=True):
                figure.point(name, f"share of {what} against phi", phi, value)
        reference = "ef" if place == 0 else "tf"
        level = share(runs.run(reference, 1.0, tenants), "A2" if place == 0 else "A1")[place]
        lines[f"{'A2' if place == 0 else 'A1'} under {reference.upper()}"] = [level] * len(_PHIS)
        figure.panels.append(partial(plots.lines, x="phi", y=f"share of {what}", at=_PHIS, named=lines))
    return results


def _figure_7(runs: Runs) -> EtfFigure:
    figure = EtfFigure("7")
    results = _against_phi(figure, runs, _two(MOBILENET_RATIO))
    figure.row(
        "largest phi with perfect energy fairness, in steps of 0.1", 0.3, largest_fair(results),
        note=f"closed form: {closed_phi_fair(MOBILENET_RATIO):.3f}; a ratio of 4, as in section 6.4, would give 0.4",
    )  # fmt: skip
    figure.row("at phi = 1 time is fair: share of time of A1", 0.5, share(results[1.0], "A1")[0])
    figure.row(
        "power of A1 over A2 (section 6.4)", 4.0, power_ratio(results[1.0]), comparable=False,
        note="put in: the power of A2 is stated so that F_E under TF in Fig. 5 comes out, which contradicts 4",
    )  # fmt: skip
    return figure


def _figure_8(runs: Runs) -> EtfFigure:
    figure = EtfFigure("8")
    results = _against_phi(figure, runs, _two(2.2))
    figure.row(
        "largest phi with perfect energy fairness, in steps of 0.1", None, largest_fair(results), comparable=False,
        note=f"the paper prints no number, only that it is higher than on the TX2; closed form: "
        f"{closed_phi_fair(2.2):.3f}. A simulated device at the printed ratio of GPT-2 and MobileNet-V2 on an A10G, "
        "not that GPU",
    )  # fmt: skip
    less = largest_fair(_against_phi(EtfFigure("7"), runs, _two(MOBILENET_RATIO)))
    figure.row("power of A1 over A2", 2.2, power_ratio(results[1.0]), comparable=False, note="put in: as printed")
    figure.row(
        "the largest phi with perfect energy fairness is higher than in Fig. 7",
        paper=True,
        ours=largest_fair(results) > less,
    )
    missing = gpu_here()
    if missing is None:
        _on_a_gpu(figure, run_really({"kind": "cuda"}, runs.quanta / 10, runs.seed, (None, None)))
    else:
        figure.row("on a real GPU", None, None, comparable=False, note=f"not run: {missing}")
    return figure


def _on_a_gpu(figure: EtfFigure, real: RealRun) -> None:
    where = f"measured on {real.device}, with a transformer and a MobileNet of random weights"
    figure.row("real GPU: power ratio", 2.2, real.ratio, comparable=False, note=where)
    figure.row("real GPU: largest phi with perfect energy fairness", None, real.phi_fair, comparable=False, note=where)
    for phi, result in real.results.items():
        a1 = result.tenants[0]
        figure.row(
            f"real GPU: share of time of A1 at phi = {phi:g}, planned", a1.planned_time_share, a1.time_share,
            comparable=False, note="in the paper's column: the plan",
        )  # fmt: skip
        figure.point("A1, real GPU", "share of energy on a real GPU against phi", phi, a1.energy_share)


def _figure_9(runs: Runs) -> EtfFigure:
    figure = EtfFigure("9")
    quantum_s = 0.5
    end = runs.quanta * quantum_s
    tenants = [
        tenant("A1", "resnet50", 1300),
        tenant("A2", "resnet50", 1032, from_s=end / 6, until_s=end * 5 / 6),
        tenant("A3", "resnet50", 726, from_s=end / 3, until_s=end * 2 / 3),
    ]
    result = runs.run("etf", 0.7, tenants, quantum_s)
    two, three = between(result, 0.20, 0.31), between(result, 0.36, 0.63)
    powers = [t.power_w for t in result.tenants]
    for k, (name, paper) in enumerate((("A2", 1.5), ("A3", 2.5)), 1):
        figure.row(f"power ratio of A1 and {name}", paper, powers[0] / powers[k], comparable=False, note=_PUT_IN)
    sure = Etf(0.7).guarantee(QuantumProblem.make(100, [1, 1], powers[:2]))[0]
    figure.row(
        "A1 and A2: guaranteed share of A1, 50% * phi (printed as 45%)", 50 * 0.7, float(sure), "%",
        note="phi is 0.7 by the figure, and by 33.3% * phi being 23% for three; 45% would be phi of 0.9",
    )  # fmt: skip
    figure.row("A1 and A2: share of time of A1", None, 100 * two[0][0], "%", note=f"not below {sure:.0f}")
    pair, every = min(two[1][:2]) / max(two[1][:2]), min(three[1]) / max(three[1])
    figure.row("A1 and A2: energies are equal", paper=True, ours=pair > 1 - ALIKE, note=f"F_E {pair:.3f}")
    figure.row("all three: share of time of A1, which has its guarantee only", 23.0, 100 * three[0][0], "%")
    figure.row("all three: energies are not exactly the same", paper=True, ours=every < 1 - ALIKE,
               note=f"F_E {every:.3f}")  # fmt: skip
    figure.row("part of the time the device is used", 1.0, 1 - result.idle.time_s / result.duration_s)
    for what in ("time", "energy"):
        figure.panels.append(partial(plots.stacked, result=result, what=what))
    return figure


def _figure_10(runs: Runs) -> EtfFigure:
    figure = EtfFigure("10")
    every = {clock: runs.run("etf", 0.7, [tenant("A1", "resnet50", 1300), tenant("A2", "resnet50", clock)])
             for clock in CLOCKS_MHZ}  # fmt: skip
    alike, lower = every.pop(CLOCKS_MHZ[-1]), every[1032.75]
    gains = [gain(result) for result in every.values()]
    before, a1, a2 = alike.tenants[1], *lower.tenants
    figure.row(
        "at a lower clock A2 has a higher throughput and a lower latency than A1 (1032 MHz)", paper=True,
        ours=gain(lower) > 1 and (a2.latency_mean_s or 0.0) < (a1.latency_mean_s or 0.0),
        note=f"a higher throughput at {sum(each > 1 for each in gains)} of the {len(gains)} lower clocks, of "
        f"{min(gains):.2f} to {max(gains):.2f} times A1's",
    )  # fmt: skip
    figure.row("throughput of A2 at 1032 MHz over A1's", 1.3, gain(lower), "x")
    figure.row(
        "throughput of A2 at 1032 MHz over its own at 1300 MHz", None, a2.throughput_per_s / before.throughput_per_s,
        "x", note="the paper's 1.3 fits the ratio to A1, not to before",
    )  # fmt: skip
    for what, other in (("A1's", a1), ("its own at 1300 MHz", before)):
        figure.row(
            f"latency of A2 at 1032 MHz against {what}", -10.0 if other is a1 else None,
            100 * ((a2.latency_mean_s or 0.0) / (other.latency_mean_s or 1.0) - 1), "%", comparable=False,
            note="from arrival to answer with two requests in the queue; the paper does not say how it is taken",
        )  # fmt: skip
    figure.panels.append(partial(plots.incentive, alike=alike, lower=lower))
    return figure


def _figure_11(runs: Runs) -> EtfFigure:
    figure = EtfFigure("11")
    results = _against_phi(figure, runs, _two(MOBILENET_RATIO, weight=2))
    time, energy = share(results[1.0], "A1"), share(results[0.0], "A1")
    figure.row("phi = 1: time of A1 over A2", 2.0, time[0] / (1 - time[0]), "x")
    figure.row("phi = 0: energy of A1 over A2", 2.0, energy[1] / (1 - energy[1]), "x")
    figure.row(
        "largest phi with perfect energy fairness, in steps of 0.1", 0.6, largest_fair(results),
        note=f"closed form 3 / (2 + ratio): {3 / (2 + MOBILENET_RATIO):.3f}; 0.6 means a ratio of 3.0, against 5.26 "
        "in Fig. 5 and 4 in section 6.4",
    )  # fmt: skip
    own = {phi: runs.run("etf", phi, _two(None, weight=2)) for phi in _PHIS}
    figure.row("the same with ResNet18 as A2 (ratio 2.77)", None, largest_fair(own), comparable=False)
    return figure


_FIGURES: dict[str, Callable[[Runs], EtfFigure]] = {
    "1": _figure_1, "2": _figure_2, "3": _figure_3, "5": _figure_5, "6": _figure_6, "7": _figure_7, "8": _figure_8,
    "9": _figure_9, "10": _figure_10, "11": _figure_11,
}  # fmt: skip
