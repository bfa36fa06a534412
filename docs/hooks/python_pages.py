"""Reference pages of the public Python names, one for each package that exports some."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

from markup import cell

import commonwatt

FOLDER = "reference/python"
NOT_FACES = {"cli", "service", "store"}  # entry points and what the control plane keeps for itself


def pages() -> dict[str, str]:
    """Return a page for each package whose ``__init__`` exports names, and the list of them."""
    faces = {name: module for name, module in _packages() if _exports(module)}
    rows = [f"| [`{name}`]({name}.md) | {_first_line(module)} |" for name, module in faces.items()]
    index = (
        "# Python\n\nThe names below are public; everything else may change at any time: see "
        "[Stability](../stability.md).\n\n| package | what it is |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    )
    return {f"{FOLDER}/index.md": index} | {f"{FOLDER}/{name}.md": _page(name, face) for name, face in faces.items()}


def _packages() -> list[tuple[str, ModuleType]]:
    names = sorted(info.name for info in pkgutil.iter_modules(commonwatt.__path__) if info.ispkg)
    below = [f"commonwatt.{name}" for name in names if name not in NOT_FACES and not name.startswith("_")]
    return [(name, import_module(name)) for name in ["commonwatt", *below]]


def _exports(module: ModuleType) -> list[str]:
    return [name for name in getattr(module, "__all__", []) if not name.startswith("__")]


def _first_line(module: ModuleType) -> str:
    return cell((module.__doc__ or "").strip().split("\n\n")[0])


def _page(name: str, module: ModuleType) -> str:
    parts = [f"# {name}", _first_line(module)]
    for exported in _exports(module):
        value = getattr(module, exported)
        at, called = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        # A name that is loaded lazily is documented where it is defined.
        ours = str(at).startswith("commonwatt") and called is not None
        path = f"{at}.{called}" if ours else f"{name}.{exported}"
        parts.append(f'::: {path}\n    options:\n      heading: "{exported}"\n      toc_label: "{exported}"')
    return "\n\n".join(parts) + "\n"
