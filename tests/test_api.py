"""``import commonwatt``: each function takes a file, a mapping or a model, and returns what a notebook shows well."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import commonwatt as cw
from commonwatt.data.files import load_yaml, parse_yaml
from commonwatt.model.demand import DemandSeries
from commonwatt.model.errors import ArgumentError, InputError
from commonwatt.model.partition_file import MigFile, PartitionFile
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.timeslice_file import PlanFile
from commonwatt.simulation.runner import RunsInterruptedError

EXAMPLES = Path(__file__).parent.parent / "examples"
MEASURED = {"solve_s", "search_s", "scheduler_s"}  # times differ from run to run

MAP = {
    "system_bandwidth_gbs": 16,
    "table": {"latency_cycles": [[100, 400], [300, 200], [50, 60]], "bandwidth_gbs": [[4, 2], [8, 6], [1, 1]]},
}
SCENARIO = {
    "workload": {"source": "jobs", "jobs": [{"name": f"j{j}", "submit_s": 60 * j, "due_s": 7200,
                 "tardiness_weight": 1e-3, "times_s": {"V100": [1800, 1000]}} for j in range(4)]},
    "nodes": [{"name": "n", "gpu_type": "V100", "gpus": 2, "idle_w": 150, "gpu_w": 250}],
    "policies": [{"solver": "fifo"}, {"solver": "edf"}],
}  # fmt: skip
DEMAND = [float(10 + k % 24) for k in range(3000)]


def without_times(result) -> dict:
    def clean(value):
        if isinstance(value, dict):
            return {key: clean(part) for key, part in value.items() if key not in MEASURED}
        return [clean(part) for part in value] if isinstance(value, (list, tuple)) else value

    return clean(result.model_dump(mode="json"))


def test_names_are_sorted_documented_and_there():
    assert cw.__all__ == sorted(cw.__all__)
    assert set(cw.__all__) <= set(dir(cw))
    for name in cw.__all__:
        assert name == "__version__" or getattr(cw, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        cw.simulat  # noqa: B018


def test_importing_it_imports_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, commonwatt, commonwatt.progress\nprint(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not {"numpy", "polars", "pydantic", "numba", "lazy_loader"} & set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "file", "model"),
    [
        (cw.place, "place.yaml", PlaceFile),
        (cw.timeslice, "quantum.yaml", PlanFile),
        (cw.partition, "partition.yaml", PartitionFile),
        (cw.partition_mig, "mig.yaml", MigFile),
    ],
)
def test_a_file_a_mapping_and_a_model_give_one_result(call, file, model, tmp_path):
    path = EXAMPLES / file
    mapping = parse_yaml(path.read_text())
    by_file, by_text, by_mapping, by_model = (
        call(path), call(str(path)), call(mapping), call(load_yaml(path, model)),
    )  # fmt: skip
    assert without_times(by_file) == without_times(by_mapping) == without_times(by_model) == without_times(by_text)
    _shown_well(by_file, tmp_path)


@pytest.mark.slow
def test_layers_are_mapped(tmp_path):
    result = cw.map_layers(MAP, budget=200)
    assert result.makespan_cycles >= result.lower_bound_cycles > 0
    assert result.to_frame().height == 3
    _shown_well(result, tmp_path)


def test_a_second_batch_is_mapped_beside_the_first_and_learns_from_it():
    """As the command does: a start, a running schedule, a transfer, as a result, a document or a file."""
    first = cw.map_layers(MAP, budget=50, seed=1)
    again = cw.map_layers(MAP, budget=50, seed=2, start=first)
    assert again.makespan_cycles <= first.makespan_cycles * (1 + 1e-12)
    runs = first.schedule()
    assert sorted(part.job for part in runs.jobs) == ["0", "1", "2"]
    at = 0.5 * first.makespan_cycles
    beside = cw.map_layers(MAP, budget=50, after=runs, at_cycles=at)
    by_mapping = cw.map_layers(MAP, budget=50, after=runs.model_dump(mode="json"), at_cycles=at)
    assert without_times(beside) == without_times(by_mapping)
    assert beside.schedule().begin_cycles == at
    assert beside.to_frame().height > 3
    learnt = cw.map_layers(MAP, transfer=first.transfer(), match="rank", epochs=2, seed=3)
    assert learnt.algorithm == "transfer"
    with pytest.raises(InputError, match="not one read from a document"):
        type(first).model_validate_json(first.model_dump_json()).schedule()


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({"after": "runs.json"}, "after", "`at_cycles` beside it"),
        ({"at_cycles": 3.0}, "at_cycles", "`after` beside it"),
        ({"epochs": 1}, "epochs", "`transfer` beside it"),
        ({"match": "rank"}, "match", "`transfer` beside it"),
        ({"epochs": -1}, "epochs", "a whole number, 0 or more"),
        ({"match": "closest"}, "match", "nearest, rank"),
        ({"transfer": {}, "algorithm": "heft"}, "algorithm", "no algorithm beside `transfer`"),
        ({"start": 3}, "start", "a path, a mapping or a MappingFile"),
    ],
)
def test_arguments_of_map_layers_that_do_not_go_together(given, field, expected):
    with pytest.raises(ArgumentError) as caught:
        cw.map_layers(MAP, **given)
    assert caught.value.field == field
    assert expected in str(caught.value)


@pytest.mark.slow
def test_a_map_problem_of_layers_finds_its_files():
    by_file = cw.map_layers(EXAMPLES / "map_layers.yaml", budget=50)
    mapping = parse_yaml((EXAMPLES / "map_layers.yaml").read_text())
    by_mapping = cw.map_layers(mapping, budget=50, folder=EXAMPLES)
    assert without_times(by_file) == without_times(by_mapping)


@pytest.mark.slow
def test_a_scenario_is_simulated(tmp_path):
    result = cw.simulate(SCENARIO, jobs=1)
    assert result.to_frame()["policy"].to_list() == ["fifo", "edf"]
    assert [record.result.policy for record in result.records] == ["fifo", "edf"]
    _shown_well(result, tmp_path)
    only = cw.simulate(SCENARIO, policies=["edf"], jobs=1)
    assert only.to_frame()["energy_kwh"].to_list() == result.to_frame()["energy_kwh"].to_list()[1:]


def test_seeds_give_means():
    sweep = cw.simulate(SCENARIO, seeds=2, jobs=1)
    assert sweep.seeds == (0, 1)
    frame = sweep.to_frame()
    assert frame["energy_kwh_mean"].to_list() == [policy.energy_kwh.mean for policy in sweep.policies]
    assert "2 seeds" in sweep._repr_html_()


@pytest.mark.long
def test_demand_is_forecast_from_any_form(tmp_path):
    csv = tmp_path / "demand.csv"
    csv.write_text("time,gpus\n" + "".join(f"{300 * k},{gpus}\n" for k, gpus in enumerate(DEMAND)))
    frame = pl.DataFrame({"unique_id": "a", "ds": np.arange(len(DEMAND)) * 300, "y": DEMAND})
    forms = [
        csv,
        {"gpus": DEMAND, "step_s": 300},
        DemandSeries(0.0, 300.0, np.array(DEMAND)),
    ]
    results = [cw.forecast(form, total_gpus=40) for form in forms]
    assert all(without_times(result) == without_times(results[0]) for result in results)
    assert cw.forecast(frame, total_gpus=40).plan[0].gpus_on > 0
    _shown_well(results[0], tmp_path)


def _shown_well(result, folder: Path) -> None:
    html = result._repr_html_()
    assert html.startswith("<p>")
    assert "<table" in html
    assert result.to_frame().height > 0
    assert result.plot()._repr_svg_().lstrip().startswith("<?xml")
    result.plot(folder / "picture.png")
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    again = type(result).model_validate_json(result.model_dump_json())
    assert again.model_dump() == result.model_dump()
    with pytest.raises(InputError, match="not one read from a document"):
        again.plot()


@pytest.mark.parametrize("call", [cw.place, cw.partition, cw.partition_mig, cw.map_layers, cw.timeslice, cw.simulate])
def test_what_is_wrong_is_told_with_its_file(call, tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        call(tmp_path / "nowhere.yaml")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(json.dumps({"colour": "red"}))
    with pytest.raises(InputError, match=r"wrong\.yaml"):
        call(wrong)
    with pytest.raises(InputError, match="colour"):
        call({"colour": "red"})


@pytest.mark.parametrize(
    ("series", "field"),
    [
        ({"gpus": [1.0]}, "step_s"),
        ({"gpus": [1.0], "step_s": 60, "colour": 1}, "colour"),
        ({"gpus": ["many"], "step_s": 60}, "series"),
        ({"gpus": [1.0], "step_s": 0}, "step_s"),
        (pl.DataFrame({"unique_id": [*"aabb"], "ds": [0, 1, 0, 1], "y": [1.0, 2.0, 3.0, 4.0]}), "unique_id"),
        (pl.DataFrame({"y": [1.0]}), "unique_id"),
    ],
)
def test_a_series_that_is_none(series, field):
    with pytest.raises(InputError) as caught:
        cw.forecast(series)
    assert caught.value.field == field


QUANTUM = {
    "quantum": 10, "unit_s": 0.1, "tenants": [{"name": "a", "power_w": 10, "demand": 9, "weight": 1},
                                             {"name": "b", "power_w": 20, "demand": 9, "weight": 1}],
}  # fmt: skip
SERIES = {"gpus": [1.0, 2.0] * 100, "step_s": 60}
PLACE, PARTITION, MIG = EXAMPLES / "place.yaml", EXAMPLES / "partition.yaml", EXAMPLES / "mig.yaml"
COUNT, ABOVE_0 = "a whole number, 1 or more", "a number above 0"


@pytest.mark.parametrize(
    ("call", "given", "name", "value", "expected"),
    [
        (cw.map_layers, MAP, "objective", "latncy", "(did you mean latency?)"),
        (cw.map_layers, MAP, "algorithm", "gshrp", "(did you mean gsharp?)"),
        (cw.map_layers, MAP, "budget", -1, COUNT),
        (cw.map_layers, MAP, "budget", 2.5, COUNT),
        (cw.map_layers, MAP, "time_limit_s", -1, ABOVE_0),
        (cw.map_layers, MAP, "time_limit_s", float("nan"), ABOVE_0),
        (cw.map_layers, MAP, "seed", -1, "a whole number, 0 or more"),
        (cw.place, PLACE, "solver", "exct", "(did you mean exact?)"),
        (cw.place, PLACE, "iterations", 0, COUNT),
        (cw.place, PLACE, "time_limit_s", 0, ABOVE_0),
        (cw.place, PLACE, "seed", True, "a whole number, 0 or more"),
        (cw.timeslice, QUANTUM, "policy", "tff", "(did you mean tf?)"),
        (cw.timeslice, QUANTUM, "phi", 3, "a number from 0 to 1"),
        (cw.partition, PARTITION, "mechanism", "fsher", "(did you mean fisher?)"),
        (cw.partition, PARTITION, "welfare", "nsh", "(did you mean nash?)"),
        (cw.partition, PARTITION, "tolerance", 0.0, ABOVE_0),
        (cw.partition, PARTITION, "iterations", 0, COUNT),
        (cw.partition_mig, MIG, "mode", "markt", "(did you mean market?)"),
        (cw.partition_mig, MIG, "time_limit_s", -1, ABOVE_0),
        (cw.simulate, SCENARIO, "seeds", 0, COUNT),
        (cw.simulate, SCENARIO, "jobs", 0, COUNT),
        (cw.simulate, SCENARIO, "backend", "loki", "(did you mean loky?)"),
        (cw.simulate, SCENARIO, "policies", "edff", "(fifo, edf) (did you mean edf?)"),
        (cw.forecast, SERIES, "total_gpus", -5, COUNT),
        (cw.forecast, SERIES, "node_gpus", 0, COUNT),
        (cw.study, "jobs.csv", "days", -1, ABOVE_0),
        (cw.study, "jobs.csv", "weeks", 0, COUNT),
        (cw.study, "jobs.csv", "jobs", 0, COUNT),
    ],
)
def test_an_argument_that_is_none_is_named(call, given, name, value, expected):
    with pytest.raises(ArgumentError) as caught:
        call(given, **{name: value})
    assert (caught.value.field, caught.value.value) == (name, value)
    assert f"argument '{name}': got '{value}', expected " in str(caught.value)
    assert str(caught.value).endswith(expected)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (cw.place, "problem"), (cw.partition, "problem"), (cw.partition_mig, "problem"), (cw.map_layers, "problem"),
        (cw.timeslice, "problem"), (cw.simulate, "scenario"), (cw.study, "log"), (cw.forecast, "series"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [5, [1]])
def test_what_is_no_problem_is_refused(call, name, given):
    with pytest.raises(ArgumentError, match=rf"^argument '{name}': got .*, expected a path, a mapping") as caught:
        call(given)
    assert caught.value.field == name


@pytest.mark.slow
def test_a_simulation_is_written_kept_and_not_overwritten(tmp_path):
    out, events = tmp_path / "out", cw.simulate(SCENARIO, jobs=1, out=tmp_path / "out")
    assert {"report.html", "result.json", "events.parquet", "scenario.yaml"} <= {each.name for each in out.iterdir()}
    written = json.loads((out / "result.json").read_text())
    assert [policy["policy"] for policy in written["policies"]] == [policy.policy for policy in events.policies]
    again = cw.simulate(out / "scenario.yaml", jobs=1)
    assert without_times(again)["policies"] == without_times(events)["policies"]
    with pytest.raises(ArgumentError, match=r"^argument 'out': got .*, expected a new or empty folder"):
        cw.simulate(SCENARIO, jobs=1, out=out)
    only = cw.simulate(SCENARIO, policies="edf", jobs=1, out=out, overwrite=True)
    assert len(only.policies) == len(json.loads((out / "result.json").read_text())["policies"]) == 1


class Stops:
    """Hears of runs; a Ctrl-C comes once *after* of them have ended."""

    def __init__(self, after: int) -> None:
        self.after, self.ran, self.ended = after, [], 0

    def at(self, policy: str, time_s: float) -> None:
        self.ran = list(dict.fromkeys((*self.ran, policy)))

    def follow(self, times_s: object) -> None: ...

    def done(self) -> None:
        self.ended += 1
        if self.ended == self.after:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_simulation_that_was_interrupted_goes_on(tmp_path):
    with pytest.raises(RunsInterruptedError):
        cw.simulate(SCENARIO, jobs=1, out=tmp_path / "out", listener=Stops(1))
    with pytest.raises(ArgumentError, match=r"^argument 'out': .* the same command as before, or `overwrite`$"):
        cw.simulate(SCENARIO, jobs=1, out=tmp_path / "out", seed=7)
    listener = Stops(-1)
    went_on = cw.simulate(SCENARIO, jobs=1, out=tmp_path / "out", listener=listener)
    assert (listener.ran, listener.ended) == (["edf"], 2)
    assert without_times(went_on) == without_times(cw.simulate(SCENARIO, jobs=1))


FACES = {
    "capacity": 15,
    "forecasting": 15,
    "mapping": 15,
    "mapping.costs": 15,
    "optimize": 15,
    "partitioning": 15,
    "partitioning.mig": 15,
    "placement": 15,
    "placement.guarantees": 15,
    "placement.start_times": 15,
    "client": 15,
    "progress": 15,
    "runtimes": 15,
    "timeslicing": 15,
}


EXPORTED = (Path(__file__).parent / "exported_names.txt").read_text(encoding="utf-8").split()


def test_names_once_exported_stay():
    """As docs/reference/stability.md promises."""
    assert sorted(EXPORTED) == EXPORTED
    gone = [name for name in EXPORTED if not exported(*name.rsplit(".", 1))]
    assert gone == []


def test_the_list_of_exported_names_is_whole():
    faces = ["commonwatt", *(f"commonwatt.{face}" for face in FACES)]
    names = {f"{face}.{name}" for face in faces for name in import_module(face).__all__}
    assert names - set(EXPORTED) == set()


def exported(face: str, name: str) -> bool:
    module = import_module(face)
    return name in module.__all__ and hasattr(module, name)


@pytest.mark.parametrize(("face", "most"), FACES.items())
def test_a_face_is_small_sorted_and_there(face, most):
    module = import_module(f"commonwatt.{face}")
    assert 3 <= len(module.__all__) <= most
    for name in module.__all__:
        assert getattr(module, name) is not None
