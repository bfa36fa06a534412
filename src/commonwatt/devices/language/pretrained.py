"""Causal language models of ``transformers`` from a local folder, with a tokenizer; nothing is downloaded.

Models keep their own layers; only attention is replaced by :func:`commonwatt.devices.language.base.attend`, through
transformers' interface for that. When a model is loaded it must give the same as with transformers' own attention,
else it is refused: not all models attend plainly.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from commonwatt.devices.base import Tensor
from commonwatt.devices.language.base import LanguageModel, Message, SequenceCache, SequencePart, attend, packed, torch
from commonwatt.devices.models.base import Foreign, digest_of
from commonwatt.devices.models.torch_model import TorchRuntime
from commonwatt.model.errors import InputError, MissingExtraError

__all__ = ["load_pretrained"]

_ATTENTION = "commonwatt"
_WHAT = "a folder of transformers with config.json, weights and a tokenizer"
_SIZES = ("max_position_embeddings", "hidden_size", "num_hidden_layers", "vocab_size")
_TOKENIZERS = ("tokenizer", "vocab", "spiece", "sentencepiece", "merges")
"""How the names of files of a tokenizer begin."""
_now = threading.local()  # the pieces that this thread computes


def load_pretrained(path: str | Path, runtime: TorchRuntime) -> LanguageModel:
    """Load the model in folder *path*; raises ``InputError`` naming a folder without a suitable one."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise InputError(_WHAT, file=folder, value="no folder" if not folder.is_dir() else "no config.json")
    if not any(any(folder.glob(f"{name}*")) for name in _TOKENIZERS):
        raise InputError(_WHAT, file=folder, value="no tokenizer")
    kit = torch()
    transformers = _transformers()
    if runtime.cuda_index is None:
        kit.set_num_threads(runtime.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, attn_implementation=_ATTENTION,
                dtype="float32" if runtime.cuda_index is None else "auto",
            )  # fmt: skip
        except Exception as error:  # of transformers, tokenizers, safetensors or the folder's files
            cause = " ".join(str(error).split()) or "no reason was given"
            shown = cause if len(cause) <= 300 else cause[:297] + "..."
            raise InputError(f"{_WHAT} ({shown})", file=folder) from error
    lacking = [name for name in _SIZES if not hasattr(model.config.get_text_config(), name)]
    if lacking:
        raise InputError(f"a model of transformers with {', '.join(lacking)} in its config.json", file=folder)
    network = _Network(model.to(runtime.place).eval(), runtime)
    with kit.inference_mode():
        _check(network, folder)
    coder = _Coder(tokenizer, model)
    return LanguageModel(folder.name, _digest(folder), runtime, network, coder)


def _transformers() -> Foreign:
    try:
        import transformers
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingExtraError("transformers", "llm") from error
    transformers.utils.logging.disable_progress_bar()
    AttentionInterface.register(_ATTENTION, _attention)
    AttentionMaskInterface.register(_ATTENTION, _no_mask)
    return transformers


def _no_mask(*_: object, **__: object) -> None:
    """Return ``None``: attention is causal, within each sequence."""


def _attention(
    module: Foreign, query: Foreign, key: Foreign, value: Foreign, _: Foreign, scaling: float | None = None,
    sliding_window: int | None = None, **__: object,
) -> tuple[Foreign, None]:  # fmt: skip
    """Attend as transformers asks: tensors are [1, heads, tokens, width], the result [1, tokens, heads, width]."""
    pieces: Sequence[SequencePart] = _now.pieces
    out = attend(pieces, module.layer_idx, query[0], key[0], value[0], scale=scaling, window=sliding_window)
    return out[None], None


class _Network:
    """The network."""

    def __init__(self, model: Foreign, runtime: TorchRuntime) -> None:
        self.model, self._place = model, runtime.place
        config = model.config.get_text_config()
        self.context_tokens = int(config.max_position_embeddings)
        self.parameters = int(model.num_parameters(exclude_embeddings=True))
        self.bytes_moved = float(sum(p.numel() * p.element_size() for p in model.parameters()))
        self.flops_per_attended = 4.0 * config.hidden_size * config.num_hidden_layers
        self._few = "logits_to_keep" in inspect.signature(model.forward).parameters

    def logits(self, pieces: Sequence[SequencePart]) -> Tensor:
        tokens, positions, last = (torch().from_numpy(part).to(self._place) for part in packed(pieces))
        _now.pieces = pieces
        try:
            few = {"logits_to_keep": last} if self._few else {}
            out = self.model(input_ids=tokens[None], position_ids=positions[None], use_cache=False, **few).logits[0]
        finally:
            del _now.pieces
        logits: Tensor = (out if self._few else out[last]).float().cpu().numpy()
        return logits


def _check(network: _Network, folder: Path) -> None:
    """Raise ``InputError`` unless tokens of two sequences, in parts and together, give what they give by themselves."""
    kit, model = torch(), network.model
    length = min(13, network.context_tokens)
    config = model.config.get_text_config()
    drawn = np.random.default_rng(0).integers(0, config.vocab_size, (2, length))
    caches = [SequenceCache(length) for _ in drawn]
    try:
        for start, end in ((0, length // 2), (length // 2, length - 1), (length - 1, length)):
            pieces = [
                SequencePart(cache, row[start:end]) for cache, row in zip(caches, drawn, strict=True) if end > start
            ]
            ours = network.logits(pieces)
            for piece in pieces:
                piece.cache.length += len(piece.tokens)
        model.set_attn_implementation("eager")
        plain = model(input_ids=kit.from_numpy(drawn).to(model.device), use_cache=False).logits[:, -1].float()
    except Exception as error:  # whatever its layers raise
        raise InputError(
            f"a model of transformers whose attention can be replaced ({type(error).__name__}: {str(error)[:200]})",
            file=folder, value=config.model_type,
        ) from error  # fmt: skip
    finally:
        model.set_attn_implementation(_ATTENTION)
    theirs = plain.cpu().numpy()
    tolerance = 1e-3 if model.dtype == kit.float32 else 3e-2
    if not np.allclose(ours, theirs, rtol=tolerance, atol=tolerance * max(1e-6, float(np.abs(theirs).max()))):
        raise InputError("a model of transformers with plain causal attention", file=folder, value=config.model_type)


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        whole.update(f"{file.name} {digest_of(file)}\n".encode())
    return whole.hexdigest()


class _Coder:
    """A tokenizer of transformers."""

    def __init__(self, tokenizer: Foreign, model: Foreign) -> None:
        self.tokenizer = tokenizer
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = tokenizer.eos_token_id if ends is None else ends
        self.ends = frozenset([ends] if isinstance(ends, int) else ends or [])
        self.vocabulary = int(model.config.get_text_config().vocab_size)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, verbose=False)["input_ids"])

    def chat(self, messages: Sequence[Message]) -> list[int]:
        if self.tokenizer.chat_template is None:
            raise InputError("a request to /v1/completions, as the model's tokenizer has no chat template")
        try:
            return list(
                self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
            )
        except Exception as error:  # whatever the model's own template raises
            raise InputError(f"messages that the model's template accepts ({str(error)[:200]})") from error

    def stream(self) -> _Stream:
        return _Stream(self.tokenizer)


class _Stream:
    """Text of tokens, decoded behind the last whole character, as a token alone may lack the space before it."""

    LONGEST = 8  # tokens of a character; beyond that it is none

    def __init__(self, tokenizer: Foreign) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # whose text has been returned, and that the next may depend on
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        self._pending.append(token)
        return self._text(at_end=len(self._pending) > self.LONGEST)

    def end(self) -> str:
        return self._text(at_end=True)

    def _text(self, *, at_end: bool) -> str:
        prefix, whole = self._decoded(self._before), self._decoded(self._before + self._pending)
        if len(whole) <= len(prefix) or (whole.endswith("\ufffd") and not at_end):
            return ""
        self._before, self._pending = self._pending, []
        return whole[len(prefix) :]

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
