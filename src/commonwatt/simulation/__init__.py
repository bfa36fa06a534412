"""Simulation: the controller, the simulated engine and a virtual clock put together.

- ``workload``: a scenario's jobs and cluster, made from its file, its log or its generator.
- ``compose``: builds engine and controller and runs one policy.
- ``record``: what a run leaves behind, in columns, for results, reports and files.
- ``summary``: the numbers of a result.
- ``runner``: all policies and seeds of a scenario, in parallel.
"""
