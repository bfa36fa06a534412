"""How long a large report takes to open: ``python -m benchmarks.report_page [--nodes N] [--page FILE] [--json]``.

A generated week of 10 jobs a node and day under two policies is simulated, and its page opened several times in a real
Chromium (Debian's; playwright drives it), each time in a context without a cache. The first screen counts as drawn once
its text and its figures are there; the other figures follow when the browser has time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Browser, sync_playwright
from tests.conftest import FLAGS

from benchmarks.scale import JOBS_PER_NODE, day

OPENED = 5  # times


def main() -> None:
    """Simulate, unless a page is given, and open it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--page", type=Path, help="a report.html that is there already, of such a run")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = given.page or _simulated(Path(folder), given.nodes, given.days)
        found = {"nodes": given.nodes, "days": given.days, "jobs_per_day": JOBS_PER_NODE * given.nodes} | _opened(page)
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:16} {value:>10,.4g}")


def _simulated(folder: Path, nodes: int, days: float) -> Path:
    scenario = day(nodes, "lookahead", days).model_dump(mode="json", exclude_unset=True)
    scenario["policies"].append({"solver": "lookahead", "name": "work-conserving", "work_conserving": True})
    (folder / "week.yaml").write_text(yaml.safe_dump(scenario), encoding="utf-8")
    program = Path(sys.executable).with_name("commonwatt")
    command = [program, "simulate", folder / "week.yaml", "--out", folder / "out"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return folder / "out" / "report.html"


def _opened(page: Path) -> dict[str, Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", headless=True, args=FLAGS)
        times = [_times(browser, page) for _ in range(OPENED)]
        browser.close()
    first, last = zip(*times, strict=True)
    return {
        "page_mb": page.stat().st_size / 1e6, "first_screen_s": statistics.median(first),
        "slowest_first_s": max(first), "all_drawn_s": statistics.median(last),
    }  # fmt: skip


def _times(browser: Browser, path: Path) -> tuple[float, float]:
    """Return the seconds until the first screen is drawn, and until all figures are."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page, began_s = context.new_page(), time.perf_counter()
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-ready=true]", state="attached")
    first_s = time.perf_counter() - began_s
    page.wait_for_selector("html[data-drawn=true]", state="attached")
    last_s = time.perf_counter() - began_s
    context.close()
    return first_s, last_s


if __name__ == "__main__":
    main()
