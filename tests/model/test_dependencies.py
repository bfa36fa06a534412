"""What jobs wait for, and what was known of it ahead: against trying every job at every instant."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.model.demand import Arrivals, Notices
from commonwatt.model.dependencies import notices, parse_after


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("afterok:12:13,afterany:7", {"12": "afterok", "13": "afterok", "7": "afterany"}),
        ("after:train-1", {"train-1": "after"}),
        ("afternotok:12_3", {"12_3": "afternotok"}),
    ],
)
def test_the_notation_of_slurm(text, found):
    assert parse_after(text) == found


@pytest.mark.parametrize(
    "text", ["12", "afterok", "afterok:", "afterok:1?afterany:2", "after:1+5", "singleton", "afterok:1,"]
)
def test_other_notations_are_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        parse_after(text)


@st.composite
def logs(draw):
    jobs = []
    for i in range(draw(st.integers(1, 7))):
        others = draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []
        own = {k: draw(st.sampled_from(["after", "afterany", "afterok"])) for k in others}
        submit = draw(st.integers(0, 12))
        moments = [jobs[k][2] + (0 if kind == "after" else jobs[k][3]) for k, kind in own.items()]
        begin = max([submit, *moments]) + draw(st.integers(0, 4))
        length = draw(st.integers(1, 10))
        limit = draw(st.sampled_from([np.nan, np.inf, length, length + 4.0, length / 2]))
        jobs.append((own, submit, begin, length, limit, draw(st.integers(1, 8))))
    return jobs


@pytest.mark.slow
@given(jobs=logs())
def test_notices_are_those_of_looking_at_every_instant(jobs):
    after, submit, begin, length, limit, gpus = (list(column) for column in zip(*jobs, strict=True))
    found = notices(
        after,
        *(np.array(column, dtype=float) for column in (submit, begin, np.add(begin, length), limit)),
        np.array(gpus),
    )
    for now in range(45):
        tried, taken = [], set()
        for j, own in enumerate(after):
            left = [
                o for o, kind in own.items()
                if now < begin[o] or (kind != "after" and now < begin[o] + length[o])
            ]  # fmt: skip
            if not left or now < submit[j] or any(now < begin[o] or not np.isfinite(limit[o]) for o in left):
                continue
            at = max(begin[o] + limit[o] for o in left)
            more = gpus[j] - sum(gpus[o] for o in left if o not in taken)
            taken |= set(left)
            if at > now and more > 0:
                tried.append((at, more))
        assert sorted((n.at_s, n.gpus) for n in found if n.from_s <= now < n.until_s) == sorted(tried)


@pytest.mark.slow
@given(
    said=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(0, 9), st.integers(1, 5)), min_size=1),
    begin=st.integers(0, 15), steps=st.integers(1, 6),
)  # fmt: skip
def test_gpus_due_are_those_of_trying_every_notice(said, begin, steps):
    first, stop, at, gpus = np.array([(f, f + lasts, f + lasts + more, g) for f, lasts, more, g in said]).T
    arrivals = Arrivals(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), None, Notices(first, stop, at, gpus))
    origins = np.arange(begin, begin + 8)
    tried = [
        [sum(g for f, s, a, g in zip(first, stop, at, gpus, strict=True) if f <= o < s and a <= o + h)
         for h in range(1, steps + 1)] for o in origins
    ]  # fmt: skip
    due = arrivals.due(origins, steps)
    assert due is not None
    assert due.tolist() == tried
