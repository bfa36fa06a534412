"""The fleet of a scenario: loads of services, fractional jobs, speeds on multi-core accelerators, interference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from commonwatt.data import third_party
from commonwatt.data.log import plural
from commonwatt.data.map_problem import arrays_of
from commonwatt.data.networks import network_layers
from commonwatt.data.series_files import read_series
from commonwatt.data.table import read_table
from commonwatt.mapping import solve_file
from commonwatt.mapping.costs import MODELS, job_table
from commonwatt.model.arrays import Floats
from commonwatt.model.errors import InputError
from commonwatt.model.fleet import (
    Fleet,
    FractionalJobs,
    FractionalLaw,
    FractionalModel,
    FractionalWorkload,
    GeneratedLoad,
    Interference,
    LoadFile,
    LoadSeries,
    ModelOnType,
    RequestLoad,
    ServiceLoad,
    ServiceModel,
    ServiceProfile,
    ServiceSpec,
    SharingSpec,
)
from commonwatt.model.map_file import MapFile, MapTable
from commonwatt.model.names import one_of
from commonwatt.model.nodes import Cluster, NodeClass
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import DAY_S, HOUR_S

__all__ = [
    "batch_cycles",
    "fitted_slowdown",
    "generated_load",
    "make_fleet",
]

CLOCK_HZ = 1e9
"""Clock of the accelerators of G#, at which its bandwidths are stated."""
BANDWIDTH_GBS = {"S1": 16.0, "S2": 16.0, "S3": 256.0, "S4": 256.0, "S5": 256.0, "S6": 256.0}
"""Bandwidth all sub-accelerators of a platform share, as G# sets it for small and large ones."""
BUDGET = 2000
"""Mappings evaluated for one batch."""


def make_fleet(
    scenario: Scenario, folder: Path, cluster: Cluster, sharing: SharingSpec, fractions: Sequence[FractionalModel],
    seed: int,
) -> Fleet:  # fmt: skip
    """Compile services and fractional jobs; paths are relative to *folder*, *fractions* are those of the log.

    Raises ``InputError`` on a service or job that no node can run, and on files that cannot be read.
    """
    kinds = {kind.gpu_type: kind for kind in cluster.classes}
    for kind in cluster.classes:
        if kind.platform is not None and kind.platform not in BANDWIDTH_GBS:
            raise InputError(one_of(BANDWIDTH_GBS, kind.platform), field="nodes.platform", value=kind.platform)
    services = tuple(_service(spec, k, kinds, sharing, folder, seed) for k, spec in enumerate(scenario.services))
    jobs = tuple(fractions)
    if scenario.fractional is not None:
        jobs = _fractional_jobs(scenario.fractional, np.random.default_rng([seed, 5]))
    if jobs and not any(sharing.runs_fractions(kind) for kind in cluster.classes):
        expected = "a node that shares its GPUs in time (share: [time]), for fractional jobs"
        raise InputError(expected, field="nodes.share", value="none")
    weights = {tenant.name: tenant.weight for tenant in scenario.tenants}
    sentence = ", ".join(
        part for part, count in ((plural(len(services), "service"), len(services)),
                                 (plural(len(jobs), "fractional job"), len(jobs))) if count
    )  # fmt: skip
    return Fleet(services, jobs, sharing, _slowdown(sharing.interference), weights, sentence)


# -- services


def _service(
    spec: ServiceSpec, k: int, kinds: dict[str, NodeClass], sharing: SharingSpec, folder: Path, seed: int
) -> ServiceModel:
    where = f"services.{spec.name}"
    types = {}
    for gpu_type, profile in spec.profiles.items():
        if gpu_type in kinds:
            types[gpu_type] = _on_type(profile, kinds[gpu_type], sharing.mapping, f"{where}.profiles.{gpu_type}")
    if not types:
        expected = f"a profile for a GPU type of the cluster ({', '.join(kinds)})"
        raise InputError(expected, field=f"{where}.profiles", value=", ".join(spec.profiles))
    # one request alone: exponential, of mean 1 / rate (see control.fleet.sizing)
    least_s = min(m.floor_s - math.log(1.0 - spec.quantile) / m.rate_rps for m in types.values())
    if not spec.latency_s > least_s:
        expected = f"more than {least_s:.3g} s, within which {spec.quantile:.3%} of single requests are served"
        raise InputError(expected, field=f"{where}.latency_s", value=spec.latency_s)
    load = _load(spec.load, folder, np.random.default_rng([seed, 6, k]), f"{where}.load")
    return ServiceModel(
        spec.name, spec.tenant, load, types, spec.latency_s, spec.quantile, spec.replicas.min, spec.replicas.max,
        spec.start_s,
    )  # fmt: skip


def _on_type(profile: ServiceProfile, kind: NodeClass, algorithm: str, where: str) -> ModelOnType:
    power_w = kind.gpu_w if profile.power_w is None else profile.power_w
    if profile.networks is None:
        assert profile.request_s is not None
        return ModelOnType(
            1.0 / profile.request_s, profile.floor_s, power_w, profile.parallel_fraction, profile.mig_speed,
            profile.memory_gb,
        )  # fmt: skip
    if kind.platform is None:
        raise InputError("request_s, or nodes of this type with a platform", field=f"{where}.networks",
                         value=", ".join(profile.networks))  # fmt: skip
    try:
        batch_s = batch_cycles(kind.platform, profile.networks, profile.batch, algorithm) / CLOCK_HZ
    except InputError as error:
        raise InputError(error.expected, field=f"{where}.networks", value=error.value) from None
    # a batch is served as one: its requests wait for all of it
    return ModelOnType(profile.batch / batch_s, profile.floor_s + batch_s * (1 - 1 / profile.batch), power_w)


@cache
def batch_cycles(platform: str, networks: tuple[str, ...], batch: int, algorithm: str) -> float:
    """Return the makespan of *batch* requests on a platform, each through all layers of *networks*, in cycles.

    Layers of a request run one after another. Costs are those of the roofline model, which is physically honest. The
    time of the search is limited by mappings, so that it gives the same on every machine.

    Raises
    ------
    InputError
        For a network that is none.
    """
    layers = [layer for name in networks for layer in network_layers(name)]
    costs = job_table(layers, arrays_of(platform), MODELS["roofline"])
    table = MapTable.model_validate(
        {
            "latency_cycles": _rows(costs.latency) * batch,
            "bandwidth_gbs": _rows(costs.bandwidth) * batch,
        }
    )
    tenants = tuple(f"request {i}" for i in range(batch) for _ in layers)
    file = MapFile(system_bandwidth_gbs=BANDWIDTH_GBS[platform], table=table, tenants=tenants, after="tenant")
    return solve_file(file, clock=lambda: 0.0, algorithm=algorithm, budget=BUDGET).makespan_cycles


def _rows(values: Floats) -> list[list[float | None]]:
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]


def _load(spec: ServiceLoad, folder: Path, rng: np.random.Generator, where: str) -> RequestLoad:
    if isinstance(spec, LoadSeries):
        return RequestLoad(np.array(spec.rps, dtype=float), spec.step_s)
    if isinstance(spec, GeneratedLoad):
        return generated_load(spec, rng)
    return _read_load(spec, folder, where)


def _read_load(spec: LoadFile, folder: Path, where: str) -> RequestLoad:
    series = read_series(folder / spec.path, column=spec.column).series
    if np.isnan(series.gpus).any():
        raise InputError("requests at every step", file=folder / spec.path, field=where, value="unknown values")
    return RequestLoad(series.gpus.astype(float), series.step_s)


def generated_load(spec: GeneratedLoad, rng: np.random.Generator) -> RequestLoad:
    """Generate requests: ``mean * (1 + swing * cos(2 pi (t - peak) / day)) * burst``, bursts gamma of mean 1."""
    steps = max(1, round(spec.days * DAY_S / spec.step_s))
    middle_s = (np.arange(steps) + 0.5) * spec.step_s
    day = 1.0 + spec.swing * np.cos(2 * np.pi * (middle_s - spec.peak_h * HOUR_S) / DAY_S)
    burst = np.ones(steps)
    if spec.burst_cv > 0:
        burst = rng.gamma(1 / spec.burst_cv**2, spec.burst_cv**2, steps)
    return RequestLoad(spec.mean_rps * day * burst, spec.step_s)


# -- interference


def _slowdown(spec: Interference) -> float:
    if spec.source == "law":
        return spec.slowdown
    folder = third_party.folder()
    if folder is None:
        expected = f"law, or the tables of Lucid in the folder {third_party.VARIABLE} names"
        raise InputError(expected, field="sharing.interference.source", value=spec.source)
    return fitted_slowdown(folder)


@cache
def fitted_slowdown(folder: Path) -> float:
    """Return the slowdown beside a GPU's worth of other work, fitted to the pairs of jobs that Lucid measured.

    Least squares of ``1 / speed - 1 = slowdown * utilization of the other job alone``, over both jobs of each pair.
    """
    single, pairs = read_table(folder / "lucid_single.csv"), read_table(folder / "lucid_colocated.csv.gz")
    key = ("model", "dataset", "batchsize", "amp")
    names = zip(*(single.text(name) for name in key), strict=True)
    alone = dict(zip(names, single.numbers("gpu_util") / 100, strict=True))
    top = bottom = 0.0
    for a, b in (("1", "2"), ("2", "1")):
        others = zip(*(pairs.text(name + b) for name in key), strict=True)
        for other, speed in zip(others, pairs.numbers(f"speed{a}").tolist(), strict=True):
            if other in alone and speed > 0:
                top += alone[other] * (1 / speed - 1)
                bottom += alone[other] ** 2
    return max(0.0, top / bottom) if bottom > 0 else 0.0


# -- fractional jobs


def _fractional_jobs(spec: FractionalWorkload, rng: np.random.Generator) -> tuple[FractionalModel, ...]:
    """Return the fractional jobs of a scenario, in order of submission."""
    if isinstance(spec, FractionalJobs):
        names = [job.name for job in spec.jobs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError("distinct job names", field="fractional.jobs.name", value=twice)
        listed = [FractionalModel(j.name, j.tenant, j.submit_s, j.duration_s, j.gpu_milli, j.qos) for j in spec.jobs]
        return tuple(sorted(listed, key=lambda job: job.submit_s))
    return _by_law(spec, rng)


def _by_law(spec: FractionalLaw, rng: np.random.Generator) -> tuple[FractionalModel, ...]:
    length_s, most = spec.days * DAY_S, spec.jobs_per_day / DAY_S * (1 + spec.swing)
    at_s = np.sort(rng.uniform(0.0, length_s, rng.poisson(most * length_s)))
    day = 1.0 + spec.swing * np.cos(2 * np.pi * (at_s - spec.peak_h * HOUR_S) / DAY_S)
    at_s = at_s[rng.random(len(at_s)) * (1 + spec.swing) < day]  # thinned
    count = len(at_s)
    duration_s = spec.median_s * np.exp(rng.normal(0.0, spec.spread, count))
    milli = rng.choice(np.array(spec.gpu_milli), count)
    tenants = rng.integers(len(spec.tenants), size=count)
    best_effort = rng.random(count) < spec.best_effort
    digits = len(str(count))
    return tuple(
        FractionalModel(
            f"fraction-{i:0{digits}}", spec.tenants[tenants[i]], float(at_s[i]), float(duration_s[i]), int(milli[i]),
            "BE" if best_effort[i] else "LS",
        )
        for i in range(count)
    )  # fmt: skip
