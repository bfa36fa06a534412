"""A small decoder with random weights, to serve a language model without downloading one; a byte is a token.

``python -m commonwatt.devices.language.decoder FILE`` writes one as an ``.npz`` file. It has what such models have: a
root-mean-square norm before each part, rotary positions, fewer heads of keys and values than of queries, a gated
perceptron. What it says means nothing.
"""

from __future__ import annotations

import argparse
import codecs
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commonwatt.devices.base import Tensor
from commonwatt.devices.language.base import LanguageModel, Message, SequencePart, attend, packed, torch
from commonwatt.devices.models.base import Foreign, checked_file, digest_of
from commonwatt.devices.models.torch_model import TorchRuntime
from commonwatt.model.errors import InputError
from commonwatt.model.fields import FileModel, quantity
from commonwatt.model.names import one_of

__all__ = ["ByteCoder", "DecoderSettings", "load_decoder", "write_decoder"]

_ROLES = {"system": 258, "developer": 258, "user": 259, "assistant": 260}
_BEGIN, _END, _TOKENS = 256, 257, 261


class DecoderSettings(FileModel):
    """Sizes of a decoder."""

    width: int = quantity("numbers for a token between layers", "-", 64, ge=8, le=8192, multiple_of=8)
    layers: int = quantity("layers", "-", 2, ge=1, le=128)
    heads: int = quantity("heads of queries; a divisor of half the width", "-", 4, ge=1, le=128)
    kv_heads: int = quantity("heads of keys and values; a divisor of heads", "-", 2, ge=1, le=128)
    context_tokens: int = quantity("most tokens of a prompt and its answer", "tokens", 1024, ge=2, le=1_000_000)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the weights by name."""
        width, head = self.width, self.width // self.heads
        layer = {
            "norm_a": (width,), "qkv": (width, (self.heads + 2 * self.kv_heads) * head), "out": (width, width),
            "norm_b": (width,), "gate": (width, 3 * width), "up": (width, 3 * width), "down": (3 * width, width),
        }  # fmt: skip
        own = {f"{place}.{name}": shape for place in range(self.layers) for name, shape in layer.items()}
        return {"embedding": (_TOKENS, width), **own, "norm": (width,), "head": (width, _TOKENS)}


def write_decoder(path: str | Path, seed: int = 0, **sizes: int) -> Path:
    """Write a decoder with random weights of *seed* and *sizes* (``DecoderSettings``) to *path*, and return it.

    Raises ``InputError`` for sizes that do not fit each other.
    """
    from commonwatt.data.files import validate

    settings = validate(sizes, DecoderSettings)
    if settings.width % (2 * settings.heads):
        raise InputError(f"a divisor of {settings.width // 2}, half the width", field="heads", value=settings.heads)
    if settings.heads % settings.kv_heads:
        raise InputError(f"a divisor of {settings.heads}, the heads", field="kv_heads", value=settings.kv_heads)
    rng = np.random.default_rng(seed)
    weights: dict[str, NDArray[Any]] = {}
    for name, shape in settings.shapes().items():
        spread = 1.0 if name == "embedding" else shape[0] ** -0.5
        drawn = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) * spread
        weights[name] = drawn.astype(np.float32)
    weights["settings"] = np.frombuffer(settings.model_dump_json().encode(), np.uint8)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:  # as numpy writes it, but for the time of day
        for name, array in weights.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return path


def load_decoder(path: str | Path, runtime: TorchRuntime) -> LanguageModel:
    """Load a decoder; raises ``InputError`` naming a file that is none."""
    what = "a decoder written by python -m commonwatt.devices.language.decoder (.npz)"
    file = checked_file(path, what)
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        settings = DecoderSettings.model_validate(json.loads(arrays.pop("settings").tobytes()))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(what, file=file, value="another kind of file, or a broken one") from error
    for name, shape in settings.shapes().items():
        if name not in arrays or arrays[name].shape != shape or arrays[name].dtype != np.float32:
            raise InputError(f"{what} with float32 weights of shape {list(shape)}", file=file, field=name)
    if runtime.cuda_index is None:
        torch().set_num_threads(runtime.threads)
    return LanguageModel(file.name, digest_of(file), runtime, _Decoder(settings, arrays, runtime), ByteCoder())


class _Decoder:
    """The network."""

    def __init__(self, settings: DecoderSettings, weights: dict[str, NDArray[Any]], runtime: TorchRuntime) -> None:
        kit = torch()
        self._place, self._settings = runtime.place, settings
        self._weights = {name: kit.from_numpy(weights[name]).to(runtime.place) for name in settings.shapes()}
        self.context_tokens = settings.context_tokens
        self.parameters = sum(w.numel() for name, w in self._weights.items() if name != "embedding")
        self.bytes_moved = 4.0 * self.parameters
        self.flops_per_attended = 4.0 * settings.width * settings.layers
        half = settings.width // settings.heads // 2
        self._frequencies = 10_000.0 ** (-kit.arange(half, device=runtime.place) / half)

    def logits(self, pieces: Sequence[SequencePart]) -> Tensor:
        kit, weights = torch(), self._weights
        tokens, positions, last = (kit.from_numpy(part).to(self._place) for part in packed(pieces))
        angles = positions[:, None] * self._frequencies
        turn = angles.cos(), angles.sin()
        x = weights["embedding"][tokens]
        for layer in range(self._settings.layers):
            w = {name: weights[f"{layer}.{name}"] for name in ("norm_a", "qkv", "out", "norm_b", "gate", "up", "down")}
            x = x + self._attention(pieces, layer, _norm(x, w["norm_a"]) @ w["qkv"], turn) @ w["out"]
            y = _norm(x, w["norm_b"])
            x = x + (kit.nn.functional.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        logits: Tensor = (_norm(x[last], weights["norm"]) @ weights["head"]).cpu().numpy()
        return logits

    def _attention(
        self, pieces: Sequence[SequencePart], layer: int, qkv: Foreign, turn: tuple[Foreign, Foreign]
    ) -> Foreign:
        heads, own = self._settings.heads, self._settings.kv_heads
        q, k, v = qkv.view(len(qkv), heads + 2 * own, -1).transpose(0, 1).split([heads, own, own])
        return attend(pieces, layer, _turned(q, *turn), _turned(k, *turn), v).flatten(1)


def _norm(x: Foreign, weight: Foreign) -> Foreign:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def _turned(x: Foreign, cos: Foreign, sin: Foreign) -> Foreign:
    """Rotary positions: pairs of numbers of each head, turned by the position of the token."""
    a, b = x.chunk(2, -1)
    return torch().cat([a * cos - b * sin, a * sin + b * cos], -1)


class ByteCoder:
    """A token for each byte of UTF-8, and a few for the beginning, the end and who speaks."""

    ends = frozenset({_END})
    vocabulary = _TOKENS

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a prompt."""
        return [_BEGIN, *text.encode("utf-8", "replace")]

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a chat up to where the answer begins."""
        tokens = [_BEGIN]
        for message in messages:
            role = message["role"]
            if role not in _ROLES:
                raise InputError(one_of(_ROLES, role), field="role", value=role)
            tokens += [_ROLES[role], *message["content"].encode("utf-8", "replace"), _END]
        return [*tokens, _ROLES["assistant"]]

    def stream(self) -> ByteStream:
        """Return a new stream of text."""
        return ByteStream()


class ByteStream:
    """Text of bytes; what is no UTF-8 becomes U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that is certain with *token*."""
        return self._decoder.decode(bytes([token])) if token < _BEGIN else ""

    def end(self) -> str:
        """Return what was held back."""
        return self._decoder.decode(b"", final=True)


def _main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m commonwatt.devices.language.decoder", description="Write a decoder.")
    parser.add_argument("file", type=Path, help="file to write, ending in .npz")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    for name, field in DecoderSettings.model_fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=field.default, help=field.description)
    given = vars(parser.parse_args(arguments))
    file, seed = given.pop("file"), given.pop("seed")
    try:
        write_decoder(file, seed, **given)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    _main()
