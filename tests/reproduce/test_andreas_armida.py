from pathlib import Path

import numpy as np
import pytest

from commonwatt.data.files import load_yaml
from commonwatt.data.generators.andreas import armida_scenario
from commonwatt.model.scenario import Scenario
from commonwatt.reproduce.papers import andreas_armida as armida
from commonwatt.reproduce.topic import TopicRequest
from commonwatt.simulation.record import Segments
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare

EXAMPLE = Path(__file__).parents[2] / "examples" / "armida.yaml"


@pytest.mark.long
def test_table_3(tmp_path):
    answer = armida.table_3(TopicRequest(extent="quick"))
    rows = {row.quantity: row for row in answer.rows}
    predicted, measured = (
        next(r for q, r in rows.items() if q.startswith(f"energy cost, {k}")) for k in ("pre", "mea")
    )
    assert (predicted.paper, measured.paper) == (1.08438, 0.95111)
    assert predicted.ours == pytest.approx(0.95, rel=0.2)
    assert not predicted.comparable
    assert "no independent prediction" in predicted.note
    deviation = rows["measured cost against the predicted one"]
    assert deviation.paper == pytest.approx(100 * (0.95111 / 1.08438 - 1), abs=0.005)
    assert deviation.ours == pytest.approx(100 * (measured.ours / predicted.ours - 1))
    assert rows["mean deviation for each optimizer call"].ours is None
    late = next(r for q, r in rows.items() if q.startswith("jobs that end after"))
    assert (late.paper, late.ours, late.comparable) == (0, 0, True)
    for name in ("FIFO", "EDF", "PS"):
        assert rows[f"total cost saved by randomized greedy against {name}"].ours > 0
    answer.draw(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.slow
def test_figure_4(tmp_path):
    answer = armida.figure_4(TopicRequest())
    assert answer.story[0].split() == ["0", "s", "J6", "is", "submitted"]
    assert sum("is submitted" in line for line in answer.story) == 8
    assert sum("is complete" in line for line in answer.story) == 8
    times = [float(line.split(" s ")[0].replace(",", "")) for line in answer.story]
    assert times == sorted(times)
    answer.draw(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for part in ("armida-05", "2 V100", "J10", "submitted", "due"):
        assert part in text


@pytest.mark.slow
def test_the_experiment_has_no_claim_twice():
    """Table III and Fig. 4 are of one experiment: what both show is judged once."""
    one, other = (
        {row.quantity for row in run(TopicRequest(extent="quick")).rows} for run in (armida.table_3, armida.figure_4)
    )
    assert not one & other
    assert "jobs share the two GPUs of armida-06" in other
    assert any(name.startswith("jobs that end after") for name in one)


@pytest.mark.slow
def test_seeds_are_counted():
    rows = armida.figure_4(TopicRequest(seeds=2)).rows
    assert any("of 2 seeds" in row.note for row in rows)


@pytest.mark.slow
def test_overlap():
    record = run_seeds([prepare(armida_scenario(), Path(), 0)])[1][0]
    six = record.cluster.names.index("armida-06")
    object.__setattr__(
        record, "segments",
        Segments(np.array([0, 2, 1, 3]), np.array([six, six, six, 0]), np.ones(4, int), np.array([0.0, 5, 10, 0]),
                 np.array([6.0, 9, 20, 99])),
    )  # fmt: skip
    assert armida.overlap(record) == [("J6", "J10")]


def test_the_example_is_the_experiment():
    file = load_yaml(EXAMPLE, Scenario)
    made = armida_scenario(file.policies)
    assert [policy.solver for policy in file.policies] == ["random-greedy", "lookahead", "fifo", "edf", "priority"]
    for job, other in zip(file.workload.jobs, made.workload.jobs, strict=True):
        times = {kind: [*row] for kind, row in job.times_s.items()}
        exact = {kind: [*row.values()] for kind, row in other.times_s.items()}
        assert times == {kind: pytest.approx(row, abs=0.051) for kind, row in exact.items()}
        assert job.tardiness_weight == pytest.approx(other.tardiness_weight)
        same = {"times_s": other.times_s, "tardiness_weight": other.tardiness_weight}
        assert job.model_copy(update=same) == other
    assert file.model_copy(update={"workload": made.workload}) == made


@pytest.mark.slow
def test_the_example_gives_the_same_result():
    file = load_yaml(EXAMPLE, Scenario)
    (ours,), records = run_seeds([prepare(file, EXAMPLE.parent, 0)])
    (other,), expected = run_seeds([prepare(armida_scenario(file.policies), EXAMPLE.parent, 0)])
    for record, wanted in zip(records, expected, strict=True):
        assert record.events.kind == wanted.events.kind
        assert record.events.nodes == wanted.events.nodes
        np.testing.assert_allclose(record.events.time_s, wanted.events.time_s, atol=1.0)
    for policy, wanted in zip(ours.policies, other.policies, strict=True):
        assert policy.total_cost == pytest.approx(wanted.total_cost, rel=1e-3)
        assert policy.late_jobs == wanted.late_jobs
