"""Every example is valid and runs; every command in the documentation can be typed as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from commonwatt.cli.root import ProblemGroup, root
from commonwatt.data.files import load_yaml
from commonwatt.devices.language.decoder import write_decoder
from commonwatt.devices.tiny_models import write_tiny_models
from commonwatt.model.scenario import AndreasWorkload, JobsWorkload, Scenario, Workload
from commonwatt.model.timeslice_file import TimesliceConfig
from tests.cli.console import run

HERE = Path(__file__).parents[1]
EXAMPLES = sorted((HERE / "examples").glob("*.yaml"))
PAGES = sorted([HERE / "README.md", *HERE.glob("benchmarks/*.md"), *HERE.glob("docs/**/*.md")])


def is_small(workload: Workload) -> bool:
    """Few jobs, known without reading a log."""
    few = isinstance(workload, AndreasWorkload) and (workload.jobs or 10 * workload.nodes) <= 100
    return few or isinstance(workload, JobsWorkload)


def simulate(path: Path, folder: Path) -> None:
    """Large ones for half a day of their week; `make demo` runs a whole one."""
    document = load_yaml(path, Scenario)
    if not is_small(document.workload):
        short = document.model_dump(mode="json")
        short["workload"]["days"] = 0.05 if document.has_fleet else 0.5
        for part in (*(service["load"] for service in short["services"]), short["fractional"] or {}):
            part["days"] = 0.05
        path = folder / path.name
        path.write_text(yaml.safe_dump(short), encoding="utf-8")
    done = run("simulate", path, "--json")
    assert done.code == 0, done.err
    assert [p["policy"] for p in done.document["policies"]] == [p.label for p in document.policies]


def place(path: Path, folder: Path) -> None:
    assert run("place", path, "--json").document["assignments"]


def divide_a_quantum(path: Path, folder: Path) -> None:
    assert run("timeslice", "plan", path, "--json").document["unused"] == 0


def share_a_device(path: Path, folder: Path) -> None:
    """With tiny models where it names some; for a second where time is real."""
    file = folder / path.name
    file.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    config = load_yaml(file, TimesliceConfig)
    real = config.device.kind != "simulated"
    if real:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
        write_tiny_models(folder / "models", 0)
    if any(model.language for tenant in config.tenants for model in tenant.models):
        pytest.importorskip("torch")
        pytest.importorskip("tritonclient")
        write_decoder(folder / "models" / "decoder.npz")
        done = run("timeslice", "serve", file, "--check", "--json")
        assert done.code == 0, done.err
        assert any(model["language"] for model in done.document["models"])
        return
    done = run("timeslice", "run", file, "--json", *(["--duration", "1"] if real else []))
    assert done.code == 0, done.err
    assert all(tenant["requests"] for tenant in done.document["tenants"])


def cut_gpus_up(path: Path, folder: Path) -> None:
    assert run("partition", "mig", path, "--json").document["chosen"]


def divide_core_clusters(path: Path, folder: Path) -> None:
    assert run("partition", path, "--json").document["chosen"]


def map_layers(path: Path, folder: Path) -> None:
    answer = run("map", path, "--json").document
    assert answer["gap"] < (0.05 if answer["objective"] == "latency" else 0.1)


def go_live(path: Path, folder: Path) -> None:
    """On a copy, so that nothing is left beside it: what is checked is all right, or not installed here."""
    pytest.importorskip("sqlalchemy")
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["live"] |= {"store": "live.db", "server": {"port": 0}}
    if "services" in document:
        pytest.importorskip("onnx")
        pytest.importorskip("tritonclient")
        document["live"]["services"]["port"] = 0
        write_tiny_models(folder / "models")
    copy = folder / path.name
    copy.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = run("check", copy, "--json")
    assert done.code in (0, 1), done.err
    failed = [line["what"] for line in done.document["checks"] if line["verdict"] == "failed"]
    assert failed == [] if document["engine"] == "local" else set(failed) <= {"engine", "nodes", "state folder"}


# A key that only files of this kind have, and how they are run.
KINDS = {
    "workload": simulate,
    "live": go_live,
    "now_s": place,
    "quantum": divide_a_quantum,
    "device": share_a_device,
    "gpus": cut_gpus_up,
    "system_bandwidth_gbs": map_layers,
    "configurations": divide_core_clusters,
}


def test_there_are_examples():
    assert "place.yaml" in [path.name for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_begin_with_what_they_are_and_how_to_run_them(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert f"examples/{path.name}" in text or "make demo" in text


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(path, tmp_path):
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    ways = {way for key, way in KINDS.items() if key in document}
    assert ways in ({simulate, go_live}, {next(iter(ways), None)})  # one kind of file, or a scenario for both
    for way in ways:
        way(path, tmp_path)


def commands(text: str) -> list[str]:
    """Commands in code fences and indented comments: lines that begin with commonwatt, continued lines joined."""
    fenced = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    lines = fenced.replace("\\\n", " ").splitlines()
    found = [re.sub(r"^[$#]? *(?:\.venv/bin/)?(?=commonwatt )", "", line.strip()) for line in lines]
    return [re.split(r"\s+(?:#|[|>])", line)[0] for line in found if line.startswith("commonwatt ")]


def in_comments(text: str) -> list[str]:
    return [m.group(1).split("  ")[0].strip() for m in re.finditer(r"^# +(commonwatt .*)$", text, re.MULTILINE)]


WRITTEN = [
    *(
        (page.name, command)
        for page in PAGES
        if page.exists()
        for command in commands(page.read_text(encoding="utf-8"))
    ),
    *((path.name, command) for path in EXAMPLES for command in in_comments(path.read_text(encoding="utf-8"))),
]


def parse(line: str) -> None:
    """Parse *line* as the command would, without running it. Raises on an unknown verb, option or argument."""
    _, *words = shlex.split(line)
    command: click.Command | None = root
    context = click.Context(root, info_name="commonwatt")
    while isinstance(command, click.Group):
        if not words or words[0].startswith("-"):
            assert words[:1] in ([], ["--help"], ["-h"], ["--version"]), line
            return
        name = words.pop(0)
        if isinstance(command, ProblemGroup) and name not in command.commands:
            command, words = command.default, [name, *words]
            context = click.Context(command, info_name=name, parent=context)
            break
        command = command.get_command(context, name)
        assert command is not None, f"no command {name}"
        context = click.Context(command, info_name=name, parent=context)
    assert command is not None
    if "--help" in words:
        return
    command.make_parser(context).parse_args(list(words))
    command.parse_args(context, list(words))


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), WRITTEN)
def test_commands_in_the_documentation_can_be_typed(page, line):
    parse(line.replace("shortest-first", "fifo"))  # the solver of the template, which is not installed


@pytest.mark.parametrize(
    "line",
    ["commonwatt shedule x.yaml", "commonwatt simulate x.yaml --polcy a", "commonwatt place", "commonwatt place a b"],
)
def test_the_check_of_commands_sees_what_is_wrong(line):
    with pytest.raises((AssertionError, click.UsageError)):
        parse(line)


def test_fences_and_comments_are_read():
    text = (
        "```sh\n$ commonwatt simulate a.yaml \\\n  --json > out.json  # all\ncommonwatt schema\n```\n# commonwatt no\n"
    )
    assert [shlex.split(c) for c in commands(text)] == [
        ["commonwatt", "simulate", "a.yaml", "--json"], ["commonwatt", "schema"],
    ]  # fmt: skip


def test_files_the_documentation_names_are_there():
    words = {word for _, line in WRITTEN for word in shlex.split(line)}
    named = {word for word in words if word.startswith("examples/") and "/models/" not in word}  # those are made
    assert named
    assert [word for word in sorted(named) if not (HERE / word).exists()] == []
