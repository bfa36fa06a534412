"""ETF: which tenant runs next on this device, and for how long.

- ``problem``: one quantum to divide; ``slices``: Algorithm 1; ``policies``: ETF, TF, EF, and ETF's dual.
- ``fairness``: the metrics, and phi_fair; ``explain``: a typed reason and one sentence for each tenant.
- ``tasks``, ``scheduler``, ``fifo``: the run-time scheduler, and what it is measured against.
- ``energy``: a meter's reading divided among tenants, and what that teaches about power.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
