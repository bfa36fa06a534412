"""commonwatt: fair, energy-aware sharing of accelerators.

Each decision by one call; each takes a file, a mapping or a validated model and returns a typed result:

- ``simulate``: replay a workload on a cluster under several policies.
- ``study``: what another scheduler would have saved on a job log, under stated assumptions.
- ``place``: which job runs on which node with how many GPUs now.
- ``partition``, ``partition_mig``: which hardware configuration, and whose share of it.
- ``map_layers``: which layer on which sub-accelerator, in which order.
- ``timeslice``: which tenant runs for how long in one quantum.
- ``forecast``: how many GPUs must be on soon, with a promise.

Behind them: the decisions (``commonwatt.placement``, ``partitioning``, ``mapping``, ``timeslicing``, ``forecasting``,
``capacity``), the vocabulary (``commonwatt.model``), training callbacks (``commonwatt.progress``), the client of a
running control plane (``commonwatt.client``) and the contract tests of engines (``commonwatt.testing``).
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, whose import would be most of the time of this one
if TYPE_CHECKING:
    from commonwatt._api import forecast, partition, partition_mig, place, simulate, study, timeslice
    from commonwatt._map import map_layers

    __version__: str

__all__ = [
    "__version__",
    "forecast",
    "map_layers",
    "partition",
    "partition_mig",
    "place",
    "simulate",
    "study",
    "timeslice",
]


def __getattr__(name: str) -> object:
    """Load names on first use: ``commonwatt.progress`` must load in milliseconds, without any of it."""
    if name == "__version__":
        value: object = _version()
    elif name == "map_layers":
        from commonwatt import _map

        value = _map.map_layers
    elif name in __all__:
        from commonwatt import _api

        value = getattr(_api, name)
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("commonwatt")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
