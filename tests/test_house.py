"""DESIGN section 2: who may import whom, and what decision packages may do at all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import commonwatt

ROOT = Path(commonwatt.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
DECISIONS = {"forecasting", "placement", "partitioning", "mapping", "timeslicing"}
# Packages of ours that each package may import, besides itself.
ALLOWED = {
    "model": set(),
    **{decision: {"model"} for decision in DECISIONS},
    "control": {"model", *DECISIONS},
    "engines": {"model", "control"},
    "devices": {"model", "timeslicing", "data"},
    "serving": {"model", "timeslicing", "devices", "data"},
    "data": {"model", "forecasting", "mapping"},
    "progress": set(),
    "testing": {"model", "control"},
    "store": {"model"},
    "live": {"model", "placement", "forecasting", "control", "engines", "store", "data", "simulation"},
    "client": {"model", "data"},
    "service": {"model", "store", "live", "data"},
    "report": {"model", "placement", "forecasting", "simulation", "data"},
    "simulation": {"model", "forecasting", "placement", "control", "engines", "data"},
}
OPTIONAL = {"store", "live", "service"}  # packages of an extra: not even imported without it
WORLD = {
    "asyncio", "datetime", "fileinput", "glob", "http", "io", "multiprocessing", "os", "pathlib", "pickle", "random",
    "secrets", "shutil", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
    "logging", "builtins", "polars", "joblib", "requests",
}  # fmt: skip
CALLS = {"print", "open", "input", "exec", "eval", "__import__", "breakpoint"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


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


def dotted(part: ast.expr) -> str:
    if isinstance(part, ast.Attribute):
        return f"{dotted(part.value)}.{part.attr}"
    return part.id if isinstance(part, ast.Name) else ""


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


def of(*packages: str) -> list[Path]:
    return [path for path in MODULES if package_of(path) in packages]


@pytest.mark.parametrize("path", [p for p in MODULES if package_of(p) in ALLOWED], ids=name_of)
def test_imports_flow_one_way(path):
    package = package_of(path)
    allowed = ALLOWED[package] | {package}
    ours = {name for name in imports(tree_of(path)) if name.split(".")[0] == "commonwatt"} - {"commonwatt.__version__"}
    assert {name for name in ours if name.split(".")[1] not in allowed} == set()


@pytest.mark.parametrize("path", of(*DECISIONS), ids=name_of)
def test_decisions_are_pure(path):
    assert problems_of_decisions(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "print(1)", "open('x')", "import time\ntime.time()", "from datetime import datetime\ndatetime.now()",
        "import random", "import numpy as np\nnp.random.rand()", "from numpy.random import default_rng\ndefault_rng()",
        "def f():\n    from pathlib import Path", "import threading",
        "import numpy as np\nnp.random.RandomState()",
    ],
)  # fmt: skip
def test_the_check_of_purity_sees_what_is_not_pure(source):
    assert problems_of_decisions(source)


def test_the_controller_knows_no_concrete_engine_and_nothing_above_it():
    known = {name.split(".")[1] for path in of("control") for name in imports(tree_of(path)) if "commonwatt." in name}
    assert known <= {"model", "control", *DECISIONS}


def public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Public functions and classes of a module, and public methods of public classes."""
    for part in tree.body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and not part.name.startswith("_"):
            yield part
            if isinstance(part, ast.ClassDef):
                methods = (m for m in part.body if isinstance(m, ast.FunctionDef))
                yield from (m for m in methods if not m.name.startswith("_"))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is_and_what_it_offers(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree)
    assigned = [part for part in tree.body if isinstance(part, ast.Assign) and dotted(part.targets[0]) == "__all__"]
    if path.name == "__init__.py" and len(tree.body) == 1:
        return  # a package that is only described
    (offered,) = assigned
    assert isinstance(offered.value, ast.List)
    names = [item.value for item in offered.value.elts if isinstance(item, ast.Constant)]
    assert len(set(names)) == len(names) == len(offered.value.elts)
    assert not [name for name in names if str(name).startswith("_") and name != "__version__"]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_what_is_offered_is_there_and_what_is_public_is_explained(path):
    tree = tree_of(path)
    if path.name == "__init__.py" and len(tree.body) == 1:
        return
    parts = path.relative_to(ROOT).with_suffix("").parts
    try:
        module = import_module(".".join(("commonwatt", *parts)).removesuffix(".__init__"))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("commonwatt") or package_of(path) not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    offered = [part for part in public(tree) if not ast.get_docstring(part)]
    assert [part.name for part in offered if not _is_check(part)] == []


def _is_check(part: ast.FunctionDef | ast.ClassDef) -> bool:
    """Tests and fixtures of the contracts explain themselves by their names."""
    return part.name.startswith(("test_", "lab"))


def test_only_the_command_line_prints():
    printing = {
        name_of(path)
        for path in MODULES
        for part in ast.walk(tree_of(path))
        if isinstance(part, ast.Call) and dotted(part.func) in {"print", "sys.stdout.write", "click.echo"}
    }
    assert {name for name in printing if not name.startswith("cli/")} == set()


def test_files_stay_small():
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
