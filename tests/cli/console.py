"""Commands as users run them: in this process for the many, in one of their own for the few."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import yaml

SCRIPT = Path(sys.executable).with_name("commonwatt")
NODES = [
    {"name": "v", "gpu_type": "V100", "gpus": 2, "idle_w": 150, "gpu_w": 250},
    {"name": "t", "gpu_type": "T4", "gpus": 1, "idle_w": 120, "gpu_w": 70},
]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        return json.loads(self.out)


def run(*arguments: object) -> Outcome:
    """Run the command in this process, which it must leave as it was."""
    from commonwatt.cli import main

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    handlers, hook = [signal.getsignal(number) for number in numbers], sys.unraisablehook
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["commonwatt", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    assert [signal.getsignal(number) for number in numbers] == handlers
    assert sys.unraisablehook is hook
    return Outcome(code, out.getvalue(), err.getvalue())


def spawn(*arguments: object, cwd: Path | None = None, **environment: str) -> Outcome:
    """Run the installed command."""
    done = subprocess.run(
        [SCRIPT, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def job(name: str = "a", **more: object) -> dict:
    return {"name": name, "submit_s": 0, "times_s": {"V100": [1800, 1000]}, **more}


def scenario(**more: object) -> dict:
    """Three jobs on two nodes under two quick policies."""
    jobs = [
        job("a", tenant="x", due_s=2000, tardiness_weight=0.001, epochs=10),
        job(
            "b",
            tenant="y",
            submit_s=100,
            due_s=1500,
            tardiness_weight=0.002,
            times_s={"V100": [900, 500], "T4": [2500]},
        ),
        job("c", tenant="x", submit_s=200, times_s={"T4": [700]}),
    ]
    policies = [{"solver": "random-greedy", "iterations": 20}, {"solver": "fifo"}]
    return {"name": "small", "workload": {"source": "jobs", "jobs": jobs}, "nodes": NODES, "policies": policies, **more}


def problem(**more: object) -> dict:
    """A placement problem of two jobs on two nodes."""
    jobs = [
        {"name": "a", "due_s": 2000, "tardiness_weight": 0.001, "times_s": {"V100": [1800, 1000]}},
        {"name": "b", "due_s": 1500, "tardiness_weight": 0.002, "times_s": {"V100": [900, 500], "T4": [2500]}},
    ]
    return {"nodes": NODES, "jobs": jobs, **more}


def write(path: Path, document: object) -> Path:
    text = document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path
