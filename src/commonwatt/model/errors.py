"""All errors that this package raises deliberately.

::

    CommonwattError
    ├── InputError (ValueError)        invalid input; commands exit with 2
    │   ├── ArgumentError              an argument of a call; commands name their option
    │   ├── FieldError                 a value that a validator of a model refuses
    │   └── JobNeverFitsError          a job that no node of this cluster can run
    ├── MissingExtraError (ImportError)  an optional dependency is not installed; commands exit with 2
    ├── PluginError (RuntimeError)     a solver of another distribution is broken; commands exit with 2
    ├── SolverError (RuntimeError)     a solver could not produce a schedule
    ├── EngineError (RuntimeError)     an engine refused or failed a command
    │   └── EngineDownError            an engine does not answer; the command itself may be right
    ├── StoreError (RuntimeError)      the database refused or failed
    │   ├── StoreDownError             it does not answer, is busy or full; a retry may help
    │   └── ClaimLostError             another controller has claimed the store
    ├── ServiceError (RuntimeError)    the control plane refused a request or cannot be reached
    ├── DeviceError (RuntimeError)     a device failed or disappeared
    └── ProfileError (RuntimeError)    measurements of a model do not stabilise
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ClaimLostError",
    "CommonwattError",
    "DeviceError",
    "EngineDownError",
    "EngineError",
    "FieldError",
    "InputError",
    "JobNeverFitsError",
    "MissingExtraError",
    "PluginError",
    "ProfileError",
    "ServiceError",
    "SolverError",
    "StoreDownError",
    "StoreError",
]


class CommonwattError(Exception):
    """Base of all errors of this package."""


class InputError(CommonwattError, ValueError):
    """Invalid input.

    Parameters
    ----------
    expected
        A phrase for valid input ("a number of seconds, 0 or more").
    file, field, value
        Location of the invalid value, and the value itself; each may be absent.

    Notes
    -----
    ``str(error)`` is one line: ``jobs.csv: field 'gpus', line 7: got 'x', expected a whole number``.
    """

    _place = "field"

    def __init__(self, expected: str, *, file: object = None, field: str | None = None, value: object = None) -> None:
        self.expected, self.file, self.field, self.value = expected, file, field, value
        super().__init__(self._line())

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.expected, self.file, self.field, self.value)

    def _line(self) -> str:
        parts = []
        if self.file is not None:
            parts.append(f"{self.file}: ")
        if self.field is not None:
            parts.append(f"{self._place} '{self.field}': ")
        if self.value is not None:
            shown = str(self.value)
            parts.append(f"got {shown[:77] + '...' if len(shown) > 80 else shown!r}, ")
        return " ".join(f"{''.join(parts)}expected {self.expected}".split())

    def within(self, file: object) -> InputError:
        """Return the same error naming *file*, unless it names one already."""
        if self.file is not None:
            return self
        return type(self)(self.expected, file=file, field=self.field, value=self.value)


def _again(kind: type[InputError], expected: str, file: object, field: str | None, value: object) -> InputError:
    """Rebuild an error that was pickled in another process."""
    return kind(expected, file=file, field=field, value=value)


class ArgumentError(InputError):
    """An argument of a call is invalid: ``field`` is the name of the parameter, in Python."""

    _place = "argument"

    def within(self, file: object) -> InputError:  # noqa: ARG002
        """Return this error: a file is not to blame for an argument."""
        return self


class FieldError(InputError):
    """A validator of a model refuses a value: ``field`` is below the model that raises it; absent: the model itself."""

    def below(self, field: str) -> FieldError:
        """Return the same error, of what is below *field* of another model."""
        place = ".".join(part for part in (field, self.field) if part)
        return type(self)(self.expected, file=self.file, field=place or None, value=self.value)


class JobNeverFitsError(InputError):
    """A job whose every configuration is larger than the cluster, or of a GPU type it lacks."""


class MissingExtraError(CommonwattError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed; run: pip install 'commonwatt[{extra}]'")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.package, self.extra)


class PluginError(CommonwattError, RuntimeError):
    """A plugin could not be loaded, raised an error, or gave no valid answer; the message names its distribution."""


class SolverError(CommonwattError, RuntimeError):
    """A solver could not produce a schedule; the message says why."""


class EngineError(CommonwattError, RuntimeError):
    """An engine refused or failed a command; the message names the command and the cause."""


class EngineDownError(EngineError):
    """An engine does not answer, or is still starting; a retry may help."""


class StoreError(CommonwattError, RuntimeError):
    """The database refused or failed, or cannot be reached; the message names the operation."""


class StoreDownError(StoreError):
    """The database does not answer, is busy or full; a retry may help."""


class ClaimLostError(StoreError):
    """Another controller has claimed the store."""


class ServiceError(CommonwattError, RuntimeError):
    """The control plane refused a request or cannot be reached; ``status`` is the HTTP status, 0 without a response."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status
        super().__init__(message)


class QuotaError(ServiceError):
    """A tenant has as much as it may have.

    ``reason`` is ``quota`` (jobs, GPUs) or ``budget`` (sums); ``field`` the limit, ``value`` what there would be;
    ``frees`` says what makes room.
    """

    def __init__(self, message: str, *, reason: str, field: str, value: object, frees: str) -> None:
        self.reason, self.field, self.value, self.frees = reason, field, value, frees
        super().__init__(f"{message}; {frees}", 403)


class DeviceError(CommonwattError, RuntimeError):
    """A device failed or disappeared; the message names it and the cause."""


class ProfileError(CommonwattError, RuntimeError):
    """A model's measurements vary too much for a profile; the message says by how much."""
