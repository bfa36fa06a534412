"""Training of one network: AdamW, one cycle of the learning rate, weights averaged, the best epoch or the last kept."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from commonwatt.forecasting._network_layers import Layers, NetworkShape, build, forward
from commonwatt.model.arrays import Floats, Ints

__all__ = ["Examples", "TrainingSettings", "forecast", "train"]

_UPPER = 0.895  # levels above this are those a promise is made of


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained.

    Parameters
    ----------
    epochs
        Most epochs. Each takes a random *share* of the examples.
    share
        Part of the examples that an epoch takes: neighbouring minutes are much alike.
    batch
        Examples per step.
    rate
        Highest learning rate.
    decay
        Weight decay.
    patience
        Epochs without a better validation loss after which training ends.
    smoothing
        Part of the averaged weights that a step keeps; less in the first steps. Below 1.
    upper
        Weight of the loss at levels of .9 or above, against 1 below: losses in the far tail are small.
    """

    epochs: int = 4
    share: float = 1.0
    batch: int = 1024
    rate: float = 4e-3
    decay: float = 1.0
    patience: int = 4
    smoothing: float = 0.98
    upper: float = 2.0


@dataclass(frozen=True)
class Examples:
    """Inputs and targets, as tensors of one length.

    Parameters
    ----------
    sequence, context, target
        Shapes [N, n / PATCH, channels * PATCH], [N, C], [N, m], the last in resolutions.
    """

    sequence: Any
    context: Any
    target: Any

    def __len__(self) -> int:
        return len(self.target)

    def at(self, rows: Any) -> Examples:  # noqa: ANN401
        """Return some of them."""
        return Examples(self.sequence[rows], self.context[rows], self.target[rows])


def train(
    shape: NetworkShape, settings: TrainingSettings, levels: Floats | None, examples: Examples, held_out: Ints,
    trained: Ints, start: Floats, seed: int, go_on: Callable[[], bool], advanced: Callable[[float], None],
) -> Layers:  # fmt: skip
    """Train one network and return the running average of its weights after the epoch of least loss on *held_out*.

    Parameters
    ----------
    levels
        Quantile levels of the outputs; ``None`` to train on squared error. Shape [outputs].
    held_out, trained
        Rows of the examples that validate and of those that train; without the former the last epoch is kept.
    start
        What the network forecasts before training. Shape [m, outputs].
    go_on
        Called before each step; training ends when it returns false.
    advanced
        Called after each step with the part of the work done, within 0 and 1.

    torch's random state is restored; the same seed gives the same network.
    """
    import torch

    pool = torch.from_numpy(trained)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = build(shape, start)
        run = _Run(shape, settings, layers, levels, examples, held_out)
        run.judge()
        count = max(1, round(settings.share * len(trained)))
        batches = -(-count // settings.batch)
        step = _stepper(layers, settings, settings.epochs * batches)
        done = 0
        for _ in range(settings.epochs):
            drawn = pool[torch.randperm(len(pool))[:count]]
            for part in torch.tensor_split(drawn, batches):
                if not go_on():
                    return run.best(ended=True)
                step(run.loss(layers, examples.at(part)))
                run.follow()
                done += 1
                advanced(done / (settings.epochs * batches))
            run.judge()
            if run.since_best >= settings.patience:
                break
        advanced(1.0)
        return run.best()


def _stepper(layers: Layers, settings: TrainingSettings, steps: int) -> Callable[[Any], None]:
    import torch

    usual = list(layers["usual"].parameters())  # what is forecast without any input: 0 would be no neutral value
    ids = {id(each) for each in usual}
    others = [each for each in layers.parameters() if id(each) not in ids]
    groups = [{"params": usual, "weight_decay": 0.0}, {"params": others, "weight_decay": settings.decay}]
    optimizer = torch.optim.AdamW(groups, lr=settings.rate)
    total = max(steps + 1, 6)  # of fewer, a fifth is no rise
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, total_steps=total, pct_start=0.2)

    def step(loss: Any) -> None:  # noqa: ANN401
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    return step


class _Run:
    """A network in training, the running average of its weights, and the best average so far."""

    def __init__(
        self,
        shape: NetworkShape,
        settings: TrainingSettings,
        layers: Layers,
        levels: Floats | None,
        examples: Examples,
        held_out: Ints,
    ) -> None:
        import torch

        self.shape, self.settings, self.layers = shape, settings, layers
        self.levels = None if levels is None else torch.tensor(levels, dtype=torch.float32)
        weights = np.ones(1) if levels is None else np.where(levels > _UPPER, settings.upper, 1.0)
        self.weights = torch.tensor(weights / weights.mean(), dtype=torch.float32)
        self.held_out = examples.at(torch.from_numpy(held_out)) if len(held_out) else None
        self.mean = deepcopy(layers).eval()
        self.kept: dict[str, Any] | None = None
        self.least, self.since_best, self.steps = np.inf, 0, 0

    def loss(self, layers: Layers, some: Examples) -> Any:  # noqa: ANN401
        """Pinball loss, mean over steps and, weighted, over levels; or squared error."""
        import torch

        off = some.target[..., None] - forward(self.shape, layers, some.sequence, some.context)
        if self.levels is None:
            return (off * off).mean()
        return (self.weights * torch.maximum(self.levels * off, (self.levels - 1) * off)).mean()

    def follow(self) -> None:
        """Move the average towards the present weights."""
        import torch

        self.steps += 1
        kept = min(self.settings.smoothing, self.steps / (self.steps + 9))
        with torch.no_grad():
            for mean, now in zip(self.mean.parameters(), self.layers.parameters(), strict=True):
                mean.lerp_(now, 1 - kept)

    def judge(self) -> None:
        """Keep the average if it is the best so far on the validation rows."""
        import torch

        if self.held_out is None:
            return
        with torch.no_grad():
            parts = range(0, len(self.held_out), 4096)
            losses = [
                float(self.loss(self.mean, some)) * len(some)
                for some in (self.held_out.at(slice(i, i + 4096)) for i in parts)
            ]
        self.since_best += 1
        if sum(losses) < self.least:
            self.least, self.since_best = sum(losses), 0
            self.kept = {name: value.clone() for name, value in self.mean.state_dict().items()}

    def best(self, *, ended: bool = False) -> Layers:
        """Return the best average; if *ended* early, the present one is a candidate too."""
        if ended:
            self.judge()
        if self.kept is not None:
            self.mean.load_state_dict(self.kept)
        return self.mean


def forecast(shape: NetworkShape, layers: Layers, sequence: Any, context: Any) -> Floats:  # noqa: ANN401
    """Return forecasts of a trained network. Shape [B, m, outputs], resolutions."""
    import torch

    with torch.no_grad():
        return forward(shape, layers, sequence, context).numpy().astype(np.float64)
