"""CPUs and memory of live jobs: what jobs request, what placement counts, and what schedulers are asked for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from commonwatt.control.engine import Start
from commonwatt.controlplane.jobs import GpuNeeds, JobMaker
from commonwatt.engines.kubernetes.settings import KubernetesSettings, pod_manifest
from commonwatt.engines.run_spec import JobWork, RunSpec
from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.engine import SlurmEngine
from commonwatt.engines.slurm.settings import SlurmSettings, submission
from commonwatt.model.errors import JobNeverFitsError
from commonwatt.model.explanation import Reason
from commonwatt.model.job_file import JobFile, ScriptSpec
from commonwatt.model.nodes import Cluster, NodeSpec
from commonwatt.model.scenario import Scenario
from commonwatt.model.units import memory_gib
from commonwatt.testing.engine_contract import contract_cluster
from tests.controlplane.bench import Bench, node
from tests.engines.slurm.conftest import running_site, settings, site  # noqa: F401
from tests.engines.slurm.site import until

NODES = [
    NodeSpec(name="small", gpu_type="V100", gpus=2, idle_w=100, gpu_w=200, cpus=8, memory_gib=64),
    NodeSpec(name="large", gpu_type="V100", gpus=2, idle_w=100, gpu_w=200, cpus=64, memory_gib=256),
]


def script(*options, gpus=2, nodes=1, **more):
    batch = ScriptSpec(script="#!/bin/sh\n", submit_folder="/", options=options, **more)
    return JobFile(name="j", command=("x",), gpus=gpus, nodes=nodes, batch=batch)


@pytest.mark.parametrize(
    ("file", "cpus", "memory"),
    [
        (JobFile(name="j", command=("x",)), 4, 10),  # what the site gives
        (JobFile(name="j", command=("x",), cpus_per_gpu=6), 6, 10),
        (JobFile(name="j", command=("x",), memory_gib_per_gpu=0.5), 4, 0.5),
        (script(), 4, 10),
        (script(tasks_per_node=2), 8, 10),  # the site's CPUs are those of a task
        (script(cpus_per_task=6), 3, 10),
        (script(cpus_per_task=6, tasks_per_node=4, gpus=8, nodes=2), 6, 10),
        (script("--mem=64G"), 4, 32),
        (script("--mem=64G", gpus=8, nodes=2), 4, 16),
        (script("--mem-per-cpu=512", cpus_per_task=6), 3, 1.5),
        (script("--mem-per-gpu=1.5T"), 4, 1536),
        (script("--mem=0"), 4, math.inf),  # all of a node
        (script("--mem=a-lot"), 4, 10),  # which Slurm refuses
    ],
)
def test_what_a_job_needs_for_each_gpu(file, cpus, memory):
    assert GpuNeeds(4, 10).of(file) == GpuNeeds(cpus, memory)


def test_what_the_site_gives():
    def usual(**config):
        return GpuNeeds.usual(Scenario.model_validate({"nodes": [node("n")], **config}))

    slurm = {"cpus_per_gpu": 8, "options": ["--account=ml", "--mem-per-gpu=64G"]}
    assert usual(engine="slurm", live={"slurm": slurm}) == GpuNeeds(8, 64)
    assert usual(engine="slurm") == GpuNeeds(1, 0)
    pods = {"cpus_per_gpu": 2.5, "memory_gb_per_gpu": 2**30 / 1e9}
    assert usual(engine="kubernetes", live={"kubernetes": pods}) == GpuNeeds(2.5, pytest.approx(1))
    assert usual(engine="local") == GpuNeeds()


def test_sizes_as_slurm_writes_them():
    assert [memory_gib(text) for text in ("1024", "1024M", "1G", "2gb", "1T", "1048576K")] == [1, 1, 1, 2, 1024, 1]
    with pytest.raises(ValueError, match="a size such as 500M"):
        memory_gib("much")


def test_a_job_that_no_node_can_hold_is_refused():
    maker = JobMaker(Cluster.of(NODES), 60.0)
    whole = script("--mem=0")
    assert maker.check(whole)
    assert maker.check(JobFile(name="j", command=("x",), cpus_per_gpu=64))
    for more, said in (({"cpus_per_gpu": 65}, "65 CPUs for each"), ({"memory_gib_per_gpu": 300}, "300 GiB for each")):
        with pytest.raises(JobNeverFitsError, match="no more CPUs and memory") as refused:
            maker.check(JobFile(name="j", command=("x",), **more))
        assert said in str(refused.value)
    # of several counts, those that fit are left
    some = maker.check(JobFile(name="j", command=("x",), gpu_counts=(1, 2), gpus=1, cpus_per_gpu=40))
    assert {figure.gpus for figure in some} == {1}


def nodes_with(**more):
    return [node("n-1", **more)]


@pytest.mark.slow
def test_a_job_waits_for_cpus_though_a_gpu_is_free(tmp_path):
    bench = Bench(tmp_path, nodes=nodes_with(cpus=8), tenants=[{"name": "a"}])
    first, second = (bench.submit(100.0, cpus_per_gpu=6) for _ in range(2))
    bench.settle()
    assert [bench.status(job) for job in (first, second)] == ["running", "waiting"]
    assert bench.snapshot().jobs[second].reason == Reason.CPUS_OR_MEMORY.value
    bench.begin()  # as another process would find it
    bench.settle()
    assert bench.status(second) == "waiting"
    bench.advance(200.0)
    bench.settle()
    assert [bench.status(job) for job in (first, second)] == ["completed", "running"]
    bench.close()


def test_nodes_that_cannot_hold_a_job_are_left_to_others(tmp_path):
    pair = [node("n-1", cpus=8), node("n-2", cpus=64)]
    bench = Bench(tmp_path, nodes=pair, tenants=[{"name": "a"}])
    jobs = [bench.submit(100.0, cpus_per_gpu=20) for _ in range(3)]
    bench.settle()
    assert [bench.status(job) for job in jobs] == ["running", "running", "waiting"]
    assert {name for job in bench.snapshot().jobs.values() for name in job.nodes} == {"n-2"}
    bench.close()


def test_what_slurm_is_told():
    spec = RunSpec(1, 1, "j", (0,), 2, ((),), 0.0, 0.0, ("x",), "/", {}, 5.0)
    site_s = SlurmSettings(options=("--mem-per-gpu=64G", "--account=ml"), cpus_per_gpu=4)

    def told(**more):
        options = submission(site_s, replace(spec, **more), ["a"], "v100", Path("/s"), "c")
        return {option for option in options if option.startswith(("--mem", "--cpus", "--account"))}

    assert told() == {"--mem-per-gpu=64G", "--cpus-per-task=8", "--account=ml"}
    assert told(cpus=3.0, memory_gib=1.5) == {"--mem=1536M", "--cpus-per-task=3", "--account=ml"}
    assert "--mem-per-gpu=64G" not in told(options=("--mem=1G",))  # Slurm takes one of them


@pytest.mark.slow
def test_slurm_gives_what_a_job_asks_for(site, settings, tmp_path):  # noqa: F811
    work = JobWork(("sleep", "600"), Path("/"), cpus_per_gpu=3.0, memory_gib_per_gpu=0.5)
    engine = SlurmEngine(contract_cluster(), tmp_path, lambda _: work, slurm=Slurm(site.conf), settings=settings)
    engine.apply([Start(1, "j", (0,), 2)])
    until(lambda: site.ask("squeue", "--noheader", "--states=RUNNING", "--format=%A").strip())
    assert site.ask("squeue", "--noheader", "--format=%C %m").split() == ["6", "1G"]


def test_what_kubernetes_is_told():
    settings_s = KubernetesSettings(image="x", cpus_per_gpu=1.5, memory_gb_per_gpu=2.0)
    spec = RunSpec(1, 1, "j", (0,), 2, ((),), 0.0, 0.0, ("x",), "/", {}, 5.0)

    def told(**more):
        body = pod_manifest(settings_s, replace(spec, **more), "n", "nvidia.com/gpu", Path("/s/runs/1-1"), Path("/s"))
        return body["spec"]["containers"][0]["resources"]

    assert told()["requests"] == {"cpu": "3000m", "memory": "4000000000"}
    asked = told(cpus=5.0, memory_gib=1.5)
    assert asked["requests"] == {"cpu": "5000m", "memory": str(3 * 2**29)}
    assert asked["limits"] == {"nvidia.com/gpu": "2", "memory": str(3 * 2**29)}
