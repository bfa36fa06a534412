"""Partitioning: which configuration of hardware for these tenants, and whose share of it.

Core clusters, by a Fisher market with Amdahl utility:

- ``throughput``: PEs, core clusters, configurations; ``problem``: one configuration and its tenants; ``utility``.
- ``market``: the equilibrium, by ``proportional`` response and ``newton``; ``best_response``: its judge.
- ``fairness``, ``welfare``, ``mechanisms``: what is compared; ``schedule``: shares to execution; ``explain``.

GPUs cut up by MIG:

- ``mig_profiles``, ``mig_layouts``: what can be cut; ``mig_problem``, ``mig_market``, ``mig_integer``, ``mig_plan``,
  ``mig_program``: the choice; ``linear_market``: prices of instances.

How fast work gets with more PEs: ``parallel_fraction`` (F), ``scaling_laws`` (Amdahl, USL, tables).
"""
