"""Hypothesis tries the same examples in every run; ``HYPOTHESIS_PROFILE=explore`` tries new ones."""

import os
import shutil
from importlib.util import find_spec

import pytest
from hypothesis import settings

WITHOUT_LIVE = [
    name for name in ("alembic", "fastapi", "sqlalchemy", "sse_starlette", "uvicorn") if not find_spec(name)
]
# Tests of the control plane need the extra `live` whole.
collect_ignore = ["client", "dashboard", "live", "ops", "service", "store"] if WITHOUT_LIVE else []

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run",
    "--disable-sync", "--disable-default-apps", "--disable-domain-reliability", "--no-pings", "--disable-extensions",
]  # fmt: skip


def pytest_collection_modifyitems(items):
    """Try once more what opens a browser, which now and then does not start; nothing else has a second try."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))


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


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; in CI the browser tests must run")
    pytest.skip(reason)


@pytest.fixture(scope="module")  # while it is open, its event loop keeps others from running in this thread
def chromium():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        _missing("no chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()
