"""The models ANDREAS trains, with run times of our own: the paper prints none.

How a family scales over GPUs and compares between V100 and T4 is the scaling law of a class of model alike (``law``).
How long an epoch takes on one V100 is chosen so that Table V is possible as the paper tells it: every job of it alone
on one V100 is in time, by a margin for restarts; EfficientNet J6, running from 0 s, still runs at 2,400 s, when J10
joins it, and is done by 3,600 s; ConvNet J9 is done in 2,600 s. Larger batches shorten an epoch by the exponent at
which Gavel's throughputs of such a model still grow at their last doubling on a V100.

The nodes' power is ours too. V100: what Zeus measured for ResNet-50 at 250 W; T4: just below its limit of 70 W; host:
140 W (two ThunderX2, without GPUs). Within what Table V allows, host power and the LSTMs' epochs were chosen so that
the eight jobs cost about what the paper measured, 0.951 EUR (Table III): one V100 each, on three nodes that are on for
15,000 s, they cost 0.92 EUR. That our figures agree with Table III is therefore no evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

from commonwatt.data.profiles import LAW
from commonwatt.model.nodes import NodeSpec

__all__ = ["FAMILIES", "HOST_W", "WEIGHT_EUR_S", "Family", "node"]

WEIGHT_EUR_S = 1e-4
"""One unit of the paper's tardiness weights (1 to 5), in EUR/s. A full node of its largest kind (4 V100) costs
6.5e-5 EUR/s at 0.172 EUR/kWh and PUE 1.33, so that a second of lateness always costs more than a second of energy."""

HOST_W = 140.0
_GPU_W = {"V100": 220.0, "T4": 65.0}


@dataclass(frozen=True)
class Family:
    """A kind of model."""

    name: str
    like: str  # class of model whose law it follows
    epoch_s: float  # one epoch at ``batch_size`` on one V100
    batch_size: int  # of Table V
    batch_gain: float  # speed grows as batch size to this power

    def time_s(self, gpu_type: str, gpus: int, epochs: int, batch_size: int) -> float:
        """Run time of *epochs* epochs."""
        reference, speed = LAW.speed(self.like, "V100", 1), LAW.speed(self.like, gpu_type, gpus)
        if reference is None or speed is None:
            msg = f"no law for {self.like} on {gpu_type}"
            raise ValueError(msg)
        return epochs * self.epoch_s * (batch_size / self.batch_size) ** -self.batch_gain * reference / speed


FAMILIES = {
    family.name: family
    for family in (
        Family("EfficientNet", "resnet50", epoch_s=42.0, batch_size=4096, batch_gain=0.2),
        Family("ConvNet", "resnet18", epoch_s=12.0, batch_size=8192, batch_gain=0.2),
        Family("LSTM-big", "lm", epoch_s=84.0, batch_size=8192, batch_gain=0.3),
        Family("LSTM-small", "lm", epoch_s=44.0, batch_size=8192, batch_gain=0.3),
    )
}


def node(name: str, gpu_type: str, gpus: int, count: int = 1) -> NodeSpec:
    """Nodes like ARMIDA's."""
    return NodeSpec(name=name, count=count, gpu_type=gpu_type, gpus=gpus, idle_w=HOST_W, gpu_w=_GPU_W[gpu_type])
