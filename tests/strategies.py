"""Hypothesis strategies: small placement problems of every kind."""

from __future__ import annotations

from hypothesis import strategies as st

from commonwatt.model.errors import JobNeverFitsError
from commonwatt.model.place_file import PlaceFile
from commonwatt.placement._problem import PlacementProblem

TIMES = st.integers(1, 40).map(lambda k: 100.0 * k)


@st.composite
def node_lists(draw: st.DrawFn, most: int = 3) -> list[dict]:
    kinds = [
        {"gpu_type": "V100", "gpus": draw(st.integers(1, 3)), "idle_w": 150, "gpu_w": 250},
        {"gpu_type": "T4", "gpus": draw(st.integers(1, 2)), "idle_w": 120, "gpu_w": 70},
    ]
    chosen = draw(st.lists(st.integers(0, 1), min_size=1, max_size=most))
    return [{"name": f"n{i}", **kinds[k]} for i, k in enumerate(chosen)]


@st.composite
def place_files(draw: st.DrawFn, *, most_jobs: int = 4, most_nodes: int = 3, running: bool = True) -> PlaceFile:
    nodes = draw(node_lists(most_nodes))
    types = sorted({n["gpu_type"] for n in nodes})
    free = {n["name"]: n["gpus"] for n in nodes}
    jobs = []
    for j in range(draw(st.integers(1, most_jobs))):
        times = {}
        for gpu_type in draw(st.lists(st.sampled_from(types), min_size=1, max_size=2, unique=True)):
            length = draw(st.integers(1, 4))
            times[gpu_type] = draw(st.lists(TIMES, min_size=length, max_size=length))
        job = {
            "name": f"j{j}",
            "tenant": draw(st.sampled_from(["a", "b"])),
            "submit_s": float(draw(st.integers(0, 3))),
            "due_s": draw(st.one_of(st.none(), TIMES)),
            "tardiness_weight": draw(st.sampled_from([0.0, 1e-4, 5e-4, 1e-3])),
            "times_s": times,
            "requested_gpus": draw(st.integers(0, 2)),
        }
        if running and draw(st.booleans()):
            able = [n for n in nodes if n["gpu_type"] in times and free[n["name"]] > 0]
            if able:
                node = draw(st.sampled_from(able))
                gpus = draw(st.integers(1, free[node["name"]]))
                free[node["name"]] -= gpus
                job["current"] = {"nodes": [node["name"]], "gpus": gpus, "remaining_s": draw(TIMES)}
        jobs.append(job)
    return PlaceFile.model_validate({"now_s": 100.0, "nodes": nodes, "jobs": jobs})


@st.composite
def problems(draw: st.DrawFn, *, most_jobs: int = 4, most_nodes: int = 3, running: bool = True) -> PlacementProblem:
    file = draw(place_files(most_jobs=most_jobs, most_nodes=most_nodes, running=running))
    try:
        return PlacementProblem.of(file)
    except JobNeverFitsError:
        # a list longer than the nodes of its type allow: keep the single GPU, which fits somewhere
        jobs = [j.model_copy(update={"times_s": {t: (v[0],) for t, v in j.times_s.items()}}) for j in file.jobs]
        return PlacementProblem.of(file.model_copy(update={"jobs": tuple(jobs)}))
