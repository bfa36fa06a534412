"""MIG: how to divide GPUs into instances for the tenants, and who gets which instance.

``solve_file`` solves a problem file in the mode asked for and compares it with the other one. ``MigProblem`` is a file
compiled to arrays; ``solve_market`` (time shares, with prices) and ``solve_integer`` (whole instances) decide it.
``with_instances`` adds the instances that GPUs have now, ``with_result`` those that they have by a result.
``plan_gpus`` says which instance stands where; ``mig_types`` which GPU types can be cut.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
