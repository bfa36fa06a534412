"""Partitioning: choose a hardware configuration for the tenants, and divide it among them.

``answer`` solves a problem file: it divides every configuration by a Fisher market and picks the best by welfare.
``sweep`` repeats that for a range of weights of one tenant. ``Market``, ``solve``, ``residual`` and ``bid`` are the
market itself; ``weighted_equal_speedup``, ``utilization`` and ``choose`` compare divisions. ``characterize`` fits how a
program scales, and ``law_of`` turns a fitted law into a function.

``commonwatt.partitioning.mig`` does the same for GPUs that MIG divides into instances.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
