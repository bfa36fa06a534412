"""Jobs that wait for others start after these, count as submitted then, and are known ahead as far as is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.as_logged import replay_log
from commonwatt.simulation.record import Record
from commonwatt.simulation.run_setup import Dependents, run_policy
from commonwatt.simulation.runner import Prepared
from commonwatt.simulation.summary import record_of
from commonwatt.simulation.workload import prepare
from tests.simulation.made import node

KINDS = ("after", "afterany", "afterok", "afternotok")
SLEEPS = [{"name": "sleep", "power_w": 17, "enter_s": 20, "wake_s": 120}]


def listed(name: str, submit_s: float, time_s: float, gpus: int = 1, **more: object) -> dict:
    return {"name": name, "submit_s": submit_s, "times_s": {"V100": {gpus: time_s}}, "requested_gpus": gpus, **more}


def scenario(jobs: list[dict], nodes: int = 2, **more: object) -> dict:
    policy = more.pop("policy", {"solver": "easy"})
    workload = {"source": "jobs", "jobs": jobs}
    nodes_of = [node("n", gpus=4, count=nodes, states=SLEEPS)]
    return {"workload": workload, "nodes": nodes_of, "policies": [policy], "unused_nodes": {"state": None}, **more}


def prepared(document: dict, folder) -> Prepared:
    return prepare(validate(document, Scenario, "scenario.yaml"), folder, 0)


def run_of(document: dict, folder) -> Record:
    made = prepared(document, folder)
    run = run_policy(made.scenario, made.scenario.policies[0], made.cluster, made.table, 0, past=made.past)
    return record_of(run, "p", made.table, 0.0)


@st.composite
def chains(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> list[dict]:
    made: list[dict] = []
    for i in range(draw(st.integers(2, 7))):
        earlier = draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []
        after = {f"j{k}": draw(st.sampled_from(kinds)) for k in earlier}
        gpus, time_s = draw(st.sampled_from([1, 2, 4])), 50.0 * draw(st.integers(1, 30))
        made.append(listed(f"j{i}", 40.0 * draw(st.integers(0, 20)) + i, time_s, gpus, after=after))
    return made


def never(jobs: list[dict]) -> set[str]:
    """Jobs that wait for a completed one to fail, or for one of these to complete; tried until nothing changes."""
    found: set[str] = set()
    while True:
        more = {
            job["name"]
            for job in jobs
            for other, kind in job["after"].items()
            if (kind == "afternotok" and other not in found) or (kind == "afterok" and other in found)
        }
        if more == found:
            return found
        found = more


@pytest.mark.long
@settings(max_examples=40)
@given(
    jobs=chains(), solver=st.sampled_from(["easy", "fifo", "fair-share", "srtf", "lookahead"]),
    plan=st.sampled_from([None, {"policy": "last-value"}, {"policy": "foresight"}]),
    knowledge=st.sampled_from(["oracle", "none"]),
)  # fmt: skip
def test_no_job_starts_before_those_it_waits_for(jobs, solver, plan, knowledge, tmp_path_factory):
    lost = never(jobs)
    document = scenario(jobs, policy={"solver": solver, "capacity": plan}, knowledge=knowledge)
    if len(lost) == len(jobs):
        with pytest.raises(InputError, match="a job that starts"):
            prepared(document, tmp_path_factory.getbasetemp())
        return
    record = run_of(document, tmp_path_factory.getbasetemp())
    table = record.jobs
    began, ended = (dict(zip(table.name, times.tolist(), strict=True)) for times in (table.began_s, table.ended_s))
    counted = dict(zip(table.name, table.submit_s.tolist(), strict=True))
    assert set(table.name) == {job["name"] for job in jobs} - lost
    for job in jobs:
        if job["name"] in lost:
            continue
        moments = [(began if kind == "after" else ended)[o] for o, kind in job["after"].items() if o not in lost]
        assert counted[job["name"]] == pytest.approx(max([job["submit_s"], *moments]))
        assert began[job["name"]] >= counted[job["name"]]


@pytest.mark.long
@settings(max_examples=30)
@given(jobs=chains(("afterany", "after")), data=st.data())
def test_the_order_of_rows_does_not_matter(jobs, data, tmp_path_factory):
    """No two jobs are submitted at once, so the result is the same to the bit."""
    folder, order = tmp_path_factory.getbasetemp(), data.draw(st.permutations(range(len(jobs))))
    policy = {"solver": "easy", "capacity": {"policy": "last-value"}}
    first, other = (run_of(scenario(own, policy=policy), folder) for own in (jobs, [jobs[i] for i in order]))
    assert first.jobs.name == other.jobs.name
    assert first.jobs.began_s.tolist() == other.jobs.began_s.tolist()
    assert first.result.energy_kwh == other.result.energy_kwh


@pytest.mark.slow
@settings(max_examples=20)
@given(jobs=chains(("afterany",)))
def test_dependencies_met_before_submission_change_nothing(jobs, tmp_path_factory):
    folder, late = tmp_path_factory.getbasetemp(), 100_000.0
    apart = [{**job, "submit_s": job["submit_s"] + late * i} for i, job in enumerate(jobs)]
    free = [{**job, "after": {}} for job in apart]
    one, other = (run_of(scenario(own), folder) for own in (apart, free))
    assert one.jobs.began_s.tolist() == other.jobs.began_s.tolist()
    assert one.jobs.submit_s.tolist() == other.jobs.submit_s.tolist()
    assert one.events.kind == other.events.kind


def test_without_room_to_wait_a_chain_is_its_critical_path(tmp_path):
    jobs = [
        listed("a", 0.0, 500.0), listed("b", 10.0, 300.0, after={"a": "afterok"}),
        listed("c", 20.0, 900.0, after={"a": "after"}),
        listed("d", 30.0, 60.0, after={"b": "afterany", "c": "afterok"}),
    ]  # fmt: skip
    record = run_of(scenario(jobs), tmp_path)
    assert dict(zip(record.jobs.name, record.jobs.began_s.tolist(), strict=True)) == {
        "a": 0.0, "b": 500.0, "c": 20.0, "d": 920.0
    }  # fmt: skip
    assert record.result.mean_wait_s == 0.0
    waits = [s for kind, s in zip(record.events.kind, record.events.sentence, strict=True) if kind == "waits"]
    assert waits == ["b waits: it waits for job a (afterok)", "d waits: it waits for job b (afterany), c (afterok)"]


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({"b": {"a": "afterok", "aa": "afterok"}}, r"workload\.jobs\.b\.after.*aa.*listed"),
        ({"a": {"b": "afterok"}, "b": {"a": "afterany"}}, r"after.*(a -> b -> a|b -> a -> b).*do not wait"),
        ({"a": {"a": "afterok"}}, r"workload\.jobs\.a\.after.*a -> a"),
    ],
)
def test_what_can_never_be_is_an_error(after, message, tmp_path):
    jobs = [listed(name, 0.0, 10.0, after=after.get(name, {})) for name in "ab"]
    with pytest.raises(InputError, match=message):
        prepared(scenario(jobs), tmp_path)


def test_a_job_that_waits_for_a_failure_is_left_out_and_said(tmp_path):
    jobs = [listed("a", 0.0, 10.0), listed("b", 0.0, 10.0, after={"a": "afternotok"})]
    made = prepared(scenario(jobs), tmp_path)
    assert made.table.names == ("a",)
    assert made.treatments == {"left out: wait for a job to fail, and none fails in a simulation": 1}


def told(time_s: float, tmp_path, monkeypatch, knowledge: str) -> tuple[dict[float, list], Record]:
    """Return which arrivals a plan knew of, by time. Job a takes *time_s* on 1 GPU; b needs 8 and waits for it."""
    seen: dict[float, list] = {}
    real = Dependents.coming

    def coming(self, now_s, until_s):
        found = real(self, now_s, until_s)
        seen[now_s] = [column.tolist() for column in found]
        return found

    monkeypatch.setattr(Dependents, "coming", coming)
    jobs = [listed("a", 0.0, time_s, time_limit_s=3_000.0), listed("b", 60.0, 600.0, 8, after={"a": "afterok"})]
    document = scenario(jobs, policy={"solver": "easy", "capacity": {"policy": "last-value"}}, knowledge=knowledge)
    return seen, run_of(document, tmp_path)


@pytest.mark.slow
def test_a_plan_is_told_the_end_that_the_policy_knows(tmp_path, monkeypatch):
    true, record = told(2_000.0, tmp_path, monkeypatch, "oracle")
    assert true[1_800.0] == [[2_000.0], [7], [0]]
    assert true[1_680.0] == [[], [], []]  # beyond the horizon
    assert record.result.capacity is not None
    assert record.result.capacity.jobs_delayed == 0  # the node was awake in time
    limits, by_limit = told(2_000.0, tmp_path, monkeypatch, "user-limit")
    assert by_limit.result.capacity is not None
    assert by_limit.result.capacity.jobs_delayed == 1  # a ended before its limit
    longer, _ = told(2_900.0, tmp_path, monkeypatch, "user-limit")
    assert all(limits[now_s] == longer[now_s] for now_s in limits if now_s < 2_000.0)
    assert longer[2_880.0] == [[3_000.0], [7], [0]]


def log_of(tmp_path, rows: str, **more: object) -> dict:
    (tmp_path / "jobs.csv").write_text("job,submit_s,start_s,end_s,gpus,time_limit_s,after\n" + rows)
    workload = {"source": "csv", "path": "jobs.csv", "malleable": False, "logged_gpu_type": "V100", **more}
    return scenario([]) | {"workload": workload}


def test_a_log_waits_as_its_column_says(tmp_path):
    rows = "p,0,0,400,0,,\na,0,5,1000,1,,\nb,10,1100,1200,2,,afterok:a\nc,20,500,600,1,,afterok:p\n"
    made = prepared(log_of(tmp_path, rows, due_dates={"slack_factor": [2, 2]}), tmp_path)
    assert made.treatments["wait for other jobs: waiting, slowdown and tardiness count from when they may start"] == 1
    assert made.treatments["wait for jobs that are left out: from when those had ended in the log"] == 1
    record = record_of(
        run_policy(made.scenario, made.scenario.policies[0], made.cluster, made.table, 0), "p", made.table, 0.0
    )
    at = {name: i for i, name in enumerate(record.jobs.name)}
    assert record.jobs.began_s[[at[name] for name in "abc"]].tolist() == [0.0, 995.0, 400.0]
    slack_s = made.table.due_s - made.table.submit_s
    rows_of = [made.table.names.index(name) for name in record.jobs.name]
    assert (record.jobs.due_s - record.jobs.submit_s).tolist() == pytest.approx(slack_s[rows_of].tolist())
    logged = replay_log(made, 0.0).record.jobs
    assert (logged.began_s - logged.submit_s).tolist() == [5.0, 100.0, 100.0]
    assert np.isfinite(made.lower_bound())
