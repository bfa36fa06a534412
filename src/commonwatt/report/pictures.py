"""Static figures as files, and their colours.

PNG, SVG and PDF: the same input gives the same bytes, written completely or not at all. Colour-blind readers can tell
the colours apart; each policy has a fixed one by its place in the result. Policies: Okabe and Ito (2008), without the
yellow that vanishes on white. Tenants: Paul Tol's "muted" scheme, its darkest two lightened for dark pages.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commonwatt.model.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["OTHERS", "SUFFIXES", "TENANTS", "check_plot", "policy_colour", "policy_dash", "saved", "tenant_colours"]

_POLICIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C8C8C")
_DASHES = ("solid", "dash", "dot", "dashdot")
TENANTS = ("#88CCEE", "#CC6677", "#DDCC77", "#117733", "#8A7BD8", "#AA4499", "#44AA99", "#999933")
OTHERS = "#9A9A9A"

# Metadata to omit from each format, so that a file does not depend on the time of its creation.
_METADATA: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
SUFFIXES = tuple(_METADATA)
_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a94a0",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e8ec",
    "legend.frameon": False,
    "svg.hashsalt": "commonwatt",
    "text.parse_math": False,  # a $ in a name is a $
}


# -- colours


def policy_colour(index: int) -> str:
    """Return the colour of the policy at *index*; colours repeat after seven, with another dash."""
    return _POLICIES[index % len(_POLICIES)]


def policy_dash(index: int) -> str:
    """Return the dash of the lines of the policy at *index*."""
    return _DASHES[index // len(_POLICIES) % len(_DASHES)]


def tenant_colours(tenants: list[str]) -> dict[str, str]:
    """Return a colour for each of *tenants*, most important first; from the ninth on they share a grey."""
    return {tenant: TENANTS[i] if i < len(TENANTS) else OTHERS for i, tenant in enumerate(tenants)}


# -- files


def check_plot(path: Path) -> str:
    """Return the suffix of *path* in lower case; callers check it before they spend time on the figure.

    Raises ``InputError`` if no figure can be saved there: a wrong suffix, a folder, or a missing folder.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _METADATA:
        raise ArgumentError(f"a file ending in {', '.join(SUFFIXES)}", field="plot", value=str(path))
    if not Path(path).absolute().parent.is_dir():
        raise ArgumentError("a file in an existing folder", field="plot", value=str(path))
    if Path(path).is_dir():
        raise ArgumentError("a file, not a folder", field="plot", value=str(path))
    return suffix


@contextmanager
def saved(path: Path, inches: tuple[float, float]) -> Iterator[Figure]:
    """Yield a figure to draw on, then save it. Matplotlib's global state does not change.

    Raises ``InputError`` if the suffix is none of ``SUFFIXES`` or the file cannot be written.
    """
    suffix = check_plot(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from commonwatt.data.files import write_atomic

    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=inches, layout="constrained")
        yield figure
        drawn = io.BytesIO()
        figure.savefig(drawn, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
    write_atomic(path, drawn.getvalue())
