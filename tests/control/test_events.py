"""What events say in words."""

from __future__ import annotations

import pytest

from commonwatt.control.engine import JobInterrupted
from commonwatt.control.events import lost_s_of, told


def interrupted(lost_s: float, *, begun: bool = True) -> str:
    return told(JobInterrupted(0, 1.0, lost_s, "node n went down", begun), "j", (0,), 1).sentence


@pytest.mark.parametrize(("lost_s", "seconds"), [(0.0, None), (0.3, None), (0.6, 1.0), (12.4, 12.0), (1e9, 1e9)])
def test_an_interruption_says_how_much_work_is_lost(lost_s, seconds):
    assert lost_s_of(interrupted(lost_s)) == seconds


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "j was interrupted: node n went down",
        interrupted(5.0, begun=False),
        "12 s of work since the last snapshot are lost, it is said",
        "j was interrupted: some s of work since the last snapshot are lost",
    ],
)
def test_what_says_nothing_of_lost_work(sentence):
    assert lost_s_of(sentence) is None
