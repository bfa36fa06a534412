"""Modules of the ``serve`` extra, imported when a server starts."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

from commonwatt.model.errors import MissingExtraError

__all__ = ["Foreign", "wanted"]

Foreign: TypeAlias = Any
"""An object of a package that may not be installed."""

PACKAGES = {"prometheus_client": "prometheus-client", "grpc": "grpcio"}


def wanted(module: str) -> ModuleType:
    """Import *module*; raises ``MissingExtraError`` if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        raise MissingExtraError(PACKAGES.get(top, top), "serve") from error
