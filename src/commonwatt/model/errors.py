"""Every error this package raises on purpose.

::

    CommonwattError
    ├── InputError (ValueError)        something a user wrote is wrong; commands exit with 2
    │   └── JobNeverFitsError          a job no node of this cluster can ever run
    ├── MissingExtraError (ImportError)  an optional dependency is not installed
    ├── SolverError (RuntimeError)     a solver could not produce a schedule
    ├── EngineError (RuntimeError)     an engine refused or failed a command
    │   └── EngineDownError            an engine does not answer at all: nothing is wrong with the command
    ├── StoreError (RuntimeError)      the database refused or failed
    │   ├── StoreDownError             it does not answer, is busy or full: trying again later may help
    │   └── ClaimLostError             another controller has claimed the store since
    ├── ServiceError (RuntimeError)    the control plane refused a request or cannot be reached
    ├── DeviceError (RuntimeError)     a device failed or is gone
    └── ProfileError (RuntimeError)    measurements of a model do not settle
"""

from __future__ import annotations

__all__ = [
    "ClaimLostError",
    "CommonwattError",
    "DeviceError",
    "EngineDownError",
    "EngineError",
    "InputError",
    "JobNeverFitsError",
    "MissingExtraError",
    "ProfileError",
    "ServiceError",
    "SolverError",
    "StoreDownError",
    "StoreError",
]


class CommonwattError(Exception):
    """Base of all errors of this package."""


class InputError(CommonwattError, ValueError):
    """Something a user wrote is wrong.

    Parameters
    ----------
    expected
        What would have been right, as a phrase ("a number of seconds, 0 or more").
    file, field, value
        Where the offending value stands and what it is; each may be absent when there is none.

    Notes
    -----
    ``str(error)`` is one line: ``jobs.csv: field 'gpus', line 7: got 'x', expected a whole number``.
    """

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
            parts.append(f"field '{self.field}': ")
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
    """Make an error anew that comes from another process."""
    return kind(expected, file=file, field=field, value=value)


class JobNeverFitsError(InputError):
    """A job whose every configuration is larger than the cluster, or of a GPU type it lacks."""


class MissingExtraError(CommonwattError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed; run: pip install 'commonwatt[{extra}]'")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.package, self.extra)


class SolverError(CommonwattError, RuntimeError):
    """A solver could not produce a schedule; the message says why."""


class EngineError(CommonwattError, RuntimeError):
    """An engine refused or failed a command; the message names the command and the cause."""


class EngineDownError(EngineError):
    """An engine does not answer at all, or only that it is busy starting; trying again later may help."""


class StoreError(CommonwattError, RuntimeError):
    """The database refused or failed, or cannot be reached; the message says what was tried."""


class StoreDownError(StoreError):
    """The database does not answer, is busy or full; trying the same again later may help."""


class ClaimLostError(StoreError):
    """Another controller has claimed the store since."""


class ServiceError(CommonwattError, RuntimeError):
    """The control plane refused a request or cannot be reached; ``status`` is that of HTTP, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status
        super().__init__(message)


class DeviceError(CommonwattError, RuntimeError):
    """A device failed in the middle of its work, or is gone; the message names it and the cause."""


class ProfileError(CommonwattError, RuntimeError):
    """A model's measurements vary too much to be a profile; the message says by how much."""
