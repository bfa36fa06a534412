"""Boosted trees as arrays: saved in a file that runs no foreign code when read, and summed by compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.optimize import njit

__all__ = ["Trees"]


@dataclass(frozen=True)
class Trees:
    """Models, each the sum of some binary trees. Shapes: M models, T trees, at most S splits and S + 1 leaves.

    Parameters
    ----------
    feature, threshold
        A row goes left at a split if its feature is at most the threshold. Shape [M, T, S].
    left, right
        The node after a split: a later split, or leaf 0, 1, ... as -1, -2, ... Shape [M, T, S].
    leaf
        Values of the leaves. Shape [M, T, S + 1].
    split
        Whether a tree has any split. Shape [M, T].
    """

    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    leaf: Floats
    split: Ints

    @classmethod
    def of_lightgbm(cls, boosters: Sequence[Any]) -> Trees:
        """Take the trees of LightGBM models with numerical features and no missing values."""
        read = [_read(booster.model_to_string()) for booster in boosters]
        trees = max((len(model) for model in read), default=0)
        most = max((len(tree["leaf_value"]) for model in read for tree in model), default=1)
        made = cls.empty(len(read), trees, max(1, most - 1))
        for m, model in enumerate(read):
            for t, tree in enumerate(model):
                made.leaf[m, t, : len(tree["leaf_value"])] = tree["leaf_value"]
                splits = len(tree["leaf_value"]) - 1
                made.split[m, t] = splits > 0
                for name, key in _KEYS.items():
                    getattr(made, name)[m, t, :splits] = tree.get(key, np.zeros(0))[:splits]
        return made

    @classmethod
    def empty(cls, models: int, trees: int, splits: int) -> Trees:
        """Return empty trees, whose sum is 0."""
        inner = (models, trees, splits)
        feature, left, right = (np.full(inner, start, dtype=np.int64) for start in (0, -1, -1))
        leaf = np.zeros((models, trees, splits + 1))
        return cls(feature, np.zeros(inner), left, right, leaf, np.zeros((models, trees), dtype=np.int64))

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], models: int, features: int) -> Trees:
        """Restore trees from their ``arrays``.

        Raises ``InputError`` for missing arrays, wrong shapes, another number of *models*, or trees that use other
        features or are malformed.
        """
        expected = f"{models} models of trees of {features} features"
        try:
            given = {field.name: arrays[f"trees.{field.name}"] for field in fields(cls)}
        except KeyError as error:
            raise InputError(expected, field="arrays", value=f"no {error.args[0]}") from None
        whole = {"feature", "left", "right", "split"}
        inner = given["feature"].shape
        shapes = {"leaf": (*inner[:2], inner[-1] + 1), "split": inner[:2]} if len(inner) == 3 else {}
        for name, array in given.items():
            if len(inner) != 3 or inner[0] != models or inner[2] < 1 or array.shape != shapes.get(name, inner):
                raise InputError(expected, field=f"trees.{name}", value=f"shape {array.shape}")
            if array.dtype != (np.int64 if name in whole else np.float64) or not np.isfinite(array).all():
                raise InputError(expected, field=f"trees.{name}", value="numbers of another kind")
        made = cls(**{name: np.ascontiguousarray(array) for name, array in given.items()})
        after = np.arange(inner[2])
        sound = (made.feature >= 0) & (made.feature < features)
        for side in (made.left, made.right):
            sound &= (side >= -inner[2] - 1) & (side < inner[2]) & ((side < 0) | (side > after))
        if not sound.all():
            raise InputError(expected, field="trees", value="a split that leads nowhere")
        return made

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {f"trees.{field.name}": getattr(self, field.name) for field in fields(self)}

    def predict(self, rows: Floats) -> Floats:
        """Return each model's sum for each row. Shapes: *rows* [K, F]; returns [M, K]."""
        out = np.zeros((len(self.leaf), len(rows)))
        _sum(self.feature, self.threshold, self.left, self.right, self.leaf, self.split, rows, out)
        return out


_KEYS = {"feature": "split_feature", "threshold": "threshold", "left": "left_child", "right": "right_child"}


def _read(text: str) -> list[dict[str, Floats]]:
    """Return the lists of numbers of each tree in a model's text."""
    wanted = {*_KEYS.values(), "leaf_value"}
    trees = []
    for part in text.split("\nTree=")[1:]:
        lines = (line.partition("=") for line in part.split("\n\n")[0].splitlines())
        trees.append({key: np.array(values.split(), dtype=float) for key, _, values in lines if key in wanted})
    return trees


@njit(cache=True)
def _sum(
    feature: Ints, threshold: Floats, left: Ints, right: Ints, leaf: Floats, split: Ints, rows: Floats, out: Floats
) -> None:
    models, trees = split.shape
    for m in range(models):
        for k in range(len(rows)):
            total = 0.0
            for t in range(trees):
                at = 0 if split[m, t] else -1
                while at >= 0:
                    at = left[m, t, at] if rows[k, feature[m, t, at]] <= threshold[m, t, at] else right[m, t, at]
                total += leaf[m, t, -1 - at]
            out[m, k] = total
