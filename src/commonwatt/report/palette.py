"""Colours that colour-blind readers can distinguish; each policy has a fixed colour by its place in the result.

Policies: Okabe and Ito (2008), without the yellow that vanishes on white. Tenants: Paul Tol's "muted" scheme, its two
darkest lightened to be seen on a dark page.
"""

from __future__ import annotations

__all__ = ["OTHERS", "TENANTS", "policy_colour", "policy_dash", "tenant_colours"]

_POLICIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C8C8C")
_DASHES = ("solid", "dash", "dot", "dashdot")
TENANTS = ("#88CCEE", "#CC6677", "#DDCC77", "#117733", "#8A7BD8", "#AA4499", "#44AA99", "#999933")
OTHERS = "#9A9A9A"


def policy_colour(index: int) -> str:
    """Return the colour of the policy at *index*; colours repeat after seven, with another dash."""
    return _POLICIES[index % len(_POLICIES)]


def policy_dash(index: int) -> str:
    """Return the dash of the lines of the policy at *index*."""
    return _DASHES[index // len(_POLICIES) % len(_DASHES)]


def tenant_colours(tenants: list[str]) -> dict[str, str]:
    """Return a colour for each of *tenants*, most important first; from the ninth on they share a grey."""
    return {tenant: TENANTS[i] if i < len(TENANTS) else OTHERS for i, tenant in enumerate(tenants)}
