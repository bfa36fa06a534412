"""The tutorials, guides, explanations and the README work as printed, in an empty folder, in order."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from commonwatt.engines.model_servers import stop_services
from tests.docs.pages import ROOT, Step, missing, run, steps_of, unclear

KINDS = ("tutorials", "how-to", "explanation")
PAGES = [page for kind in KINDS for page in sorted((ROOT / "docs" / kind).glob("*.md"))]
RUN = [page for page in PAGES if steps_of(page)]
FORECAST = ("lightgbm", "torch")
SERVE = ("onnx", "onnxruntime", "starlette")
NEEDS = {
    "tutorials/live-fleet": ("sqlalchemy", "fastapi", "tritonclient", *SERVE),
    "tutorials/operator": ("sqlalchemy", "fastapi"),
    "tutorials/serving-engineer": SERVE,
    "how-to/jobs": ("lightning",),
    "how-to/llms": SERVE,
    "how-to/operations": ("sqlalchemy", "fastapi"),
    "how-to/serving": SERVE,
    "explanation/capacity": FORECAST,
    "explanation/forecasting": FORECAST,
    "explanation/forecasting-networks": FORECAST,
    "explanation/timeslicing": SERVE,
}


def name_of(page: Path) -> str:
    return f"{page.parent.name}/{page.stem}"


def check(page: Path, folder: Path) -> None:
    """Run *page* and compare what it prints with what it says."""
    steps = steps_of(page)
    try:
        outcome = run(steps, folder)
    finally:
        stop_services(folder / "fleet-state")  # where a page did not come to its end
    last = max(outcome.printed, default=0)
    assert outcome.code == 0, f"{page.name}, line {last}: exit code {outcome.code}\n{outcome.printed.get(last)}"
    for step in steps:
        printed = outcome.printed[step.line]
        assert missing(step.expected, printed) == [], f"{page.name}, line {step.line}:\n{printed}"


def copy_examples(folder: Path) -> None:
    ignored = shutil.ignore_patterns("models", "*.db*", "*-state")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)


@pytest.mark.long
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_pages_run_in_an_empty_folder(page, tmp_path):
    for package in NEEDS.get(name_of(page), ()):
        if not find_spec(package):
            pytest.skip(f"{package} is not installed")
    if page.parent.name != "tutorials":  # which need no checkout
        copy_examples(tmp_path)
    check(page, tmp_path)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "index.md", *PAGES], ids=name_of)
def test_commands_are_run_or_left_out_with_a_reason(page):
    assert unclear(page) == []


@pytest.mark.long
def test_the_readme_runs_in_a_checkout(tmp_path):
    for package in NEEDS["tutorials/operator"] + SERVE:
        if not find_spec(package):
            pytest.skip(f"{package} is not installed")
    copy_examples(tmp_path)
    check(ROOT / "README.md", tmp_path)


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_steps_are_read(tmp_path):
    page = write(
        tmp_path,
        '# A page\n```yaml title="a.yaml"\nx: 1\n```\n```sh\ncat a.yaml\n```\n```text\nx: 1\n...\n```\n'
        "<!-- test: skip, no reason -->\n```sh\nfalse\n```\n```yaml\nnot: run\n```\n```python\nprint(2)\n```\n",
    )
    assert steps_of(page) == [
        Step(2, "yaml", "a.yaml", "x: 1\n"),
        Step(5, "sh", None, "cat a.yaml\n", ("x: 1",)),
        Step(19, "python", None, "print(2)\n"),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```\ncommonwatt place\n```\n", "line 1: a fence without a language"),
        ("text\n```console\n$ ls\n```\n", "line 2: console: write sh, which is run"),
        ("- a\n\n  ```sh\n  ls\n  ```\n", "line 3: an indented fence is not run"),
        ("```text\ncommonwatt place\n```\n", "line 1: commands in a fence of text"),
        ("```yaml\na: [1\n```\n", "line 1: while parsing"),
        ("<!-- test: skip, -->\n```sh\nls\n```\n", "line 1: not `<!-- test: skip, REASON -->`"),
        ("<!-- test: skip, needs a server -->\n\n```sh\nls\n```\n", "line 1: not `<!-- test: skip, REASON -->`"),
    ],
)
def test_a_fence_that_would_be_passed_over_is_seen(text, fault, tmp_path):
    (found,) = unclear(write(tmp_path, text))
    assert found.startswith(f"page.md, {fault}")


def test_a_fence_that_is_left_out_with_a_reason_is_fine(tmp_path):
    page = write(tmp_path, "<!-- test: skip, needs a server -->\n```sh\nls\n```\n```yaml\na: 1\n```\n```text\na\n```\n")
    assert unclear(page) == []


def test_a_page_is_run_in_one_shell_and_what_it_prints_is_kept(tmp_path):
    page = write(tmp_path, "```sh\nexport A=1\nsleep 60 &\n```\n```python\nimport os\nprint(os.environ['A'])\n```\n")
    outcome = run(steps_of(page), tmp_path)
    assert outcome.code == 0
    assert outcome.printed[5].split() == ["1"]


@pytest.mark.parametrize("text", ["false", "cat nothing.yaml", "true | false"])
def test_a_command_that_fails_is_seen(text, tmp_path):
    page = write(tmp_path, f"```sh\n{text}\n```\n```sh\necho after\n```\n")
    outcome = run(steps_of(page), tmp_path)
    assert outcome.code != 0
    assert list(outcome.printed) == [1]


def test_output_that_differs_is_seen():
    assert missing(("a  b", "c d"), "x a b\nc\nd") == []
    assert missing(("a b", "e"), "a b") == ["e"]
