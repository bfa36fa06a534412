"""G#: which layer job runs on which sub-accelerator, and in what order, under one shared bandwidth.

- ``solve_file``, ``evaluate``: map the jobs of a problem file; score a mapping of them.
- ``MappingProblem``, ``Goal``: the job table, and what a mapping is judged by. ``Mapping``: two genes for every job.
- ``timeline`` (Algorithm 1), ``population_costs``, ``lower_bound``: what happens when, the costs, and their bound.
- ``ALGORITHMS``: every way to map by its name; ``GSharp``, ``GSharpSettings``: the genetic search of the paper.
- ``build_schedule``, ``continue_mapping``: a mapping as a schedule; the problem of the next batch while one runs.
- ``Transfer``: start from the mapping of another batch; ``Transfer.tuned`` is an algorithm that does.

What layers take on sub-accelerators is in ``commonwatt.mapping.costs``.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
