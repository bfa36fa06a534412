"""Classes of model, and what stands for each of them in the measured tables."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CLASSES", "Stand"]

_BERT = (("squad", "bert_base_uncased", "adamw"), ("sentiment140", "bert_base_uncased", "adamw"))


@dataclass(frozen=True)
class Stand:
    """What stands for a class in each table."""

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
