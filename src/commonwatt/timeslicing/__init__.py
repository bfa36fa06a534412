"""ETF: which tenant runs next on this device, and for how long.

A ``QuantumProblem`` is one quantum to divide. Policies divide it (Algorithm 1 of ETF, its dual, time and energy
fairness alone) into whole units of time with a typed reason for each tenant; the scheduler runs tasks in those slices,
charges time and energy, and learns each tenant's power. FIFO and VTC, which counts tokens, are what
that is measured against. The metrics of fairness and ``phi_fair`` are here, too.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
