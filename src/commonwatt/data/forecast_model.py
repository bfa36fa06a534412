"""Fitted networks and trees as safetensors files with a JSON header. Reading one runs no code of the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from commonwatt import __version__, forecasting
from commonwatt.data.file_kinds import other_kind
from commonwatt.data.files import validate, write_atomic
from commonwatt.data.text import read_text
from commonwatt.model.demand import FittedPredictor
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.forecast_file import FORMAT, ModelHeader, header_type

__all__ = ["read_model", "write_model"]

_KEY = "commonwatt"


def write_model(predictor: FittedPredictor, path: Path, seed: int) -> int:
    """Write a fitted predictor to *path*, whole or not at all, and return its bytes.

    Raises
    ------
    InputError
        If the file cannot be written, or nothing was fitted.
    MissingExtraError
        Without safetensors.
    """
    try:
        from safetensors.numpy import save
    except ImportError:
        raise MissingExtraError("safetensors", "forecast") from None
    about, arrays = predictor.state()
    header = header_type(about["kind"])(format=FORMAT, commonwatt=__version__, seed=seed, **about)
    content = save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, {_KEY: header.model_dump_json()})
    write_atomic(path, content)
    return len(content)


def read_model(path: Path) -> tuple[FittedPredictor, ModelHeader]:
    """Read a predictor as it was written, including the values it had observed.

    Raises
    ------
    InputError
        For a file that is missing, truncated, no model file, of another format, or with wrong arrays.
    MissingExtraError
        Without safetensors, or PyTorch for a network.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingExtraError("safetensors", "forecast") from None
    path = Path(path)
    if not path.is_file():
        raise InputError("a model file that exists", file=path)
    expected = "a model file written by commonwatt forecast fit, whole"
    try:
        with safe_open(path, framework="numpy") as file:
            raw = (file.metadata() or {}).get(_KEY)
            arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _other_file(path) or InputError(expected, file=path, value=str(error)) from None
    if raw is None:
        raise InputError(expected, file=path, value="a safetensors file of something else")
    for name, array in arrays.items():
        if array.dtype.kind not in "if" or not np.isfinite(array).all():
            raise InputError("finite numbers", file=path, field=name, value=f"{array.dtype}, some not finite")
    header = _header(raw, path, expected)
    about = header.model_dump(exclude={"format", "commonwatt", "seed"})
    try:
        return forecasting.restore_predictor(about, arrays), header
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "forecast") from None
    except InputError as error:
        raise error.within(path) from None


def _other_file(path: Path) -> InputError | None:
    """Return the error for a file of text, which is no model; ``None`` for any other."""
    try:
        text = read_text(path)
    except InputError:
        return None
    if "\0" in text:
        return None
    wanted = "a model file, as `commonwatt forecast fit` writes it"
    return other_kind(path, text, wanted) or InputError(wanted, file=path, value="a file of text")


def _header(raw: str, path: Path, expected: str) -> ModelHeader:
    try:
        fields = json.loads(raw)
    except ValueError:
        raise InputError(expected, file=path, value="a header that is not JSON") from None
    file_format = fields.get("format") if isinstance(fields, dict) else None
    if file_format != FORMAT:
        by = fields.get("commonwatt") if isinstance(fields, dict) else None
        written = f"format {file_format} by commonwatt {by}"
        raise InputError(f"a model file of format {FORMAT}: fit it again", file=path, field="format", value=written)
    return validate(fields, header_type(fields.get("kind")), path)
