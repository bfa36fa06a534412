"""Random small scenarios of every kind, and one run of them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from commonwatt.data.files import validate
from commonwatt.model.errors import JobNeverFitsError
from commonwatt.model.scenario import Scenario
from commonwatt.simulation.record import Record
from commonwatt.simulation.run_setup import PolicyRun, run_policy
from commonwatt.simulation.runner import Prepared
from commonwatt.simulation.summary import record_of
from commonwatt.simulation.workload import prepare

SOLVERS = ("random-greedy", "lookahead", "local-search", "easy", "fair-share", "fifo", "edf", "priority", "srtf")
STATES = [{"name": "off"}, {"name": "sleep", "power_w": 17, "enter_s": 21, "wake_s": 43}]
TARIFFS = [
    {},
    {"price_per_kwh": 0.4, "pue": 1.0, "carbon_g_per_kwh": 300},
    {"series": [{"from_s": 0, "price_per_kwh": 0.1}, {"from_s": 1500, "price_per_kwh": 0.5}]},
    {
        "series": [{"from_s": 0, "price_per_kwh": 0.3}, {"from_s": 700, "price_per_kwh": 0.05}],
        "repeat_s": 1300,
    },
]


def node(name: str, gpu_type: str = "V100", gpus: int = 2, **more: object) -> dict:
    idle_w, gpu_w = {"V100": (150, 250), "T4": (120, 70)}[gpu_type]
    power = {"idle_w": idle_w, "gpu_w": gpu_w, "states": STATES}
    return {"name": name, "gpu_type": gpu_type, "gpus": gpus, **power, **more}


@st.composite
def jobs(draw: st.DrawFn, most: int, types: list[str]) -> list[dict]:
    submit_s, made = 0.0, []
    for i in range(draw(st.integers(1, most))):
        submit_s += draw(st.integers(1, 9)) * draw(st.sampled_from([13.5, 130.5]))
        times: dict[str, dict[int, float]] = {}
        for gpu_type in draw(st.lists(st.sampled_from(types), min_size=1, max_size=2, unique=True)):
            alone_s = draw(st.integers(2, 30)) * 50.0
            sizes = draw(st.sampled_from([(1,), (1, 2), (1, 2, 4), (2,), (4,)]))
            times[gpu_type] = {g: alone_s / g**0.8 for g in sizes}
        made.append(
            {
                "name": f"j{i}", "tenant": draw(st.sampled_from(["a", "b", "c"])), "submit_s": submit_s,
                "due_s": draw(st.sampled_from([None, submit_s + 300, submit_s + 1500])),
                "tardiness_weight": draw(st.sampled_from([0.0, 1e-5, 1e-3])), "times_s": times,
                "epochs": draw(st.sampled_from([1, 7])), "requested_gpus": draw(st.sampled_from([0, 1, 2])),
                "gpu_w": draw(st.sampled_from([{}, {types[0]: 99.0}])),
            }
        )  # fmt: skip
    return made


@st.composite
def documents(draw: st.DrawFn, *, most: int = 7, solvers: tuple[str, ...] = SOLVERS, plain: bool = False) -> dict:
    """Scenario files; *plain*: without anything drawn by job row, and whole epochs kept."""
    types = draw(st.sampled_from([["V100"], ["V100", "T4"]]))
    nodes = [node(f"{t}-{i}", t) for t in types for i in range(draw(st.integers(1, 2)))]
    outage = {"node": nodes[0]["name"], "from_s": 222.25, "to_s": 777.75}
    late = {**outage, "from_s": 500.25, "to_s": 999.75}
    return {
        "workload": {"source": "jobs", "jobs": draw(jobs(most, types))},
        "nodes": nodes,
        "electricity": draw(st.sampled_from(TARIFFS)),
        "interval_s": draw(st.sampled_from([90.0, 300.0])),
        "preemption": draw(
            st.sampled_from([
                {"restart_s": 0, "lose_work": False}, {"restart_s": 33.0}, {"restart_s": 150.0}, {"allowed": False},
            ])
        ),
        "unused_nodes": {
            "state": draw(st.sampled_from(["off", "sleep", None])),
            "after_s": draw(st.sampled_from([0.0, 37.7, 411.3])),
        },
        "outages": draw(st.sampled_from([[], [outage], [outage, late]])),
        "runtime_error": 0.0 if plain else draw(st.sampled_from([0.0, 0.3])),
        "policies": [{"solver": draw(st.sampled_from(solvers)), "iterations": 30}],
    }  # fmt: skip


def prepared(document: dict, seed: int = 0) -> Prepared:
    """Jobs that never fit are left out; a job that fits is there in their place if none does."""
    kept = dict(document)
    while True:
        try:
            return prepare(validate(kept, Scenario), Path(), seed)
        except JobNeverFitsError as error:
            name = str(error.field).split(".")[1]
            left = [j for j in kept["workload"]["jobs"] if j["name"] != name]
            instead = {"name": "fits", "submit_s": 1.5, "times_s": {"V100": [333.0]}}
            kept = kept | {"workload": {"source": "jobs", "jobs": left or [instead]}}


def run(problem: Prepared, k: int = 0) -> tuple[PolicyRun, Record]:
    spec = problem.scenario.policies[k]
    done = run_policy(problem.scenario, spec, problem.cluster, problem.table, problem.seed)
    return done, record_of(done, spec.label, problem.table, problem.lower_bound())
