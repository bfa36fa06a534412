"""The folder of a study: its report, its result, the study as run, and the runs that are done."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from commonwatt.data.files import load_yaml, write_atomic
from commonwatt.model.errors import ArgumentError, InputError
from commonwatt.model.study_file import StudyFile
from commonwatt.model.study_results import StudyResult

__all__ = ["check_study_folder", "study_text", "write_study"]

WRITTEN = frozenset({"report.html", "result.json", "study.yaml", "rows"})


def check_study_folder(folder: Path, file: StudyFile, base: Path, *, overwrite: bool) -> None:
    """Raise ``InputError`` if *folder* cannot hold the study *file*, whose paths are relative to *base*.

    It may be new, empty, or have this study; with *overwrite*, another one.
    """
    target = folder.resolve()
    try:
        there = {entry.name for entry in target.iterdir() if not entry.name.endswith(".tmp")}
    except FileNotFoundError:
        there = set()
    except OSError as error:
        raise ArgumentError(f"a folder ({error.strerror})", field="out", value=folder) from None
    if other := sorted(there - WRITTEN):
        raise ArgumentError(f"a folder with only the files of a study, not {other[0]}", field="out", value=folder)
    earlier = folder / "study.yaml"
    if earlier.exists() and not overwrite and not _same(earlier, _seen_from(folder, file, base)):
        expected = f"this folder's own study (`commonwatt study {earlier}`), `overwrite`, or another folder"
        raise ArgumentError(expected, field="out", value=f"another study than {earlier}")
    above = next(parent for parent in (target, *target.parents) if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ArgumentError("a folder that can be written to", field="out", value=folder)


def study_text(file: StudyFile) -> str:
    """Return *file* as YAML, without what is as it is by default."""
    document = file.model_dump(mode="json", exclude_defaults=True)
    document["workload"] = {"source": file.workload.source, **document["workload"]}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def write_study(folder: Path, file: StudyFile, base: Path, result: StudyResult) -> None:
    """Write report, result and study; each appears whole.

    The paths of the log and of profiles, relative to *base* in *file*, are written relative to *folder*.

    Raises ``InputError`` if *folder* cannot be written to.
    """
    from commonwatt.report.study_page import render_study

    page = render_study(result)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"a writable folder ({error.strerror})", field="out", value=folder) from None
    write_atomic(folder / "study.yaml", study_text(_seen_from(folder, file, base)))
    write_atomic(folder / "result.json", result.model_dump_json(indent=2) + "\n")
    write_atomic(folder / "report.html", page)


def _same(earlier: Path, file: StudyFile) -> bool:
    try:
        return load_yaml(earlier, StudyFile) == file
    except InputError:
        return False


def _seen_from(folder: Path, file: StudyFile, base: Path) -> StudyFile:
    def moved(path: str) -> str:
        return os.path.relpath((base / path).resolve(), folder.resolve())

    types = {
        name: spec.model_copy(update={"profile": tuple(moved(path) for path in spec.profiles)})
        for name, spec in file.gpu_types.items()
        if spec.profiles
    }
    path = getattr(file.workload, "path", None)
    workload = file.workload if path is None else file.workload.model_copy(update={"path": moved(path)})
    return file.model_copy(update={"workload": workload, "gpu_types": {**file.gpu_types, **types}})
