"""commonwatt: fair, energy-aware sharing of accelerators.

The house, from the vocabulary outwards:

- ``model``: tenants, jobs, nodes, power, electricity; the files users write; the error tree.
- ``placement``: which job runs on which node with how many GPUs now (a pure decision package).
- ``control``: the controller that composes decisions, its ledger and event log, the engine interface.
- ``engines``: where work really runs; ``engines.simulated`` is discrete-event simulation.
- ``data``: readers of job logs and measured profiles, generators in their likeness.
- ``report``: figures and the self-contained HTML report.
- ``progress``: what a training script uses to tell how far it is (imports in milliseconds, needs nothing else).
- ``cli``: the ``commonwatt`` command, one file per verb.
- ``testing``: contract tests that every engine and every solver inherits.
"""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Look up ``__version__`` when it is asked for: that takes longer than importing ``commonwatt.progress``."""
    if name != "__version__":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("commonwatt")
    except PackageNotFoundError:  # run from a source tree that was never installed
        found = "0+unknown"
    globals()[name] = found
    return found
