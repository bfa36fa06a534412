"""ANDREAS: which job runs on which node with how many GPUs now.

- ``problem``: the problem at one rescheduling point and a schedule for it, in arrays.
- ``objective``: the objective (1) every solver is judged by; feasibility.
- ``random_greedy``: Algorithm 1, the randomized greedy.
- ``local_search``: ours, on top of the randomized greedy.
- ``exact``: the MINLP of Appendix A, linearised, with HiGHS.
- ``priority_order``: FIFO, EDF, priority scheduling, shortest remaining time first.
- ``backfill``: EASY backfill and multifactor fair share, what clusters run today.
- ``lower_bound``: what no scheduler can beat, for a whole simulation.
- ``entitlement``: energy-time fairness among tenants, under any solver.
- ``explain``: a typed reason and one sentence for each job.
- ``solvers``: all solvers by name.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
