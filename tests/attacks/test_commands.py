"""Jobs that cannot start, and folders of others that somebody asks about."""

from __future__ import annotations

import pytest

from tests.attacks.site import served, until

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_a_mistyped_command_fails_once_and_paths_are_told_to_nobody(tmp_path):
    with served(tmp_path) as site:
        token = site.token("default")
        ids = {}
        for name, command, folder in (
            ("not found", "no-such-program", None),
            ("not executable", str(tmp_path / "live.yaml"), None),
            ("there", "true", str(tmp_path)),
            ("not there", "true", str(tmp_path / "nothing")),
        ):
            body = {"name": "job", "command": [command], "folder": folder}
            answer = site.call("POST", "/jobs", token, json=body)
            assert answer.status_code == 201, answer.text  # the same answer, whether the folder exists
            assert answer.json()["warnings"] == []
            ids[name] = answer.json()["id"]
        until(lambda: all(site.status(job) not in {"waiting", "running"} for job in ids.values()), 120)
        rows = {name: site.store.job(job) for name, job in ids.items()}
        assert {name: (row.status, row.attempts, row.reason) for name, row in rows.items()} == {
            "not found": ("failed", 1, "command-not-found"),
            "not executable": ("failed", 1, "not-executable"),
            "there": ("completed", 1, "completed"),
            "not there": ("failed", 1, "no-folder"),
        }
        assert rows["not found"].sentence == "job failed: its command was not found: no-such-program"
