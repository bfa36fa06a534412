"""Run times that nobody declares: distributions, learned from the jobs that have ended.

- ``RuntimeDistribution``: run times as probabilities of bins, conditional on what a job has already run.
- ``RuntimePredictor``: what jobs of the same tenant, name and size tell about the next one, by ``JobFeatures``,
  ``job_group`` and ``Shrinkage``. ``predict_at_submission`` walks a log with it.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
