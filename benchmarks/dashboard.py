"""The dashboard at 1,000 nodes and 10,000 jobs: ``python -m benchmarks.dashboard [--picture FILE.png] [--json]``.

A made cluster behind the real service, looked at by a real Chromium (Debian's; playwright drives it) on this machine.
Every job changes in every tick, which is the worst case. ``--picture`` draws the picture of docs/images,
of a smaller cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from tests.conftest import FLAGS
from tests.dashboard.conftest import Served
from tests.dashboard.made import MadeService

from commonwatt.service.app import make_app
from commonwatt.service.broadcaster import Broadcaster

NODES, RUNNING, WAITING, TICKS = 1000, 900, 9100, 10
LONG_TASKS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
}).observe({ type: "longtask" });
"""


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.picture is not None:
        _draw(arguments.picture)
        return
    with tempfile.TemporaryDirectory() as folder:
        service = MadeService(Path(folder), nodes=NODES, running=RUNNING, waiting=WAITING)
        found = {"nodes": NODES, "jobs": RUNNING + WAITING} | asyncio.run(_messages(service)) | _page(service)
        service.close()
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:28} {value:>10,.4g}")


def _change(service: MadeService, k: int) -> None:
    jobs = {i: replace(job, done_epochs=job.done_epochs + 0.001) for i, job in service.snapshot().jobs.items()}
    service.tick(jobs=jobs, busy_gpus=k)


async def _messages(service: MadeService) -> dict[str, float]:
    """Return the processor time the server spends to see and write down a change of everything."""
    broadcaster = Broadcaster(service.snapshot, service.database, poll_s=0.01)
    began, times, sizes = time.process_time(), [], []
    async for messages in broadcaster.subscribe(None):
        boards = [message for message in messages if message.event == "board"]
        if not boards:
            continue
        times.append(time.process_time() - began)
        sizes.append(len(boards[0].data))
        if len(times) > TICKS:
            break
        _change(service, len(times))
        began = time.process_time()
    return {
        "whole_board_bytes": sizes[0], "whole_board_cpu_s": times[0], "all_changed_cpu_s": statistics.median(times[1:]),
    }  # fmt: skip


def _page(service: MadeService) -> dict[str, float]:
    """Return how long a browser takes to show it first, and then each change."""
    server = Served(make_app(service.context))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", headless=True, args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(LONG_TASKS)
        first_s = _sign_in(page, server.url, service.tokens["operator"])
        page.wait_for_timeout(3000)
        page.evaluate("window.longest = 0")
        shown = []
        for k in range(TICKS):
            begin = time.perf_counter()
            _change(service, 10_000 + k)
            page.wait_for_selector(f"#tiles b:has-text('{10_000 + k:,}')")
            shown.append(time.perf_counter() - begin)
        longest_s = page.evaluate("window.longest") / 1000
        heap = page.evaluate("performance.memory.usedJSHeapSize")
        browser.close()
    server.stop()
    return {
        "signed_in_to_shown_s": first_s, "tick_to_shown_s": statistics.median(shown),
        "longest_task_s": longest_s, "heap_bytes": heap,
    }  # fmt: skip


def _sign_in(page: Page, url: str, token: str) -> float:
    page.goto(url)
    page.fill("#token", token)
    begin = time.perf_counter()
    page.keyboard.press("Enter")
    page.wait_for_selector("html[data-ready=true]")
    return time.perf_counter() - begin


def _draw(picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        service = MadeService(Path(folder), nodes=300, running=170, waiting=240, seed=7)
        server = Served(make_app(service.context))
        options: dict[str, Any] = {"viewport": {"width": 1280, "height": 1180}}
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", headless=True, args=FLAGS)
            page = browser.new_page(**options)
            _sign_in(page, server.url, service.tokens["operator"])
            page.wait_for_selector("#gpu-figure .scatterlayer path.js-line[d]")
            page.wait_for_timeout(3000)
            page.screenshot(path=picture)
            browser.close()
        server.stop()
        service.close()


if __name__ == "__main__":
    main()
