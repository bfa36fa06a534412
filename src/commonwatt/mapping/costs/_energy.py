"""Energy of a layer: a model with a constant for each kind of access, no measurement.

The constants of the multiply-accumulate, the scratchpad of a processing element (SL) and the global scratchpad (SG) are
MAESTRO's; its own energy leaves out the first, and for most dataflows the second. Memory is not in it at all: a byte
from or to it counts as much as 200 multiply-accumulates, as in Eyeriss (Chen, Emer, Sze, ISCA 2016, Table IV: 16-bit
values in 65 nm), which comes to 46 pJ per byte. Leakage, clock and the network on chip are in none of the terms.
"""

from __future__ import annotations

from commonwatt.mapping.costs._cost import Costs
from commonwatt.model.arrays import Floats

__all__ = ["DRAM_MACS", "MAC_NJ", "SG_MACS", "SL_MACS", "energy_nj", "terms_nj"]

MAC_NJ = 0.00023
"""Energy of a multiply-accumulate, nJ."""
SL_MACS = 1.68
"""An access to a processing element's scratchpad over a multiply-accumulate."""
SG_MACS = 18.61
"""An access to the global scratchpad over a multiply-accumulate."""
DRAM_MACS = 200.0
"""A byte from or to memory over a multiply-accumulate."""


def terms_nj(costs: Costs) -> dict[str, Floats]:
    """Return the energy of multiply-accumulates, both scratchpads and memory, nJ, each [L]."""
    return {
        "mac": MAC_NJ * costs.macs,
        "sl": MAC_NJ * SL_MACS * costs.sl_accesses,
        "sg": MAC_NJ * SG_MACS * costs.sg_accesses,
        "dram": MAC_NJ * DRAM_MACS * costs.dram_bytes,
    }


def energy_nj(costs: Costs) -> Floats:
    """Return the energy of each layer, nJ, [L]."""
    parts = terms_nj(costs)
    return parts["mac"] + parts["sl"] + parts["sg"] + parts["dram"]
