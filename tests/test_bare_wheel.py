"""The wheel as ``pip install commonwatt`` gives it: every verb runs, or names the extra it needs.

``make wheel-test`` makes the environments and sets the variables. ``COMMONWATT_BARE`` is the ``commonwatt`` of one that
has the wheel and no extras; ``COMMONWATT_EXTRAS`` a folder of environments, each with the wheel and the extra it is
named after.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from commonwatt.cli.root import VERBS, root
from tests.cli.console import scenario, write

BARE, EXTRAS = os.environ.get("COMMONWATT_BARE"), os.environ.get("COMMONWATT_EXTRAS")
if BARE is None:
    pytest.skip("COMMONWATT_BARE is not set: make wheel-test runs these", allow_module_level=True)

EXAMPLES = Path(__file__).parents[1] / "examples"
LOG = "job,submit_s,duration_s,gpus\n" + "".join(f"{i},{60 * i},600,{1 + i % 4}\n" for i in range(40))

# One of each that works without extras; each line is run after the earlier ones of its tuple.
WORKS = {
    "place": ("place examples/place.yaml --json",),
    "place exact": ("place examples/place.yaml --solver exact --json",),
    "simulate": ("simulate small.yaml --out out --json",),
    "partition": (
        "partition examples/partition.yaml --plot p.svg --json", "partition examples/laws.yaml --json",
        "partition examples/partition.yaml --mechanism entitlement --json",
    ),
    "partition mig": ("partition mig examples/mig.yaml --json",),
    "partition characterize": ("partition characterize --threads 1,2 --repeats 1 --json -- sleep 1",),
    "map": (
        "map examples/map.yaml --budget 500 --json --save-transfer t.json",
        "map examples/map.yaml --transfer t.json --json", "map examples/map.yaml --algorithm exact --time-limit 5",
    ),
    "map layers": ("map layers --json", "map layers resnet50 --out resnet50.csv"),
    "map batch": ("map batch --class mix --jobs 20 --seed 0 --out batch.csv",),
    "map table": ("map table examples/map_layers.yaml --out table.json",),
    "timeslice plan": ("timeslice plan examples/quantum.yaml --json",),
    "timeslice run": ("timeslice run examples/edge.yaml --plot shares.png --json",),
    "forecast": (
        "forecast demand generated --days 4 --out demand.csv",
        "forecast evaluate demand.csv --model seasonal-naive --test-from 2024-01-04 --total-gpus 1000 --json",
        "forecast plan demand.csv --model last-value --target 0.9 --total-gpus 1000 --json",
    ),
    "schema": ("schema --dictionary", "schema scenario"),
    "data": ("data list --json", "data check log.csv --json"),
    "reproduce": ("reproduce", "reproduce etf-figure-3 --quick --json"),
    "bench": ("bench --quick --suite slices --suite market --json", "bench --list"),
}  # fmt: skip

# What asks for an extra, and which.
NEEDS = [
    ("check examples/live.yaml", "live"), ("serve examples/live.yaml", "live"),
    ("token list --config examples/live.yaml", "live"), ("store check examples/live.yaml", "live"),
    ("submit -- true", "live"), *((verb, "live") for verb in ("events", "jobs", "nodes", "tenants", "mode")),
    *((f"{verb} 1", "live") for verb in ("cancel", "explain", "hold", "log", "release")),
    ("drain n", "live"), ("undrain n", "live"),
    ("forecast fit demand.csv --out m.safetensors", "forecast"),
    ("forecast fit demand.csv --model lightgbm --out m.safetensors", "forecast"),
    ("forecast evaluate demand.csv --model auto-ets --test-from 2024-01-03", "forecast"),
    ("forecast plan demand.csv --model chronos --total-gpus 9", "chronos"),
    ("map examples/map.yaml --algorithm de", "search"), ("map examples/map.yaml --algorithm ppo", "rl"),
    ("map layers m.onnx", "onnx"), ("map layers m.pt2", "torch"), ("timeslice profile m.onnx", "onnx"),
    ("timeslice serve examples/server.yaml", "serve"), ("simulate small.yaml --backend ray", "ray"),
]  # fmt: skip


def call(command: str | Path, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "COMMONWATT_DATA"}}
    environment["PATH"] = f"{Path(command).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        [command, *line.split()], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture
def folder(tmp_path):
    """An empty folder but for the examples, a log, a series and files of models that nobody gets to read."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    write(tmp_path / "small.yaml", scenario())
    write(tmp_path / "log.csv", LOG)
    hours = "".join(f"2024-01-{1 + h // 24:02}T{h % 24:02}:00,{50 + h % 24}\n" for h in range(24 * 4))
    write(tmp_path / "demand.csv", f"time,gpus\n{hours}")
    for name in ("m.onnx", "m.pt2"):
        (tmp_path / name).write_bytes(b"anything")
    return tmp_path


def names(command: click.Command, path: str) -> list[str]:
    """The command and those below it."""
    below = getattr(command, "commands", {})
    return [path, *(name for sub, each in below.items() for name in names(each, f"{path} {sub}".strip()))]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help(verb, tmp_path):
    command = root.get_command(click.Context(root), verb)
    for name in names(command, verb):
        done = call(BARE, f"{name} --help", tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert done.stdout.startswith(f"Usage: commonwatt {verb}")


@pytest.mark.parametrize("lines", WORKS.values(), ids=WORKS)
def test_works_without_extras(lines, folder):
    for line in lines:
        done = call(BARE, line, folder)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        if "--json" in line:
            json.loads(done.stdout)


def test_a_mapping_is_evaluated_without_extras(folder):
    found = json.loads(call(BARE, "map examples/map.yaml --budget 100 --json", folder).stdout)
    write(folder / "m.json", json.dumps({key: found[key] for key in ("accelerator", "priority")}))
    scored = json.loads(call(BARE, "map evaluate examples/map.yaml m.json --json", folder).stdout)
    assert scored["makespan_cycles"] == found["makespan_cycles"]


@pytest.mark.parametrize(("line", "extra"), NEEDS, ids=[line for line, _ in NEEDS])
def test_names_the_extra_it_needs(line, extra, folder):
    before = sorted(folder.rglob("*"))
    done = call(BARE, line, folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    error = done.stderr.splitlines()[-1]  # progress may go before it
    assert re.fullmatch(rf"error: \S+ is not installed; run: pip install 'commonwatt\[{extra}\]'", error)
    assert "Traceback" not in done.stderr
    assert sorted(folder.rglob("*")) == before


# What a light extra lets run, by itself. The heavy ones are checked in test_optional.
LIGHT = {
    "live": (
        "check examples/live.yaml", "token add --operator --config examples/live.yaml",
        "token list --config examples/live.yaml", "store check examples/live.yaml",
    ),
    "onnx": ("map layers examples/models/resnet.onnx --dim batch=1", "timeslice run examples/server.yaml --duration 1"),
    "search": ("map examples/map.yaml --algorithm de --budget 200",),
}  # fmt: skip


@pytest.mark.skipif(EXTRAS is None, reason="COMMONWATT_EXTRAS is not set: make wheel-test runs these")
@pytest.mark.parametrize("extra", LIGHT)
def test_an_extra_by_itself(extra, folder):
    command = Path(EXTRAS) / extra / "bin" / "commonwatt"
    if extra == "onnx":
        tiny = [command.with_name("python"), "-m", "commonwatt.devices.tiny_models", "examples/models"]
        subprocess.run(tiny, cwd=folder, check=True, timeout=600)
    for line in LIGHT[extra]:
        done = call(command, line, folder)
        assert done.returncode == 0, f"{line}: {done.stderr}"
