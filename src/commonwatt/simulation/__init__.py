"""Simulation: the controller with the simulated engine and a virtual clock.

- ``workload``: a scenario's jobs and cluster, from its file, its log or its generator.
- ``run_setup``: builds engine and controller, and runs one policy.
- ``record``: data of a run in columns, for results, reports and files.
- ``summary``: the numbers of a result.
- ``reference``, ``window``, ``waiting``: what jobs take as requested, energy over one window, and who waits.
- ``as_logged``, ``log_places``: what the log itself did.
- ``runner``: all policies and seeds of a scenario, in parallel.
"""
