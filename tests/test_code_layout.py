"""The layers of the code: who may import whom, what decision packages may do at all, and how large things may be.

Each test looks at every module and lists the offenders.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import commonwatt

ROOT = Path(commonwatt.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
DECISIONS = {"forecasting", "capacity", "placement", "partitioning", "mapping", "timeslicing", "runtimes"}
BELOW_THE_CONTROL_PLANE = {"optimize",
    "model", "placement", "forecasting", "capacity", "runtimes", "planning", "control", "engines", "store", "data",
    "simulation",  # only to estimate savings
}  # fmt: skip
# Packages of ours that each package may import, besides itself.
ALLOWED = {
    "model": set(),
    "optimize": {"model"},
    **{decision: {"model", "optimize"} for decision in DECISIONS},
    "control": {"model", "optimize", *DECISIONS},
    "engines": {"model", "control"},
    "devices": {"model", "timeslicing", "data"},
    "profiling": {"model", "control", "engines", "devices", "data"},
    "serving": {"model", "timeslicing", "devices", "data"},
    "data": {"model", "forecasting", "mapping"},
    "progress": set(),
    "testing": {"model", "control"},
    "store": {"model"},
    "controlplane": BELOW_THE_CONTROL_PLANE,
    "client": {"model", "data"},
    "service": {"model", "store", "controlplane", "data"},
    "planning": {"model", "forecasting", "capacity", "control", "data"},
    "report": {"model", "placement", "planning", "simulation", "data"},
    "studies": {"model", "simulation", "data", "engines"},
    "simulation": {"model", "forecasting", "placement", "control", "planning", "engines", "data"},
}
ANYTHING = {
    "__init__.py",
    "_api.py",
    "_map.py",
    "_results.py",
    "_stopwatch.py",
    "bench",
    "cli",
    "reproduce",
}  # the top layer: may import every package
OPTIONAL = {"store", "controlplane", "service"}  # packages of an extra: not even imported without it
WORLD = {
    "asyncio", "datetime", "fileinput", "glob", "http", "io", "multiprocessing", "os", "pathlib", "pickle", "random",
    "secrets", "shutil", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
    "logging", "builtins", "polars", "joblib", "requests",
}  # fmt: skip
CALLS = {"print", "open", "input", "exec", "eval", "__import__", "breakpoint"}
PRINTS = {"print", "sys.stdout.write", "click.echo"}

FILE_P90_LINES, FILE_MOST_LINES = 350, 600
FUNCTION_P90_LINES, FUNCTION_MOST_LINES = 35, 100
MOST_MODULES = 560
MOST_PUBLIC_MODULES = 447  # those that anybody may import: in decision packages, what is behind a face is private
FROZEN = "store/migrations/versions/"  # a released migration is never rewritten


# -- reading the code


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def module_of(path: Path) -> str:
    return ".".join(("commonwatt", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules imported anywhere, in functions too; ``from a import b`` gives ``a.b``."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            assert part.level == 0, "imports are absolute"
            yield from (f"{part.module}.{alias.name}" for alias in part.names)


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    return tuple(imports(tree_of(path)))


def dotted(part: ast.expr) -> str:
    if isinstance(part, ast.Attribute):
        return f"{dotted(part.value)}.{part.attr}"
    return part.id if isinstance(part, ast.Name) else ""


def of(*packages: str) -> list[Path]:
    return [path for path in MODULES if package_of(path) in packages]


def offenders(paths: Iterable[Path], problems: Callable[[Path], Iterable[object]]) -> dict[str, list[object]]:
    """Return the files that have problems, and these."""
    return {name_of(path): found for path in paths if (found := sorted(problems(path), key=str))}


def assert_none(found: Mapping[object, object]) -> None:
    """Fail with a line for each offender."""
    assert not found, "\n".join(["", *(f"{where}: {what}" for where, what in found.items())])


def is_description(path: Path) -> bool:
    """Whether it is the ``__init__`` of a package that is only described."""
    return path.name == "__init__.py" and len(tree_of(path).body) == 1


# -- who imports whom


@pytest.mark.slow
def test_packages_import_only_what_is_below_them():
    def problems(path: Path) -> set[str]:
        allowed = ALLOWED[package_of(path)] | {package_of(path), "__version__"}
        ours = {name for name in imports_of(path) if name.split(".")[0] == "commonwatt"}
        return {name for name in ours if name.split(".")[1:2] == [] or name.split(".")[1] not in allowed}

    assert_none(offenders(of(*ALLOWED), problems))


def test_every_package_has_a_layer():
    assert {package_of(path) for path in MODULES} - set(ALLOWED) - ANYTHING == set()


def test_the_controller_knows_no_concrete_engine_and_nothing_above_it():
    assert ALLOWED["control"] == {"model", "optimize", *DECISIONS}


@pytest.mark.long
def test_private_modules_of_a_decision_stay_inside_it():
    """Nobody outside a decision package imports ``commonwatt.<decision>._private``."""

    def problems(path: Path) -> list[str]:
        others = {("commonwatt", decision) for decision in DECISIONS - {package_of(path)}}
        return [
            name for name in imports_of(path)
            if tuple(name.split(".")[:2]) in others and any(part.startswith("_") for part in name.split(".")[2:])
        ]  # fmt: skip

    assert_none(offenders(MODULES, problems))


@cache
def import_graph() -> dict[str, set[str]]:
    """Modules of ours that each module names in an import, in functions too.

    The root package is left out: its functions are loaded when first used, and every module may ask for its version.
    """
    ours = {module_of(path) for path in MODULES} - {"commonwatt"}

    def target(name: str) -> str | None:
        while name and name not in ours:
            name = name.rpartition(".")[0]
        return name or None

    def named(path: Path) -> Iterator[str]:
        yield from imports_of(path)
        if (stub := path.with_suffix(".pyi")).exists():  # a face: what it loads when asked for
            parts = ast.walk(ast.parse(stub.read_text(encoding="utf-8")))
            yield from (f"{module_of(path)}.{part.module}" for part in parts if isinstance(part, ast.ImportFrom))

    return {
        module_of(path): {t for name in named(path) if (t := target(name)) and t != module_of(path)}
        for path in MODULES
        if module_of(path) in ours
    }


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == number[name]:
            part = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(part) > 1:
                found.append(sorted(part))

    for name in graph:
        if name not in number:
            visit(name)
    return found


@pytest.mark.slow
def test_no_import_cycles():
    assert_none({", ".join(each): "import each other" for each in cycles(import_graph())})


@pytest.mark.slow
def test_the_search_for_cycles_finds_them():
    assert cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == [["a", "b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert any("commonwatt.model" in name for name in import_graph()["commonwatt.placement._problem"])


# -- decisions are pure


def problems_of_decisions(source: str) -> list[str]:
    """Whatever in *source* touches files, clocks, threads, the terminal or randomness that was not passed in."""
    tree = ast.parse(source)
    found = [name for name in imports(tree) if name.split(".")[0] in WORLD]
    for part in ast.walk(tree):
        if not isinstance(part, ast.Call):
            continue
        called = dotted(part.func)
        seeded = called == "np.random.RandomState" and part.args  # what a library wants that knows no generators
        if called in CALLS or (called.startswith(("np.random.", "numpy.random.")) and not seeded):
            found.append(called)
        if called.rsplit(".", 1)[-1] in {"default_rng", "read_text", "write_text", "savetxt", "loadtxt", "tofile"}:
            found.append(called)
    return found


@pytest.mark.slow
def test_decisions_are_pure():
    compiling = "optimize/_compiled.py"  # names the symbols of cached code, decides nothing
    paths = [path for path in of(*DECISIONS, "optimize") if name_of(path) != compiling]
    assert_none(offenders(paths, lambda path: problems_of_decisions(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "source",
    [
        "print(1)", "open('x')", "import time\ntime.time()", "from datetime import datetime\ndatetime.now()",
        "import random", "import numpy as np\nnp.random.rand()", "from numpy.random import default_rng\ndefault_rng()",
        "def f():\n    from pathlib import Path", "import threading",
        "import numpy as np\nnp.random.RandomState()",
    ],
)  # fmt: skip
def test_the_purity_check_rejects(source):
    assert problems_of_decisions(source)


# -- what a module offers


@pytest.mark.slow
def test_every_module_has_a_docstring_and_a_list_of_its_names():
    def problems(path: Path) -> Iterator[str]:
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            yield "no docstring"
        if is_description(path):
            return
        if any("__all__" in ast.unparse(part) and "attach_stub" in ast.unparse(part) for part in tree.body):
            tree = ast.parse(path.with_suffix(".pyi").read_text(encoding="utf-8"))  # a face, loaded when asked for
        offered = [part.value for part in tree.body if isinstance(part, ast.Assign) and _is_all(part)]
        if len(offered) != 1 or not isinstance(offered[0], ast.List):
            yield "not one list __all__"
            return
        names = [item.value for item in offered[0].elts if isinstance(item, ast.Constant)]
        if not len(set(names)) == len(names) == len(offered[0].elts):
            yield "__all__ is not a list of different names"
        yield from (f"offers {name}" for name in names if str(name).startswith("_") and name != "__version__")

    assert_none(offenders(MODULES, problems))


def _is_all(part: ast.Assign) -> bool:
    return dotted(part.targets[0]) == "__all__"


def test_every_listed_name_exists():
    def problems(path: Path) -> list[str]:
        try:
            module = import_module(module_of(path))
        except ModuleNotFoundError as error:
            if str(error.name).startswith("commonwatt") or package_of(path) not in OPTIONAL:
                return [f"needs {error.name}"]
            return []
        return [f"no {name}" for name in module.__all__ if not hasattr(module, name)]

    assert_none(offenders([path for path in MODULES if not is_description(path)], problems))


def public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Public functions and classes of a module, and public methods of public classes."""
    for part in tree.body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and not part.name.startswith("_"):
            yield part
            if isinstance(part, ast.ClassDef):
                methods = (m for m in part.body if isinstance(m, ast.FunctionDef))
                yield from (m for m in methods if not m.name.startswith("_"))


@pytest.mark.slow
def test_everything_public_has_a_docstring():
    def problems(path: Path) -> list[str]:
        silent = [part.name for part in public(tree_of(path)) if not ast.get_docstring(part)]
        return [name for name in silent if not name.startswith(("test_", "lab"))]  # the contracts' own tests

    assert_none(offenders(MODULES, problems))


@pytest.mark.slow
def test_only_the_command_line_prints():
    def problems(path: Path) -> list[str]:
        calls = (dotted(part.func) for part in ast.walk(tree_of(path)) if isinstance(part, ast.Call))
        return [call for call in calls if call in PRINTS]

    assert_none(offenders([path for path in MODULES if package_of(path) != "cli"], problems))


@cache
def classes() -> dict[str, list[str]]:
    """Public classes, and the modules that define one of that name."""
    found = defaultdict(list)
    for path in MODULES:
        for part in tree_of(path).body:
            if isinstance(part, ast.ClassDef) and not part.name.startswith("_"):
                found[part.name].append(name_of(path))
    return found


def test_class_names_are_unique():
    assert_none({name: where for name, where in classes().items() if len(where) > 1})


# -- how large things are


def percentile_90(values: Iterable[int]) -> int:
    ordered = sorted(values)
    return ordered[math.ceil(0.9 * len(ordered)) - 1]


def test_files_stay_small():
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert_none({name: length for name, length in lengths.items() if length > FILE_MOST_LINES})
    assert percentile_90(lengths.values()) <= FILE_P90_LINES


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (part for part in ast.walk(tree_of(path)) if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_of(part: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert part.end_lineno is not None
    return part.end_lineno - part.lineno + 1


@pytest.mark.slow
def test_functions_stay_small():
    paths = [path for path in MODULES if not name_of(path).startswith(FROZEN)]
    lengths = {(name_of(path), part.lineno, part.name): lines_of(part) for path in paths for part in functions(path)}
    assert_none({where: length for where, length in lengths.items() if length > FUNCTION_MOST_LINES})
    assert percentile_90(lengths.values()) <= FUNCTION_P90_LINES


def test_there_are_not_too_many_modules():
    assert len(MODULES) <= MOST_MODULES
    public = [path for path in MODULES if path.name == "__init__.py" or not path.name.startswith("_")]
    assert len(public) <= MOST_PUBLIC_MODULES
