"""The whole thing: ``commonwatt serve`` in a process of its own, jobs as processes of this machine, a browser."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("playwright")

pytestmark = pytest.mark.long

CONFIG = """
engine: local
interval_s: 5
nodes:
  - {name: here, gpu_type: V100, gpus: 2, idle_w: 100, gpu_w: 200}
live:
  local: {grace_s: 1}
  server: {port: 0}
"""
SCRIPT = """
import pathlib, sys, time
print("at work", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""
ROW = "#queue-rows [role=row]:not([hidden])"


@pytest.fixture
def live(tmp_path, serve):
    """Serve a configuration; yields address and the operator's token."""
    config = tmp_path / "live.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, "-c", "from commonwatt.cli import main; main()", "serve", str(config), "--json"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        document = "".join(iter(process.stdout.readline, "}\n"))
        url = re.search(r"http://[\w.:]+", document).group()
        token = re.search(r"cw_[\w-]+", (tmp_path / "log").read_text()).group()
        yield url, token
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 0, (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()


def submit(page, name, command):
    page.click("#new")
    page.fill("#submit [name=name]", name)
    page.fill("#submit [name=command]", command)
    page.keyboard.press("Enter")
    page.wait_for_selector("#submit:not([open])", state="attached")
    page.wait_for_selector(f"#says:has-text('({name}) is accepted')")


def test_submit_see_it_run_cancel_another(live, visit, tmp_path):
    url, token = live
    bearer = {"Authorization": f"Bearer {token}"}
    answer = httpx.put(f"{url}/api/v1/tenants/ada", json={"weight": 1}, headers=bearer, timeout=60)
    assert answer.status_code == 200
    page = visit(url, token, charts=True).page
    page.wait_for_selector(".tile-node")
    assert page.locator(".tile-node").count() == 1
    page.wait_for_selector("#tenant-table tbody tr:has-text('ada')")
    stop = tmp_path / "stop"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    submit(page, "first", f"{sys.executable} {script} {stop}")
    page.wait_for_selector(f"{ROW}:has-text('first') .is-running")
    page.wait_for_selector("#plan-rows .bar.running")
    submit(page, "second", f"{sys.executable} -c 'import time; time.sleep(3600)'")
    page.wait_for_selector(f"{ROW}:has-text('second') .is-running")
    page.click(f"{ROW}:has-text('first')")
    page.click("#details button:text-is('Show output')")
    page.wait_for_selector("#details .log:has-text('at work')")
    page.keyboard.press("Escape")
    page.click(f"{ROW}:has-text('second')")
    page.click("#details button:text-is('Cancel the job')")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector("#queue-note:has-text('1 job.')")
    stop.touch()
    page.wait_for_selector("#queue-rows .none")
    page.select_option("#queue-status", "ended")
    page.wait_for_selector(f"{ROW}:has-text('first') .is-completed")
    page.wait_for_selector(f"{ROW}:has-text('second') .is-cancelled")
    page.wait_for_selector("#event-list li:has-text('completed job 1 first')")
    page.click("#switch")
    page.click("#confirm button[value=yes]")
    page.wait_for_selector("#mode:has-text('dry run')")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        jobs = httpx.get(f"{url}/api/v1/jobs", headers=bearer, timeout=60).json()["jobs"]
        if [job["status"] for job in jobs] == ["completed", "cancelled"]:
            return
        time.sleep(0.1)
    pytest.fail(str(jobs))
