"""A model server that speaks the Open Inference Protocol v2 and shares one device among tenants.

- ``backend``: the interface behind the protocol; ``sharing``: its implementation on a shared device.
- ``submission``: requests on their way to the device; ``worker``: the thread that drives it.
- ``operation``: what an operator sees and can change. ``triton_documents``: configuration and statistics.
- ``server``, ``frontend``, ``rest``, ``rest_body``, ``grpc_front``, ``tensors``, ``rejections``: the protocol.
- ``keys``: API keys. ``metrics``: for the operator. ``import_extra``: modules of the ``serve`` extra, when needed.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

from commonwatt.model.errors import MissingExtraError

__all__ = ["Foreign", "import_extra"]

Foreign: TypeAlias = Any
"""An object of a package that may not be installed."""

PACKAGES = {"prometheus_client": "prometheus-client", "grpc": "grpcio"}


def import_extra(module: str) -> ModuleType:
    """Import *module*; raises ``MissingExtraError`` if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        raise MissingExtraError(PACKAGES.get(top, top), "serve") from error
