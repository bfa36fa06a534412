"""Run a page of the documentation: its files, commands and programs, from top to bottom, in one folder.

In a page,

- a fence with ``title="NAME"`` is a file: it is written under that name;
- a fence ``sh`` is run by bash, one ``python`` without a title by Python;
- a fence ``text`` without a title, right behind one that was run, holds what it prints: every line of it must occur in
  the output, blanks aside; ``...`` stands for what is left out;
- ``<!-- test: skip, REASON -->`` before a fence leaves it out.

`unclear` finds the fences of commands that this would pass over without a word.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import yaml

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?:<!-- test: (?P<directive>[^>]*?) -->\n)?```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S
)
ANY_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
COMMAND = re.compile(r"^ *(\$ |(commonwatt|python|pip|sudo|kubectl|curl|make) )", re.M)
DIRECTIVE = re.compile(r"^.*<!-- test:.*$", re.M)
SKIP = re.compile(r"<!-- test: skip, [^>]*\w[^>]* -->\n```\w")
MARK = "::step {}::"


@dataclass(frozen=True)
class Step:
    """A fence that does something, with the line it begins at."""

    line: int
    language: str
    title: str | None
    text: str
    expected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a page went: the exit code, and what was printed by the line of each step."""

    code: int
    printed: dict[int, str]


def steps_of(page: Path) -> list[Step]:
    """Return the steps of *page* in order."""
    text = page.read_text(encoding="utf-8")
    steps: list[Step] = []
    ends_at = -1  # where the last fence that was run ends
    for fence in FENCE.finditer(text):
        language, directive = fence["language"], fence["directive"] or ""
        title = re.search(r'title="([^"]+)"', fence["info"])
        line = text.count("\n", 0, fence.start("language")) + 1
        if directive.startswith("skip"):
            continue
        if language == "text" and title is None:
            if steps and not text[ends_at : fence.start()].strip():
                last = steps.pop()
                expected = tuple(part for part in fence["text"].splitlines() if part.strip() not in ("", "..."))
                steps.append(Step(last.line, last.language, last.title, last.text, expected))
            continue
        if title is None and language not in ("sh", "python"):
            continue
        steps.append(Step(line, language, title[1] if title else None, fence["text"]))
        ends_at = fence.end() if title is None else -1
    return steps


def unclear(page: Path) -> list[str]:
    """Return what is wrong with fences of *page*: commands not run and left out without a reason, broken YAML."""
    text = page.read_text(encoding="utf-8")
    found: list[tuple[int, str]] = []
    for fence in ANY_FENCE.finditer(text):
        language, titled = fence["language"], 'title="' in fence["info"]
        if not language:
            found.append((fence.start(), "a fence without a language"))
        elif language in ("bash", "console", "shell"):
            found.append((fence.start(), f"{language}: write sh, which is run"))
        elif language in ("sh", "python") and fence["indent"]:
            found.append((fence.start(), "an indented fence is not run"))
        elif language == "text" and not titled and COMMAND.search(fence["text"]):
            found.append((fence.start(), "commands in a fence of text"))
        elif language == "yaml":
            try:
                list(yaml.safe_load_all(dedent(fence["text"])))
            except yaml.YAMLError as error:
                found.append((fence.start(), str(error)))
    for directive in DIRECTIVE.finditer(text):
        if not SKIP.match(text, directive.start()):
            found.append((directive.start(), "not `<!-- test: skip, REASON -->` right before a fence"))
    line_of = {start: text.count("\n", 0, start) + 1 for start, _ in found}
    return [f"{page.name}, line {line_of[start]}: {fault}" for start, fault in sorted(found)]


def missing(expected: tuple[str, ...], printed: str) -> list[str]:
    """Return the lines of *expected* that *printed* does not contain, blanks aside."""
    whole = " ".join(printed.split())
    return [line for line in expected if " ".join(line.split()) not in whole]


def run(steps: list[Step], folder: Path, timeout_s: float = 540) -> Outcome:
    """Run *steps* in *folder*, in one shell; what it leaves running is killed."""
    kept = folder / ".steps"
    kept.mkdir()
    script = ["set -eo pipefail", "exec 2>&1"]
    for step in steps:
        source = kept / str(step.line)
        source.write_text(step.text, encoding="utf-8")
        script.append(f"echo; echo '{MARK.format(step.line)}'")
        if step.title is not None:
            script.append(f"mkdir -p $(dirname {step.title}); cp .steps/{step.line} {step.title}")
        else:
            script.append(step.text if step.language == "sh" else f"python .steps/{step.line}")
    (kept / "page.sh").write_text("\n".join(script) + "\n", encoding="utf-8")
    binaries = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160"}
    environment.pop("COMMONWATT_DATA", None)
    with (
        (kept / "out").open("w+", encoding="utf-8") as out,
        subprocess.Popen(
            ["bash", ".steps/page.sh"], cwd=folder, env=environment, stdout=out, stdin=subprocess.DEVNULL,
            start_new_session=True,
        ) as shell,
    ):  # fmt: skip
        try:
            code = shell.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        out.seek(0)
        parts = re.split(r"^::step (\d+)::$", out.read(), flags=re.M)
    return Outcome(code, {int(line): text for line, text in zip(parts[1::2], parts[2::2], strict=True)})
