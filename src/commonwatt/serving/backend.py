"""The interface behind REST and gRPC: tenants' models, and requests to them.

REST and gRPC use nothing else, and turn its errors into those of their protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from commonwatt.devices.base import Tensor, TensorSpec
from commonwatt.devices.language.base import Message
from commonwatt.devices.language.text import Finish
from commonwatt.serving.metrics import Measurements
from commonwatt.serving.triton_documents import ModelCounts, ModelSettings

__all__ = [
    "Backend",
    "BackendError",
    "ModelDescription",
    "NotReadyError",
    "TextGeneration",
    "TextPiece",
    "TextRequest",
    "TooManyRequestsError",
    "UnavailableError",
    "UnknownModelError",
]


class BackendError(Exception):
    """A request that cannot be served; the client sees the text."""


class UnknownModelError(BackendError):
    """The tenant has no such model (REST 404, gRPC NOT_FOUND)."""


class NotReadyError(BackendError):
    """The model exists but is not loaded (REST 400, gRPC FAILED_PRECONDITION)."""


class TooManyRequestsError(BackendError):
    """The tenant's queues are full (REST 429, gRPC RESOURCE_EXHAUSTED, with the time to retry after)."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(BackendError):
    """The server drains or the device has failed (REST 503, gRPC UNAVAILABLE)."""


@dataclass(frozen=True)
class ModelDescription:
    """A model as its tenant sees it."""

    name: str
    platform: str  # onnxruntime_onnx, pytorch_pt2 or language
    ready: bool
    inputs: tuple[TensorSpec, ...]  # empty until it is first loaded
    outputs: tuple[TensorSpec, ...]
    reason: str = ""  # why it is not ready
    version: int = 1

    @property
    def key(self) -> str:
        """What the backend calls it: its name, with the version unless that is 1."""
        return self.name if self.version == 1 else f"{self.name}/{self.version}"

    @property
    def generates(self) -> bool:
        """Whether it generates text."""
        return self.platform == "language"


@dataclass(frozen=True)
class TextRequest:
    """A request for text; ``None``: as the model's defaults are."""

    prompt: str | tuple[int, ...] | tuple[Message, ...]  # text, tokens or a chat
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]


@dataclass(frozen=True)
class TextPiece:
    """The next piece of an answer; the last has a reason."""

    text: str
    finish: Finish | None = None


class TextGeneration(Protocol):
    """An answer in the making."""

    prompt_tokens: int

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answer so far."""
        ...

    async def next(self) -> TextPiece:
        """Return the next piece; raises ``BackendError`` if there is none to come."""
        ...

    def cancel(self) -> None:
        """Stop, unless it has ended, and free its cache."""
        ...


class Backend(Protocol):
    """Tenants' models, and requests to them. Tenants are named as in the configuration; the front checks keys.

    Except in ``versions``, a *name* is the key of one version.
    """

    def ready(self) -> bool:
        """Return whether requests are accepted: not while the server starts or drains, nor after the device failed."""
        ...

    def models(self, tenant: str) -> tuple[ModelDescription, ...]:
        """Return the models of *tenant*, loaded or not."""
        ...

    def versions(self, tenant: str, name: str) -> tuple[ModelDescription, ...]:
        """Return the versions of a model of *tenant*, loaded or not, the highest last; empty: it has no such model."""
        ...

    def model_settings(self, tenant: str, name: str) -> ModelSettings:
        """Return how requests to a model are divided and put together; raises ``UnknownModelError``."""
        ...

    def model_counts(self, tenant: str, name: str) -> ModelCounts:
        """Return what a model has done for its tenant; raises ``UnknownModelError``."""
        ...

    async def load(self, tenant: str, name: str) -> None:
        """Load a model unless it is loaded. Raises ``BackendError`` if its file cannot be loaded."""
        ...

    async def unload(self, tenant: str, name: str) -> None:
        """Unload a model after its requests in progress are answered."""
        ...

    async def infer(self, tenant: str, name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run one inference on *inputs* that fit the model. Cancelling the awaiting task cancels the request."""
        ...

    async def generate(self, tenant: str, name: str, request: TextRequest) -> TextGeneration:
        """Queue a request for text. Raises ``BackendError`` for a model that generates none, or one too long for it."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the settings an operator can change: policy, phi, quantum_s; each tenant's weight and clock_mhz."""
        ...

    def change(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Change any of the settings, all or nothing; returns all of them. Raises ``InputError``."""
        ...

    def status(self) -> dict[str, Any]:
        """Return time, energy, shares and queues of every tenant as a JSON document, for the operator."""
        ...

    def measurements(self) -> Measurements:
        """Return the same for Prometheus."""
        ...
