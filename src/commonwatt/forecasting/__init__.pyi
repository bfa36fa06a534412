from ._baselines import Threshold as Threshold
from ._baselines import WrappedPredictor as WrappedPredictor
from ._lightgbm_quantile import joint_pools as joint_pools
from ._network_training import Recipe as Recipe
from ._networks import NetworkPredictor as NetworkPredictor
from ._networks import NetworkSettings as NetworkSettings
from ._predictors import PREDICTORS as PREDICTORS
from ._predictors import PredictorEntry as PredictorEntry
from ._predictors import make_predictor as make_predictor
from ._predictors import restore_predictor as restore_predictor
from ._rolling import Rolled as Rolled
from ._rolling import roll as roll

__all__ = [
    "PREDICTORS",
    "NetworkPredictor",
    "NetworkSettings",
    "PredictorEntry",
    "Recipe",
    "Rolled",
    "Threshold",
    "WrappedPredictor",
    "joint_pools",
    "make_predictor",
    "restore_predictor",
    "roll",
]
