"""A partitioning problem from its file, with the laws that ``partition characterize`` found for it."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from commonwatt.data.files import load_yaml
from commonwatt.data.text import read_text
from commonwatt.model.characterize_results import CharacterizeResult
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of
from commonwatt.model.partition_file import LawSpec, PartitionFile

__all__ = ["law_from", "load_partition"]


def load_partition(path: Path) -> PartitionFile:
    """Read a problem; every ``characterized`` law is read too, relative to *path*, and stands there as it was chosen.

    Raises ``InputError`` naming file and field.
    """
    file = load_yaml(path, PartitionFile)

    def read(spec: LawSpec | str | None, field: str) -> LawSpec | str | None:
        if not isinstance(spec, LawSpec) or spec.law != "characterized":
            return spec
        return law_from(path.parent / str(spec.file), spec.kernel, path, field)

    tenants = tuple(
        one.model_copy(update={"law": read(one.law, f"tenants.{one.name}.law")}) for one in file.tenants
    )  # fmt: skip
    laws = {name: read(spec, f"laws.{name}") for name, spec in file.laws.items()}
    configurations = tuple(
        one
        if one.laws is None
        else one.model_copy(
            update={
                "laws": tuple(
                    tuple(read(spec, f"configurations.{one.name}.laws.{i}.{c}") for c, spec in enumerate(row))
                    for i, row in enumerate(one.laws)
                )
            }
        )
        for one in file.configurations
    )
    return file.model_copy(update={"tenants": tenants, "laws": laws, "configurations": configurations})


def law_from(path: Path, kernel: str | None, problem: object = None, field: str | None = None) -> LawSpec:
    """Return the law chosen for *kernel* (None: the only one) in the result ``partition characterize`` wrote to *path*.

    Raises ``InputError`` for a file that is no such result, and for a kernel that is not in it.
    """
    try:
        result = CharacterizeResult.model_validate_json(read_text(path))
    except ValidationError:
        raise InputError("a result that partition characterize wrote (--out)", file=path) from None
    named = {one.name: one for one in result.kernels}
    if kernel is None and len(named) == 1:
        kernel = next(iter(named))
    if kernel not in named:
        raise InputError(
            f"kernel: {one_of(named, kernel)} in {path.name}", file=problem, field=field, value=kernel or "none"
        )
    return LawSpec.model_validate(named[kernel].law)
