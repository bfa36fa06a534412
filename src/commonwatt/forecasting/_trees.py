"""Boosted trees: the settings of each step, and fitted trees as arrays.

The arrays are saved in a file that runs no foreign code when read, and summed by compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.errors import InputError
from commonwatt.optimize import njit

__all__ = ["PARAMETERS", "StepSettings", "Trees", "chosen_steps", "settings_of"]

PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.03,
    "num_leaves": 7,
    "min_data_in_leaf": 500,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
}
"""The best of some twenty on Philly and Earth: fitted on five sevenths, scored on the sixth."""

CHOSEN_STEPS = (1, 2, 5, 15, 30, 60, 120, 240, 480, 960)
"""Steps fitted directly where more than 15 are forecast: clocks and sleep, deep sleep, off, and beyond."""


@dataclass(frozen=True)
class StepSettings:
    """How the models of a step are fitted and used.

    Parameters
    ----------
    level_and_weekday
        Whether these are features. Training of a few weeks sees most of their values once, so that trees may learn
        from them what happened then, and not what happens again.
    share
        Share of ``last-value`` in the forecast, 0 to 1.
    """

    level_and_weekday: bool = True
    share: float = 0.0


NEAR = 5
"""The most steps ahead that the settings in ``PARAMETERS`` were chosen for."""

FAR = 25
"""The fewest steps ahead with the whole share of ``last-value``."""


def settings_of(step: int) -> StepSettings:
    """Return the settings of a step, as chosen by the benchmark ``forecast_horizons``."""
    if step <= NEAR:
        return StepSettings()
    return StepSettings(level_and_weekday=False, share=0.5 * min(1.0, (step - NEAR) / (FAR - NEAR)))


def chosen_steps(horizon: int) -> tuple[int, ...]:
    """Return the steps that are fitted for a horizon."""
    if horizon <= CHOSEN_STEPS[3]:
        return tuple(range(1, horizon + 1))
    return (*(step for step in CHOSEN_STEPS if step < horizon), horizon)


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
