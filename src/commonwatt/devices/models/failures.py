"""What an error of a runtime means: the device failed, or the model cannot compute these inputs."""

from __future__ import annotations

from commonwatt.model.errors import DeviceError, InputError

__all__ = ["failure_of"]

_OF_THE_DEVICE = ("cuda", "cudnn", "cublas", "cufft", "allocate memory", "bad_alloc", "out of memory")


def failure_of(error: BaseException, cause: str, *, device: str, model: str) -> DeviceError | InputError:
    """Return the error to raise instead of *error*, which *model* met while it ran on *device*.

    Runtimes tell the two apart in words only. What speaks neither of the GPU nor of memory is taken to be about the
    inputs, such as lengths that do not go together.
    """
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in _OF_THE_DEVICE):
        return DeviceError(f"{device}: {cause}")
    return InputError(f"inputs that model {model} can compute ({cause})")
