"""All cost models by name. A name has one owner."""

from __future__ import annotations

from typing import Literal

from commonwatt.mapping.costs._cost import CostModel
from commonwatt.mapping.costs._maestro import Maestro
from commonwatt.mapping.costs._roofline import Roofline

__all__ = ["MODELS", "ModelName"]

ModelName = Literal["maestro", "shi", "roofline"]

MODELS: dict[ModelName, CostModel] = {"maestro": Maestro(), "shi": Maestro(low="SHI"), "roofline": Roofline()}
"""``shi`` is ``maestro`` with the ShiDianNao-like dataflow where a platform says ``LB``."""
