"""``commonwatt profile``."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonwatt.cli.output import FiniteRange, json_option, print_json, print_message
from commonwatt.cli.submit import COMMAND, WithCommand, script_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commonwatt.model.training_profile import FailedPoint, ProfileResult, TrainingPoint
    from commonwatt.profiling.hardware import Hardware
    from commonwatt.profiling.training_run import ProfilePlan

__all__ = ["command"]

_POSITIVE = FiniteRange(min=0, min_open=True)


@click.command(cls=WithCommand, options_metavar="[OPTIONS] -- PROGRAM ARGUMENTS...")
@click.option("-G", "--gpus", "counts", metavar="N,N,...", help="GPU counts to measure.  [default: 1, 2, 4, ... all]")
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True,
    help="NVIDIA GPUs; or, to try it without one, threads in place of GPUs.",
)  # fmt: skip
@click.option("--clock", "clocks", type=_POSITIVE, multiple=True, metavar="MHZ",
              help="Lock the GPUs to this clock; repeatable.  [default: their own]")  # fmt: skip
@click.option("--epochs", type=click.IntRange(min=1), default=3, show_default=True,
              help="Epochs to measure in each run, after the first.")  # fmt: skip
@click.option("--seconds", type=FiniteRange(min=0), default=2.0, show_default=True,
              help="Least time to measure in each run.")  # fmt: skip
@click.option("--limit", type=_POSITIVE, default=600.0, show_default=True, metavar="SECONDS",
              help="Longest time of a run.")  # fmt: skip
@click.option("--kind", metavar="LABEL", help="Label of the training.  [default: name of the script]")
@click.option("--gpu-type", metavar="TYPE", help="GPU type as the cluster names it.  [default: by the device's name]")
@click.option("--core-w", type=FiniteRange(min=0), default=5.0, show_default=True,
              help="cpu: modelled power of a busy core, W.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the profile to FILE (YAML, or JSON by its name).  [default: LABEL.profile.yaml]")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, *, device: str, core_w: float, out: Path | None, overwrite: bool, as_json: bool,
    **flags: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Run your own training a few epochs at several GPU counts; write its epoch times and power to a file.

    The script reports its epochs in three lines: `from commonwatt import progress`, and `for epoch in
    progress.epochs(90):` around the work of an epoch. Each run is stopped when enough was measured. Ctrl-C keeps what
    was measured.

    \b
    Examples:
      commonwatt profile -- python train.py
      commonwatt profile --gpus 1,2,4 --gpu-type A100 --out train.a100.yaml -- python train.py --batch 64
      commonwatt profile --device cpu --gpus 1,2 -- python train.py
    """
    from commonwatt.model.errors import InputError
    from commonwatt.profiling.hardware import CpuThreads, NvidiaGpus

    program = tuple(ctx.meta.get(COMMAND) or ())
    if not program:
        raise InputError("the command of the training after `--`", field="PROGRAM")
    plan = _plan(program, flags)
    out = out or Path(f"{plan.kind}.profile.yaml")
    if out.exists() and not overwrite:
        raise InputError("a new file, or --overwrite", field="--out", value=out)
    try:
        hardware: Hardware = CpuThreads(core_w) if device == "cpu" else NvidiaGpus()
    except InputError as error:
        expected = f"{error.expected}: --device cpu tries it with threads"
        raise InputError(expected, field="--device", value=device) from None
    try:
        with _ended_by_exception():
            result = _measure(plan, hardware, out)
    finally:
        hardware.close()
    if as_json:
        print_json(result)
    else:
        _show(result)


@contextmanager
def _ended_by_exception() -> Iterator[None]:
    """Let what ends us also end the training: the signals that Ctrl-C's neighbours send become an exit."""
    import signal
    import sys
    import threading

    here = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if here else ()
    before = {number: signal.signal(number, lambda got, _: sys.exit(128 + got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _plan(program: tuple[str, ...], flags: dict[str, Any]) -> ProfilePlan:
    from commonwatt.model.errors import InputError
    from commonwatt.profiling.training_run import ProfilePlan, RunLimits

    counts: tuple[int, ...] = ()
    if flags["counts"] is not None:
        try:
            counts = tuple(int(count) for count in flags["counts"].split(","))
        except ValueError:
            raise InputError("numbers with commas between", field="--gpus", value=flags["counts"]) from None
    limits = RunLimits(flags["epochs"], flags["seconds"], flags["limit"])
    kind = flags["kind"] or script_name(program)
    return ProfilePlan(program, kind, counts, flags["clocks"] or (None,), flags["gpu_type"], limits)


def _measure(plan: ProfilePlan, hardware: Hardware, out: Path) -> ProfileResult:
    import hashlib
    from time import perf_counter

    from commonwatt import __version__
    from commonwatt.model.training_profile import ProfileResult
    from commonwatt.model.units import plural
    from commonwatt.profiling.training_run import profile_training

    runs = len(plan.on(hardware))
    print_message(f"{plural(runs, 'run')} of {' '.join(plan.command)} on {hardware.name}")
    began, measured = perf_counter(), []

    def on_point(point: TrainingPoint | FailedPoint) -> None:
        measured.append(point)
        print_message(f"{len(measured)} of {runs}: {_described(point)}")

    try:
        profile = profile_training(plan, hardware, out, on_point)
    except (KeyboardInterrupt, SystemExit):
        kept = sum(hasattr(point, "epoch_s") for point in measured)
        print_message(f"{kept} of {runs} runs were measured: " + (f"kept in {out}" if kept else "nothing is kept"))
        raise
    print_message(f"written: {out}")
    text = profile.model_dump_json(exclude={"measured_at", "host"})
    return ProfileResult(
        version=__version__, seed=0, input_digest=hashlib.sha256(text.encode()).hexdigest(), profile=profile,
        written=str(out), wall_s=perf_counter() - began, asked_epochs=plan.limits.epochs,
        measured_epochs=min(point.epochs for point in profile.points),
    )  # fmt: skip


def _described(point: TrainingPoint | FailedPoint) -> str:
    gpus = "1 GPU" if point.gpus == 1 else f"{point.gpus} GPUs"
    where = gpus if point.clock_mhz is None else f"{gpus} at {point.clock_mhz:g} MHz"
    if (reason := getattr(point, "reason", None)) is not None:
        return f"{where}: {reason}"
    line = f"{where}: an epoch takes {point.epoch_s:.4g} s"  # type: ignore[union-attr]
    if point.is_short:  # type: ignore[union-attr]
        asked = f"only {point.epochs} of {point.asked_epochs} epochs"  # type: ignore[union-attr]
        line += f" ({asked} measured: the training ended early, or --limit has passed)"
    return line


def _show(result: ProfileResult) -> None:
    from rich.console import Console
    from rich.table import Table

    profile = result.profile
    power = f"power by a model: {profile.power_model}" if profile.power_model else None
    table = Table(title=f"{profile.kind} on {profile.gpu_type} ({profile.device})", caption=power)
    for heading in ("GPUs", "clock MHz", "epoch s", "speedup", "W per GPU", "epochs measured"):
        table.add_column(heading, justify="right")
    first = profile.points[0]
    for point in profile.points:
        same = next((other for other in profile.points if other.clock_mhz == point.clock_mhz), first)
        table.add_row(
            str(point.gpus), "own" if point.clock_mhz is None else f"{point.clock_mhz:g}", f"{point.epoch_s:.4g}",
            f"{same.epoch_s / point.epoch_s:.2f}", "unknown" if point.gpu_w is None else f"{point.gpu_w:.4g}",
            f"{point.epochs} of {point.asked_epochs}" if point.is_short else str(point.epochs),
        )  # fmt: skip
    Console().print(table)
