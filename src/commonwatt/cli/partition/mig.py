"""``commonwatt partition mig``."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import blamed_on, digest, json_option, plot_option, print_json, say, seed_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from commonwatt.model.mig_file import MigFile
    from commonwatt.model.mig_results import MigAnswer, MigGpuResult, MigPriceResult, MigResult, MigTenantResult
    from commonwatt.partitioning.linear_market import Equilibrium
    from commonwatt.partitioning.mig_plan import GpuPlan
    from commonwatt.partitioning.mig_problem import MigProblem

__all__ = ["mig"]

MODES = ("market", "integer")


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--mode", type=click.Choice(MODES), default="market", show_default=True,
    help="market: tenants take turns on instances, which have prices; integer: whole instances only.",
)  # fmt: skip
@click.option("--welfare", type=click.Choice(("nash", "utilitarian", "egalitarian")), default="nash", show_default=True)
@click.option("--present", type=click.Path(path_type=Path), metavar="FILE", help="What the GPUs have now (mig-parted).")
@click.option("--present-config", metavar="NAME", help="Configuration in that file.")
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Write the layouts for mig-parted.")
@plot_option("the layouts")
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), default=60, show_default=True, metavar="S")
@seed_option
@json_option
def mig(
    problem: Path,
    *,
    mode: str,
    welfare: str,
    present: Path | None,
    present_config: str | None,
    write: Path | None,
    plot: Path | None,
    time_limit: float,
    seed: int,
    as_json: bool,
) -> None:
    """Choose how to cut the GPUs of PROBLEM by MIG, and who gets which instances.

    \b
    Example:
      commonwatt partition mig examples/mig.yaml --json
    """
    from commonwatt.data.files import load_yaml
    from commonwatt.model.errors import InputError
    from commonwatt.model.mig_file import MigFile

    file = load_yaml(problem, MigFile)
    if present is not None:
        file = _with_present(file, present, present_config)
    elif present_config is not None:
        raise InputError("--present to name the file it stands in", field="--present-config", value=present_config)
    with blamed_on(problem):
        result = _decide(file, mode, welfare, time_limit, seed)
    if write is not None:
        _write(result.chosen, write)
    if plot is not None:
        from commonwatt.report.mig_plots import save_layouts

        save_layouts(result.chosen, plot)
        say(f"written: {plot}")
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _with_present(file: MigFile, path: Path, name: str | None) -> MigFile:
    """Give each GPU, by its place in the problem, the instances a mig-parted file says it has."""
    from commonwatt.data.mig_parted import read_mig_parted
    from commonwatt.model.errors import InputError
    from commonwatt.partitioning.mig_layouts import parse_layout
    from commonwatt.partitioning.mig_profiles import gpu_type

    document = read_mig_parted(path)
    if name is None:
        if len(document.configs) > 1:
            here = ", ".join(document.configs)
            raise InputError(f"--present-config to name one of {here}", file=path, field="--present-config")
        name = next(iter(document.configs))
    gpus = []
    for place, gpu in enumerate(file.gpus):
        counts = document.instances(name, place, path)
        if counts is None:
            gpus.append(gpu)
            continue
        words = [profile for profile, count in counts.items() for _ in range(min(count, 8))]
        with blamed_on(path):
            parse_layout(gpu_type(gpu.type, f"gpus.{gpu.name}.type"), words, f"mig-configs.{name} (GPU {place})")
        gpus.append(gpu.model_copy(update={"present": tuple(words)}))
    return file.model_copy(update={"gpus": tuple(gpus)})


def _decide(file: MigFile, mode: str, welfare: str, limit_s: float, seed: int) -> MigResult:
    import numpy as np

    from commonwatt import __version__
    from commonwatt.model.errors import InputError, SolverError
    from commonwatt.model.mig_results import MigResult
    from commonwatt.partitioning.mig_problem import MigProblem

    compiled = MigProblem.of(file)
    chosen = _solve(compiled, mode, welfare, limit_s)
    other, refusal = None, None
    try:
        other = _solve(compiled, next(m for m in MODES if m != mode), welfare, limit_s)
    except (InputError, SolverError) as error:
        refusal = str(error)
    advantage = None
    if other is not None and welfare == "nash":
        market, whole = (chosen, other) if mode == "market" else (other, chosen)
        advantage = max(0.0, float(np.exp(market.welfare - whole.welfare) - 1.0))
    return MigResult(
        version=__version__, seed=seed, input_digest=digest(file), mode=mode, welfare_kind=welfare, chosen=chosen,
        other=other, other_refusal=refusal, market_advantage=advantage,
    )  # fmt: skip


def _solve(problem: MigProblem, mode: str, welfare: str, limit_s: float) -> MigAnswer:
    from commonwatt.model.mig_results import MigAnswer
    from commonwatt.partitioning.mig_integer import solve_integer
    from commonwatt.partitioning.mig_market import solve_market
    from commonwatt.partitioning.mig_plan import plan_gpus

    began = perf_counter()
    left_s: Callable[[], float] = lambda: limit_s - (perf_counter() - began)  # noqa: E731
    market, tried = None, None
    if mode == "market":
        timed = solve_market(problem, welfare, left_s)
        found, market, tried = timed, timed.market, timed.tried
        shares, utilities = market.shares, market.utilities
    else:
        whole = solve_integer(problem, welfare, left_s)
        found, shares, utilities = whole, whole.instances.astype(float), whole.utilities  # type: ignore[assignment]
    solve_s = perf_counter() - began
    plans = plan_gpus(problem, found.picked, shares)
    known = [plan for plan in plans if plan.group.present is not None]
    return MigAnswer(
        mode=mode, welfare=found.value, bound=found.bound, gap=max(0.0, found.bound - found.value),
        optimal=found.optimal, tried=tried, residual=None if market is None else market.residual,
        prices=() if market is None else _prices(problem, market, problem.totals(found.picked).tolist()),
        gpus=tuple(_gpu(problem, plan) for plan in plans), tenants=_tenants(problem, shares, utilities, market),
        drained=sum(len(plan.drained) for plan in known) if known else None, solve_s=solve_s,
    )  # fmt: skip


def _prices(problem: MigProblem, market: Equilibrium, counts: list[int]) -> tuple[MigPriceResult, ...]:
    from commonwatt.model.mig_results import MigPriceResult

    return tuple(
        MigPriceResult(instance=f"{name}/{profile.name}", count=count, price=price)
        for (name, profile), count, price in zip(problem.classes, counts, market.prices.tolist(), strict=True)
    )


def _tenants(problem: MigProblem, shares, utilities, market: Equilibrium | None) -> tuple[MigTenantResult, ...]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    from commonwatt.model.mig_results import MigTenantResult
    from commonwatt.partitioning.mig_plan import CRUMB, tenant_sentence

    found = []
    for i, name in enumerate(problem.tenants):
        reason, sentence = tenant_sentence(problem, i, shares[i], float(utilities[i]), market)
        has = {f"{t}/{p.name}": float(s) for (t, p), s in zip(problem.classes, shares[i], strict=True) if s > CRUMB}
        spent = None if market is None else float(shares[i] @ market.prices)
        found.append(
            MigTenantResult(
                name=name, weight=float(problem.weights[i]), utility=float(utilities[i]),
                speed=float(problem.speeds[i] @ shares[i]), instances=has, spent=spent, reason=reason,
                sentence=sentence,
            )
        )  # fmt: skip
    return tuple(found)


def _gpu(problem: MigProblem, plan: GpuPlan) -> MigGpuResult:
    from commonwatt.model.mig_results import MigGpuResult, MigInstanceResult, MigUserResult
    from commonwatt.partitioning.mig_plan import gpu_sentence
    from commonwatt.partitioning.mig_profiles import gpu_type

    reason, sentence = gpu_sentence(plan)
    kind = gpu_type(plan.group.type)
    return MigGpuResult(
        name=problem.gpus[plan.gpu],
        type=plan.group.type,
        certainty=kind.certainty,
        instances=tuple(
            MigInstanceResult(
                profile=kind.profile(instance.placed.profile).name,
                start=instance.placed.start,
                stays=instance.stays,
                users=tuple(MigUserResult(tenant=problem.tenants[i], share=share) for i, share in instance.users),
            )
            for instance in plan.instances
        ),
        drained=None if plan.group.present is None else tuple(map(str, plan.drained)),
        reason=reason,
        sentence=sentence,
    )


def _write(answer: MigAnswer, path: Path) -> None:
    from collections import Counter

    from commonwatt.data.mig_parted import Entry, MigParted, write_mig_parted

    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for place, gpu in enumerate(answer.gpus):
        counts = Counter(instance.profile for instance in gpu.instances)
        alike.setdefault(tuple(counts.items()), []).append(place)
    entries = tuple(Entry(tuple(places), enabled=True, instances=dict(c)) for c, places in alike.items())
    write_mig_parted(MigParted({"commonwatt": entries}), path)
    say(f"written: {path} (GPUs are numbered as in the problem)")


def _tell(result: MigResult) -> None:
    from rich.console import Console
    from rich.table import Table

    answer = result.chosen
    console = Console()
    gpus = Table(title=f"{answer.mode}, {result.welfare_kind} welfare {answer.welfare:.6g}")
    for heading in ("GPU", "instances", "why"):
        gpus.add_column(heading, overflow="fold")
    for gpu in answer.gpus:
        parts = [
            f"{i.profile}: {', '.join(f'{u.tenant} {u.share:.0%}' for u in i.users) or 'free'}" for i in gpu.instances
        ]
        gpus.add_row(gpu.name, "; ".join(parts), gpu.sentence)
    console.print(gpus)
    tenants = Table()
    for heading in ("tenant", "utility", "why"):
        tenants.add_column(heading, overflow="fold", justify="right" if heading == "utility" else "left")
    for t in answer.tenants:
        tenants.add_row(t.name, f"{t.utility:.4g}", t.sentence)
    console.print(tenants)
    if answer.prices:
        say("prices: " + ", ".join(f"{p.instance} {p.price:.3g}" for p in answer.prices))
    proven = (
        "the best of all layouts" if answer.optimal else f"not proven best: at most {answer.gap:.3g} more is possible"
    )
    say(f"{proven}; solved in {answer.solve_s:.3f} s")
    if answer.drained:
        say(f"{answer.drained} instances must drain")
    if result.market_advantage is not None:
        say(f"time shares give {result.market_advantage:.2%} more than whole instances (weighted geometric mean)")
    elif result.other_refusal:
        say(f"the other mode has no answer: {result.other_refusal}")
