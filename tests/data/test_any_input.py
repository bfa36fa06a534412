"""Whatever a file holds, a reader gives jobs or one line that says what is wrong; never another exception."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commonwatt.data.files import load_yaml
from commonwatt.data.log import window
from commonwatt.data.profiles.gavel import read_gavel
from commonwatt.data.profiles.zeus import read_zeus
from commonwatt.data.readers import READERS, read_log
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario

from . import test_files, test_profiles, test_readers_public, test_slurm, test_swf_csv

TEXTS = {
    "philly": test_readers_public.PHILLY,
    "alibaba": test_readers_public.ALIBABA,
    "helios": test_readers_public.HELIOS,
    "slurm": test_slurm.TABLE,
    "swf": test_swf_csv.SWF,
    "csv": test_swf_csv.PLAIN,
}
PUBLISHED = {
    "philly": json.dumps(
        [test_readers_public.published("a", "2017-10-07", test_readers_public.attempt("2017-10-07", "2017-10-08", 8))]
    ),
    "slurm": json.dumps({"jobs": [test_slurm.job(1)]}),
}
PIECES = [
    "",
    "x",
    "-1",
    "nan",
    "1e999",
    "9" * 30,
    "\n",
    ",",
    "|",
    '"',
    "\x00",
    "null",
    "{",
    "[]",
    "2017",
    ";",
    " ",
    "\u2028",
]

quiet = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def damaged(draw, text):
    """*text* with up to three parts replaced."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 12)))
        text = text[:begin] + draw(st.sampled_from(PIECES)) + text[end:]
    return text


def jobs_or_input_error(call, *args):
    try:
        return call(*args)
    except InputError as error:
        line = str(error)
    assert "\n" not in line
    return None


@pytest.mark.long
@pytest.mark.parametrize(("source", "text"), [*TEXTS.items(), *PUBLISHED.items()])
@quiet
@given(data=st.data())
def test_damaged_logs(write, source, text, data):
    log = jobs_or_input_error(read_log, source, write("log", data.draw(damaged(text))))
    if log is not None:
        assert (log.duration_s > 0).all()
        assert (log.gpus >= 1).all()
        assert (log.submit_s[1:] >= log.submit_s[:-1]).all()
        assert len(set(log.job)) == len(log)
        assert len(window(log, None, 1.0))


@pytest.mark.long
@pytest.mark.parametrize("source", READERS)
@quiet
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes(write, source, content):
    jobs_or_input_error(read_log, source, write("log", content))
    jobs_or_input_error(load_yaml, write("s.yaml", content), Scenario)


@pytest.mark.slow
@quiet
@given(data=st.data())
def test_damaged_scenarios_and_profiles(write, data):
    jobs_or_input_error(load_yaml, write("s.yaml", data.draw(damaged(test_files.GOOD))), Scenario)
    jobs_or_input_error(read_gavel, write("g.csv", data.draw(damaged(test_profiles.GAVEL))))
    jobs_or_input_error(read_zeus, write("z.csv", data.draw(damaged(test_profiles.ZEUS))))
