"""commonwatt: fair, energy-aware sharing of accelerators.

The house, from the vocabulary outwards:

- ``model``: tenants, jobs, nodes, power, electricity; the files users write; the error tree.
- ``placement``: which job runs on which node with how many GPUs now (a pure decision package).
- ``control``: the controller that composes decisions, its ledger and event log, the engine interface.
- ``engines``: where work really runs; ``engines.simulated`` is discrete-event simulation.
- ``data``: readers of job logs and measured profiles, generators in their likeness.
- ``report``: figures and the self-contained HTML report.
- ``cli``: the ``commonwatt`` command, one file per verb.
- ``testing``: contract tests that every engine and every solver inherits.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("commonwatt")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
