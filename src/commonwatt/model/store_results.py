"""What ``commonwatt store`` answers."""

from __future__ import annotations

from commonwatt.model.fields import ResultModel, quantity
from commonwatt.model.live_results import TokenEntry

__all__ = ["StoreBackupResult", "StoreCheckResult", "StoreProblem", "StoreRestoreResult", "StoreUpgradeResult"]


class StoreUpgradeResult(ResultModel):
    """Answer of ``commonwatt store upgrade``."""

    version: str = quantity("version of commonwatt")
    store: str = quantity("address of the store, without password")
    before: str | None = quantity("revision of the tables before; null if there were none")
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
        "tokens that are valid now, also those revoked since the backup in a store that is not there any more"
    )


class StoreProblem(ResultModel):
    """Something that must not be in a store."""

    table: str = quantity("table it is in")
    job: int | None = quantity("job it is about; null if none")
    problem: str = quantity("what is wrong, in a sentence")


class StoreCheckResult(ResultModel):
    """Answer of ``commonwatt store check``."""

    version: str = quantity("version of commonwatt")
    store: str = quantity("address of the store, without password")
    revision: str = quantity("revision of the tables")
    controller: bool = quantity("whether a controller runs on it just now")
    rows: dict[str, int] = quantity("rows of each table")
    jobs: dict[str, int] = quantity("jobs by status")
    ledger_exact: bool = quantity("whether all rows of the ledger add up to the meter, to the last unit")
    open_intents: int = quantity("commands to the engine of which it is not known whether they were carried out")
    problems: tuple[StoreProblem, ...] = quantity("what is wrong; empty if all is well")
