"""Benchmarks: fixed, versioned problems, and the solvers that are scored on them.

- ``suite``: a suite, its problems and entrants, and how they are run and compared with a recorded result.
- ``decisions``: the suites, one for each decision and one for weeks of jobs; light to import.
- ``cp_sat``, ``peers``: peers that need a statement of the problem of their own.
"""
