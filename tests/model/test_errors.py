"""Errors come back whole from worker processes."""

import pickle

import pytest

from commonwatt.model.errors import InputError, JobNeverFitsError, MissingExtraError


@pytest.mark.parametrize("kind", [InputError, JobNeverFitsError])
def test_input_errors_survive_the_way_between_processes(kind):
    error = kind("a number", file="a.csv", field="gpus", value="x")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == "a.csv: field 'gpus': got 'x', expected a number"
    assert again.within("b.yaml") is again


def test_a_missing_extra_survives_it_too():
    error = MissingExtraError("ray", "ray")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_long_values_and_line_breaks_stay_one_short_line():
    text = str(InputError("a name", field="name", value="x\n" * 500))
    assert "\n" not in text
    assert len(text) < 200
