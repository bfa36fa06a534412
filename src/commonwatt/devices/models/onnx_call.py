"""Calling a session of ONNX Runtime with as little around it as possible, tensors staying where the device is.

A model cut into many parts is called many times. Measured once, for a graph of one tiny node on one core of a server
CPU, with caches warm and cold: by ``run_with_ort_values`` 33 and 50 microseconds a call, by a binding 8 and 30, by
vectors of values, as here, 4 and 17.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from commonwatt.devices.base import Tensor
from commonwatt.devices.models.foreign import Foreign

__all__ = ["Call", "contiguous", "placed"]


class Call:
    """A session, ready to be called with values by name.

    Parameters
    ----------
    session, reads, writes
        The session, what it is given, and what is asked of it.
    cuda_index, on_cpu
        GPU that outputs are left on (``None``: the CPU), except for those *on_cpu*.
    """

    def __init__(
        self, session: Foreign, reads: Sequence[str], writes: Sequence[str], cuda_index: int | None,
        on_cpu: Collection[str] = (),
    ) -> None:  # fmt: skip
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

        self._session, self._reads, self._writes = session, list(reads), list(writes)
        self._devices = [_device(None if name in on_cpu else cuda_index) for name in writes]
        self._options, self._vector = onnxruntime.RunOptions(), OrtValueVector

    def __call__(self, values: Mapping[str, Foreign]) -> dict[str, Foreign]:
        """Run to the end, and return what was written."""
        given, found = self._vector(), self._vector()
        for name in self._reads:
            given.push_back(values[name])
        self._session.run_with_ortvaluevector(
            self._options, self._reads, given, self._writes, found, self._devices
        )  # one device for each output: a list of another length ends the process
        return {name: found[place] for place, name in enumerate(self._writes)}


def placed(array: Tensor, cuda_index: int | None) -> Foreign:
    """Return *array* as a value; on a CPU it stays where it is, and must live as long as the value."""
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

    return OrtValue.ortvalue_from_numpy(array, _device(cuda_index))


def contiguous(tensor: Tensor) -> Tensor:
    """Return *tensor*, copied if its elements do not lie in order."""
    return np.ascontiguousarray(tensor).reshape(tensor.shape)  # the former turns scalars into vectors


def _device(cuda_index: int | None) -> Foreign:
    import onnxruntime

    kind = ("cpu", 0) if cuda_index is None else ("cuda", cuda_index)
    return onnxruntime.OrtDevice.make(*kind)._get_c_device()  # noqa: SLF001 - vectors need the inner object
