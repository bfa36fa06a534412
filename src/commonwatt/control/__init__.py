"""The controller: it composes decisions, owns state, and knows an engine only by its interface.

- ``engine``: the ``Engine`` and ``Clock`` interfaces; commands, changes, meter readings.
- ``job_registry``: every job, its progress and configurations; compiles the placement problem of a tick.
- ``scheduling``: the scheduling state of jobs and nodes: held, backoff, terminating, drained, reserved.
- ``controller``: the tick: observe, decide, command, account.
- ``policy``: a solver with its settings, by name. ``replanning``: when a plan is worth making.
- ``limits``, ``electricity``: limits on waiting; prices in time and the power cap.
- ``quotas``, ``preemption``: what tenants, QOS and associations may have at once, and whose jobs give way to whose.
- ``run_time_estimates``: run times that are not known. ``usage``: what jobs and tenants have, and have received.
- ``fleet``: services and fractional jobs beside training jobs.
- ``dry_run``: what a schedule would change, for a controller that only reports it.
- ``external_jobs``: what a policy would do with jobs submitted to the cluster directly.
- ``capacity``: which nodes are on: plans power states, wakes nodes for waiting jobs.
- ``profiling``, ``scaling``: measuring jobs, and predicting the times that were not measured.
- ``ledger``: energy, cost and GPU time per job, tenant, idle and overhead; sums to the meter exactly.
- ``events``: the append-only event log.
"""
