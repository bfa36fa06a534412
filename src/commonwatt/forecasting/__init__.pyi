from ._baselines import Threshold as Threshold
from ._baselines import WrappedPredictor as WrappedPredictor
from ._lightgbm_quantile import joint_pools as joint_pools
from ._network_training import TrainingSettings as TrainingSettings
from ._networks import NetworkPredictor as NetworkPredictor
from ._networks import NetworkSettings as NetworkSettings
from ._predictors import PREDICTORS as PREDICTORS
from ._predictors import PredictorEntry as PredictorEntry
from ._predictors import make_predictor as make_predictor
from ._predictors import restore_predictor as restore_predictor
from ._rolling import RollingForecasts as RollingForecasts
from ._rolling import forecast_rolling as forecast_rolling

__all__ = [
    "PREDICTORS",
    "NetworkPredictor",
    "NetworkSettings",
    "PredictorEntry",
    "RollingForecasts",
    "Threshold",
    "TrainingSettings",
    "WrappedPredictor",
    "forecast_rolling",
    "joint_pools",
    "make_predictor",
    "restore_predictor",
]
