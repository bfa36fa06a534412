"""Callbacks of libraries that are imported only when a callback is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Self

__all__ = ["LibraryCallback"]

_joined_classes: dict[Any, Any] = {}  # by our class; one each, so that copies have the same type


class LibraryCallback:
    """A callback that also becomes an instance of its library's own class when it is made.

    Raises ``ModuleNotFoundError``, naming what to install, if the library is missing.

    Attributes
    ----------
    library, base
        The module to import, and the name of the class in it.
    """

    library: str
    base: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Make an object of a class derived from this one and the library's."""
        return object.__new__(_joined(cls))

    def __reduce__(self) -> tuple[Any, ...]:
        plain = next(kind for kind in type(self).__mro__ if not kind.__dict__.get("is_joined"))
        return _made, (plain,), self.__dict__


def _made(kind: type[LibraryCallback]) -> LibraryCallback:
    return object.__new__(_joined(kind))


def _joined(kind: Any) -> Any:
    if kind not in _joined_classes:
        _joined_classes[kind] = _join(kind)
    return _joined_classes[kind]


def _join(kind: type[LibraryCallback]) -> Any:
    package = kind.library.split(".")[0]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        msg = f"{package} is not installed; run: pip install 'commonwatt[callbacks]'"
        raise ModuleNotFoundError(msg, name=package) from None
    base = getattr(import_module(kind.library), kind.base)
    own = {"is_joined": True, "__doc__": kind.__doc__, "__module__": kind.__module__}
    return type(kind.__name__, (kind, base), own)
