"""The interface of profiles, names of GPU types and MIG slices, and the models of each class in the tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from commonwatt.model.errors import InputError
from commonwatt.model.names import did_you_mean

__all__ = [
    "CLASSES", "GPU_TYPES", "MIG_SLICES", "ClassRepresentatives", "MigSlice", "Profiles", "canonical", "class_of",
    "known_gpu_type", "mig_slice", "type_in",
]  # fmt: skip

_BERT = (("squad", "bert_base_uncased", "adamw"), ("sentiment140", "bert_base_uncased", "adamw"))


@dataclass(frozen=True)
class ClassRepresentatives:
    """Representatives of a class in each table."""

    gavel: str | None
    zeus: tuple[tuple[str, str, str], ...]  # (dataset, model, optimizer)
    sia: str
    lucid: tuple[str, str]  # (model, dataset)
    sia_scales: bool = True  # whether the class scales like Sia's model


CLASSES = {
    "resnet18": ClassRepresentatives(
        "ResNet-18", (("cifar100", "shufflenetv2", "adadelta"),), "cifar10", ("ResNet18", "CIFAR-10")
    ),
    "resnet50": ClassRepresentatives(
        "ResNet-50", (("imagenet", "resnet50", "adadelta"),), "imagenet", ("ResNet50", "ImageNet")
    ),
    "transformer": ClassRepresentatives("Transformer", _BERT, "bert", ("Transformer", "Multi30k")),
    "bert": ClassRepresentatives(None, _BERT, "bert", ("BERT", "SQuAD")),
    # an LSTM: BERT scales better
    "lm": ClassRepresentatives(
        "LM", (("librispeech", "deepspeech2", "adamw"),), "bert", ("LSTM", "Wikitext2"), sia_scales=False
    ),
    "recommendation": ClassRepresentatives(
        "Recommendation", (("movielens-1m", "ncf", "adam"),), "ncf", ("NeuMF", "MovieLens")
    ),
}


class Profiles(Protocol):
    """Speed and power of training, by kind of model, GPU type and GPU count.

    GPU types may be spelt in any case; an unknown one is an ``InputError`` listing the known ones.
    """

    def type_named(self, name: str, field: str | None = None, file: object = None) -> str:
        """Return the one name of the GPU type spelt *name*; raises ``InputError`` naming *field* if it is unknown."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of model with figures."""

    @property
    def source(self) -> str:
        """Return the source of the figures, as a sentence without a full stop."""

    def speed(self, kind: str, gpu_type: str, gpus: int) -> float | None:
        """Return samples per second relative to one P100 on the same kind; ``None`` if unknown."""

    def gpu_w(self, kind: str, gpu_type: str) -> float | None:
        """Return the power of one GPU's board during training, W; ``None`` if unknown."""

    def limited(self, kind: str, gpu_type: str, limit: float) -> tuple[float, float] | None:
        """Return time and power of training with a power limit, relative to those without; ``None`` if unknown.

        *limit* is the part of the GPU's highest power limit, 0.5 to 1.
        """


def class_of(kind: str) -> str | None:
    """Return the class of models that *kind* is of, itself or one of the runs of the measured tables; else ``None``.

    >>> class_of("resnet50-b64"), class_of("bert"), class_of("a3c"), class_of("bert-b0")
    ('resnet50', 'bert', None, None)
    """
    name = re.sub(r"-b[1-9]\d*$", "", kind)
    return name if name in CLASSES else None


GPU_TYPES = ("K80", "P100", "V100", "T4", "RTX2080Ti", "RTX6000", "A40", "A100")

MIG_SLICES = 7
"""Compute slices of a GPU that can be cut up (NVIDIA MIG User Guide)."""

_BY_TOKEN = {name.upper(): name for name in GPU_TYPES}
_OTHER = {"ADA"}  # RTX 6000 Ada is another GPU than RTX 6000
_MIG = re.compile(r"(?P<whole>.*?)[-_ .:]*(?:\bMIG[-_ ]*)?(?P<slices>[1-7])g\.(?P<memory>\d+)gb(?P<more>\+\w+)?", re.I)


@dataclass(frozen=True)
class MigSlice:
    """An instance of a GPU that is cut up: ``A100-1g.5gb`` has 1 of the 7 compute slices of an A100."""

    whole: str  # as it was spelt; "" where the name says none
    slices: int
    profile: str  # NVIDIA's name, 1g.5gb


def mig_slice(name: str) -> MigSlice | None:
    """Return the MIG slice that *name* means, ``None`` if it is none.

    >>> mig_slice("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    MigSlice(whole='NVIDIA-A100-SXM4-40GB', slices=1, profile='1g.5gb')
    """
    match = _MIG.fullmatch(name.strip())
    if match is None:
        return None
    profile = f"{match['slices']}g.{match['memory']}gb{match['more'] or ''}".lower()
    return MigSlice(match["whole"], int(match["slices"]), profile)


def canonical(name: str) -> str | None:
    """Return the one of ``GPU_TYPES`` that *name* means, or ``None``; see ``type_in``. A MIG slice is none of them."""
    return None if _OTHER.intersection(_words(name)) or mig_slice(name) else type_in(name, _BY_TOKEN)


def type_in(name: str, by_token: Mapping[str, str]) -> str | None:
    """Return the GPU type that *name* means, of those in *by_token* by their names in capitals, or ``None``.

    Case does not matter, and neither do words around it: ``tesla_v100-sxm2-32gb`` is V100, ``Quadro RTX 6000`` is
    RTX6000.
    """
    words = _words(name)
    joined = ["".join(words[i:j]) for i in range(len(words)) for j in range(len(words), i, -1)]
    return next((by_token[word] for word in joined if word in by_token), None)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word]


def known_gpu_type(name: str, field: str | None = None, file: object = None) -> str:
    """Return ``canonical(name)``; raises ``InputError`` listing the known types if there is none."""
    gpu_type = canonical(name)
    if gpu_type is None:
        expected = f"a GPU type whose speed is known ({', '.join(GPU_TYPES)}){did_you_mean(name, GPU_TYPES)}"
        raise InputError(expected, file=file, field=field, value=name)
    return gpu_type
