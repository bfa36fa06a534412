"""The numerical floor of the decisions: what several of them need of optimisation, written once.

- ``Program``: a linear or mixed-integer program, solved by HiGHS on one thread.
- ``Budget``, ``Incumbent``, ``SearchResult``, ``Solver``: when a search stops, its best candidate, what it returns.
- ``KeepGoing``, ``always``, ``within``: a time limit by the caller's clock.
- ``njit``: Numba's, whose cached code any processes may share.
- ``seeded``: a generator of random numbers for a seed.
- ``ranked``: the tie rule. Of equals, the one with the lowest index comes first, in every decision.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
