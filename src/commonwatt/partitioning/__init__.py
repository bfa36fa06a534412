"""Partitioning: choose a hardware configuration for the tenants, and divide it among them.

``solve_file`` solves a problem file: it divides every configuration by a Fisher market and picks the best by welfare.
``sweep`` repeats that for a range of weights of one tenant. ``Market``, ``solve``, ``residual`` and ``run_bidding`` are
the market itself; ``weighted_equal_speedup``, ``utilization`` and ``choose_configuration`` compare divisions.
``characterize`` fits how a program scales, and ``make_law`` turns a fitted law into a function.

``commonwatt.partitioning.mig`` does the same for GPUs that MIG divides into instances.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
