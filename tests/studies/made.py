"""A small log and the cluster it ran on, as an operator has them, and results made up for pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from commonwatt.model.study_results import (
    Assumption,
    SavingInterval,
    StudyLog,
    StudyPolicy,
    StudyResult,
    StudyTenant,
    WaterfallStep,
)
from commonwatt.studies.rows import BASELINE

NODES = """NodeName=v-1 Gres=gpu:v100:4(S:0-1) State=IDLE
NodeName=v-2 Gres=gpu:v100:4(S:0-1) State=IDLE
NodeName=t-1 Gres=gpu:t4:4 State=IDLE
NodeName=login Gres=(null) State=IDLE
"""


def write_log(folder: Path, jobs: int = 30, *, typed: bool = True, limits: bool = True, days: float = 1.0) -> Path:
    """Write a log as ``sacct --parsable2`` prints it; jobs start when they are submitted."""
    rng = np.random.default_rng(3)
    lines = ["JobID|Account|Submit|Start|Elapsed|Timelimit|State|AllocTRES"]
    for i, at in enumerate(np.sort(rng.uniform(0, days * 86400, jobs)).astype(int).tolist()):
        gpus, run = int(rng.choice([1, 2, 4])), int(rng.integers(1200, 30_000))
        kind = str(rng.choice(["v100", "t4"]))
        tres = f"gres/gpu={gpus}" + (f",gres/gpu:{kind}={gpus}" if typed else "")
        limit = f"{2 * run // 3600 + 1}:00:00" if limits else "Unknown"
        lines.append(f"{100 + i}|team-{i % 3}|{_at(at)}|{_at(at)}|{_clock(run)}|{limit}|COMPLETED|{tres}")
    path = folder / "jobs.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "nodes.txt").write_text(NODES, encoding="utf-8")
    return path


def add_job(log: Path, gpus: int, kind: str, name: str = "900") -> None:
    """Append a job of *gpus* GPUs of *kind* to a log of ``write_log``, submitted on its first day."""
    tres = f"gres/gpu={gpus},gres/gpu:{kind}={gpus}"
    row = f"{name}|team-0|{_at(20_000)}|{_at(20_000)}|01:00:00|2:00:00|COMPLETED|{tres}\n"
    log.write_text(log.read_text(encoding="utf-8") + row, encoding="utf-8")


def _at(seconds: int) -> str:
    return f"2026-09-{7 + seconds // 86400:02}T{_clock(seconds % 86400)}"


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def make_result(**changes: object) -> StudyResult:
    """Return a result with every part of a page, none of it measured."""
    names = ("thrifty-type", "planning", "consolidation", "switching-off", "resizing", "preemption")
    steps = [_step(BASELINE, 0.0, None)]
    steps += [_step(name, 4.0 * k - (9.0 if name == "consolidation" else 0.0), 2.0) for k, name in enumerate(names, 1)]
    steps.append(_step("price", None, None).model_copy(update={"alone_against": "planning"}))
    roles = {"as logged": "as-logged", "as today": "baseline", "EASY": "alternative", "ours & co": "ours"}
    result = StudyResult(
        version="0.1.0", seed=0, input_digest="5f" * 32, study="made up", currency="EUR",
        about=StudyLog(
            source="a log that is made up", begin=("2026-09-07",), days=7.0, weeks=2, seeds=(0, 1), jobs=900,
            tenants=12, nodes=7, gpus=28, gpu_types=("V100", "A100"), names_gpu_types=True,
            window_s=6e5,
            treatments={"left out of the log: never started": 3},
        ),
        baseline="as today", knowledge="user-limit", conservative_saving_pct=1.25, conservative_cost_saving_pct=1.1,
        conservative_saving_interval=SavingInterval(low=-0.5, high=3.0, level=0.95, over="weeks", units=2),
        waterfall=tuple(steps),
        policies=tuple(_policy(name, role, k) for k, (name, role) in enumerate(roles.items())),
        assumptions=(
            Assumption(what="Size of jobs", value="as requested", drawn=False, switch="step resizing"),
            Assumption(what="Kind of model", value="one of the published ones", drawn=True, switch="workload.profiles"),
        ),
        notes=("A note.",),
    )  # fmt: skip
    return result.model_copy(update=changes)


def _step(name: str, saved: float | None, alone: float | None) -> WaterfallStep:
    energy = None if saved is None else 1000.0 - 10 * saved
    return WaterfallStep(
        step=name, energy_kwh=energy, cost=energy, saved_pct=saved, cost_saved_pct=saved, alone_pct=alone,
        alone_cost_pct=alone, alone_against=None if alone is None else "baseline", p95_wait_s=600.0,
        longest_wait_s=7200.0, switch="a switch", assumes="Something that has to be true.",
    )  # fmt: skip


def _policy(name: str, role: str, k: int) -> StudyPolicy:
    tenants = tuple(
        StudyTenant(
            tenant=f"team-{t:02}", jobs=50.0 - t, p50_wait_s=0.0, p95_wait_s=600.0 * (t + k),
            p99_wait_s=5000.0 + 900 * k, longest_wait_s=9000.0 + 900 * k,
        )
        for t in range(12)
    )  # fmt: skip
    return StudyPolicy(
        policy=name, role=role, solver=None if role == "as-logged" else "easy", energy_kwh=1000.0, cost=170.0,
        saved_pct=0.0, unfinished_pct=7.0,
        gpu_utilization=0.4, mean_wait_s=300.0 + 60 * k, p50_wait_s=0.0, p95_wait_s=600.0, p99_wait_s=5000.0,
        longest_wait_s=9000.0, mean_total_wait_s=310.0, slowdown_p50=1.0, slowdown_p99=20.0, unfairness_worst=2.5,
        most_starts=1, tail_s=3600.0, tenants=tenants,
    )  # fmt: skip
