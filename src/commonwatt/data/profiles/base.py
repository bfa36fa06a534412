"""The interface of profiles, and the representatives of each class of models in the measured tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["CLASSES", "Profiles", "Stand", "class_of"]

_BERT = (("squad", "bert_base_uncased", "adamw"), ("sentiment140", "bert_base_uncased", "adamw"))


@dataclass(frozen=True)
class Stand:
    """Representatives of a class in each table."""

    gavel: str | None
    zeus: tuple[tuple[str, str, str], ...]  # (dataset, model, optimizer)
    sia: str
    sia_scales: bool = True  # whether the class scales like Sia's model


CLASSES = {
    "resnet18": Stand("ResNet-18", (("cifar100", "shufflenetv2", "adadelta"),), "cifar10"),
    "resnet50": Stand("ResNet-50", (("imagenet", "resnet50", "adadelta"),), "imagenet"),
    "transformer": Stand("Transformer", _BERT, "bert"),
    "bert": Stand(None, _BERT, "bert"),
    # an LSTM: BERT scales better
    "lm": Stand("LM", (("librispeech", "deepspeech2", "adamw"),), "bert", sia_scales=False),
    "recommendation": Stand("Recommendation", (("movielens-1m", "ncf", "adam"),), "ncf"),
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


def class_of(kind: str) -> str | None:
    """Return the class of models that *kind* is of, itself or one of the runs of the measured tables; else ``None``.

    >>> class_of("resnet50-b64"), class_of("bert"), class_of("a3c")
    ('resnet50', 'bert', None)
    """
    name = kind.rpartition("-b")[0] or kind
    return name if name in CLASSES else None
