"""The contributor's kit: issue templates, workflows, the changelog and the container file agree with the repository."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from tests.docs.pages import ROOT

TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.name != "config.yml"], ids=lambda path: path.stem)
def test_issue_templates_ask_for_something(path):
    template = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert template["name"]
    assert template["description"]
    parts = [part["attributes"] for part in template["body"]]
    assert all(part["label"] for part in parts)
    assert len({part["id"] for part in template["body"]}) == len(parts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_is_there(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for step in steps:
        command = step.get("run", "")
        assert set(re.findall(r"\bmake ([\w-]+)", command)) <= targets
        assert all((ROOT / name).exists() for name in re.findall(r"(?<!\S)(\.ci/\w+|examples/\S+)", command))


def test_the_changelog_names_the_version_and_what_is_to_be_released():
    sections = re.findall(r"^## \[([^\]]+)\]", CHANGELOG, re.M)
    assert sections[0] == "Unreleased"
    assert PROJECT["version"] in sections
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.M)) <= kinds


def test_the_container_runs_as_no_root_and_installs_extras_that_exist():
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    assert re.search(r"^USER (?!0\b|root\b)", text, re.M)
    extras = re.findall(r"--extra (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))  # of `make image-lock`
    assert set(extras) == {"live", "postgresql", "mariadb"} <= set(PROJECT["optional-dependencies"])
    copied = {name for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.M) for name in line.split()}
    assert copied
    assert all((ROOT / name).exists() for name in copied)
