from ._predictor import JobFeatures as JobFeatures
from ._predictor import RuntimeDistribution as RuntimeDistribution
from ._predictor import RuntimePredictor as RuntimePredictor
from ._predictor import Shrinkage as Shrinkage
from ._predictor import job_group as job_group
from ._predictor import predict_at_submission as predict_at_submission

__all__ = [
    "JobFeatures",
    "RuntimeDistribution",
    "RuntimePredictor",
    "Shrinkage",
    "job_group",
    "predict_at_submission",
]
