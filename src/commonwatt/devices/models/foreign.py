"""The type of objects of ONNX, ONNX Runtime, PyTorch and zeus, which need not be installed."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Foreign"]

Foreign: TypeAlias = Any
