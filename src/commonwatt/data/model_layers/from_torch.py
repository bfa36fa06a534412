"""Layers of a PyTorch module or exported program, traced with tensors that have shapes but no values."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from commonwatt.data.model_layers.collecting import Collection, Foreign, SlidingWindow
from commonwatt.mapping.costs import Layer
from commonwatt.model.errors import InputError, MissingExtraError
from commonwatt.model.names import one_of

__all__ = ["collect_module", "collect_program", "layers_of"]

_MATMULS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "_int_mm": (0, 1), "_scaled_mm": (0, 1)}
_HEAVY = re.compile(
    r"mm(_|$)|mv$|^v?dot$|^addr$|conv|attention|attn|lstm|gru|rnn|transformer|linear|linalg|fft|cdist|cholesky|grid_sampler"
)
_LIGHT = re.compile(r"^upsample|norm$|linalg_cross")
"""Operators of PyTorch whose names suggest products, and those that compute none."""
_COUNTLESS = {"prim", "prims", "aten", "profiler"}


def layers_of(
    module: Foreign,
    inputs: Sequence[Foreign] | Mapping[str, Foreign],
    *,
    ignore_unsupported: bool = False,
    model: str = "",
) -> tuple[Layer, ...]:
    """Return the layers that *module* runs on *inputs*, in order, named by the modules they are in.

    Nothing is computed: weights and inputs stand for their shapes, as on the meta device.

    Parameters
    ----------
    module
        A ``torch.nn.Module``, on any device; it is left as it was.
    inputs
        Example tensors, in order or by name; only shapes and types matter.
    ignore_unsupported
        Count operators that are no layer here as nothing.
    model
        Name of the model for the layers; empty: the class of the module.

    Raises
    ------
    InputError
        For operators that are not supported (listed), a module that asks for values, and one without layers.
    MissingExtraError
        Without PyTorch.
    """
    return collect_module(module, inputs, model=model).checked(ignore_unsupported=ignore_unsupported)


def collect_module(
    module: Foreign, inputs: Sequence[Foreign] | Mapping[str, Foreign], *, model: str = ""
) -> Collection:
    """Trace *module* like :func:`layers_of`; returns all layers and unsupported operators."""
    torch = _torch()
    collection = Collection(model or type(module).__name__)
    path: list[str] = []
    hooks = []
    for name, part in module.named_modules():
        hooks.append(part.register_forward_pre_hook(_enter(path, name)))
        hooks.append(part.register_forward_hook(_leave(path), always_call=True))
    try:
        with _followed(torch, collection, lambda: path[-1] if path else "") as shaped:
            if isinstance(inputs, Mapping):
                module(**{name: shaped(value) for name, value in inputs.items()})
            else:
                module(*(shaped(value) for value in inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return collection


def collect_program(path: str | Path, dims: Mapping[str, int]) -> Collection:
    """Trace a program saved by ``torch.export.save``. Such a file can contain pickled data: load only trusted files.

    Parameters
    ----------
    dims
        Sizes of its dynamic dimensions by name.

    Raises
    ------
    InputError
        For a file that is no such program, dynamic dimensions that *dims* does not name (they are listed), and names in
        *dims* that the program does not have.
    MissingExtraError
        Without PyTorch.
    """
    torch = _torch()
    program = _loaded(torch, Path(path))
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = list(program.graph_signature.input_specs)
    sizes = _sizes(nodes, dims)
    collection = Collection(Path(path).stem)
    current = [""]
    from torch.fx import Interpreter

    class Follower(Interpreter):
        def run_node(self, n: Foreign) -> Foreign:
            stack = n.meta.get("nn_module_stack") or {}
            current[0] = next((name for name, _ in reversed(stack.values())), "") or n.name
            return super().run_node(n)

    with _followed(torch, collection, lambda: current[0]) as shaped:
        values = []
        for node, spec in zip(nodes, specs, strict=True):
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                shape = [size if isinstance(size, int) else sizes[str(size)] for size in value.shape]
                value = shaped(torch.empty(shape, dtype=value.dtype, device="meta"))
            elif not isinstance(value, (int, float, bool, str, type(None))):
                raise InputError("inputs that are tensors or numbers", field=str(spec.arg.name), value=value)
            values.append(value)
        Follower(program.graph_module).run(*values)
    return collection


def _loaded(torch: Foreign, path: Path) -> Foreign:
    if not path.is_file():
        raise InputError("an existing file", file=path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # any error of PyTorch means that it is not a program
        raise InputError("a PyTorch program saved by torch.export.save", file=path, value=_cause(error)) from None


def _sizes(nodes: Sequence[Foreign], dims: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the dynamic dimensions of the inputs."""
    asked: dict[str, str] = {}
    for node in nodes:
        for place, size in enumerate(getattr(node.meta["val"], "shape", ())):
            if not isinstance(size, int):
                asked.setdefault(str(size), f"{node.name}[{place}]")
    missing = {name: place for name, place in asked.items() if name not in dims}
    if missing:
        listed = ", ".join(f"{name} ({place})" for name, place in missing.items())
        give = " ".join(f"--dim {name}=1" for name in missing)
        raise InputError(f"fixed shapes; give a size to {listed}, as in {give}", field="shape", value="dynamic")
    unknown = sorted(set(dims) - set(asked))
    if unknown:
        raise InputError(one_of(asked or ["no dynamic dimensions"], unknown[0]), field="dim", value=unknown[0])
    return {name: dims[name] for name in asked}


@contextmanager
def _followed(
    torch: Foreign, collection: Collection, name: Callable[[], str]
) -> Iterator[Callable[[Foreign], Foreign]]:
    """Trace the operators that run inside; yields a function that reduces a tensor to its shape."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Foreign, types: Foreign, args: Foreign = (), kwargs: Foreign = None
        ) -> Foreign:
            out = func(*args, **(kwargs or {}))
            _record(collection, name() or "input", func, args, out, flop_registry)
            return out

    recorder: Foreign = Recorder
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def shaped(value: Foreign) -> Foreign:
        return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), mode, recorder():
            yield shaped
    except InputError:
        raise
    except Exception as error:  # modules can raise any error
        expected = "a module that can be traced with shapes alone, and inputs that fit it"
        raise InputError(expected, value=_cause(error)) from None
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _record(
    collection: Collection, name: str, func: Foreign, args: Sequence[Foreign], out: Foreign,
    heavy: Mapping[Foreign, Foreign],
) -> None:  # fmt: skip
    space, _, operator = func.name().split(".")[0].partition("::")
    if space == "aten" and operator in _MATMULS:
        left, right = (args[place] for place in _MATMULS[operator])
        shared = right.dim() == 3 and right.stride(0) == 0
        collection.matmul(name, left.shape, right.shape, shared=shared)
    elif space == "aten" and operator in ("convolution", "_convolution", "convolution_overrideable"):
        _convolution(collection, name, args, out)
    elif operator.startswith("_scaled_dot_product"):
        query, key, value = (tensor.shape for tensor in args[:3])
        scores = (*query[:-1], key[-2])
        collection.matmul(f"{name}.scores", query, (*key[:-2], key[-1], key[-2]))
        collection.matmul(f"{name}.context", scores, value)
    elif operator == "mkldnn_rnn_layer":
        steps, batch, _ = args[0].shape
        for part, weight in (("input", args[1]), ("state", args[2])):
            collection.matmul(f"{name}.{part}", (steps * batch, weight.shape[1]), (weight.shape[1], weight.shape[0]))
    elif space not in _COUNTLESS or func.overloadpacket in heavy or _sounds_heavy(operator):
        collection.unsupported[f"{space}::{operator}"] += 1


def _sounds_heavy(operator: str) -> bool:
    return _HEAVY.search(operator) is not None and _LIGHT.search(operator) is None


def _convolution(collection: Collection, name: str, args: Sequence[Foreign], out: Foreign) -> None:
    x, weight, _, strides, padding, dilations, transposed, _, groups = args[:9]
    if transposed:
        collection.transposed(name, x.shape, weight.shape, groups)
    else:
        collection.convolution(
            name, x.shape, weight.shape, out.shape, SlidingWindow(strides, padding, padding, dilations, groups)
        )


def _enter(path: list[str], name: str) -> Callable[..., None]:
    def hook(*_: Foreign) -> None:
        path.append(name)

    return hook


def _leave(path: list[str]) -> Callable[..., None]:
    def hook(*_: Foreign) -> None:
        path.pop()

    return hook


def _cause(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _torch() -> Foreign:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    return torch
