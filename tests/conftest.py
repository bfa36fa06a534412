"""Marks tests by what they need; runs them with the same examples of Hypothesis each time.

``HYPOTHESIS_PROFILE=explore`` tries new examples. ``COMMONWATT_TEST_PASSED=FILE`` adds the tests that pass to
a file, and leaves out those it has; ``FILE-failed`` has those that failed in the last run.
"""

import os
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from tests.machine import lacking, which

WITHOUT_LIVE = [
    name for name in ("alembic", "fastapi", "sqlalchemy", "sse_starlette", "uvicorn") if not find_spec(name)
]
# Tests of the control plane need the extra `live` whole.
collect_ignore = ["client", "dashboard", "controlplane", "deploy", "service", "store"] if WITHOUT_LIVE else []

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run",
    "--disable-sync", "--disable-default-apps", "--disable-domain-reliability", "--no-pings", "--disable-extensions",
]  # fmt: skip
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# What a test needs shows in the fixtures it uses, directly or through others, and in its parameters.
MARK_OF_FIXTURE = {
    "running_site": "slurm", "running_kubernetes": "kubernetes", "mariadb": "database", "postgresql": "database",
    "chromium": "browser", "traces": "data",
}  # fmt: skip
DATABASES = {"mariadb", "postgresql"}


def pytest_itemcollected(item):
    """Mark what needs Slurm, Kubernetes, a database server, a browser or third-party data."""
    marks = {MARK_OF_FIXTURE[name] for name in MARK_OF_FIXTURE.keys() & set(item.fixturenames)}
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    each = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    if any(isinstance(part, str) and part in DATABASES for part in each):
        marks.add("database")
    for mark in sorted(marks):
        item.add_marker(mark)
    if "browser" in marks:  # now and then it does not start
        item.add_marker(pytest.mark.flaky(reruns=1))


def left_out(config):
    """Return the marks that `-m "not (a or b)"` leaves out."""
    excluded = re.fullmatch(r"not \(?(\w+(?: or \w+)*)\)?", config.option.markexpr)
    return set(excluded[1].split(" or ")) if excluded else set()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One more than there are cores, as many slow tests wait for a server; without them, one for each core."""
    return len(os.sched_getaffinity(0)) + ("slow" not in left_out(config))


ALONE = {"test_pages.py", "test_examples.py", "test_first_minute.py", "test_deviation.py", "test_andreas.py"}
"""Files whose long tests share no fixture that takes long."""


SECOND_CLUSTER = {"test_user_job_ends.py", "test_user_jobs.py", "test_pod_fit.py"}
"""Files that have a Kubernetes of their own, beside that of the others: half of what waits for it."""


PASSED = os.environ.get("COMMONWATT_TEST_PASSED")
FILES = f"{PASSED}-files"
"""How many tests each file has: files whose tests have all passed are not even imported again."""


def _lines(path):
    return Path(path).read_text(encoding="utf-8").splitlines() if PASSED and Path(path).exists() else []


def _all_passed():
    passed = Counter(line.partition("::")[0] for line in set(_lines(PASSED)))
    has = {path: int(tests) for path, tests in (line.split("\t") for line in _lines(FILES))}
    return {path for path, tests in has.items() if passed[path] == tests}


DONE = _all_passed()


def pytest_ignore_collect(collection_path, config):
    """Ignore what ran already, and a file whose every test is left out: nothing it needs (PyTorch) is imported."""
    if DONE and collection_path.relative_to(config.rootpath).as_posix() in DONE:
        return True
    excluded = left_out(config) if collection_path.suffix == ".py" else set()
    if excluded:
        marks = re.findall(r"^pytestmark = .*?\bpytest\.mark\.(\w+)", collection_path.read_text("utf-8"), re.MULTILINE)
        return True if excluded & set(marks) else None
    return None


def pytest_sessionfinish(session):
    if PASSED and not hasattr(session.config, "workerinput"):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        with Path(PASSED).open("a", encoding="utf-8") as file:
            file.writelines(
                f"{report.nodeid}\n" for report in reporter.stats.get("passed", ()) if report.when == "call"
            )
        failed = {report.nodeid for kind in ("failed", "error") for report in reporter.stats.get(kind, ())}
        Path(f"{PASSED}-failed").write_text("".join(f"{name}\n" for name in sorted(failed)), encoding="utf-8")


def _count(config, items):
    """Write down how many tests each file has; once, and only if files were collected whole."""
    worker = getattr(config, "workerinput", {"workerid": "gw0"})["workerid"]
    if PASSED and worker == "gw0" and not any("::" in str(one) for one in config.args):
        tests = Counter(item.nodeid.partition("::")[0] for item in items)
        with Path(FILES).open("a", encoding="utf-8") as file:
            file.writelines(f"{path}\t{number}\n" for path, number in tests.items())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """With several workers: two have Kubernetes, one Slurm; others go by file, or alone if they share nothing."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    _count(config, items)

    def place(item):
        marks = {mark.name for mark in item.iter_markers()}
        path = item.nodeid.partition("::")[0]
        if "kubernetes" in marks:
            return 0, "kubernetes-2" if item.path.name in SECOND_CLUSTER else "kubernetes"
        if "slurm" in marks:
            return 1, "slurm"
        if "long" in marks:
            return 2, None if item.path.name in ALONE else path
        return 3 if item.path in slow else 4, path

    workers = getattr(config.option, "loadgroup", False)
    placed = [(*place(item), item) for item in items]
    if workers:
        placed.sort(key=lambda one: one[0])
    passed = set(_lines(PASSED))
    left, gone = [], []
    for _, group, item in placed:
        if item.nodeid in passed or f"{item.nodeid}@{group}" in passed:  # as reports of workers name it
            gone.append(item)
            continue
        left.append(item)
        if workers and group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    if gone:
        config.hook.pytest_deselected(items=gone)
    items[:] = left


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"failed at first: {report.nodeid}", "-")
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.section(name, "-")
            terminalreporter.write_line(text)


def pytest_report_header():
    return (
        [f"not collected, as {', '.join(WITHOUT_LIVE)} is missing: {', '.join(collect_ignore)}"] if WITHOUT_LIVE else []
    )


@pytest.fixture(scope="module")  # while it is open, its event loop keeps others from running in this thread
def chromium():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("browser", "playwright is not installed")
    path = next(filter(None, (which("browser", name) for name in BROWSERS)), None)
    if path is None:
        lacking("browser", "no chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def running_kubernetes(tmp_path_factory):
    """One Kubernetes for all tests of a process: it takes 10 s to start."""
    from tests.engines.kubernetes.site import RECIPE, KubernetesSite, missing

    if reason := missing():
        if not RECIPE.exists():  # unlike other servers, it is in no package that CI could install
            pytest.skip(reason)
        lacking("kubernetes", reason)
    site = KubernetesSite(tmp_path_factory.mktemp("kubernetes"))
    try:
        site.start()
        yield site
    finally:
        site.stop()


@pytest.fixture
def kube(running_kubernetes):
    """That Kubernetes, put in order afterwards."""
    yield running_kubernetes
    running_kubernetes.settle()
