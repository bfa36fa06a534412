"""Cuts and times of models as first measured, kept in a folder so that every start cuts a model alike.

A record is a JSON file named after the model's digest and what else the measurement depends on: device (threads
included), runtime and its version, and length of segments. Delete it to have the model measured again. A record that
cannot be read, or is of something else, is reported, and the model is measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from commonwatt.data.files import validate, write_atomic
from commonwatt.devices.rows import RowProfile
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, FileVersion, quantity

__all__ = ["MeasuredFile", "MeasuredModels", "MeasuredUnder"]

_LOG = logging.getLogger("commonwatt.devices")
_LARGEST_BYTES = 50_000_000


@dataclass(frozen=True)
class MeasuredUnder:
    """What a measurement depends on."""

    digest: str  # SHA-256 of the model file
    device: str
    runtime: str  # with its version
    segment_s: float | None

    @property
    def file_name(self) -> str:
        """Name of the record."""
        rest = json.dumps([self.device, self.runtime, self.segment_s])
        return f"{self.digest[:16]}-{hashlib.sha256(rest.encode()).hexdigest()[:8]}.json"


class MeasuredFile(FileModel):
    """A model as measured on a device."""

    version: FileVersion = quantity("version of the format", "-", 1)
    model_digest: str = quantity("SHA-256 of the model file", "-")
    device: str = quantity("name of the device", "-")
    runtime: str = quantity("runtime and its version", "-")
    segment_s: float | None = quantity("length of the segments; null: not cut", "s", gt=0)
    cuts: tuple[int, ...] = quantity("nodes of the optimized graph that begin a segment", "-")
    step_names: tuple[str, ...] = quantity("segments", "-", min_length=1)
    step_times_s: tuple[float, ...] = quantity("time of each segment for one row", "s", min_length=1)
    rows: RowProfile | None = quantity("batches of several rows; null: not measured yet", "-", None)

    def is_of(self, under: MeasuredUnder) -> bool:
        """Return whether it was measured under the same conditions."""
        return MeasuredUnder(self.model_digest, self.device, self.runtime, self.segment_s) == under


class MeasuredModels:
    """Records in *folder*, which is made when it is first needed; ``None``: kept as long as this object."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._kept: dict[str, MeasuredFile] = {}

    def recall(self, under: MeasuredUnder) -> MeasuredFile | None:
        """Return the record of a model; ``None`` without one, or if it is torn or foreign."""
        kept = self._kept.get(under.file_name)
        if kept is not None and kept.is_of(under):
            return kept
        if self._folder is None:
            return None
        path = self._folder / under.file_name
        try:
            record = _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError, InputError) as error:
            self.tell(under, f"it cannot be read ({_brief(error)})")
            return None
        if not record.is_of(under) or len(record.step_names) != len(record.step_times_s):
            self.tell(under, "it is of another model, device, runtime or segment length")
            return None
        self._kept[under.file_name] = record
        return record

    def keep(self, under: MeasuredUnder, record: MeasuredFile) -> None:
        """Write a record; a folder that cannot be written to is reported once, and measurements are lost at the end."""
        self._kept[under.file_name] = record
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / under.file_name, record.model_dump_json(indent=1) + "\n")
        except (OSError, InputError) as error:
            _LOG.warning("%s: models are measured at each start, as it cannot be written (%s)",
                         self._folder, _brief(error))  # fmt: skip
            self._folder = None

    def tell(self, under: MeasuredUnder, why: str) -> None:
        """Report a record that is not used."""
        if self._folder is not None:
            _LOG.warning("%s: %s; the model is measured again", self._folder / under.file_name, why)

    def keep_rows(self, under: MeasuredUnder, rows: RowProfile) -> None:
        """Add *rows* to the record of a model."""
        record = self.recall(under)
        if record is not None and record.rows != rows:
            self.keep(under, record.model_copy(update={"rows": rows}))


def _read(path: Path) -> MeasuredFile:
    with path.open("rb") as stream:
        text = stream.read(_LARGEST_BYTES)
    return validate(json.loads(text), MeasuredFile, path)


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
