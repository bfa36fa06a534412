"""The people's commands against a real server."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from commonwatt.cli.submit import asked_gpus, environment, gpus, gres, job_of, seconds
from commonwatt.client import Client
from commonwatt.control.capacity import PoolNow, PowerNow
from commonwatt.model.capacity import CapacitySpec
from commonwatt.model.errors import InputError, ServiceError
from commonwatt.model.live import TenantLimits
from commonwatt.model.policies import FairnessSpec
from commonwatt.service.context import ServiceContext
from commonwatt.store.api_store import ApiStore
from commonwatt.store.controller_store import ControllerStore, Tick
from commonwatt.store.records import EventRow, RequestKind
from tests.cli.console import run, write
from tests.client.conftest import Served
from tests.service.made import StandIn, job


@pytest.fixture
def as_operator(served, monkeypatch):
    monkeypatch.setenv("COMMONWATT_TOKEN", served.service.tokens["operator"])


@pytest.mark.slow
def test_a_job_says_what_it_needs_beside_gpus():
    job = job_of(None, {"gpus": "2", "cpus_per_gpu": 3.0, "mem_per_gpu": "512M"}, ["x"])
    assert (job.cpus_per_gpu, job.memory_gib_per_gpu) == (3.0, 0.5)


@pytest.mark.slow
def test_a_job_from_its_submission_to_its_end(served, tmp_path):
    done = run(
        "submit", "--job-name", "x", "--gpus", 2, "--gpu-type", "v100", "--time", "02:00:00", "--deadline",
        "2001-12-01T08:00", "--weight", 0.5, "--epochs", 10, "--export", "A=1,B=x=y", "--chdir", tmp_path,
        "--kind", "k", "--json", "--", "python", "train.py", "--lr", "0.1", "--", "x",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.err == "warning: the due date (2001-12-01T08:00) has passed: the job is already late\n"
    number = done.document["id"]
    file = served.service.store.job(number).file
    assert file.command == ("python", "train.py", "--lr", "0.1", "--", "x")
    assert (file.gpus, file.gpu_type, file.time_limit_s, file.epochs) == (2, "v100", 7200.0, 10)
    assert (file.environment, file.folder, file.tardiness_weight) == ({"A": "1", "B": "x=y"}, str(tmp_path), 0.5)
    served.service.obey()
    told = run("jobs")
    assert (told.code, told.err) == (0, "")
    assert "No node has room." in told.out
    assert "waiting, late" in told.out
    page = run("jobs", "--mine", "--status", "waiting", "--json").document
    assert number in [entry["id"] for entry in page["jobs"]]
    why = run("explain", number)
    assert why.out.startswith(f"job {number} (x) is waiting: No node has room. [no-room]\n")
    assert run("explain", number, "--json").document["history"][0]["kind"] == "waits"
    assert run("hold", number).out == f"job {number} (x): will be held\n"
    served.service.obey()
    assert "waiting, held" in run("jobs").out
    assert run("release", number, "--json").document["jobs"][0]["id"] == number
    assert run("cancel", number).code == 0
    served.service.obey()
    assert run("jobs", "--all", "--newest", "--limit", 1, "--json").document["jobs"][0]["status"] == "cancelled"
    with Client() as client:
        assert {ended.tenant for ended in client.ended(tenant="ada", limit=1).jobs} <= {"ada"}


@pytest.mark.slow
def test_a_file_and_flags_that_go_before_it(served, tmp_path):
    file = write(tmp_path / "job.yaml", job(name="in-file", gpus=4, due_in_s=100))
    done = run("submit", file, "--gres", "gpu:V100:1", "--deadline", "2101-01-01", "--key", "k1", "--json")
    assert done.code == 0, done.err
    row = served.service.store.job(done.document["id"])
    assert (row.name, row.file.gpus, row.file.gpu_type, row.file.due_in_s) == ("in-file", 1, "V100", None)
    again = run("submit", file, "--gres", "gpu:V100:1", "--deadline", "2101-01-01", "--key", "k1", "--json")
    assert again.document["id"] == row.id
    assert run("submit", "--json", "--", "/opt/a b/train it.py").document["name"] == "train-it"
    assert run("submit", "--wrap", "echo a && echo b", "--json").document["name"] == "sh"


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1)])
def test_waiting_for_the_end(served, monkeypatch, status, code):
    from commonwatt.client import Client
    from commonwatt.store.controller_store import Tick

    real = Client.job

    def job_then(client, number):
        seen = real(client, number)
        tick = Tick()
        tick.change(number, status=status, ended_s=1e9, sentence=f"true {status}")
        served.service.ticks.write(tick)
        return seen

    monkeypatch.setattr(Client, "job", job_then)
    done = run("submit", "--wait", "--", "true")
    assert done.code == code
    assert f"(true): {status}, " in done.out
    bare = run("submit", "--wait", "--parsable", "--", "true")
    assert (bare.code, bare.out) == (code, f"{int(bare.out)}\n")
    assert run("submit", "--parsable", "--json", "--", "true").code == 2


@pytest.mark.slow
def test_waiting_over_a_restart_of_the_server(served, monkeypatch):
    real, looked = Client.job, []

    def job_then(client, number):
        looked.append(number)
        if len(looked) < 4:
            raise ServiceError("cannot reach it: refused")
        tick = Tick()
        tick.change(number, status="completed", ended_s=1e9, sentence="It ended.")
        served.service.ticks.write(tick)
        return real(client, number)

    monkeypatch.setattr(Client, "job", job_then)
    done = run("submit", "--wait", "--", "true")
    assert done.code == 0
    assert done.err.splitlines()[1:] == ["cannot reach it: refused; still waiting"]


def test_several_are_all_asked_even_if_some_refuse():
    number = run("submit", "--json", "--", "true").document["id"]
    done = run("cancel", 999_998, number, 999_999, number)
    assert (done.code, done.out) == (2, f"job {number} (true): will be cancelled\n")
    assert done.err == "error: there is no job 999998\nerror: there is no job 999999\n"


@pytest.mark.slow
def test_a_job_that_is_due_to_start_starts_now(served):
    number = run("submit", "--job-name", "soon", "--json", "--", "true").document["id"]
    tick = Tick()
    tick.change(number, status="waiting", expected_start_s=1.0)
    served.service.ticks.write(tick)
    (line,) = (line for line in run("jobs", "--newest", "--limit", 1).out.splitlines() if " soon " in line)
    assert "starts now" in line
    assert "expected start  now" in run("explain", number).out.replace("   ", "  ")
    tick = Tick()
    tick.change(number, status="running", expected_end_s=1.0)
    served.service.ticks.write(tick)
    (line,) = (line for line in run("jobs", "--newest", "--limit", 1).out.splitlines() if " soon " in line)
    assert "was to end " in line


@pytest.mark.slow
def test_what_was_done_is_told_though_the_server_went_away(served, as_operator, monkeypatch):
    numbers = [run("submit", "--tenant", "ada", "--json", "--", "true").document["id"] for _ in range(3)]
    for method in ("cancel", "drain"):
        real = getattr(Client, method)

        def then_away(client, thing, real=real):
            if thing in (numbers[1], "v-2"):
                raise ServiceError("the store does not answer", 503)
            return real(client, thing)

        monkeypatch.setattr(Client, method, then_away)
    gone = f"warning: it failed at {numbers[1]}; not asked of {numbers[2]}\nerror: the store does not answer\n"
    first = served.service.store.job(numbers[0])
    done = run("cancel", *numbers)
    assert (done.code, done.out, done.err) == (1, f"job {first.id} (true): will be cancelled\n", gone)
    done = run("cancel", *numbers, "--json")
    assert (done.code, [job["id"] for job in done.document["jobs"]], done.err) == (1, numbers[:1], gone)
    done = run("cancel", 999_999, *numbers[1:])
    assert (done.code, done.out, done.err.splitlines()[1]) == (1, "", "error: there is no job 999999")
    done = run("cancel", *numbers[1:], "--json")
    assert (done.code, done.out, done.err) == (1, "", "error: the store does not answer\n")
    done = run("drain", "v-1", "v-2", "--json")
    assert (done.code, [node["name"] for node in done.document["nodes"]]) == (1, ["v-1"])
    run("undrain", "v-1")
    assert done.err == "warning: it failed at v-2\nerror: the store does not answer\n"


@pytest.mark.slow
def test_an_array_that_is_refused_halfway_is_taken_back_whole(served, tmp_path, monkeypatch):
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH -G1 -a 0-3 -J halfway\ntrue\n")
    config = served.service.config
    queued = sum(row.status == "waiting" for row in served.service.store.jobs(tenant="ada", limit=1000))
    monkeypatch.setattr(type(config.live), "limits_of", lambda *_: TenantLimits(queued_jobs=queued + 2))
    done = run("submit", tmp_path / "a.sh")
    assert (done.code, done.out) == (2, "")
    assert "no task is submitted: the 2 of 4 tasks that were accepted are cancelled" in done.err
    own = {row.id for row in served.service.store.jobs(tenant="ada", limit=1000) if row.name == "halfway"}
    requests = ControllerStore(served.service.store.database).requests()
    assert {each.job for each in requests if each.kind is RequestKind.CANCEL} >= own
    assert len(own) == 2


@pytest.mark.slow
def test_options_of_sbatch_on_the_command_line(served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = "#!/bin/sh\n#SBATCH -G1 -d afterany:999\ntrue\n"
    (tmp_path / "a.sh").write_text(script.replace(" -d afterany:999", ""))
    (tmp_path / "b.sh").write_text(script)
    first = run("submit", "--parsable", "a.sh")
    assert (first.code, first.out) == (0, f"{int(first.out)}\n"), first.err
    number = int(first.out)
    second = run("submit", "-d", f"afterok:{number}", "-b", "now+2hours", "-N", 1, "--json", "b.sh")
    assert second.code == 0, second.err
    file = served.service.store.job(second.document["id"]).file
    assert (file.after, file.nodes, bool(file.begin)) == ({number: "afterok"}, 1, True)
    array = run("submit", "--parsable", "-a", "0-1", "a.sh")
    assert array.out == f"{int(array.out)}\n"  # the first one stands for all
    both = run("submit", "--json", "--dependency", f"afterok:{array.out.strip()}", "--nodes", 1, "--", "true")
    assert both.code == 0, both.err
    file = served.service.store.job(both.document["id"]).file
    assert (list(file.after), file.nodes) == ([int(array.out)], 1)
    refused = run("submit", "-q", "high", "a.sh")
    assert (refused.code, "has no Slurm that would keep it" in refused.err) == (2, True)
    gpus = run("submit", "--cpus-per-gpu", 2, "--json", "a.sh")
    assert served.service.store.job(gpus.document["id"]).file.cpus_per_gpu == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--parsable",), ()])
def test_a_script_from_standard_input_that_prints_its_number(options, served, monkeypatch):
    text = f"#!/bin/sh\n#SBATCH -G1 {'' if options else '--parsable'}\ntrue\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    done = run("submit", *options, "-")
    assert (done.code, done.out) == (0, f"{int(done.out)}\n"), done.err
    assert served.service.store.job(int(done.out)).file.batch.script == text


@pytest.mark.slow
def test_what_sbatch_takes_on_its_command_line_replaces_the_lines_of_the_script(served, tmp_path):
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/sh\n#SBATCH -G1 -c 2 -o a.out\ntrue\n")
    options = ("-c", "4", "-n", "2", "--gpus-per-node", "2", "-o", "/tmp/b.out", "-e", "/tmp/b.err", "-a", "1-4%2")
    done = run("submit", *options, "--parsable", script)
    assert done.code == 0, done.err
    job = served.service.store.job(int(done.out)).file
    assert (job.gpus, job.nodes, job.batch.cpus_per_task, job.batch.tasks_per_node) == (2, 1, 4, 2)
    assert (job.batch.output, job.batch.error, job.batch.array_most) == ("/tmp/b.out", "/tmp/b.err", 2)
    refused = run("submit", "--cpus-per-task", "4", "--gpus", "1", "--", "true")
    assert (refused.code, "'--cpus-per-task'" in refused.err) == (2, True)


@pytest.mark.slow
def test_the_file_of_a_batch_script_is_shown_where_it_can_be_read(served, monkeypatch, tmp_path):
    number = run("submit", "--json", "--", "true").document["id"]
    file = tmp_path / "slurm-1.out"
    line = f"[commonwatt: output goes to {file}]\n"
    monkeypatch.setattr(ServiceContext, "job_log", lambda service, job, attempt, last: line.encode()[-last:])
    gone = run("log", number)
    assert (gone.out, gone.err) == (line, f"{file} cannot be read here\n")
    file.write_text("epoch 1\n\x1b[31mred\n")
    shown = run("log", number)
    assert (shown.out, shown.err) == ("epoch 1\n?[31mred\n", f"-- {file} --\n")
    document = run("log", number, "--last-bytes", 4, "--json")
    assert (document.document, document.err) == ({"job": number, "text": "red\n", "errors": None}, "")
    file.rename(tmp_path / "secret")
    file.symlink_to(tmp_path / "secret")
    assert run("log", number).out == line
    file.unlink()
    os.mkfifo(file)
    assert run("log", number).out == line  # and nobody waits


@pytest.mark.slow
def test_errors_that_have_a_file_of_their_own_are_shown_too(served, monkeypatch, tmp_path):
    number = run("submit", "--json", "--", "true").document["id"]
    out, err = tmp_path / "o ut", tmp_path / "err"
    line = f"[commonwatt: errors go to {err}]\n[commonwatt: output goes to {out}]\n".encode()
    monkeypatch.setattr(ServiceContext, "job_log", lambda service, job, attempt, last: line[-last:])
    err.write_text("failed\n")
    shown = run("log", number)
    assert (shown.out, shown.err) == ("failed\n", f"{out} cannot be read here\n-- {err} --\n")
    out.write_text("worked\n")
    shown = run("log", number)
    assert (shown.out, shown.err) == ("worked\nfailed\n", f"-- {out} --\n-- {err} --\n")
    document = run("log", number, "--last-bytes", 3, "--json").document
    assert document == {"job": number, "text": "ed\n", "errors": "ed\n"}


@pytest.mark.slow
def test_the_file_of_a_batch_script_is_followed_through_all_runs(served, monkeypatch, tmp_path):
    service, file = served.service, tmp_path / "slurm-1.out"
    number = run("submit", "--json", "--", "true").document["id"]
    line = f"[commonwatt: output goes to {file}]\n".encode()
    monkeypatch.setattr(
        ServiceContext, "job_log_after", lambda _, job, attempt, after, most: (line[after : after + most], len(line))
    )
    steps = iter(["attempts=2", "two\n", "over"])

    def state(**values) -> None:
        tick = Tick()
        tick.change(number, **values)
        service.ticks.write(tick)

    def goes_on(_: float) -> None:
        step = next(steps)
        if step == "attempts=2":
            state(attempts=2)
        else:
            with file.open("a") as more:
                more.write(step)
            if step == "over":
                state(status="completed", ended_s=1e9)

    state(status="running", attempts=1)
    file.write_text("one\n")
    monkeypatch.setattr("commonwatt.cli.jobs.time", SimpleNamespace(sleep=goes_on))
    shown = run("log", number, "--follow")
    assert (shown.code, shown.out) == (0, "one\ntwo\nover")
    assert shown.err == f"-- {file} --\n-- run 2 of job {number} --\n-- {file} --\n"
    file.unlink()
    assert run("log", number, "--follow", "--attempt", 1).out == line.decode()


@pytest.mark.slow
def test_what_happened_and_what_was_printed(served, monkeypatch):
    number = run("submit", "--json", "--", "true").document["id"]
    served.service.obey()
    shown = run("events", "--job", number)
    assert shown.code == 0, shown.err
    page = run("events", "--job", number, "--json").document
    assert [event["job"] for event in page["events"]] == [number] * len(page["events"])
    assert len(shown.out.splitlines()) == len(page["events"]) > 0
    assert run("events", "--after", page["next_after"], "--job", number, "--json").document["events"] == []
    assert len(run("events", "--last", 1).out.splitlines()) == 1
    assert run("log", number).code == 2  # it has not run
    printed = b"epoch 1\n\x1b[31mred\xff\n"
    monkeypatch.setattr(ServiceContext, "job_log", lambda service, job, attempt, last: printed[-last:])
    assert run("log", number).out == "epoch 1\n?[31mred\ufffd\n"
    assert run("log", number, "--last-bytes", 5, "--json").document == {
        "job": number, "text": "red\ufffd\n", "errors": None,
    }  # fmt: skip


@pytest.mark.slow
def test_a_log_is_followed_through_all_runs_to_the_end(served, monkeypatch):
    service = served.service
    number = run("submit", "--json", "--", "true").document["id"]
    logs = {1: b"one\n", 2: b""}

    def part(_, job, attempt, after, most):
        text = logs[attempt][after : after + most]
        return text, after + len(text)

    monkeypatch.setattr(ServiceContext, "job_log_after", part)

    def state(**values) -> None:
        tick = Tick()
        tick.change(number, **values)
        service.ticks.write(tick)

    def goes_on(_: float) -> None:
        """Another run begins, prints, prints more and ends."""
        if service.store.job(number).attempts == 1:
            state(attempts=2)
        elif not logs[2]:
            logs[2] += b"two\n"
        else:
            logs[2] += b"three\n"
            state(status="completed", ended_s=1e9)

    state(status="running", attempts=1)
    monkeypatch.setattr("commonwatt.client.client.time", SimpleNamespace(sleep=goes_on))
    shown = run("log", number, "--follow")
    assert (shown.code, shown.out) == (0, "one\ntwo\nthree\n")
    assert shown.err == f"-- run 2 of job {number} --\n"
    assert run("log", number, "--follow", "--attempt", 1).out == "one\n"
    assert run("log", number, "--follow", "--json").code == 2


def test_the_mode(served, as_operator, monkeypatch):
    assert run("mode", "--json").document == {"mode": "live"}
    assert run("mode", "dry-run").out == "mode dry-run, effective at the next tick\n"
    assert run("mode", "live", "--json").document == {"mode": "live"}
    assert run("mode", "sometimes").code == 2
    monkeypatch.setenv("COMMONWATT_TOKEN", served.service.tokens["ada"])
    done = run("mode", "live")
    assert (done.code, done.err) == (2, "error: only operators may do this\n")
    assert run("mode").out == "mode live\n"


@pytest.mark.slow
def test_savings(served, as_operator, monkeypatch):
    assert run("savings").out == "no estimate yet: the first is made a minute after the start, once there are jobs\n"
    saved = {
        "energy_kwh": 1.5, "baseline_energy_kwh": 10.0, "cost": -0.25, "baseline_cost": 2.5, "tardiness_cost": 0.0,
        "baseline": "easy", "jobs": 12.0, "period_s": 86400.0, "capacity": None, "baseline_capacity": None,
        "no_forecast": None,
    }  # fmt: skip
    served.service.now = replace(served.service.now, saved=saved)
    assert run("savings").out.replace("\N{NO-BREAK SPACE}", " ") == (
        "Saves against easy, simulated on 12 jobs of the last 24.0 h: 1.50 kWh (15.0%) less energy, "
        "€0.25 (10.0%) more cost.\n"
    )
    assert run("savings", "--json").document == {"mode": "live", "currency": "EUR", "saved": saved}
    served.service.now = replace(served.service.now, mode="dry-run")
    assert run("savings").out.startswith("Would save against easy")
    monkeypatch.setenv("COMMONWATT_TOKEN", served.service.tokens["ada"])
    assert run("savings").out == "only operators see savings: they are of all jobs\n"


@pytest.mark.slow
def test_nodes_and_tenants(served, as_operator):
    assert run("drain", "v-1", "v-2").out == "node v-1: will be drained\nnode v-2: will be drained\n"
    served.service.obey()
    assert "on, drained" in run("nodes").out
    assert run("undrain", "v-1", "v-2", "--json").code == 0
    served.service.obey()
    assert [node["drained"] for node in run("nodes", "--json").document["nodes"]] == [False] * 3
    done = run("drain", "nowhere")
    assert (done.code, done.err) == (2, "error: there is no node 'nowhere'\n")
    done = run("drain", "v/1", "..", "v-1")
    assert (done.code, done.out) == (2, "node v-1: will be drained\n")
    assert done.err == "error: there is no node 'v/1'\nerror: there is no node '..'\n"
    run("undrain", "v-1")
    served.service.obey()
    assert "not enforced" in run("tenants", "--set", "eve=1").out  # the policy does not divide by weight
    assert [t["name"] for t in run("tenants", "--json").document["tenants"]] == ["ada", "bob", "eve"]
    assert run("submit", "--tenant", "eve", "--json", "--", "true").document["tenant"] == "eve"
    assert run("jobs", "--mine").code == 2


@pytest.mark.slow
def test_the_capacity_plan(as_operator, tmp_path, monkeypatch):
    assert run("capacity").out == "no capacity plan: all nodes stay on\n"
    service = StandIn(tmp_path)
    plan = CapacitySpec.model_validate({"policy": "cuff", "target": {"jobs": 0.98}})
    service.context = replace(service.context, config=service.config.model_copy(update={"capacity": plan}))
    pools = (
        PoolNow("V100", 8, 4, 3, 4, kept=True, sentence=""),
        PoolNow("T4", 1, 0, 1, 1, kept=False, sentence="too few jobs so far"),
    )
    service.now = replace(service.now, pools=pools, power=PowerNow(3000.0, 2500.0, 1))
    planned = Served(service)
    monkeypatch.setenv("COMMONWATT_URL", planned.url)
    monkeypatch.setenv("COMMONWATT_TOKEN", service.tokens["operator"])
    told = run("capacity").out
    assert "capacity plan cuff, promise jobs:0.98" in told
    assert "T4: too few jobs so far" in told
    assert "power budget 3.0 kW: nodes count for 2.5 kW; it keeps 1 node off, and 0 jobs waiting" in told
    document = run("capacity", "--hours", "2", "--json").document
    assert [pool["promised_gpus"] for pool in document["pools"]] == [4, 1]
    assert run("capacity", "--hours", "0").code == 2
    planned.close()
    service.close()


def test_text_of_others_does_not_steer_the_terminal(served, as_operator):
    run("tenants", "--set", "[red]x\x9b31m=1")
    told = run("tenants").out
    assert "[red]x?31m" in told
    assert "\x9b" not in told


@pytest.mark.slow
def test_tokens(served, as_operator, monkeypatch):
    made = run("token", "add", "--tenant", "ada", "--label", "laptop")
    assert (made.code, made.err.count("\n")) == (0, 1)
    token = made.out.strip()
    entry = next(t for t in run("token", "list", "--json").document["tokens"] if t["label"] == "laptop")
    assert "laptop" in run("token", "list").out
    monkeypatch.setenv("COMMONWATT_TOKEN", token)
    refused = run("token", "list")
    assert (refused.code, refused.err) == (2, "error: only operators may do this\n")
    monkeypatch.setenv("COMMONWATT_TOKEN", served.service.tokens["operator"])
    assert run("token", "revoke", entry["id"]).code == 0
    monkeypatch.setenv("COMMONWATT_TOKEN", token)
    gone = run("jobs")
    told = "error: got an unknown or revoked token, expected Authorization: Bearer TOKEN"
    assert (gone.code, gone.err) == (2, f"{told} (set COMMONWATT_TOKEN, or use commonwatt login)\n")
    assert token not in gone.err


@pytest.mark.slow
def test_tokens_on_the_store_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("COMMONWATT_URL", "http://127.0.0.1:1")  # no server is needed
    nodes = [{"name": "n", "gpu_type": "V100", "gpus": 1, "idle_w": 1, "gpu_w": 1}]
    config = write(tmp_path / "live.yaml", {"engine": "local", "nodes": nodes, "tenants": [{"name": "vision"}]})
    made = run("token", "add", "--tenant", "vision", "--config", config, "--json").document
    assert (made["tenant"], made["token"][:3]) == ("vision", "cw_")
    assert run("token", "add", "--operator", "--config", config).code == 0
    assert made["token"].encode() not in (tmp_path / "commonwatt.db").read_bytes()
    assert [t["tenant"] for t in run("token", "list", "--config", config, "--json").document["tokens"]] == [
        "vision",
        None,
    ]
    assert run("token", "revoke", made["id"], "--config", config, "--json").document == {"revoked": made["id"]}
    assert run("token", "revoke", made["id"], "--config", config).code == 2
    unknown = run("token", "add", "--tenant", "eve", "--config", config)
    assert (unknown.code, unknown.err) == (2, "error: field 'tenant': got 'eve', expected an existing tenant\n")


def test_a_store_that_is_not_there_is_made_for_a_token_only(tmp_path):
    nodes = [{"name": "n", "gpu_type": "V100", "gpus": 1, "idle_w": 1, "gpu_w": 1}]
    config = write(tmp_path / "live.yaml", {"engine": "local", "nodes": nodes, "live": {"store": "misspelt.db"}})
    for verb in (("list",), ("revoke", 1)):
        done = run("token", *verb, "--config", config)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {config}: field 'live.store': got '{tmp_path}"[:90])
        assert done.err.endswith(", expected a store that exists\n")
    assert [path.name for path in tmp_path.iterdir()] == ["live.yaml"]
    assert run("token", "add", "--operator", "--config", config).code == 0
    assert run("token", "revoke", 1, "--config", config).code == 0


def test_a_server_that_is_not_there(monkeypatch):
    from commonwatt.client import connection

    monkeypatch.setattr(connection, "_FIRST_PAUSE_S", 0.0)
    done = run("jobs", "--url", "http://127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: cannot reach http://127.0.0.1:1: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["submit"], "field 'FILE': expected a job file, or flags"),
        (["submit", "--gpus", "2"], "field 'name': expected this field to be given"),
        (["submit", "missing.yaml"], "missing.yaml"),
        (["submit", "--gpus", "x", "--", "y"], "field '--gpus': got 'x', expected a number of GPUs, or TYPE:NUMBER"),
        (["submit", "--gres", "mps:1", "--", "y"], "field '--gres'"),
        (
            ["submit", "--gres", "gpu:2", "--gpus", "4", "--", "y"],
            "field '--gres': got '2', expected the number of GPUs as in --gpus (4), or only one of the two",
        ),
        (
            ["submit", "--gpus", "V100:2", "--gpu-type", "T4", "--", "y"],
            "field '--gpus': got 'V100', expected the GPU type as in --gpu-type (T4), or only one of the two",
        ),
        (
            ["submit", "--gres", "gpu:T4:1", "--gpus", "V100:1", "--", "y"],
            "field '--gres': got 'T4', expected the GPU type as in --gpus (V100), or only one of the two",
        ),
        (["submit", "--time", "soon", "--", "y"], "field '--time'"),
        (["submit", "--gpu-counts", "1,x", "--", "y"], "field '--gpu-counts'"),
        (["submit", "--mem-per-gpu", "much", "--", "y"], "field '--mem-per-gpu'"),
        (["submit", "--cpus-per-gpu", "0", "--", "y"], "field 'cpus_per_gpu'"),
        (["submit", "--epochs", "0", "--", "y"], "field 'epochs': got '0'"),
        (["submit", "--gpus", "99", "--", "y"], "field 'gpus': got '99 of V100 or 99 of T4'"),
        (["submit", "--deadline", "x", "--", "y"], "field 'due': got 'x', expected a time such as"),
        (
            ["submit", "--array", "0-3", "--", "y"],
            "field '--array': got '0-3', expected no such option without a batch",
        ),
        (["submit", "-L", "matlab:1", "--", "y"], "field '--licenses'"),
        (["submit", "--nodes", "2-4", "--", "y"], "field '--nodes': got '2-4', expected a whole number, 1 or more"),
        (["submit", "-d", "singleton", "--", "y"], "field '--dependency': got 'singleton'"),
        (["submit", "-b", "someday", "--", "y"], "field '--begin': got 'someday', expected now+2hours"),
        (["submit", "-C", "a&b|c", "--", "y"], "field '--constraint'"),
        (["submit", "--key", "a b", "--", "y"], "field '--key'"),
        (["submit", "--wrap", "x", "--", "y"], "field '--wrap'"),
        (["submit", "--export", "ALL", "--", "y"], "field '--export'"),
        (["submit", "--tenant", "bob", "--", "y"], "this token is for tenant ada only"),
        (["jobs", "--tenant", "bob"], "this token is for tenant ada only"),
        (["explain", "0"], "0 is not in the range"),
        (["drain", "t"], "only operators may do this"),
        (["tenants", "--set", "x"], "field '--set'"),
        (["tenants", "--set", "x=nan"], "field '--set'"),
        (["tenants", "--set", "team/a=1"], "field 'tenant': got 'team/a', expected a name of up to 128 characters"),
        (["token", "add"], "expected either --tenant NAME or --operator"),
        (["jobs", "--url", "nonsense"], "field 'url': got 'nonsense'"),
    ],
)
def test_what_people_write_wrong(arguments, told):
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 1800), ("10:30", 630), ("02:00:00", 7200), ("1-0", 86400), ("1-2:30", 95400), ("2-03:04:05", 183845)],
)
def test_times_as_slurm_writes_them(text, expected):
    """The forms of `man sbatch`, --time."""
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1:2:3:4", "1d", "0-0", "1-", "٣", "1.5"])
def test_times_that_are_none(text):
    with pytest.raises(InputError):
        seconds(text)


def test_gpus_as_slurm_writes_them():
    assert gpus("2") == {"gpus": 2}
    assert gpus("v100:4") == gres("gpu:v100:4") == {"gpus": 4, "gpu_type": "v100"}
    assert gres("gpu") == {"gpus": 1}
    assert gres("gpu:3") == {"gpus": 3}
    assert gres("gpu:v100") == {"gpus": 1, "gpu_type": "v100"}
    assert asked_gpus("V100:2", "gpu:v100:2", "v100") == {"gpus": 2, "gpu_type": "v100"}
    assert asked_gpus("2", "gpu:2", None) == {"gpus": 2}
    assert asked_gpus(None, "gpu", "T4") == {"gpus": 1, "gpu_type": "T4"}
    assert asked_gpus(None, None, None) == {}
    for wrong in ("", "0", "v100:", ":2", "a:b:2"):
        with pytest.raises(InputError):
            gpus(wrong)
    for wrong in ("", "gpu:", "mps:2", "gpu:2,mps:1", "gpu:a:b:2"):
        with pytest.raises(InputError):
            gres(wrong)


def test_environment_as_slurm_writes_it():
    own = {"HOME": "/h", "SECRET": "s"}
    assert environment("NONE", own) == {}
    assert environment("HOME,A=1,B=", own) == {"HOME": "/h", "A": "1", "B": ""}
    for wrong in ("ALL", "ALL,A=1", "MISSING", "=x", ""):
        with pytest.raises(InputError):
            environment(wrong, own)


def test_one_document_of_json_and_nothing_beside_it():
    for arguments in (["jobs"], ["nodes"], ["tenants"]):
        done = run(*arguments, "--json")
        assert (done.code, done.err) == (0, "")
        assert isinstance(json.loads(done.out), dict)


@pytest.mark.slow
def test_help_imports_nothing_large():
    import subprocess

    code = """
import sys
from commonwatt.cli.root import root
for verb in ("submit", "jobs", "token"):
    root([verb, "--help"], standalone_mode=False)
print(sorted({"httpx", "sqlalchemy", "fastapi", "pydantic", "rich", "yaml"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_last_events_are_asked_for_and_no_more(served, monkeypatch):
    number = run("submit", "--json", "--", "true").document["id"]
    said = [EventRow(0, 1.0, "waits", number, (), 0, "no-room", f"{k}") for k in range(9)]
    served.service.ticks.write(Tick(events=said))
    asked, events = [], served.service.store.events

    def counted(self, **how):
        asked.append(len(found := events(**how)))
        return found

    monkeypatch.setattr(ApiStore, "events", counted)
    page = run("events", "--job", number, "--last", 4, "--json").document
    assert [event["sentence"] for event in page["events"]] == ["5", "6", "7", "8"]
    assert page["next_after"] == page["events"][-1]["id"]
    assert asked == [4]
    later = run("events", "--job", number, "--after", page["events"][1]["id"], "--json").document
    assert [event["sentence"] for event in later["events"]] == ["7", "8"]


def test_all_events_page_by_page_from_either_end(served):
    number = run("submit", "--json", "--", "true").document["id"]
    served.service.ticks.write(Tick(events=[EventRow(0, 1.0, "waits", number, (), 0, "", f"{k}") for k in range(9)]))
    with Client() as client:
        forwards = [event.sentence for event in client.events(job=number, page=4)]
        backwards = [event.sentence for event in client.events(job=number, page=4, newest_first=True)]
    assert forwards == backwards[::-1] == [f"{k}" for k in range(9)]


@pytest.mark.slow
def test_phi_of_tenants(as_operator, tmp_path, monkeypatch):
    assert run("tenants", "--json").document["phi"] is None
    done = run("tenants", "--phi", "0.5")
    assert (done.code, "it guarantees tenants nothing" in done.err) == (2, True)
    service = StandIn(tmp_path)
    policy = service.config.policies[0].model_copy(update={"fairness": FairnessSpec(phi=0.7)})
    service.context = replace(service.context, config=service.config.model_copy(update={"policies": (policy,)}))
    fair = Served(service)
    monkeypatch.setenv("COMMONWATT_URL", fair.url)
    monkeypatch.setenv("COMMONWATT_TOKEN", service.tokens["operator"])
    assert "guaranteed 70% of their fair shares" in run("tenants").out
    assert "guaranteed 50%, effective at the next tick" in run("tenants", "--phi", "0.5").out
    assert [(request.kind, request.value) for request in service.ticks.requests()] == [("fairness", 0.5)]
    assert run("tenants", "--phi", "1.5").code == 2
    fair.close()
    service.close()
