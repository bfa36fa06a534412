from ._cost import Array as Array
from ._job_table import JobTable as JobTable
from ._job_table import job_table as job_table
from ._layers import Kind as Kind
from ._layers import Layer as Layer
from ._layers import TaskClass as TaskClass
from ._models import MODELS as MODELS
from ._models import ModelName as ModelName
from ._platforms import PLATFORMS as PLATFORMS

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
