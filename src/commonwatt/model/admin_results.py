"""Results of ``commonwatt store``, ``check`` and ``init``."""

from __future__ import annotations

from typing import Literal

from commonwatt.model.fields import AnswerModel, ResultModel, quantity
from commonwatt.model.live_results import TokenEntry

__all__ = [
    "AttachResult",
    "CheckLine",
    "CheckResult",
    "InitNode",
    "InitResult",
    "StoreBackupResult",
    "StoreCheckResult",
    "StoreProblem",
    "StoreRestoreResult",
    "StoreUpgradeResult",
    "Verdict",
]

Verdict = Literal["ok", "warning", "failed"]


class CheckLine(ResultModel):
    """One check."""

    what: str = quantity("subject of the check")
    verdict: Verdict = quantity("ok, warning (the control plane can run) or failed (it cannot)")
    found: str = quantity("finding")
    advice: str | None = quantity("advice; null: none needed")


class CheckResult(AnswerModel):
    """Whether a control plane can run with this configuration."""

    verdict: Verdict = quantity("the worst verdict")
    checks: tuple[CheckLine, ...] = quantity("all checks, in order")


class StoreUpgradeResult(ResultModel):
    """Answer of ``commonwatt store upgrade``."""

    version: str = quantity("version of commonwatt")
    store: str = quantity("address of the store, without password")
    before: str | None = quantity("revision of the tables before; null: no tables")
    after: str = quantity("revision of the tables now")


class StoreBackupResult(ResultModel):
    """Answer of ``commonwatt store backup``."""

    version: str = quantity("version of commonwatt")
    store: str = quantity("address of the store, without password")
    file: str = quantity("the backup")
    revision: str = quantity("revision of the tables")
    size_bytes: int = quantity("size of the backup", "B")
    rows: dict[str, int] = quantity("rows of each table")


class StoreRestoreResult(ResultModel):
    """Answer of ``commonwatt store restore``."""

    version: str = quantity("version of commonwatt")
    store: str = quantity("address of the store, without password")
    file: str = quantity("the backup")
    revision: str = quantity("revision of the tables")
    rows: dict[str, int] = quantity("rows of each table")
    valid_tokens: tuple[TokenEntry, ...] = quantity(
        "tokens that are valid now, including those revoked after the backup was made"
    )


class StoreProblem(ResultModel):
    """An inconsistency of a store."""

    table: str = quantity("table of the row")
    job: int | None = quantity("job of the row; null: none")
    problem: str = quantity("the problem, as a sentence")


class StoreAccounts(ResultModel):
    """The ledger beside Slurm's accounts, over jobs that both have."""

    tenant: str = quantity("tenant")
    ledger_gpu_h: float = quantity("GPU hours by the ledger", "GPU h")
    slurm_gpu_h: float = quantity("GPU hours by Slurm's accounts", "GPU h")


class StoreCheckResult(ResultModel):
    """Answer of ``commonwatt store check``."""

    version: str = quantity("version of commonwatt")
    store: str = quantity("address of the store, without password")
    revision: str = quantity("revision of the tables")
    controller: bool = quantity("whether a controller is running on it")
    rows: dict[str, int] = quantity("rows of each table")
    jobs: dict[str, int] = quantity("jobs by status")
    ledger_exact: bool = quantity("whether the rows of the ledger sum exactly to the meter")
    open_intents: int = quantity("commands to the engine with unknown outcome")
    accounted_jobs: int | None = quantity("jobs compared with Slurm's accounts; null: not asked", "-", None)
    accounts: tuple[StoreAccounts, ...] = quantity("GPU hours of these jobs by tenant", "-", ())
    problems: tuple[StoreProblem, ...] = quantity("inconsistencies; empty: none")


class InitNode(ResultModel):
    """A node, or equal nodes, in the scenario."""

    name: str = quantity("name of the node, or prefix of the numbered names")
    host: str | None = quantity("node it is a part of, where that has several GPU types; null: a node of its own")
    count: int = quantity("number of equal nodes")
    gpu_type: str = quantity("type of its GPUs")
    gpus: int = quantity("GPUs of each node", "GPUs")
    partitions: tuple[str, ...] = quantity("partitions of Slurm it is in", "-", ())
    features: tuple[str, ...] = quantity("features that all nodes of its kind have", "-", ())
    domain: str | None = quantity("where it is in the network, from wide to narrow; null: not said", "-", None)
    cpus: int | None = quantity("its CPUs; null: not said", "CPUs", None)
    memory_gib: float | None = quantity("its memory; null: not said", "GiB", None)
    idle_w: float = quantity("assumed power while on, without busy GPUs", "W")
    gpu_w: float = quantity("assumed power added by each busy GPU", "W")
    power_source: str | None = quantity(
        "source of the power limit of its GPUs; null: unknown, the power is a placeholder"
    )


class InitResult(AnswerModel):
    """Answer of ``commonwatt init``."""

    source: str = quantity("format of the input: scontrol, sinfo, nvidia-smi or kubernetes")
    nodes: tuple[InitNode, ...] = quantity("nodes of the scenario")
    left_out: int = quantity("nodes without GPUs")
    unknown_gpu_types: tuple[str, ...] = quantity("GPU types whose speed is a placeholder in `gpu_types`")
    notes: tuple[str, ...] = quantity("values to check")
    written: str | None = quantity("path of the scenario; null: printed")


class AttachResult(AnswerModel):
    """Answer of ``commonwatt attach slurm``."""

    folder: str = quantity("folder with everything")
    config: str = quantity("configuration of an advising control plane: `commonwatt serve CONFIG`")
    nodes: int = quantity("nodes with GPUs")
    gpus: int = quantity("their GPUs", "GPUs")
    running: int = quantity("jobs with GPUs that run now")
    queued: int = quantity("jobs with GPUs that wait now")
    history_jobs: int | None = quantity("jobs of the period, of all kinds; null: Slurm keeps no accounts")
    days: float = quantity("length of the period", "days")
    report: str | None = quantity("page with what would have been saved; null: there was nothing to study")
    saving_pct: float | None = quantity(
        "energy saved against Slurm's scheduling, with every job as its owner asked for it; null: unknown", "%"
    )
    saving_with_everything_pct: float | None = quantity(
        "the same with all steps of the report that are known, which ask for more; null: unknown", "%"
    )
    notes: tuple[str, ...] = quantity("values to check")
