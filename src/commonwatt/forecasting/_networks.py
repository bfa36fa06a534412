"""Neural predictors (CUFF): a few encoder-decoders trained alike, their quantiles averaged.

They forecast the change from the last value, in units of a typical one, so that a drifting level changes nothing.
PyTorch is the extra ``forecast``, imported when a predictor is fitted or forecasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from commonwatt.forecasting._history import (
    ObservingPredictor,
    check_length,
    check_step,
    checked_origins,
    learnable_origins,
)
from commonwatt.forecasting._network_inputs import MEMORY, context_width, contexts, level_sequences, sequences
from commonwatt.forecasting._network_layers import KINDS, Layers, NetworkShape, build
from commonwatt.forecasting._network_training import Examples, TrainingSettings, forecast, train
from commonwatt.model.arrays import Floats, Ints
from commonwatt.model.demand import HORIZON, LEVELS, LOOK_BACK, DemandSeries, QuantileForecast
from commonwatt.model.errors import InputError
from commonwatt.model.names import one_of

__all__ = ["NetworkPredictor", "NetworkSettings", "Scaling"]

_AT_ONCE = 8192  # origins forecast from at once, to save memory
_BLOCKS = 10  # stretches of the training values in each of which some are held out
_FARTHEST = 5.0  # standard deviations: beyond what was seen in training, context inputs are cut off


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of a network besides its kind.

    Parameters
    ----------
    members
        Networks trained, from different random weights and each with another held-out part; averaged.
    hidden, width, dropout, ignored
        As in ``NetworkShape``.
    held_out
        Part of the training values that validates epochs, another for each member; the best is kept. 0: the last is.
    raw
        Work on the levels themselves, without context: shows what drifting levels do to such a network.
    recipe
        How each is trained.
    """

    members: int = 3
    hidden: int = 8
    width: int = 32
    dropout: float = 0.3
    ignored: float = 0.1
    held_out: float = 0.0
    raw: bool = False
    recipe: TrainingSettings = field(default_factory=TrainingSettings)


@dataclass(frozen=True)
class Scaling:
    """Numbers from the training values that normalise the inputs and outputs of a network.

    Parameters
    ----------
    resolution
        A small change: a fifth of the mean change over the horizon, GPUs. With raw levels their standard deviation.
    offset
        Mean level with raw levels, else 0, GPUs.
    whole
        Whether demand came in whole GPUs only: then forecasts are rounded to the nearest.
    context_mean, context_spread
        Mean and standard deviation of the context inputs. Shapes [C].
    """

    resolution: float
    offset: float
    whole: bool
    context_mean: Floats
    context_spread: Floats


class NetworkPredictor(ObservingPredictor):
    """Encoder-decoders trained jointly on all levels by the pinball loss, or on squared error.

    Parameters
    ----------
    kind
        ``gru``, ``bilstm`` or ``cnn``.
    point
        Train on squared error; the forecast is then the same at every level.
    look_back, horizon
        Values seen (n), steps forecast (m).
    settings
        Everything else.

    Raises
    ------
    InputError
        For an unknown kind, or a look-back or horizon below 1.
    """

    def __init__(
        self, kind: str = "gru", *, point: bool = False, look_back: int = LOOK_BACK, horizon: int = HORIZON,
        settings: NetworkSettings | None = None,
    ) -> None:  # fmt: skip
        if kind not in KINDS:
            raise InputError(one_of(KINDS, kind), field="kind", value=kind)
        for name, value in (("look_back", look_back), ("horizon", horizon)):
            if value < 1:
                raise InputError("1 or more", field=name, value=value)
        super().__init__(max(MEMORY + horizon, look_back) + 1)
        self.kind, self.point, self.look_back, self.horizon = kind, point, look_back, horizon
        self.settings = settings or NetworkSettings()
        self.name = f"{kind}-point" if point else kind
        self._members: list[Layers] = []
        self._scaling = Scaling(1.0, 0.0, whole=True, context_mean=np.zeros(0), context_spread=np.ones(0))

    def fit(
        self, series: DemandSeries, rng: np.random.Generator, *, go_on: Callable[[], bool] = lambda: True,
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Learn from *series*, and take it as observed.

        Parameters
        ----------
        go_on
            Called before each step of training. Once it returns false, training ends and its weights are kept.
        progress
            Called with the part of the work done, within 0 and 1.

        Raises
        ------
        InputError
            For a series shorter than ``look_back + horizon`` or one without a known value.
        """
        check_length(series, self.look_back + self.horizon)
        values = series.filled()
        origins = learnable_origins(series, self.look_back, self.horizon, rng)
        self._scaling = self._scaled(values, origins)
        with _one_thread():
            self._train(values, origins, rng, go_on, progress)
        self.see(series)

    def predict(self) -> QuantileForecast:
        """Forecast the values after the last one observed. Raises ``InputError`` if nothing was fitted."""
        seen = self._history.values
        return QuantileForecast(LEVELS, self._forecast(seen, np.array([len(seen) - 1]))[0])

    def predict_many(self, series: DemandSeries, origins: Ints) -> Floats:
        """Forecast from each origin. Shape [K, m, Q].

        Raises
        ------
        InputError
            If nothing was fitted, or *series* has another step than the series fitted on.
        """
        at = checked_origins(series, origins, self.look_back)
        if self._members:
            check_step(series, self._step_s)
        return self._forecast(series.filled(), at)

    @property
    def members(self) -> int:
        """Networks trained; fewer than requested if training was interrupted."""
        return len(self._members)

    def _scaled(self, values: Floats, origins: Ints) -> Scaling:
        whole = bool((values == np.round(values)).all())
        if self.settings.raw:
            spread = float(values.std())
            return Scaling(spread if spread > 0 else 1.0, float(values.mean()), whole, np.zeros(0), np.ones(0))
        change = float(np.abs(values[origins + self.horizon] - values[origins]).mean())
        resolution = change / 5 if change > 0 else 1.0
        seen = contexts(values, origins, self.horizon, resolution)
        mean = seen.mean(axis=0, dtype=np.float64)
        spread = np.sqrt(np.maximum((seen * seen).mean(axis=0, dtype=np.float64) - mean * mean, 0.0)) + 1e-6
        return Scaling(resolution, 0.0, whole, mean, spread)

    def _check_scaling(self) -> None:
        scaling, wide = self._scaling, 0 if self.settings.raw else context_width()
        for name, values in (("context_mean", scaling.context_mean), ("context_spread", scaling.context_spread)):
            if values.shape != (wide,):
                raise InputError(f"{wide} numbers", field=name, value=f"shape {values.shape}")
        if not (scaling.context_spread > 0).all():
            raise InputError("numbers above 0", field="context_spread", value=float(scaling.context_spread.min()))

    def _inputs(self, values: Floats, origins: Ints) -> tuple[Any, Any]:
        import torch

        scaling = self._scaling
        if self.settings.raw:
            seen = level_sequences(values, origins, self.look_back, scaling.offset, scaling.resolution)
            return torch.from_numpy(seen), torch.zeros((len(origins), 0))
        about = contexts(values, origins, self.horizon, scaling.resolution)
        for first in range(0, len(about), _AT_ONCE):
            part = about[first : first + _AT_ONCE]
            part[:] = np.clip((part - scaling.context_mean) / scaling.context_spread, -_FARTHEST, _FARTHEST)
        seen = sequences(values, origins, self.look_back, scaling.resolution)
        return torch.from_numpy(seen), torch.from_numpy(about)

    @property
    def _shape(self) -> NetworkShape:
        chosen, raw = self.settings, self.settings.raw
        return NetworkShape(
            self.kind, 1 if raw else 3, len(self._scaling.context_mean), self.horizon,
            1 if self.point else len(LEVELS), chosen.hidden, chosen.width, chosen.dropout,
            chosen.ignored,
        )  # fmt: skip

    def _train(
        self, values: Floats, origins: Ints, rng: np.random.Generator, go_on: Callable[[], bool],
        progress: Callable[[float], None],
    ) -> None:  # fmt: skip
        import torch

        future = values[origins[:, None] + np.arange(1, self.horizon + 1)]
        base = self._scaling.offset if self.settings.raw else values[origins][:, None]
        target = (future - base) / self._scaling.resolution
        start = target.mean(axis=0)[:, None] if self.point else np.quantile(target, LEVELS, axis=0).T
        sequence, context = self._inputs(values, origins)
        examples = Examples(sequence, context, torch.from_numpy(target.astype(np.float32)))
        self._members, count = [], self.settings.members
        for i in range(count):
            if i and not go_on():
                break
            held_out, trained = self._split(origins, i)
            self._members.append(
                train(
                    self._shape, self.settings.recipe, None if self.point else LEVELS, examples, held_out, trained,
                    start, int(rng.integers(2**31)), go_on, _part(progress, i, count),
                )
            )  # fmt: skip

    def _split(self, origins: Ints, member: int) -> tuple[Ints, Ints]:
        """Return which examples judge a member, and which it learns from: none with a target that is judged by.

        The former are blocks spread evenly over the training values, the last one at their end; the next member's lie
        just before them. One block at the end would judge by the mood of a day.
        """
        block, share = len(origins) // _BLOCKS, self.settings.held_out
        size = max(1, round(share * block))
        if not (share and block):
            return np.zeros(0, dtype=np.int64), np.arange(len(origins))
        last = len(origins) - member * size % block - np.arange(_BLOCKS) * block
        judged = np.zeros(len(origins), dtype=bool)
        near = np.zeros(len(origins), dtype=bool)
        for end in last.tolist():
            first = max(0, end - size)
            judged[first:end] = True
            near |= (origins > origins[first] - self.horizon) & (origins < origins[end - 1] + self.horizon)
        trained = np.flatnonzero(~near)
        return (np.flatnonzero(judged), trained) if len(trained) else (trained, np.arange(len(origins)))

    def _forecast(self, values: Floats, origins: Ints) -> Floats:
        if not self._members:
            raise InputError("a predictor that was fitted", field="model", value=self.name)
        with _one_thread():
            parts = np.array_split(origins, -(-len(origins) // _AT_ONCE) or 1)
            return np.concatenate([self._forecast_some(values, part) for part in parts])

    def _forecast_some(self, values: Floats, origins: Ints) -> Floats:
        scaling = self._scaling
        sequence, context = self._inputs(values, origins)
        outputs = np.mean([forecast(self._shape, member, sequence, context) for member in self._members], axis=0)
        base = scaling.offset if self.settings.raw else values[origins][:, None, None]
        gpus = np.maximum(base + outputs * scaling.resolution, 0.0)
        if scaling.whole and not self.point:
            gpus = np.round(gpus)
        return np.repeat(gpus, len(LEVELS), axis=-1) if self.point else gpus

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file must hold: settings and numbers, and arrays by name.

        Raises ``InputError`` if nothing was fitted.
        """
        if not self._members:
            raise InputError("a predictor that was fitted", field="model", value=self.name)
        about = {
            "kind": self.kind, "point": self.point, "look_back": self.look_back, "horizon": self.horizon,
            "settings": asdict(self.settings), "members": len(self._members), "resolution": self._scaling.resolution,
            "offset": self._scaling.offset, "whole": self._scaling.whole, **self._clock(),
        }  # fmt: skip
        arrays = {
            "context_mean": self._scaling.context_mean,
            "context_spread": self._scaling.context_spread,
            "history": self._history.values.copy(),
        }
        for i, member in enumerate(self._members):
            arrays |= {f"member{i}.{name}": value.numpy() for name, value in member.state_dict().items()}
        return about, arrays

    @classmethod
    def restored(cls, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> NetworkPredictor:
        """Return the predictor that ``state`` was taken from.

        Raises ``InputError`` if arrays are missing, of other shapes, or impossible after training.
        """
        import torch

        chosen = dict(about["settings"])
        settings = NetworkSettings(**{**chosen, "recipe": TrainingSettings(**chosen["recipe"])})
        made = cls(
            about["kind"], point=about["point"], look_back=about["look_back"], horizon=about["horizon"],
            settings=settings,
        )  # fmt: skip
        try:
            made._scaling = Scaling(
                about["resolution"], about["offset"], about["whole"], arrays["context_mean"], arrays["context_spread"]
            )
            made._check_scaling()
            made._restore(about, arrays["history"])
            for i in range(about["members"]):
                prefix = f"member{i}."
                with torch.device("meta"):  # without memory: what is read says how large it is
                    layers = build(made._shape, np.zeros((made.horizon, made._shape.outputs)))
                own = {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}
                weights = {name: torch.from_numpy(np.array(a, dtype=np.float32)) for name, a in own.items()}
                layers.load_state_dict(weights, assign=True)
                made._members.append(layers.eval())
        except InputError:
            raise
        except (KeyError, RuntimeError, ValueError) as error:
            raise InputError("the arrays of a network of these settings", field="arrays", value=error) from None
        return made


def _part(progress: Callable[[float], None], done: int, count: int) -> Callable[[float], None]:
    """Return the progress of one of *count* equal pieces of work, *done* of which are complete."""
    return lambda part: progress((done + part) / count)


class _one_thread:  # noqa: N801
    """Let torch work on one thread: networks this small gain nothing from more, and lose much on a busy machine."""

    def __enter__(self) -> None:
        import torch

        self._before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *exc: object) -> None:
        import torch

        torch.set_num_threads(self._before)
