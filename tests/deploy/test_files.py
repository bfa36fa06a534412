"""Files of operations: alert rules, the Grafana dashboard, Prometheus' configuration, systemd's unit, the image."""

from __future__ import annotations

import configparser
import json
import math
import os
import re
import shutil
import subprocess
from importlib.metadata import distribution

import pytest
import yaml

pytest.importorskip("sqlalchemy")
pytest.importorskip("prometheus_client")

from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families

from commonwatt.client.connection import DEFAULT_SOCKET
from commonwatt.model.live import LiveSpec
from tests.deploy.metrics_made import filled
from tests.deploy.scraping import prometheus, served
from tests.deploy.tools import DEPLOY, needs_promtool, promtool

CONTAINERFILE = DEPLOY.parent / "Containerfile"
PAGE = DEPLOY.parent / "docs" / "how-to" / "operations.md"
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SHOWN = [(panel["title"], target["expr"].replace("$instance", ".*")) for panel in PANELS for target in panel["targets"]]
NAME = re.compile(r"\b(?:commonwatt|process)_[a-z_]+")


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    made = filled(tmp_path_factory.mktemp("plane"))
    yield made
    made.store.database.close()


def told(plane) -> set[str]:
    """Names of all samples of a control plane of which everything is known."""
    families = text_string_to_metric_families(plane.text())
    return {sample.name for family in families for sample in family.samples}


def test_rules_and_dashboard_name_only_metrics_there_are(plane):
    named = {name for _, expression in SHOWN for name in NAME.findall(expression)}
    named |= {name for rule in RULES for name in NAME.findall(rule["expr"])}
    assert named - told(plane) == set()


def test_every_metric_is_on_the_dashboard_or_in_a_rule(plane):
    named = {name for _, expression in SHOWN for name in NAME.findall(expression)}
    named |= {name for rule in RULES for name in NAME.findall(rule["expr"])}
    for_joins = {
        "commonwatt_build_info", "commonwatt_controller_info", "commonwatt_node_drained", "commonwatt_cost_total",
        "commonwatt_pending_cost", "commonwatt_carbon_grams_total", "commonwatt_pending_carbon_grams",
        "commonwatt_pending_gpu_seconds", "commonwatt_metered_gpu_seconds_total",
    }  # fmt: skip
    old_names = {"commonwatt_gpus_held"}
    ours = {name for name in told(plane) if name.startswith("commonwatt_") and not name.endswith(("_sum", "_created"))}
    assert ours - named - for_joins - old_names == {"commonwatt_tick_duration_seconds_count"}
    assert for_joins | old_names <= ours


@needs_promtool
def test_promtool_accepts_the_rules():
    done = promtool("check", "rules", DEPLOY / "alerts.yaml")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@needs_promtool
def test_rules_fire_when_they_should_and_only_then():
    done = promtool("test", "rules", DEPLOY / "alerts_test.yaml")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_every_rule_is_tested_both_ways():
    tests = yaml.safe_load((DEPLOY / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in RULES}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


def test_every_rule_says_what_to_do():
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}


@needs_promtool
def test_prometheus_accepts_its_configuration():
    done = promtool("check", "config", DEPLOY / "prometheus.yaml")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_dashboard_is_laid_out():
    assert DASHBOARD["uid"] == "commonwatt"
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))
        assert all(t["datasource"]["uid"] == "${datasource}" for t in panel["targets"])


@pytest.mark.long
def test_a_real_prometheus_reads_everything_and_every_panel_shows_something(plane, tmp_path):
    """Every expression of the dashboard gives a result, and a number where it is no quotient of nothings."""
    with served(plane.page()) as port, prometheus(tmp_path, f"127.0.0.1:{port}") as reader:
        (energy,) = reader.await_result("commonwatt_metered_energy_joules_total")
        assert energy["value"][1] == "6.5"
        assert reader.await_result("count_over_time(commonwatt_jobs[1m]) >= 2")
        tenants = {row["metric"].get("tenant") for row in reader.query("commonwatt_energy_joules_total")}
        assert tenants == {'te"xt\\', None}
        plane.counters.tick(0.3)
        plane.http.observe("GET", "/api/v1/jobs", 200, 0.4)
        for title, expression in SHOWN:
            (*_, row) = reader.await_result(expression)
            assert math.isfinite(float(row["value"][1])) or "quantile" in expression, title
        for rule in RULES:
            reader.query(rule["expr"])
        with pytest.raises(ValueError, match="parse error"):
            reader.query("sum by (")


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / "commonwatt.service", encoding="utf-8")
    return parser


def test_the_unit_lets_jobs_go_on_and_gives_nothing_away():
    service = unit()["Service"]
    assert service["KillMode"] == "process"
    assert service["User"] == "commonwatt"
    for wanted in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectKernelModules", "RestrictSUIDSGID"):
        assert service[wanted] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert "RemoveIPC" not in service


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing (Debian: systemd)")
    text = (DEPLOY / "commonwatt.service").read_text(encoding="utf-8")
    copy = tmp_path / "commonwatt.service"
    copy.write_text(text.replace("/opt/commonwatt/bin/commonwatt", "/bin/true"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=120
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_password_in_single_quotes_reaches_the_commands_of_the_page_as_it_is(tmp_path):
    """Function `as` of the page, as it stands there, with stand-ins for sudo and runuser."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"^as\(\) \{.*?^\}$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert "`DB_PASSWORD='...'`" in text
    environment = tmp_path / "environment"
    password = '  pa$$w&rd;x #1 "`id`" $(id) '
    environment.write_text(f"# of the database\nDB_PASSWORD='{password}'\n", encoding="utf-8")
    for name, body in (("sudo", 'exec "$@"'), ("runuser", 'shift 3; exec "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    function = found[0].replace("/etc/commonwatt/environment", str(environment))
    script = f"{function}\nas printenv DB_PASSWORD"
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{password}\n", "")


def test_the_example_of_identity_is_what_the_configuration_takes():
    example = yaml.safe_load((DEPLOY / "identity.yaml").read_text(encoding="utf-8"))
    found = LiveSpec.model_validate(example["live"]).server
    assert None not in (found.tls, found.socket, found.oidc)
    page = (DEPLOY.parent / "docs" / "how-to" / "identity.md").read_text(encoding="utf-8")
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        LiveSpec.model_validate(yaml.safe_load(block)["live"])
    unit = (DEPLOY / "commonwatt.service").read_text(encoding="utf-8")
    assert found.socket.path == str(DEFAULT_SOCKET)  # where commands look
    assert "\nRuntimeDirectory=commonwatt\n" in unit


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Return version and number of hashes by name of a file of ``deploy/image``."""
    lines = [line for line in (DEPLOY / "image" / name).read_text().splitlines() if not line.startswith("#")]
    found: dict[str, tuple[str, int]] = {}
    package = ""
    for line in lines:
        if match := re.fullmatch(r"([a-z0-9-]+)==(\S+?)(?: ; .*)? \\", line):
            package, version = match.groups()
            assert package not in found
            found[package] = version, 0
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", line), line
            found[package] = found[package][0], found[package][1] + 1
    return found


def spelt(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(*extras: str) -> set[str]:
    """Return what commonwatt with *extras* requires here, of all that requires something in its turn."""
    due, found = [("commonwatt", extra) for extra in ("", *extras)], set()
    seen = set(due)
    while due:
        package, extra = due.pop()
        for text in distribution(package).requires or ():
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                name = spelt(one.name)
                found |= {name} - {"commonwatt"}
                fresh = {(name, more) for more in ("", *one.extras)} - seen
                seen |= fresh
                due += sorted(fresh)
    return found


def test_the_image_installs_what_is_needed_with_hashes_in_the_versions_of_the_constraints():
    packages = locked("requirements.txt")
    assert needed("live", "postgresql", "mariadb") - packages.keys() == set()
    assert all(hashes for _, hashes in packages.values())
    lines = (DEPLOY.parent / "constraints.txt").read_text().split()
    pinned = {spelt(name): version for name, _, version in (line.partition("==") for line in lines)}
    assert {name: version for name, (version, _) in packages.items() if pinned.get(name) != version} == {}


def test_what_builds_its_wheel_has_hashes():
    packages = locked("build.txt")
    assert "hatchling" in packages
    assert all(hashes for _, hashes in packages.values())


@pytest.mark.parametrize(
    ("image", "time_s", "said"),
    [
        ("docker.io/library/python:3.11-slim-bookworm", "1", "PYTHON_IMAGE: got 'docker.io/library/python:3.11-slim"),
        ("", "1", "PYTHON_IMAGE: got ''"),
        (f"python@sha256:{'0' * 64}", "", "SOURCE_DATE_EPOCH: got ''"),
        (f"python@sha256:{'0' * 64}", "now", "SOURCE_DATE_EPOCH: got 'now'"),
        (f"python@sha256:{'0' * 64}", "1790000000", ""),
    ],
)
def test_the_image_needs_a_base_by_digest_and_a_time(image, time_s, said):
    steps = re.sub(r"\\\n", "", CONTAINERFILE.read_text()).splitlines()
    check = next(step for step in steps if step.startswith("RUN ")).removeprefix("RUN ")
    given = {"PATH": os.environ["PATH"], "PYTHON_IMAGE": image, "SOURCE_DATE_EPOCH": time_s}
    done = subprocess.run(["sh", "-c", check], env=given, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr) == (2 if said else 0, True)
    assert said or not done.stderr


def test_every_package_of_the_image_is_checked_by_its_hash():
    text = re.sub(r"\\\n", "", CONTAINERFILE.read_text())
    installs = re.findall(r"pip (?:install|wheel) ([^&\n]*)", text)
    assert len(installs) == 4
    assert all("--require-hashes" in words or "--no-index" in words for words in installs)
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["${PYTHON_IMAGE}"] * 2
    assert re.search(r"^ARG PYTHON_IMAGE$", text, re.M)
