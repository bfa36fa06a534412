"""How a problem file says by which law a tenant's work scales."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Tag, model_validator

from commonwatt.model.fields import FileModel, quantity

__all__ = ["LawOrName", "LawSpec"]

_NEEDS = {
    "amdahl": ("parallel_fraction",), "linear": (), "usl": ("contention", "coherence"), "table": ("pes", "speedups"),
    "fit": ("pes", "speedups"), "characterized": ("file",),
}  # fmt: skip
_MAY = {"characterized": ("kernel",)}


class LawSpec(FileModel):
    """A scaling law: speedup over one PE by the number of PEs."""

    law: Literal["amdahl", "linear", "usl", "table", "fit", "characterized"] = quantity(
        "amdahl; linear (F = 1); usl (Universal Scalability Law); table: as measured, nothing in between and beyond; "
        "fit: the law that fits the table best; characterized: what `partition characterize --out` wrote",
    )
    parallel_fraction: float | None = quantity("amdahl: parallel part of the work (F)", "-", None, ge=0, le=1)
    contention: float | None = quantity("usl: sigma, the part that waits for others", "-", None, ge=0)
    coherence: float | None = quantity("usl: kappa, the cost of each pair of PEs", "-", None, ge=0)
    pes: tuple[float, ...] | None = quantity("table, fit: PEs measured, one or more each", "PEs", None, min_length=1)
    speedups: tuple[float, ...] | None = quantity("table, fit: speedup over one PE at each", "-", None, min_length=1)
    file: str | None = quantity("characterized: the result's file, relative to the problem's", "-", None)
    kernel: str | None = quantity("characterized: name of the program; none: the only one", "-", None)

    @model_validator(mode="after")
    def _check(self) -> LawSpec:
        given = {name for name in type(self).model_fields if name != "law" and getattr(self, name) is not None}
        for name in _NEEDS[self.law]:
            if name not in given:
                msg = f"{name}: got none, expected a value for the law {self.law}"
                raise ValueError(msg)
        for name in sorted(given - {*_NEEDS[self.law], *_MAY.get(self.law, ())}):
            msg = f"{name}: got a value, expected none for the law {self.law}"
            raise ValueError(msg)
        _check_table(self.pes or (), self.speedups or ())
        return self


def _check_table(pes: tuple[float, ...], speedups: tuple[float, ...]) -> None:
    if len(pes) != len(speedups):
        msg = f"speedups: got {len(speedups)} numbers, expected {len(pes)}, one for each of pes"
        raise ValueError(msg)
    for place, (n, s) in enumerate(zip(pes, speedups, strict=True)):
        if n < 1 or n in pes[:place]:
            msg = f"pes.{place}: got {n:g}, expected 1 or more, each once"
            raise ValueError(msg)
        if s <= 0 or (n == 1 and s != 1):
            msg = f"speedups.{place}: got {s:g}, expected a speedup over one PE: above 0, and 1 at one PE"
            raise ValueError(msg)


def _kind(value: object) -> str:
    return "a-name" if isinstance(value, str) else "a-law"


LawOrName = Annotated[Annotated[LawSpec, Tag("a-law")] | Annotated[str, Tag("a-name")], Discriminator(_kind)]
"""A law, or the name of one; which of them is meant is clear before it is looked at, and so is the error."""
