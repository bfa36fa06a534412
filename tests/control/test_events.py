"""What events say of a job that ended or was interrupted."""

from __future__ import annotations

import pytest

from commonwatt.control.engine import JobInterrupted
from commonwatt.control.events import Event, Requester, cancelled_by, report_of


def interrupted(lost_s: float, *, begun: bool = True) -> Event:
    return report_of(JobInterrupted(0, 1.0, lost_s, "node n went down", begun), "j", (0,), 1)


@pytest.mark.parametrize(
    ("lost_s", "words"),
    [(0.0, ""), (0.3, ""), (0.6, "; 1 s of work"), (12.4, "; 12 s of work"), (1e9, "; 1000000000 s")],
)
def test_an_interruption_says_how_much_work_is_lost(lost_s, words):
    event = interrupted(lost_s)
    assert event.lost_s == lost_s
    assert event.sentence.startswith(f"j was interrupted: node n went down{words}")
    assert (" lost" in event.sentence) == bool(words)


def test_a_job_that_did_not_start_has_nothing_to_lose():
    event = interrupted(5.0, begun=False)
    assert (event.lost_s, event.sentence) == (None, "j did not start: node n went down")


def test_a_cancellation_says_whose_it_is():
    assert cancelled_by(Requester.TENANT) == ("cancelled", "cancelled by its owner")
    assert cancelled_by(Requester.OPERATOR) == ("cancelled-by-operator", "cancelled by an operator")
    assert cancelled_by(None) == ("cancelled", "cancelled")
