"""A model's configuration and statistics as Triton's tools read them, as JSON documents of its protocol buffers.

Triton's configuration has the dimensions of a tensor without the batch, if the model has one. Statistics are counted
since the server started; times are in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from commonwatt.devices.base import TensorSpec

__all__ = ["ModelCounts", "ModelSettings", "RequestTimes", "model_config", "model_stats"]


@dataclass(frozen=True)
class ModelSettings:
    """How requests to a model are divided and put together."""

    max_batch_size: int = 0  # 0: its first axes do not count rows, or rows stay together
    preferred_batch_size: int | None = None  # rows up to which requests are put together; None: each runs alone
    max_queue_delay_microseconds: int = 0


@dataclass
class RequestTimes:
    """A number of requests, and their time together."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Count one more."""
        self.count += 1
        self.ns += ns


@dataclass
class ModelCounts:
    """What a model has done for its tenant."""

    success: RequestTimes = field(default_factory=RequestTimes)  # from arrival to outputs
    fail: RequestTimes = field(default_factory=RequestTimes)
    queue: RequestTimes = field(default_factory=RequestTimes)  # of requests that succeeded, until they began
    compute: RequestTimes = field(default_factory=RequestTimes)  # from then on, turns of other tenants included
    rows: int = 0
    batches: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # number and time in ns, by rows
    last_ms: int = 0  # when the last request ended, in ms since 1970


def model_config(
    name: str, platform: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], settings: ModelSettings
) -> dict[str, Any]:
    """Return the configuration of a model."""
    batched = settings.max_batch_size > 0
    document: dict[str, Any] = {
        "name": name,
        "platform": platform,
        "backend": {"pytorch_pt2": "pytorch"}.get(platform, "onnxruntime"),
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": settings.max_batch_size,
        "input": [_tensor(spec, batched=batched) for spec in inputs],
        "output": [_tensor(spec, batched=batched) for spec in outputs],
        "instance_group": [{"name": name, "kind": "KIND_AUTO", "count": 1}],
    }
    if batched and settings.preferred_batch_size is not None:
        document["dynamic_batching"] = {
            "preferred_batch_size": [settings.preferred_batch_size],
            "max_queue_delay_microseconds": settings.max_queue_delay_microseconds,
            "preserve_ordering": True,
        }
    return document


def _tensor(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": list(spec.shape[1:] if batched else spec.shape)}


def model_stats(name: str, version: str, counts: ModelCounts) -> dict[str, Any]:
    """Return the statistics of a model.

    Times of copying inputs and outputs are part of the time of computing, and are 0 here.
    """
    nothing = {"count": counts.success.count, "ns": 0}
    return {
        "name": name,
        "version": version,
        "last_inference": counts.last_ms,
        "inference_count": counts.rows,
        "execution_count": sum(count for count, _ in counts.batches.values()),
        "inference_stats": {
            "success": _timed(counts.success),
            "fail": _timed(counts.fail),
            "queue": _timed(counts.queue),
            "compute_input": nothing,
            "compute_infer": _timed(counts.compute),
            "compute_output": nothing,
            "cache_hit": _timed(RequestTimes()),
            "cache_miss": _timed(RequestTimes()),
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": {"count": count, "ns": 0},
                "compute_infer": {"count": count, "ns": time_ns},
                "compute_output": {"count": count, "ns": 0},
            }
            for rows, (count, time_ns) in sorted(counts.batches.items())
        ],
        "memory_usage": [],
        "response_stats": {},
    }


def _timed(timed: RequestTimes) -> dict[str, int]:
    return {"count": timed.count, "ns": timed.ns}
