"""Run times that nobody declares: distributions, learned from the jobs that have ended.

- ``distribution``: run times as probabilities of bins, conditional on what a job has already run.
- ``predictor``: what jobs of the same tenant, name and size tell about the next one.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
