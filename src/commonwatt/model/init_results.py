"""Results of ``commonwatt init``. Unknown is null, never 0."""

from __future__ import annotations

from commonwatt.model.fields import AnswerModel, ResultModel, quantity

__all__ = ["InitNode", "InitResult"]


class InitNode(ResultModel):
    """A node, or equal nodes, in the scenario."""

    name: str = quantity("name of the node, or prefix of the numbered names")
    host: str | None = quantity("node it is a part of, where that has several GPU types; null: a node of its own")
    count: int = quantity("number of equal nodes")
    gpu_type: str = quantity("type of its GPUs")
    gpus: int = quantity("GPUs of each node", "GPUs")
    idle_w: float = quantity("assumed power while on, without busy GPUs", "W")
    gpu_w: float = quantity("assumed power added by each busy GPU", "W")
    power_source: str | None = quantity(
        "source of the power limit of its GPUs; null: unknown, the power is a placeholder"
    )


class InitResult(AnswerModel):
    """Answer of ``commonwatt init``."""

    source: str = quantity("format of the input: scontrol, sinfo, nvidia-smi or kubernetes")
    nodes: tuple[InitNode, ...] = quantity("nodes of the scenario")
    left_out: int = quantity("nodes without GPUs")
    unknown_gpu_types: tuple[str, ...] = quantity("GPU types whose speed is a placeholder in `gpu_types`")
    notes: tuple[str, ...] = quantity("values to check")
    written: str | None = quantity("path of the scenario; null: printed")
