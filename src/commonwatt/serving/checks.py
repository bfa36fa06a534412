"""Whether a request fits the model it is for; the backend sees only requests that do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.serving.backend import ModelDescription
from commonwatt.serving.refusals import RequestError
from commonwatt.serving.tensors import TensorError

__all__ = ["Given", "checked_inputs", "checked_outputs", "shown_name"]


def shown_name(name: str) -> str:
    """Return *name* as messages show it: quoted, in ASCII, never long."""
    text = ascii(name)
    return text if len(text) <= 80 else f"{text[:76]}...'"


@dataclass(frozen=True)
class Given:
    """An input as a client sent it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    decode: Callable[[], Tensor]  # raises TensorError


def checked_inputs(model: ModelDescription, given: Sequence[Given]) -> dict[str, Tensor]:
    """Return the tensors by name; raises ``RequestError`` naming model and tensor if one does not fit."""
    specs = {spec.name: spec for spec in model.inputs}
    tensors: dict[str, Tensor] = {}
    where = f"model {shown_name(model.name)}"
    for tensor in given:
        spec = specs.get(tensor.name)
        if spec is None:
            raise RequestError(f"{where}: got input {shown_name(tensor.name)}, expected {_listed(specs)}")
        if tensor.name in tensors:
            raise RequestError(f"{where}: got input {shown_name(tensor.name)} twice, expected it once")
        try:
            _check_fit(tensor, spec)
            tensors[tensor.name] = tensor.decode()
        except TensorError as error:
            raise RequestError(f"{where}, input {shown_name(tensor.name)}: {error}") from None
    missing = [name for name in specs if name not in tensors]
    if missing:
        raise RequestError(f"{where}: got no input {shown_name(missing[0])}, expected {_listed(specs)}")
    return tensors


def checked_outputs(model: ModelDescription, names: Sequence[str]) -> None:
    """Raise ``RequestError`` unless *names* are outputs of *model*, each once."""
    known = [spec.name for spec in model.outputs]
    where = f"model {shown_name(model.name)}"
    for place, name in enumerate(names):
        if name not in known:
            raise RequestError(f"{where}: got output {shown_name(name)}, expected {_listed(known)}")
        if name in names[:place]:
            raise RequestError(f"{where}: got output {shown_name(name)} twice, expected it once")


def _check_fit(tensor: Given, spec: TensorSpec) -> None:
    if tensor.datatype != spec.datatype:
        raise TensorError(f"got datatype {tensor.datatype}, expected {spec.datatype}")
    fits = len(tensor.shape) == len(spec.shape) and all(
        wanted < 0 or wanted == length for length, wanted in zip(tensor.shape, spec.shape, strict=True)
    )
    if not fits:
        free = " (-1: any length)" if any(length < 0 for length in spec.shape) else ""
        raise TensorError(f"got shape {list(tensor.shape)}, expected {list(spec.shape)}{free}")


def _listed(names: Sequence[str] | dict[str, TensorSpec]) -> str:
    listed = [shown_name(name) for name in names]
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed) or "none"
