"""``commonwatt timeslice profile`` and ``commonwatt timeslice serve``: they run real models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from commonwatt.cli.output import json_option, naming_file, print_json, print_message, progress_bar, seed_option

if TYPE_CHECKING:
    from commonwatt.devices.base import Device, LoadedModel
    from commonwatt.devices.batches import Batching
    from commonwatt.devices.language.generation import LanguagePlan
    from commonwatt.devices.profiles import ProfilerSettings
    from commonwatt.devices.session import DeviceSession
    from commonwatt.model.timeslice_file import CpuDeviceSpec, CudaDeviceSpec, TimesliceConfig
    from commonwatt.model.timeslice_results import ServedModelResult, TimesliceProfileResult, TimesliceServeResult
    from commonwatt.serving.server import Addresses

__all__ = ["profile", "serve"]


@click.command(short_help="Measure time and power of a model.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--device",
    "kind",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device to measure on.",
)
@click.option("--index", type=click.IntRange(min=0), default=0, show_default=True, help="cuda: which GPU.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="cpu: threads.")
@click.option(
    "--clock", "clocks", type=click.FloatRange(min=0, min_open=True), multiple=True, metavar="MHZ",
    help="cuda: a clock to profile at; repeatable.  [default: the device's own]",
)  # fmt: skip
@click.option("--segment", type=click.FloatRange(min=0, min_open=True), default=0.002, show_default=True,
              metavar="SECONDS", help="Length of the segments the model is cut into.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True,
              help="Time to repeat inferences at each clock.")  # fmt: skip
@click.option("--tries", type=click.IntRange(min=1), default=5, show_default=True, help="Most tries at each clock.")
@click.option("--variation", type=click.FloatRange(min=0, min_open=True), default=0.05, show_default=True,
              help="Largest coefficient of variation to accept.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the profile to FILE (JSON).")
@seed_option
@json_option
def profile(
    model: Path,
    *,
    kind: str,
    index: int,
    threads: int,
    clocks: tuple[float, ...],
    segment: float,
    seconds: float,
    tries: int,
    variation: float,
    out: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Measure time and power of an inference of MODEL (.onnx or .pt2) on a device, segment by segment.

    On a device without a power meter, power comes from a model, and the profile says so.

    \b
    Example:
      commonwatt timeslice profile resnet.onnx --threads 1 --out resnet.profile.json
    """
    from commonwatt.devices.profiles import ProfilerSettings
    from commonwatt.devices.session import open_device
    from commonwatt.model.timeslice_file import CpuDeviceSpec, CudaDeviceSpec

    spec = (
        CpuDeviceSpec(kind="cpu", threads=threads, segment_s=segment)
        if kind == "cpu"
        else CudaDeviceSpec(kind="cuda", index=index, segment_s=segment)
    )
    device = open_device(spec)
    try:
        result = _measure(device, spec, model, clocks, ProfilerSettings(seconds, tries, variation), out, seed)
    finally:
        device.close()
    if as_json:
        print_json(result)
    else:
        _tell(result)


def _measure(
    device: Device, spec: CpuDeviceSpec | CudaDeviceSpec, path: Path, clocks: tuple[float, ...],
    settings: ProfilerSettings,
    out: Path | None, seed: int,
) -> TimesliceProfileResult:  # fmt: skip
    from time import perf_counter

    import numpy as np

    from commonwatt import __version__
    from commonwatt.data.files import write_atomic
    from commonwatt.devices.base import RealDeviceClock
    from commonwatt.devices.profiles import profile_model
    from commonwatt.model.timeslice_results import TimesliceProfileResult

    began = perf_counter()
    loaded = device.load(path.stem, str(path))
    at: tuple[float | None, ...] = clocks or (None,)
    try:
        with progress_bar("profile", 1, float(len(at))) as bar:
            model_profile = profile_model(
                device, RealDeviceClock(), loaded, at, spec.power, settings, np.random.default_rng(seed),
                lambda done: bar.at("", done),
            )  # fmt: skip
    finally:
        loaded.close()
    if out is not None:
        write_atomic(out, model_profile.model_dump_json(indent=1) + "\n")
    return TimesliceProfileResult(
        version=__version__,
        seed=seed,
        input_digest=loaded.digest,
        profile=model_profile,
        written=None if out is None else str(out),
        wall_s=perf_counter() - began,
    )


def _tell(result: TimesliceProfileResult) -> None:
    from rich.console import Console
    from rich.table import Table

    profile = result.profile
    table = Table(title=f"{profile.model} on {profile.device}")
    for heading in ("clock, MHz", "time, ms", "varies by", "power, W", "power is", "inferences", "segments"):
        table.add_column(heading, justify="right")
    for point in profile.points:
        table.add_row(
            "its own" if point.clock_mhz is None else f"{point.clock_mhz:g}", f"{1e3 * point.time_s:.4g}",
            f"{100 * (point.coefficient_of_variation or 0.0):.1f}%", f"{point.power_w:.4g}", point.power_source,
            str(point.runs), str(len(point.kernels)),
        )  # fmt: skip
    Console().print(table)
    if result.written is not None:
        print_message(f"written: {result.written}")


@click.command(short_help="Serve models over the Open Inference Protocol.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Load everything, show what would be served, and exit.")
@click.option("--tls-certificate", type=click.Path(path_type=Path), metavar="PEM",
              help="Encrypt, with this certificate and its chain, instead of CONFIG's (server.tls).")  # fmt: skip
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="PEM",
              help="Private key of the certificate, without a passphrase.")  # fmt: skip
@seed_option
@json_option
def serve(
    config: Path, *, check: bool, tls_certificate: Path | None, tls_key: Path | None, seed: int, as_json: bool
) -> None:
    """Serve the tenants' models of CONFIG: Open Inference Protocol v2 (REST and gRPC), OpenAI's API for text.

    SIGTERM or Ctrl-C stops the server when the requests it has accepted are answered; a second one stops it at once.

    \b
    Example:
      commonwatt timeslice serve examples/server.yaml
    """
    import os

    from commonwatt.data.certificates import Certificates
    from commonwatt.data.files import load_yaml
    from commonwatt.devices.session import open_session
    from commonwatt.model.timeslice_file import TimesliceConfig
    from commonwatt.serving import import_extra
    from commonwatt.serving.keys import resolve_keys, with_host
    from commonwatt.serving.server import check_host
    from commonwatt.serving.triton_documents import read_repositories

    for package in ("starlette", "uvicorn", "grpc", "tritonclient.grpc", "prometheus_client"):
        import_extra(package)
    file = _encrypted(load_yaml(config, TimesliceConfig), tls_certificate, tls_key)
    with naming_file(config):
        file = with_host(file, os.environ)
        if file.server.tls is not None:
            Certificates(file.server.tls, config.parent, "server.tls")  # refused before models are loaded
        if file.device.kind == "simulated":
            _refuse_simulated()
        check_host(file.server.host)
        keys = resolve_keys(file, os.environ)
        file, checks, ignored = read_repositories(file, config.parent)
        session = open_session(file, config.parent, checks)
    from commonwatt.serving.sharing import SharingBackend

    backend = SharingBackend(session)
    document = _document(file, session, seed).model_copy(update={"ignored": ignored})
    if check:
        backend.close()
        _show(document, None, as_json=as_json)
        return
    import asyncio

    from commonwatt.serving.server import serve as serve_it

    backend.start()
    try:
        with naming_file(config):
            asyncio.run(
                serve_it(
                    backend, keys, file.server, folder=config.parent,
                    on_ready=lambda where: _show(document, where, as_json=as_json),
                )
            )  # fmt: skip
    finally:
        backend.close()
    print_message("stopped: every request that was accepted has been answered or refused")


def _encrypted(file: TimesliceConfig, certificate: Path | None, key: Path | None) -> TimesliceConfig:
    """Return *file* with certificate and key of the command line; an authority of clients in it stays."""
    from commonwatt.model.errors import InputError
    from commonwatt.model.identity import TlsSpec

    if certificate is None and key is None:
        return file
    if certificate is None or key is None:
        given, missing = (
            ("--tls-key", "--tls-certificate") if certificate is None else ("--tls-certificate", "--tls-key")
        )
        raise InputError(f"{missing} beside {given}", field=missing)
    client_ca = None if file.server.tls is None else file.server.tls.client_ca
    tls = TlsSpec(certificate=str(certificate.absolute()), key=str(key.absolute()), client_ca=client_ca)
    return file.model_copy(update={"server": file.server.model_copy(update={"tls": tls})})


def _refuse_simulated() -> NoReturn:
    from commonwatt.model.errors import InputError

    raise InputError("cpu or cuda, as a simulated device answers nothing", field="device.kind", value="simulated")


def _document(file: TimesliceConfig, session: DeviceSession, seed: int) -> TimesliceServeResult:
    from commonwatt import __version__
    from commonwatt.cli.output import digest
    from commonwatt.model.timeslice_results import ServedModelResult, TimesliceServeResult

    return TimesliceServeResult(
        version=__version__,
        seed=seed,
        input_digest=digest(file.without_keys()),
        device=session.device.name,
        enforcement=session.device.enforcement,
        policy=file.policy,
        phi=file.phi,
        rest=None,
        grpc=None,
        tls=file.server.tls is not None,
        models=tuple(
            ServedModelResult(
                tenant=tenant.name, model=spec.name, version=spec.version, segments=len(loaded.model.step_names),
                longest_segment_s=max(loaded.model.step_times_s), time_s=loaded.powers.time_s,
                power_w=loaded.powers.mean_w, power_source=session.power_source(tenant.name),
                **_rows(loaded.batching) if loaded.language is None else _language(loaded.model, loaded.language),
            )
            for tenant in file.tenants
            for spec in tenant.models
            if (loaded := session.loaded.get((tenant.name, spec.key))) is not None
        ),
    )  # fmt: skip


def _language(model: LoadedModel, plan: LanguagePlan) -> dict[str, Any]:
    from commonwatt.devices.language.base import LanguageModel
    from commonwatt.model.timeslice_results import LanguageResult

    assert isinstance(model, LanguageModel)
    return {
        "most_rows": None, "together_rows": plan.max_sequences, "undivided": None,
        "language": LanguageResult(
            most_tokens=plan.most_tokens, kv_cache_tokens=plan.pool.tokens,
            kv_cache_mb=plan.pool.tokens * model.cache_bytes_per_token / 1e6, max_sequences=plan.max_sequences,
            step_tokens=plan.rows.most_rows() or 1,
        ),
    }  # fmt: skip


def _rows(batching: Batching | None) -> dict[str, Any]:
    plan = None if batching is None else batching.plan
    if batching is None or plan is None or not plan.divisible:
        why = "max_batch_size is 0" if plan is None or plan.profile.divisible else plan.profile.reason
        return {"most_rows": None, "together_rows": None, "undivided": why}
    together = plan.worthwhile_rows() if batching.together else None
    return {"most_rows": plan.most_rows(), "together_rows": together, "undivided": None}


def _called(model: ServedModelResult) -> str:
    return model.model if model.version == 1 else f"{model.model}, version {model.version}"


def _show(document: TimesliceServeResult, where: Addresses | None, *, as_json: bool) -> None:
    import sys

    for one in document.ignored:
        print_message(f"{one.tenant}, {one.model}: {one.field} of config.pbtxt is ignored: {one.reason}")
    if where is not None:
        document = document.model_copy(update={"rest": where.rest, "grpc": where.grpc})
    if as_json:
        print_json(document)
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{document.policy}, phi {document.phi:g}, on {document.device}")
    for heading in ("tenant", "model", "segments", "longest, ms", "inference, ms", "rows", "power, W", "power is"):
        table.add_column(heading, justify="left" if heading in {"tenant", "model"} else "right", overflow="fold")
    for m in document.models:
        table.add_row(
            m.tenant, _called(m), str(m.segments), f"{1e3 * m.longest_segment_s:.3g}",
            f"{1e3 * m.time_s:.3g}",
            "text" if m.language else "whole" if m.undivided else str(m.most_rows or "any"),
            f"{m.power_w:.3g}", m.power_source,
        )  # fmt: skip
    Console().print(table)
    for m in document.models:
        if m.language is not None:
            print_message(
                f"{m.tenant}, {_called(m)}: generates text, up to {m.language.most_tokens} tokens with the prompt; "
                f"{m.language.step_tokens} tokens in a step, {m.language.max_sequences} requests at a time, cache of "
                f"{m.language.kv_cache_tokens} tokens ({m.language.kv_cache_mb:.3g} MB)"
            )
        if m.undivided:
            print_message(f"{m.tenant}, {_called(m)}: rows of a request stay together, as {m.undivided}")
    if where is not None:
        print_message(
            f"serving: REST on {where.rest}"
            + (f", gRPC on {where.grpc}" if where.grpc else "")
            + (", with TLS" if where.tls else "")
        )
