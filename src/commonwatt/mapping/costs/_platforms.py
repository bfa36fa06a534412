"""The platforms of G#'s Table 4, and those of section 5.5 whose arrays are flexible."""

from __future__ import annotations

from commonwatt.mapping.costs._cost import Array

__all__ = ["PLATFORMS"]

_KIB = 1024.0


def _hb32(count: int) -> tuple[Array, ...]:
    return (Array("HB", 32, sg_bytes=146 * _KIB),) * count


def _hb64(count: int) -> tuple[Array, ...]:
    return (Array("HB", 64, sg_bytes=291 * _KIB),) * count


def _hb128(count: int) -> tuple[Array, ...]:
    return (Array("HB", 128, sg_bytes=580 * _KIB),) * count


_LB32 = Array("LB", 32, sg_bytes=110 * _KIB)
_LB64 = Array("LB", 64, sg_bytes=218 * _KIB)
_LB128 = Array("LB", 128, sg_bytes=434 * _KIB)


def _flexible(rows: int, count: int) -> tuple[Array, ...]:
    return (Array("HB", rows, sg_bytes=2048 * _KIB, sl_bytes=_KIB, flexible=True),) * count


PLATFORMS: dict[str, tuple[Array, ...]] = {
    "S1": _hb32(4),
    "S2": (*_hb32(3), _LB32),
    "S3": _hb128(8),
    "S4": (*_hb128(7), _LB128),
    "S5": (*_hb128(3), _LB128, *_hb64(3), _LB64),
    "S6": (*_hb128(7), _LB128, *_hb64(7), _LB64),
    "S1-flexible": _flexible(32, 4),
    "S3-flexible": _flexible(128, 8),
}
"""Sub-accelerators by setting. Table 4 gives one buffer size, taken as the global scratchpad's; the elements' own is
unknown but in 5.5, where it is 1 KB each, beside 2 MB for all."""
