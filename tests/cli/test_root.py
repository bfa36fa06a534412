"""The command itself: help, version, verbs, and how it ends."""

from __future__ import annotations

import pkgutil
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest

import commonwatt.cli
from commonwatt.cli.root import HOMES, VERBS, VerbGroup, command_of
from commonwatt.model.errors import ArgumentError, InputError
from commonwatt.model.schemas import SCHEMAS
from tests.cli.console import SCRIPT, run, scenario, spawn, write

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED = {"root", "output", "groups", "remote", "compiling"}
MODULES = sorted(module.name for module in pkgutil.iter_modules(commonwatt.cli.__path__) if module.name not in SHARED)
HEAVY = {"numba", "polars", "plotly", "matplotlib", "highspy", "pydantic", "numpy"}


def test_every_file_has_a_verb_and_every_verb_is_there():
    assert {HOMES.get(verb, verb) for verb in VERBS} == set(MODULES)
    for verb in VERBS:
        assert isinstance(command_of(verb), click.Command), verb


def test_help_lists_the_verbs_and_an_example():
    done = run("--help")
    assert (done.code, done.err) == (0, "")
    for verb, meaning in VERBS.items():
        assert re.search(rf"^  {verb} +{meaning[:20]}", done.out, re.MULTILINE)
    assert "  commonwatt simulate examples/" in done.out
    assert run().out == run("-h").out == done.out


def subcommands(verb: str) -> list[str]:
    return list(getattr(command_of(verb), "commands", ()))


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_an_example(verb):
    done = run(verb, "--help")
    assert (done.code, done.err) == (0, "")
    assert re.search(rf"^ +commonwatt {verb} ", done.out, re.MULTILINE)
    texts = [run(verb, sub, "--help").out for sub in subcommands(verb)] or [done.out]
    assert verb == "completion" or all("--json" in text for text in texts)  # a script has one form


@pytest.mark.slow
def test_help_is_quick_because_it_imports_nothing_large():
    """One process asks for all of them, then looks at what it has imported."""
    code = f"""
import sys
from commonwatt.cli.root import root
for verb in {sorted(VERBS)}:
    root([verb, "--help"], standalone_mode=False)
root(["--help"], standalone_mode=False)
print("loaded:", sorted({HEAVY} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.slow
def test_the_installed_command():
    version = spawn("--version")
    assert version.code == 0
    assert re.fullmatch(r"commonwatt, version \d+\.\d+\S*\n", version.out)
    assert spawn("schema").out.split() == list(SCHEMAS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shedule"], "No such command 'shedule'"),
        (["simulate"], "Missing argument 'SCENARIO'"),
        (["simulate", "x.yaml", "--polcy", "fifo"], "No such option"),
        (["simulate", "x.yaml", "--seed", "-1"], "-1 is not in the range"),
        (["simulate", "x.yaml", "--seeds", "0"], "0 is not in the range"),
        (["simulate", "x.yaml", "--jobs", "many"], "'many' is not a whole number"),
        (["place", "x.yaml", "--solver", "magic"], "'magic' is not one of 'best'"),
        (["place", "x.yaml", "--time-limit", "0"], "0.0 is not in the range"),
        (["schema", "nonsense"], "got 'nonsense', expected one of place, scenario"),
    ],
)
def test_usage_errors_are_one_line(arguments, said):
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"error: [^\n]*\n", done.err)
    assert said in done.err


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["map", "x.yaml", "--objective", "latncy"], "commonwatt map --help"),
        (["map", "x.yaml", "--budgt", "1"], "commonwatt map --help"),
        (["partition", "x.yaml", "--welfare", "nsh"], "commonwatt partition --help"),
        (["partition", "mig", "x.yaml", "--mode", "x"], "commonwatt partition mig --help"),
        (["map", "evaluate", "x.yaml"], "commonwatt map evaluate --help"),
    ],
)
def test_the_help_that_is_named_is_of_what_was_typed(arguments, asked):
    assert run(*arguments).err.endswith(f"{asked}\n")


def test_every_group_names_options_where_an_argument_is_refused():
    groups = [command for verb in VERBS if isinstance(command := command_of(verb), click.Group)]
    assert groups
    assert all(isinstance(group, VerbGroup) for group in groups)


@pytest.mark.parametrize(
    ("parameter", "typed"),
    [
        ("limit_s", "field '--limit'"),
        ("format", "field '--format'"),
        ("source", "field '--format'"),
        ("log", "field 'LOG'"),
        ("other", "argument 'other'"),
    ],
)
def test_an_argument_is_named_as_it_is_typed(parameter, typed):
    @click.group(cls=VerbGroup)
    def group() -> None: ...

    @group.command("do")
    @click.argument("log")
    @click.option("--limit", "limit_s", type=float)
    @click.option("--format", "source")
    def do(**_: object) -> None:
        raise ArgumentError("another, or `source`", file="f", field=parameter, value=1)

    with pytest.raises(InputError) as caught:
        group(["do", "x"], standalone_mode=False)
    other = "`source`" if parameter == "other" else "--format"
    assert str(caught.value) == f"f: {typed}: got '1', expected another, or {other}"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["map", "layers", "resnet51"], "resnet50"),
        (["partition", EXAMPLES / "partition.yaml", "--sweep-weight", "usr2=0.1:10:3"], "user2"),
        (["forecast", "demand", "generatd"], "generated"),
        (["study", "phily"], "philly"),
        (["simulate", EXAMPLES / "demo.yaml", "--policy", "lokahead"], "lookahead"),
    ],
)
def test_the_name_that_was_probably_meant_is_told(arguments, meant):
    done = run(*arguments)
    assert done.code == 2
    assert done.err.endswith(f" (did you mean {meant}?)\n")


def test_the_column_that_was_probably_meant_is_told(tmp_path):
    (tmp_path / "demand.csv").write_text("t_s,gpus\n0,1\n60,2\n", encoding="utf-8")
    done = run("forecast", "plan", tmp_path / "demand.csv", "--column", "gpu")
    assert done.err.endswith(
        "field 'gpu': expected a column of this name; the file has t_s, gpus (did you mean gpus?)\n"
    )


@pytest.mark.slow
def test_interrupted(tmp_path):
    """Ctrl-C in the middle of a long run: exit code 130, nothing left."""
    jobs = [{"name": "a", "submit_s": 0, "times_s": {"V100": [1e9]}}]
    document = scenario(workload={"source": "jobs", "jobs": jobs}, policies=[{"solver": "fifo"}], interval_s=1)
    file = write(tmp_path / "s.yaml", document)
    with subprocess.Popen(
        [SCRIPT, "simulate", file, "--out", tmp_path / "out"], stderr=subprocess.PIPE, text=True
    ) as run_:
        assert run_.stderr is not None
        assert "1 job, 2 nodes" in run_.stderr.readline()
        run_.send_signal(signal.SIGINT)
        said = run_.stderr.read()
    assert (run_.returncode, said.split()[-1]) == (130, "interrupted")
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_interrupted_where_the_compiler_turns_it_into_another_error(monkeypatch):
    def compiling(**_: object) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError("no compiled object yet")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("commonwatt.cli.root.root", compiling)
    done = run("place", "x.yaml")
    signal.signal(signal.SIGINT, before)
    assert (done.code, done.err) == (130, "interrupted\n")


@pytest.mark.slow
def test_interrupted_in_a_callback_that_cannot_raise():
    """As while a compiler is at work: Python reports such an exception, and would go on."""
    code = """
import signal, time
from commonwatt.cli import root

class Callback:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def working(**_):
    Callback()
    time.sleep(60)

root.root = working
root.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["schema", "scenario"], ["schema", "--dictionary"], ["--help"]])
def test_a_reader_that_goes_away_is_no_crash(arguments):
    with subprocess.Popen([SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as gone:
        assert gone.stdout is not None
        assert gone.stderr is not None
        gone.stdout.close()
        assert gone.stderr.read() == b""
