"""Names of array types. Shapes are given in trailing comments, such as ``# [J]``."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bools", "Floats", "Index", "Ints"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Index = int | np.integer
