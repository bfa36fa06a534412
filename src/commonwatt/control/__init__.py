"""The controller: it composes decisions, owns state, and knows an engine only by its interface.

- ``engine``: the ``Engine`` and ``Clock`` interfaces; commands, changes, meter readings.
- ``book``: every job known, its progress and configurations; compiles the placement problem of a tick.
- ``controller``: the tick: observe, decide, command, account.
- ``policy``: a solver with its settings, by name.
- ``capacity``: which nodes are on: plans power states, wakes nodes for waiting jobs.
- ``expectation``: what demand is expected to be, which the plans are made for.
- ``ledger``: energy, cost and GPU time per job, tenant, idle and overhead; sums to the meter exactly.
- ``events``: the append-only event log.
- ``loop``: drives a controller by a clock, simulated or real.
"""
