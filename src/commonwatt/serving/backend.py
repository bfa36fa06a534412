"""What stands behind the protocol's front: models of tenants, and requests to them.

The fronts (REST, gRPC) know this interface only; they turn its errors into the protocol's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.serving.metrics import Measurements

__all__ = [
    "Backend",
    "BackendError",
    "ModelDescription",
    "NotReadyError",
    "TooManyRequestsError",
    "UnavailableError",
    "UnknownModelError",
]


class BackendError(Exception):
    """A request that cannot be served; its text is for the client."""


class UnknownModelError(BackendError):
    """The tenant has no such model (REST 404, gRPC NOT_FOUND)."""


class NotReadyError(BackendError):
    """The model exists but is not loaded (REST 400, gRPC FAILED_PRECONDITION)."""


class TooManyRequestsError(BackendError):
    """The tenant's queues are full (REST 429, gRPC RESOURCE_EXHAUSTED; both say when to try again)."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(BackendError):
    """The server drains or the device is gone (REST 503, gRPC UNAVAILABLE)."""


@dataclass(frozen=True)
class ModelDescription:
    """A model as its tenant may see it."""

    name: str
    platform: str  # onnxruntime_onnx or pytorch_pt2
    ready: bool
    inputs: tuple[TensorSpec, ...]  # empty while it has never been loaded
    outputs: tuple[TensorSpec, ...]
    reason: str = ""  # why it is not ready


class Backend(Protocol):
    """Models of tenants, and requests to them. Tenants are named as in the configuration; keys are the front's."""

    def ready(self) -> bool:
        """Whether requests are taken: not while the server starts or drains, nor when the device is gone."""
        ...

    def models(self, tenant: str) -> tuple[ModelDescription, ...]:
        """Return the models of *tenant*, loaded or not."""
        ...

    def model(self, tenant: str, name: str) -> ModelDescription:
        """Return one of them; raises ``UnknownModelError``."""
        ...

    async def load(self, tenant: str, name: str) -> None:
        """Load it; nothing happens if it is loaded. Raises ``BackendError`` if its file is not right."""
        ...

    async def unload(self, tenant: str, name: str) -> None:
        """Unload it once the requests under way are answered."""
        ...

    async def infer(self, tenant: str, name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run one inference; *inputs* fit the model's. Cancelling the awaiting task gives the request up."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return what may be changed while it runs: policy, phi, quantum_s; weight and clock_mhz of each tenant."""
        ...

    def change(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Change settings (the same shape, any part of it); all or nothing. Raises ``InputError``."""
        ...

    def status(self) -> dict[str, Any]:
        """Return time, energy, shares and queues of every tenant as a JSON document, for the operator."""
        ...

    def measurements(self) -> Measurements:
        """Return the same as a snapshot for Prometheus."""
        ...
