"""ANDREAS: which job runs on which node with how many GPUs now.

``solve_file`` solves a problem file. A ``PlacementProblem`` (jobs, nodes and configurations in arrays) becomes a
``Schedule``; ``objective`` is eq. (1), by which every solver is judged. ``make_solver`` makes one by its name: the
randomized greedy of Algorithm 1 and our search on top of it, the exact program of Appendix A, priority orders, backfill
as clusters run it, and published schedulers. ``Explainer`` gives a typed reason and a sentence for each job.

``commonwatt.placement.guarantees`` keeps what no solver may break, such as that nobody starves;
``commonwatt.placement.start_times`` plans starts over a price curve.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
