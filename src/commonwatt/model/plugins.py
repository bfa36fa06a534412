"""Solvers of others, installed by pip: found by their entry points, loaded when one is used.

=======================  ==============================  ================================================
group                    decision, option                an entry point loads
=======================  ==============================  ================================================
commonwatt.solvers       ``place --solver``              a function without arguments: a placement solver
commonwatt.partitioners  ``partition --mechanism``       a function of a market: shares in PEs, [N, C]
commonwatt.mappers       ``map --algorithm``             a function of a budget: a mapping algorithm
commonwatt.schedulers    ``timeslice plan --policy``     a function of phi: a sharing policy
commonwatt.forecasters   ``forecast ... --model``        a function of look_back and horizon: a predictor
=======================  ==============================  ================================================

Names come from the metadata of installed distributions, so that listing them imports nothing. A name of ours cannot be
taken by a plugin; one that two distributions take belongs to neither. Whatever a plugin raises, ``SystemExit`` too,
becomes a ``PluginError``, which names the distribution and the entry point; only Ctrl-C goes through. A plugin gets a
copy of its problem: what it changes there is its own failure, and nobody else's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from commonwatt.model.errors import FieldError, InputError, PluginError
from commonwatt.model.names import one_of

__all__ = [
    "GROUPS", "NAME", "Group", "Plugin", "chosen", "names_of", "one", "plugged", "plugins_of",
    "refused", "valid", "valid_name",
]  # fmt: skip

Group = Literal["solvers", "partitioners", "mappers", "schedulers", "forecasters"]
GROUPS: tuple[Group, ...] = get_args(Group)
_TAKEN: dict[Group, tuple[str, ...]] = {
    "solvers": ("best", "las", "gavel", "themis", "qssf", "lucid", "drf", "sia", "pollux", "powerflow", "completion"),
    "schedulers": ("fifo", "vtc"),
}
"""Names of ours that not every command knows, and that nobody else can have in any."""
NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_NAME = re.compile(NAME)
_MOST_SAID = 3  # wrong fields


@dataclass(frozen=True)
class Plugin:
    """An entry point, not loaded yet.

    Attributes
    ----------
    group, name
        Group without ``commonwatt.``, and the name users type.
    target
        ``module:attribute``.
    distribution
        Name and version of the distribution.
    """

    group: Group
    name: str
    target: str
    distribution: str

    @property
    def sentence(self) -> str:
        """Where it comes from."""
        return f"{self.distribution}, entry point {self.name} = {self.target} of commonwatt.{self.group}"

    def load(self) -> Callable[..., Any]:
        """Import it; raises ``PluginError``."""
        with self.blamed("could not be loaded"):
            made = EntryPoint(self.name, self.target, f"commonwatt.{self.group}").load()
            if not callable(made):
                msg = f"expected a function or class, got {type(made).__name__}"
                raise TypeError(msg)
        return made

    @contextmanager
    def blamed(self, what: str = "failed", but: type[Exception] = PluginError) -> Iterator[None]:
        """Turn whatever is raised inside into a ``PluginError`` of one line that names this plugin, except *but*."""
        try:
            yield
        except (PluginError, KeyboardInterrupt, but):
            raise
        except BaseException as error:  # SystemExit, too: a plugin ends no command and no controller
            msg = f"plugin {self.name} {what} ({self.sentence}): {type(error).__name__}: {_said(error)}"
            raise PluginError(msg) from error


def _said(error: BaseException) -> str:
    """Return what *error* says, on one line; of a model's, the first wrong fields, without types and links."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    wrong = error.errors(include_url=False, include_context=False)
    said = [f"{'.'.join(map(str, one['loc'])) or error.title}: {one['msg']}, got {one['input']!r:.60}" for one in wrong]
    more = f"; and {len(said) - _MOST_SAID} more" * (len(said) > _MOST_SAID)
    return " ".join(f"{'; '.join(said[:_MOST_SAID])}{more}".split())


@cache
def _installed(group: Group) -> tuple[Plugin, ...]:
    return tuple(
        sorted(
            {
                Plugin(group, point.name, point.value, f"{point.dist.name} {point.dist.version}" if point.dist else "?")
                for point in entry_points(group=f"commonwatt.{group}")
            },
            key=lambda plugin: (plugin.name, plugin.distribution, plugin.target),
        )
    )


def plugins_of(group: Group, taken: Collection[str] = ()) -> tuple[Plugin, ...]:
    """Return the plugins of *group* by name, without those ``refused`` gives; *taken* are names of ours."""
    bad = refused(group, taken)
    return tuple(plugin for plugin in _installed(group) if plugin not in bad)


def refused(group: Group, taken: Collection[str] = ()) -> dict[Plugin, str]:
    """Return the plugins of *group* whose names cannot be used, and why."""
    names = [plugin.name for plugin in _installed(group)]
    why = {}
    for plugin in _installed(group):
        if not _NAME.fullmatch(plugin.name):
            why[plugin] = "its name is not of lower-case letters, digits and single hyphens"
        elif plugin.name in taken or plugin.name in _TAKEN.get(group, ()):
            why[plugin] = "commonwatt has one of that name"
        elif names.count(plugin.name) > 1:
            why[plugin] = "two distributions have that name"
    return why


def names_of(group: Group, taken: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the plugins of *group*; *taken* are names of ours."""
    return tuple(plugin.name for plugin in plugins_of(group, taken))


def one(group: Group, name: str, taken: Collection[str] = ()) -> Plugin | None:
    """Return the plugin called *name*, ``None`` if there is none.

    Raises ``InputError`` for a name that is ``refused``.
    """
    if name in taken:
        return None
    for plugin, why in refused(group, taken).items():
        if plugin.name == name:
            raise InputError(f"another name: {why} ({plugin.sentence})", field=group, value=name)
    return next((plugin for plugin in plugins_of(group, taken) if plugin.name == name), None)


def valid_name(group: Group, name: str, ours: Collection[str]) -> str:
    """Return *name* if it is one of *ours* or a plugin's; raises ``FieldError`` otherwise."""
    if name in ours or one(group, name, ours) is not None:
        return name
    raise FieldError(one_of((*ours, *names_of(group, ours)), name), value=name)


_OPTIONAL = ("features", "plans", "leaves_room")
"""What the object of a plugin need not have: nobody is to blame where it is missing."""


@dataclass(frozen=True)
class _Checked:
    """What a plugin made; what its methods raise is blamed on it."""

    plugin: Plugin
    inner: Any

    @property
    def name(self) -> str:
        return self.plugin.name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        with self.plugin.blamed(but=_LackingError):
            if name in _OPTIONAL and not hasattr(self.inner, name):
                raise _LackingError(name)
            value = getattr(self.inner, name)
        return _blaming(self.plugin, value, name) if callable(value) else value

    def __call__(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        return _blaming(self.plugin, self.inner, "")(*arguments, **named)


class _LackingError(AttributeError):
    """An optional attribute is not there."""


def _blaming(plugin: Plugin, called: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        given = [deepcopy(each) if is_dataclass(each) else each for each in arguments]
        with plugin.blamed():
            answer = called(*given, **named)
        with plugin.blamed("changed its problem"):
            for before, after in zip(arguments, given, strict=True):
                _check_same(before, after)
        with plugin.blamed("gave no valid answer"):
            return _answered(answer) if name == "solve" else _value(answer)

    return call


def _check_same(before: Any, after: Any, where: str = "problem") -> None:  # noqa: ANN401
    """Raise ``ValueError`` naming the first field, of dataclasses in dataclasses, that differs."""
    import numpy as np

    if isinstance(before, np.ndarray):
        numbers = before.dtype.kind == "f"
        same = isinstance(after, np.ndarray) and np.array_equal(before, after, equal_nan=numbers)
    elif is_dataclass(before):
        same = type(after) is type(before)
        for each in fields(before) if same else ():
            _check_same(getattr(before, each.name), getattr(after, each.name), f"{where}.{each.name}")
    else:
        same = not isinstance(before, str | int | float | list | tuple | dict) or before == after or before != before
    if not same:
        msg = f"{where} is not as it was given"
        raise ValueError(msg)


def _value(answer: Any) -> Any:  # noqa: ANN401
    if isinstance(answer, Iterator):  # what it raises later would be nobody's
        msg = f"expected values, got a {type(answer).__name__}"
        raise TypeError(msg)
    return answer


def _answered(answer: Any) -> Any:  # noqa: ANN401
    """Return the result of a search with numbers of Python."""
    if not is_dataclass(answer) or isinstance(answer, type) or not hasattr(answer, "best"):
        msg = f"expected a SearchResult, got {type(answer).__name__}"
        raise TypeError(msg)
    result: Any = answer
    return replace(
        result, cost=float(result.cost), evaluations=operator.index(result.evaluations),
        optimal=None if result.optimal is None else bool(result.optimal),
        bound=None if result.bound is None else float(result.bound),
    )  # fmt: skip


_METHODS: dict[Group, tuple[str, ...]] = {
    "solvers": ("solve",),
    "partitioners": (),
    "mappers": ("solve",),
    "schedulers": ("guarantee", "slices"),
    "forecasters": ("fit", "update", "predict", "predict_many"),
}


def plugged(plugin: Plugin, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
    """Load *plugin* and return what it makes of *arguments*; a partitioner is returned as it is loaded.

    What it raises later is a ``PluginError`` too. Raises ``PluginError`` if it lacks a method of its contract.
    """
    load = plugin.load()
    if plugin.group == "partitioners":
        return _Checked(plugin, load)
    with plugin.blamed("could not be made"):
        made = load(*arguments, **named)
        lacking = [name for name in _METHODS[plugin.group] if not callable(getattr(made, name, None))]
        if lacking:
            msg = f"it has no method {', '.join(lacking)}"
            raise TypeError(msg)
    return _Checked(plugin, made)


def chosen(group: Group, name: str, taken: Collection[str], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
    """Return *name* if it is one of ours or nobody's, else what the plugin of that name makes of *arguments*.

    Raises ``InputError`` for a name that is ``refused``, ``PluginError`` as ``plugged``.
    """
    plugin = one(group, name, taken)
    return name if plugin is None else plugged(plugin, *arguments, **named)


@contextmanager
def valid(group: Group, name: str, taken: Collection[str]) -> Iterator[None]:
    """Blame whatever is raised inside, but an ``InputError``, on the plugin called *name*, if there is one."""
    plugin = one(group, name, taken)
    if plugin is None:
        yield
        return
    with plugin.blamed("gave no valid answer", but=InputError):
        yield
