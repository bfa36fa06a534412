from ._cost import PLATFORMS as PLATFORMS
from ._cost import Array as Array
from ._job_table import MODELS as MODELS
from ._job_table import JobTable as JobTable
from ._job_table import ModelName as ModelName
from ._job_table import job_table as job_table
from ._layers import Kind as Kind
from ._layers import Layer as Layer
from ._layers import TaskClass as TaskClass

__all__ = [
    "MODELS",
    "PLATFORMS",
    "Array",
    "JobTable",
    "Kind",
    "Layer",
    "ModelName",
    "TaskClass",
    "job_table",
]
