"""Trees as arrays, against LightGBM itself; damaged ones are refused before they are walked."""

import numpy as np
import pytest

from commonwatt.forecasting._trees import Trees
from commonwatt.model.errors import InputError

lightgbm = pytest.importorskip("lightgbm")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def grown():
    rng = np.random.default_rng(0)
    rows = np.round(rng.normal(size=(2000, 6)), 1)
    rows[:, 3] = 7.0
    target = rows[:, 0] * (rows[:, 1] > 0) + rng.normal(size=2000)
    models = []
    for alpha, leaves, least in ((0.5, 7, 20), (0.99, 4, 500), (0.9, 7, 5000)):
        settings = {"objective": "quantile", "alpha": alpha, "num_leaves": leaves, "min_data_in_leaf": least}
        models.append(lightgbm.train(settings | {"verbose": -1, "num_threads": 1}, lightgbm.Dataset(rows, target), 30))
    return models, rows


def test_sums_are_lightgbms(grown):
    models, rows = grown
    other = np.round(np.random.default_rng(1).normal(size=(500, 6)), 1)
    for given in (rows, other):
        found = Trees.of_lightgbm(models).predict(given)
        assert found == pytest.approx(np.array([model.predict(given) for model in models]), abs=1e-12)


def test_arrays_come_back(grown):
    models, rows = grown
    trees = Trees.of_lightgbm(models)
    again = Trees.from_arrays(trees.arrays(), 3, 6)
    assert (again.predict(rows) == trees.predict(rows)).all()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("feature", lambda a: np.full_like(a, 6)),
        ("feature", lambda a: a - 1),
        ("left", np.zeros_like),
        ("right", lambda a: np.full_like(a, a.shape[-1])),
        ("right", lambda a: np.full_like(a, -a.shape[-1] - 2)),
        ("leaf", lambda a: a[..., :-1]),
        ("leaf", lambda a: a * np.nan),
        ("threshold", lambda a: a.astype(np.float32)),
        ("split", lambda a: a[0]),
        ("split", None),
    ],
)
def test_damaged_arrays_are_refused(name, change, grown):
    arrays = Trees.of_lightgbm(grown[0]).arrays()
    if change is None:
        del arrays[f"trees.{name}"]
    else:
        arrays[f"trees.{name}"] = change(arrays[f"trees.{name}"])
    with pytest.raises(InputError, match="3 models of trees of 6 features"):
        Trees.from_arrays(arrays, 3, 6)


def test_another_number_of_models_is_refused(grown):
    with pytest.raises(InputError, match="2 models"):
        Trees.from_arrays(Trees.of_lightgbm(grown[0]).arrays(), 2, 6)
