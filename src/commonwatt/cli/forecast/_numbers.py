"""Numbers of options: what is no number is refused, which click lets through."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["NumberRange"]


class NumberRange(click.FloatRange):
    """A number within bounds, never NaN, and infinite only where told so."""

    def __init__(
        self, least: float | None = None, most: float | None = None, *, min_open: bool = False, max_open: bool = False,
        infinite: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(least, most, min_open=min_open, max_open=max_open)
        self._infinite = infinite

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Return the number; fails as click's own does."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number) or (math.isinf(number) and not self._infinite):
            self.fail(f"{value} is not a {'number' if self._infinite else 'finite number'}.", param, ctx)
        return number
