"""Fitted networks and trees as files: safetensors, their header as JSON in it. Reading one runs no code of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from commonwatt import __version__
from commonwatt.data.files import validate, write_atomic
from commonwatt.forecasting.blend import TREES_TOO, NetworkAndTrees
from commonwatt.forecasting.forecast import FittedPredictor
from commonwatt.forecasting.lightgbm_quantile import LightGbmQuantile
from commonwatt.forecasting.networks import NetworkPredictor
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.forecast_file import FORMAT, BlendModelHeader, ForecastModelHeader, TreesModelHeader

__all__ = ["Header", "read_model", "write_model"]

Header: TypeAlias = ForecastModelHeader | TreesModelHeader | BlendModelHeader

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
    header = _kind(about["kind"])(format=FORMAT, commonwatt=__version__, seed=seed, **about)
    content = save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, {_KEY: header.model_dump_json()})
    write_atomic(path, content)
    return len(content)


def read_model(path: Path) -> tuple[FittedPredictor, Header]:
    """Read a predictor as it was when written, the values it had seen included.

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
        raise InputError(expected, file=path, value=str(error)) from None
    if raw is None:
        raise InputError(expected, file=path, value="a safetensors file of something else")
    for name, array in arrays.items():
        if array.dtype.kind not in "if" or not np.isfinite(array).all():
            raise InputError("finite numbers", file=path, field=name, value=f"{array.dtype}, some not finite")
    header = _header(raw, path, expected)
    about = header.model_dump(exclude={"format", "commonwatt", "seed"})
    try:
        return _restored(about, arrays), header
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "forecast") from None
    except InputError as error:
        raise error.within(path) from None


def _restored(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> FittedPredictor:
    if about["kind"] == LightGbmQuantile.name:
        return LightGbmQuantile.restored(about, arrays)
    if about["kind"].endswith(TREES_TOO):
        return NetworkAndTrees.restored(about, arrays)
    return NetworkPredictor.restored(about, arrays)


def _kind(name: object) -> type[Header]:
    if name == LightGbmQuantile.name:
        return TreesModelHeader
    return BlendModelHeader if isinstance(name, str) and name.endswith(TREES_TOO) else ForecastModelHeader


def _header(raw: str, path: Path, expected: str) -> Header:
    try:
        fields = json.loads(raw)
    except ValueError:
        raise InputError(expected, file=path, value="a header that is not JSON") from None
    found = fields.get("format") if isinstance(fields, dict) else None
    if found != FORMAT:
        by = fields.get("commonwatt") if isinstance(fields, dict) else None
        written = f"format {found} by commonwatt {by}"
        raise InputError(f"a model file of format {FORMAT}: fit it anew", file=path, field="format", value=written)
    return validate(fields, _kind(fields.get("kind")), path)
