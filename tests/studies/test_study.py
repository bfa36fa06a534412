"""Whole studies of a small log: what is compared, what is kept, what is drafted."""

import json

import numpy as np
import pytest
import yaml

import commonwatt as cw
from commonwatt.data.files import load_yaml, validate
from commonwatt.data.fitting import TOO_LARGE, UNFIT
from commonwatt.model.errors import InputError
from commonwatt.model.study_file import StudyFile
from commonwatt.report.study_page import render_study
from commonwatt.report.study_text import headline
from commonwatt.simulation import record
from commonwatt.simulation.runner import run_each
from commonwatt.studies import run as running
from commonwatt.studies.assumptions import assumptions_of
from commonwatt.studies.draft import DraftOptions, load_study
from commonwatt.studies.run import ROWS, StudyInterruptedError, plan_study, run_study
from commonwatt.studies.summary import study_result
from tests.studies.made import add_job, make_result, write_log

WEIGHED = [{"name": "team-1", "weight": 3}]
FEW = {"steps": ["planning", "switching-off"], "alternatives": []}


@pytest.fixture
def log(tmp_path):
    return write_log(tmp_path)


def drafted(log, **changes):
    file, folder = load_study(log, DraftOptions(nodes=log.parent / "nodes.txt"))
    return validate(file.model_dump() | changes, StudyFile), folder


def done(log, **changes):
    file, folder = drafted(log, **changes)
    plan = plan_study(file, folder, 0)
    return study_result(plan, run_study(plan))


@pytest.mark.long
def test_the_baseline_in_place_of_ours_saves_nothing(log):
    easy = {"solver": "easy"}
    same = done(log, baseline={**easy, "name": "as today"}, ours={**easy, "name": "ours"}, steps=["planning"])
    assert same.conservative_saving_pct == 0.0
    assert same.conservative_cost_saving_pct == 0.0
    today, ours = (next(p for p in same.policies if p.role == role) for role in ("baseline", "ours"))
    assert today.tenants == ours.tenants


@pytest.mark.long
def test_a_study_of_a_small_log(log):
    result = done(log)
    assert [step.step for step in result.waterfall] == [
        "as today", "thrifty-type", "planning", "consolidation", "switching-off", "resizing", "preemption", "price",
    ]  # fmt: skip
    first, *steps = result.waterfall
    assert first.saved_pct == 0.0
    for step in steps[:-1]:
        assert step.saved_pct == pytest.approx(100 * (1 - step.energy_kwh / first.energy_kwh))
        assert step.assumes
        assert step.switch
    assert steps[-1].energy_kwh is None  # the price does not change
    ours = next(policy for policy in result.policies if policy.role == "ours")
    today = next(policy for policy in result.policies if policy.role == "baseline")
    saved = 100 * (1 - ours.energy_kwh / today.energy_kwh)
    assert result.conservative_saving_pct == pytest.approx(saved)
    planning = next(step for step in steps if step.step == "planning")
    assert planning.alone_pct == pytest.approx(result.conservative_saving_pct)
    assert {tenant.tenant for tenant in ours.tenants} == {"team-0", "team-1", "team-2"}
    assert any(one.drawn for one in result.assumptions)
    assert next(step for step in steps if step.step == "switching-off").alone_pct > 0


@pytest.mark.slow
def test_power_limits_are_a_step_and_nothing_before_it_has_them(log):
    result = done(log, **FEW | {"steps": ["planning", "power-limits"], "power_limits": [0.7]})
    today, planning, limits = result.waterfall
    assert limits.step == "power-limits"
    assert limits.energy_kwh < 0.99 * planning.energy_kwh
    assert limits.switch == "policies.power_limits"
    without = done(log, **FEW | {"steps": ["planning"]})
    assert [step.energy_kwh for step in without.waterfall] == [today.energy_kwh, planning.energy_kwh]


def test_power_limits_are_not_for_the_policies_of_a_study(log):
    with pytest.raises(InputError, match=r"ours\.power_limits.*the step power-limits of `steps` says that"):
        drafted(log, ours={"solver": "lookahead", "power_limits": [0.7]})
    with pytest.raises(InputError, match="planning too, as the baseline knows no power-limits"):
        drafted(log, steps=["power-limits"])


@pytest.mark.long
def test_the_log_itself_is_the_first_row(log):
    logged = done(log, **FEW).policies[0]
    assert (logged.policy, logged.role) == ("as logged", "as-logged")
    assert logged.longest_wait_s == 0.0  # its jobs start when they are submitted
    assert logged.gpu_utilization > 0


@pytest.mark.slow
def test_work_that_is_valued_and_not_metered_is_said(tmp_path):
    log = write_log(tmp_path, jobs=10, days=0.05)  # all are submitted in an hour, and run for hours
    result = done(log, **FEW)
    assert result.policies[0].unfinished_pct > 50
    assert any("valued, not metered" in note for note in result.notes)


def test_a_log_without_starts_is_no_row(tmp_path):
    (tmp_path / "jobs.csv").write_text("job,tenant,submit_s,duration_s,gpus\na,t,0,3600,1\nb,t,60,1800,2\n")
    write_log(tmp_path)
    file, folder = load_study(tmp_path / "jobs.csv", DraftOptions(nodes=tmp_path / "nodes.txt"))
    plan = plan_study(validate(file.model_dump() | FEW, StudyFile), folder, 0)
    result = study_result(plan, run_study(plan))
    assert result.policies[0].role == "baseline"
    assert any("does not tell when jobs started" in note for note in result.notes)
    assert plan.knowledge == "predicted"  # no limits either


def test_rows_share_the_window_whatever_they_relax(log):
    file, folder = drafted(log)
    plan = plan_study(file, folder, 0)
    windows = {
        (float(p.table.submit_s.min()), float(p.table.submit_s.max()), p.table.names) for p in plan.prepared.values()
    }
    assert len(windows) == 1
    assert len({tuple(p.table.kinds) for p in plan.prepared.values()}) == 1  # drawn alike in every row


@pytest.mark.long
def test_jobs_no_node_can_run_are_left_out_and_counted(tmp_path):
    log = write_log(tmp_path, jobs=12, days=0.4)
    plain = done(log, **FEW)
    for k, (gpus, kind) in enumerate([(64, "v100"), (13, "t4"), (9, "v100"), (8, "t4")]):
        add_job(log, gpus, kind, str(900 + k))
    file, folder = drafted(log)  # with every step: rows that let jobs shrink have the same jobs
    assert len({p.table.names for p in plan_study(file, folder, 0).prepared.values()}) == 1
    result = done(log, **FEW)
    assert result.about.jobs == plain.about.jobs == 12
    left = result.about.left_out
    assert left == {how: result.about.treatments[how] for how in left}
    assert left == {TOO_LARGE: 2, UNFIT: 2}  # of 12 GPUs; 9 V100 are no equal parts, 8 T4 are two nodes of one
    assert result.policies == plain.policies
    assert "2 jobs left out: they request more GPUs than the cluster has" in render_study(result)


def test_a_log_of_jobs_no_node_can_run_is_refused(tmp_path):
    log = write_log(tmp_path, jobs=12, days=0.4)
    log.write_text(log.read_text().splitlines()[0] + "\n")
    add_job(log, 64, "v100")
    with pytest.raises(InputError, match="12 GPUs, can run"):
        plan_study(*drafted(log), 0)


@pytest.mark.long
def test_jobs_on_a_type_the_cluster_lacks_are_said_and_counted(tmp_path):
    log = write_log(tmp_path, jobs=12, days=0.4)

    def assumed():
        found = study_result(plan := plan_study(*drafted(log, **FEW), 0), run_study(plan)).assumptions
        return next(one.value for one in found if one.what == "GPU type of jobs")

    assert assumed() == "the one the log names"
    for name in ("900", "901"):
        add_job(log, 1, "p100", name)
    assert "2 jobs ran on a type that the cluster lacks: any type it has" in assumed()


@pytest.mark.long
def test_one_period_and_one_seed_have_no_interval(log):
    result = done(log, **FEW)
    assert result.conservative_saving_interval is None
    assert any("One period and one seed" in note for note in result.notes)


@pytest.mark.long
def test_seeds_give_an_interval_that_says_what_it_covers(log):
    result = done(log, seeds=2, **FEW)
    assert (result.conservative_saving_interval.over, result.conservative_saving_interval.units) == ("seeds", 2)
    assert result.about.seeds == (0, 1)


@pytest.mark.slow
def test_a_tenant_may_have_no_jobs_in_a_period(tmp_path):
    log = write_log(tmp_path, jobs=40, days=2.0)
    first, *lines = log.read_text().splitlines()
    late = [line.replace("team-1", "team-0") if "2026-09-07" in line.split("|")[2] else line for line in lines]
    log.write_text("\n".join([first, *late]) + "\n")
    file, folder = load_study(log, DraftOptions(nodes=tmp_path / "nodes.txt", days=1.0, weeks=2, begin="2026-09-07"))
    plan = plan_study(validate(file.model_dump() | FEW | {"tenants": WEIGHED}, StudyFile), folder, 0)
    weights = [[tenant.weight for tenant in plan.prepared[plan.runs[0, w, 0]].scenario.tenants] for w in range(2)]
    assert weights == [[], [3.0]]
    with pytest.raises(InputError, match=r"'team-x', expected a tenant of the workload \(team-0, team-1, team-2\)"):
        plan_study(validate(file.model_dump() | FEW | {"tenants": [{"name": "team-x"}]}, StudyFile), folder, 0)


@pytest.mark.long
def test_periods_follow_each_other(tmp_path):
    log = write_log(tmp_path, jobs=40, days=2.0)
    file, folder = load_study(log, DraftOptions(nodes=tmp_path / "nodes.txt", days=1.0, weeks=2, begin="2026-09-07"))
    plan = plan_study(file, folder, 0)
    assert plan.starts == ("2026-09-07T00:00:00Z", "2026-09-08T00:00:00Z")
    plan = plan_study(validate(file.model_dump() | FEW, StudyFile), folder, 0)
    outcome = run_study(plan)
    result = study_result(plan, outcome)
    assert result.about.weeks == 2
    runs = [outcome.results[plan.runs[0, week, 0]] for week in range(2)]
    waits = [wait for run in runs for wait in run.wait_s]
    assert len(waits) == result.about.jobs
    assert min(len(run.wait_s) for run in runs) > 0
    today = next(policy for policy in result.policies if policy.role == "baseline")
    assert today.longest_wait_s == max(waits) == max(run.result.longest_wait_s for run in runs) > 0
    for q in (50, 95, 99):
        assert getattr(today, f"p{q}_wait_s") == pytest.approx(np.percentile(waits, q))
    assert today.p95_wait_s != pytest.approx(np.mean([run.result.p95_wait_s for run in runs]))
    assert result.waterfall[0].p95_wait_s == today.p95_wait_s
    assert today.slowdown_p99 == pytest.approx(np.percentile([one for run in runs for one in run.slowdown], 99))
    for tenant in today.tenants:
        own = [w for r in runs for w, t in zip(r.wait_s, r.tenant, strict=True) if r.tenants[t] == tenant.tenant]
        assert tenant.jobs == len(own)
        assert tenant.p95_wait_s == pytest.approx(np.percentile(own, 95))
    assert sum(tenant.jobs for tenant in today.tenants) == result.about.jobs


@pytest.mark.long
def test_what_is_done_is_kept_and_found_again(log, tmp_path, monkeypatch):
    file, folder = drafted(log, **FEW)
    plan, out = plan_study(file, folder, 0), tmp_path / "out"
    whole = study_result(plan, run_study(plan))

    def interrupted(prepared, **options):
        for i, pair in enumerate(run_each(prepared, **options)):
            if i == 2:
                raise KeyboardInterrupt
            yield pair

    monkeypatch.setattr(running, "run_each", interrupted)
    with pytest.raises(StudyInterruptedError) as stopped:
        run_study(plan, folder=out)
    assert (stopped.value.done, stopped.value.total) == (2, len(plan.prepared))
    assert len(list((out / ROWS).iterdir())) == 2
    half = study_result(plan, stopped.value.outcome)
    assert not half.finished

    left = []
    monkeypatch.setattr(running, "run_each", lambda p, **o: (left.extend(p), run_each(p, **o))[1])
    assert study_result(plan, run_study(plan, folder=out)) == whole
    assert len(left) == len(plan.prepared) - 2
    left.clear()
    assert study_result(plan, run_study(plan, folder=out)) == whole
    assert not left


@pytest.mark.long
def test_a_run_that_cannot_be_read_is_run_again(log, tmp_path):
    file, folder = drafted(log, **FEW)
    plan = plan_study(file, folder, 0)
    whole = study_result(plan, run_study(plan, folder=tmp_path / "out"))
    next((tmp_path / "out" / ROWS).iterdir()).write_text("{}")
    assert study_result(plan, run_study(plan, folder=tmp_path / "out")) == whole


def test_other_settings_are_other_runs(log):
    keys = [set(plan_study(*drafted(log, **FEW, **more), 0).prepared) for more in ({}, {"interval_s": 600})]
    assert not keys[0] & keys[1]


@pytest.mark.slow
def test_rows_of_other_code_are_run_again(log, tmp_path, monkeypatch):
    package = tmp_path / "commonwatt"
    (package / "placement").mkdir(parents=True)
    (package / "report").mkdir()
    monkeypatch.setattr(record, "SOURCE", package)

    def keys():
        running.code_digest.cache_clear()
        return set(plan_study(*drafted(log, **FEW), 0).prepared)

    try:
        before = keys()
        (package / "report" / "page.py").write_text("shown = 1")
        assert keys() == before  # does not decide anything
        (package / "placement" / "_solver.py").write_text("tries = 1")
        assert not keys() & before
    finally:
        running.code_digest.cache_clear()


# -- drafting


def test_a_cluster_is_drafted_from_scontrol(log):
    file, _ = drafted(log)
    assert [(node.name, node.count, node.gpu_type, node.gpus) for node in file.nodes] == [
        ("t-1", 1, "T4", 4), ("v", 2, "V100", 4),
    ]  # fmt: skip
    assert any("as without GPUs: 1 node" in text for text in file.assumed)
    assert any("300 s to boot" in text for text in file.assumed)
    assert all(node.states[0].wake_s == 300 for node in file.nodes)


def test_types_that_a_log_does_not_name_are_assumed_and_said(tmp_path):
    log = write_log(tmp_path, typed=False)
    file, folder = drafted(log)
    assert file.workload.logged_gpu_type == "V100"
    assert any("name no GPU type" in text for text in file.assumed)
    assert not plan_study(file, folder, 0).names_types
    file, _ = load_study(log, DraftOptions(nodes=tmp_path / "nodes.txt", gpu_type="T4"))
    assert file.workload.logged_gpu_type == "T4"


def test_a_scenario_is_studied_as_it_stands(log):
    scenario = {
        "name": "mine",
        "workload": {"source": "slurm", "path": "jobs.txt", "days": 1},
        "nodes": [{"name": "v", "count": 3, "gpu_type": "V100", "gpus": 4, "idle_w": 300, "gpu_w": 250}],
        "electricity": {"price_per_kwh": 0.5},
        "policies": [{"solver": "random-greedy"}, {"solver": "easy"}],
    }
    path = log.parent / "mine.yaml"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    file, folder = load_study(path, DraftOptions(pue=1.2))
    assert folder == log.parent
    assert (file.name, file.ours.solver, file.baseline.solver) == ("mine", "random-greedy", "easy")
    assert (file.electricity.price_per_kwh, file.electricity.pue) == (0.5, 1.2)
    assert file.unused_nodes.state is None


@pytest.mark.long
def test_a_study_file_is_read_back_as_it_was_written(log, tmp_path):
    out = tmp_path / "out"
    first = cw.study(log, nodes=log.parent / "nodes.txt", out=out, jobs=1, weeks=1)
    again = load_yaml(out / "study.yaml", StudyFile)
    assert again.name == "jobs"
    plan = plan_study(again, out, 0)
    assert plan.digest() == first.input_digest
    assert json.loads((out / "result.json").read_text()) == json.loads(first.model_dump_json())
    frame = first.to_frame()
    assert frame["policy"].to_list()[-1] == "commonwatt"
    assert "EASY" in first._repr_html_()
    assert "<svg" in first.plot()._repr_svg_()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: {"nodes": None}, "argument 'nodes'"),
        (lambda f: {"nodes": f / "jobs.txt"}, "a job log"),
        (lambda f: {"begin": "2031-01-01"}, "a period of"),
        (lambda f: {"gpu_type": "H9000"}, "GPU type"),
    ],
)
def test_what_is_wrong_in_the_input_is_said(log, change, said):
    wishes = {"nodes": log.parent / "nodes.txt"} | change(log.parent)
    with pytest.raises(InputError, match=said):
        plan_study(*load_study(log, DraftOptions(**wishes)), 0)


def test_a_generated_week_has_no_second_one():
    file = {"workload": {"source": "week", "days": 0.1}, "weeks": 2}
    file["nodes"] = [{"name": "v", "gpu_type": "V100", "gpus": 8, "idle_w": 300, "gpu_w": 250}]
    with pytest.raises(InputError, match="seeds are other weeks"):
        cw.study(file, jobs=1)


@pytest.mark.slow
def test_without_types_in_the_log_the_choice_of_type_is_not_credited_to_ours(tmp_path):
    log = write_log(tmp_path, jobs=8, typed=False, days=2.0)
    result = done(log, steps=["thrifty-type", "planning"], alternatives=[])
    assert result.conservative_against == "thrifty baseline"
    thrifty = next(step for step in result.waterfall if step.step == "thrifty-type")
    ours = next(policy for policy in result.policies if policy.role == "ours")
    today = next(policy for policy in result.policies if policy.role == "baseline")
    assert thrifty.energy_kwh < today.energy_kwh  # types do differ
    assert result.conservative_saving_pct == pytest.approx(100 * (1 - ours.energy_kwh / thrifty.energy_kwh))
    assert any("against today's scheduler with that choice" in note for note in result.notes)
    assert "if it, too, chose GPU types by energy" in headline(result)


def test_the_headline_is_against_the_better_of_todays_schedulers():
    against = make_result(conservative_against="thrifty baseline")
    assert headline(against).startswith("1.2% less energy than today's scheduler would take if it, too, chose")
    ours = next(policy for policy in against.policies if policy.role == "ours")
    more = tuple(p.model_copy(update={"saved_pct": 0.6}) if p is ours else p for p in against.policies)
    none = headline(against.model_copy(update={"conservative_saving_pct": 0.0, "policies": more}))
    assert none.startswith(
        "As much energy as today's scheduler would take if it, too, chose GPU types by energy; 0.6% less"
    )
    assert "scheduler choosing it by energy" in render_study(
        against.model_copy(update={"about": against.about.model_copy(update={"names_gpu_types": False})})
    )


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [["V100", "T4"], ["V100"]])
def test_a_study_file_need_not_say_on_which_type_jobs_ran(tmp_path, nodes):
    """One job without a GPU type was enough for the replay of the log to fail."""
    log = write_log(tmp_path, jobs=8)
    text = log.read_text(encoding="utf-8").splitlines()
    text[3] = text[3].rpartition(",gres/gpu:")[0]
    log.write_text("\n".join(text) + "\n", encoding="utf-8")
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({
        "workload": {"source": "slurm", "path": "jobs.txt", "days": 1}, **FEW,
        "nodes": [{"name": n, "gpu_type": n, "count": 2, "gpus": 4, "idle_w": 300, "gpu_w": 200} for n in nodes],
    }), encoding="utf-8")  # fmt: skip
    plan = plan_study(*load_study(tmp_path / "study.yaml", DraftOptions()), 0)
    result = study_result(plan, run_study(plan))
    assert result.policies[0].role == "as-logged"
    assert plan.first().scenario.workload.logged_gpu_type == (nodes[0] if len(nodes) == 1 else "P100")


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("workload.malleable", True, "the step resizing"), ("workload.other_types", False, "the step thrifty-type"),
        ("workload.due_dates", "none", "`due_dates`"), ("workload.largest_growth", 4, "`largest_growth`"),
        ("preemption.allowed", True, "the step preemption"), ("ours.idle_power", "sunk", "the step consolidation"),
        ("baseline.price", "series", "the step price"), ("ours.preemption", {"allowed": True}, "the step preemption"),
    ],
)  # fmt: skip
def test_what_the_study_sets_itself_is_refused_in_its_file(tmp_path, log, field, value, instead):
    file, _ = drafted(log)
    document = file.model_dump(mode="json", exclude_defaults=True)
    document["workload"] = {"source": file.workload.source, **document["workload"]}
    part, name = field.split(".")
    document.setdefault(part, {"solver": "fair-share"} if part == "baseline" else {})[name] = value
    if part == "ours":
        document["ours"] |= {"solver": "lookahead"}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_study(path, DraftOptions())
    assert caught.value.file == path
    assert caught.value.field == field
    assert instead in caught.value.expected


def test_a_scenario_may_say_it_and_its_growth_is_taken_over(tmp_path, log):
    path = tmp_path / "scenario.yaml"
    own = {"source": "slurm", "path": "jobs.txt", "days": 1, "malleable": False, "largest_growth": 3}
    nodes = [{"name": "n", "gpu_type": "V100", "gpus": 4, "idle_w": 300, "gpu_w": 200}]
    rest = {"preemption": {"allowed": False, "restart_s": 30}, "speed_error": 0.1}
    policies = [{"solver": "lookahead", "idle_power": "sunk", "price": "mean", "preemption": {"allowed": True}}]
    path.write_text(yaml.safe_dump({"workload": own, "nodes": nodes, "policies": policies, **rest}), encoding="utf-8")
    file, _ = load_study(path, DraftOptions())
    assert (file.largest_growth, file.preemption.restart_s, file.speed_error) == (3, 30, 0.1)
    assert load_study(path, DraftOptions(weeks=2))[0].weeks == 2


def test_a_node_may_have_two_types(log):
    mixed = {"name": "m", "gpus": {"V100": 4, "T4": 2}, "idle_w": 400, "gpu_w": {"V100": 250, "T4": 60}}
    file, _ = drafted(log, nodes=[mixed])
    assert [(node.host, node.gpu_type, node.gpus) for node in file.nodes] == [("m", "V100", 4), ("m", "T4", 2)]


def test_what_a_study_assumes_has_its_switch(log):
    file, folder = drafted(log, **FEW)
    said = {one.what: one for one in assumptions_of(plan_study(file, folder, 0))}
    kinds = said["Kind of model of each job: its power, its speed on other GPU types and counts"]
    assert kinds.drawn
    assert "each equally likely" in kinds.value
    assert "COMMONWATT_DATA" in said["Where these speeds and powers are from"].switch
    assert "60 s for the restart" in said["A stop, of whatever cause"].value
    assert said["What they know of speeds on other GPU types and counts"].value == "exactly"
    wrong, folder = drafted(log, speed_error=0.2, **FEW)
    plan = plan_study(wrong, folder, 0)
    assert all(one.scenario.speed_error == 0.2 for one in plan.prepared.values())
    assert "0.2" in {one.what: one for one in assumptions_of(plan)}[
        "What they know of speeds on other GPU types and counts"
    ].value  # fmt: skip
