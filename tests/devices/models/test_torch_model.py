"""PyTorch programs: cut or not, they compute the same."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from commonwatt.devices.base import RealDeviceClock, example_inputs  # noqa: E402
from commonwatt.devices.batches import Batching, DeviceRequest  # noqa: E402
from commonwatt.devices.driver import Driver  # noqa: E402
from commonwatt.devices.models.torch_model import TorchRuntime, load_torch  # noqa: E402
from commonwatt.devices.profiles import stated_powers  # noqa: E402
from commonwatt.devices.rows import RowPlan, measure_rows  # noqa: E402
from commonwatt.model.errors import DeviceError, InputError  # noqa: E402
from commonwatt.timeslicing import EnergyLedger, FifoScheduler, Task  # noqa: E402
from tests.devices.made import FakeDevice  # noqa: E402
from tests.devices.models.programs import saved  # noqa: E402

pytestmark = pytest.mark.slow

CPU = TorchRuntime("this CPU")
PROGRAMS = ("convolutions", "attention", "chosen")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    return {name: saved(name, folder / f"{name}.pt2") for name in PROGRAMS}


def inputs_of(model, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    given = example_inputs(model.inputs, rng)
    dynamic = {spec.name for spec in model.inputs if spec.shape[0] == -1}
    return {name: np.concatenate([x] * batch) if name in dynamic else x for name, x in given.items()}


def run(model, inputs):
    execution = model.begin(inputs)
    for _ in model.step_names:
        execution.step()
    return execution.outputs()


def run_plainly(path, inputs):
    with torch.inference_mode():
        results = torch.export.load(str(path)).module()(*(torch.from_numpy(x) for x in inputs.values()))
    found = results.values() if isinstance(results, dict) else results if isinstance(results, tuple) else [results]
    return {f"output_{i}": value.numpy() for i, value in enumerate(found)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "divisible"), [("convolutions", True), ("attention", True), ("chosen", False)])
def test_rows_are_divided_where_they_are_independent(name, divisible, programs):
    """The second input of the convolutions has no rows: every batch gets all of it."""
    model = load_torch(name, programs[name], CPU, None, cuts=[2])
    profile = measure_rows(model, 1.0)
    assert profile.divisible == divisible, profile.reason
    if not divisible:
        return
    given, ended = inputs_of(model, 9), []
    request = DeviceRequest(model, stated_powers(model, 20.0), given, ended.append, Batching(RowPlan(profile, None, 4)))
    scheduler, clock = FifoScheduler(), RealDeviceClock()
    scheduler.add("t", 1, 20)
    driver = Driver(scheduler, FakeDevice(), clock, EnergyLedger(1.0))
    assert scheduler.submit(Task(scheduler.tenants["t"], 0, request))
    while driver.step():
        pass
    for key, values in run(model, given).items():
        assert request.outputs[key] == pytest.approx(values, rel=1e-4, abs=1e-5)
    assert request.batching.ran.keys() == {4, 1}


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("cuts", [range(1000), [2], [1, 4]], ids=str)
def test_cut_or_not_it_is_the_same(name, cuts, programs):
    whole = load_torch(name, programs[name], CPU, None)
    cut = load_torch(name, programs[name], CPU, None, cuts=cuts)
    assert len(whole.step_names) == 1 < len(cut.step_names)
    for batch in (1, 2, 5):
        given = inputs_of(whole, batch)
        found, expected = run(cut, given), run(whole, given)
        plain = run_plainly(programs[name], given)
        assert found.keys() == expected.keys() == plain.keys() == {spec.name for spec in whole.outputs}
        for key, values in plain.items():
            assert np.array_equal(found[key], values)
            assert np.array_equal(expected[key], values)
    assert sum(work.flops for work in cut.work) == whole.work[0].flops > 0
    assert sum(work.bytes_moved for work in cut.work) == whole.work[0].bytes_moved > 0


@pytest.mark.slow
def test_work_is_counted(programs):
    model = load_torch("m", programs["convolutions"], CPU, None, cuts=range(1000))
    works = dict(zip(model.step_names, model.work, strict=True))
    first = works["conv2d"]
    assert first.flops == 2 * (8 * 64) * 27
    assert first.bytes_moved == 4 * (3 * 64 + 8 * 27 + 8 + 8 * 64)
    assert works["conv2d_1"].flops == 2 * (8 * 64) * (4 * 9)
    assert works["linear"].flops == 2 * 8 * 5


@pytest.mark.slow
def test_it_is_cut_by_time(programs):
    model = load_torch("m", programs["convolutions"], CPU, 3e-5)
    assert 2 <= len(model.step_names) == len(model.step_times_s) == len(model.work)
    assert all(took > 0 for took in model.step_times_s)
    assert len(load_torch("m", programs["convolutions"], CPU, 10.0).step_names) == 1


def test_what_it_says_of_itself(programs):
    model = load_torch("net", programs["convolutions"], CPU, 0.002)
    assert model.name == "net"
    assert len(model.digest) == 64
    assert [(s.name, s.datatype, s.shape) for s in model.inputs] == [
        ("image", "FP32", (-1, 3, 8, 8)), ("bias", "FP32", (5,)),
    ]  # fmt: skip
    assert [(s.name, s.datatype, s.shape) for s in model.outputs] == [
        ("output_0", "FP32", (-1, 5)), ("output_1", "FP32", (-1, 8)),
    ]  # fmt: skip


def test_two_inferences_may_take_turns_and_inputs_stay_as_they_are(programs):
    model = load_torch("m", programs["attention"], CPU, None, cuts=range(1000))
    given = [inputs_of(model, batch, seed) for batch, seed in ((1, 1), (3, 2))]
    for inputs in given:
        inputs["tokens"].flags.writeable = False
    both = [model.begin(inputs) for inputs in given]
    for _ in model.step_names:
        for execution in both:
            execution.step()
    for execution, inputs in zip(both, given, strict=True):
        assert np.array_equal(execution.outputs()["output_0"], run(model, inputs)["output_0"])


@pytest.mark.slow
def test_values_are_freed_and_outputs_come_last(programs):
    model = load_torch("m", programs["convolutions"], CPU, None, cuts=range(1000))
    execution = model.begin(inputs_of(model))
    execution.step()
    with pytest.raises(RuntimeError, match="steps not run yet"):
        execution.outputs()
    for _ in model.step_names[1:]:
        execution.step()
        assert len(execution._values) <= 5
    assert len(execution._values) == 2


def test_inputs_that_do_not_go_together(programs):
    model = load_torch("m", programs["convolutions"], CPU, None)
    given = inputs_of(model) | {"bias": np.ones(7, np.float32)}
    with pytest.raises(InputError, match="expected inputs that model m can compute"):
        model.begin(given).step()


@pytest.mark.parametrize("words", ["CUDA error: device lost", "CUDA out of memory. Tried to allocate 2 GiB"])
def test_a_gpu_that_is_gone(words):
    with pytest.raises(DeviceError, match="a GPU: CUDA"), TorchRuntime("a GPU").running("m"):
        raise RuntimeError(words)


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"", "an empty file"), (b"no program", None), (None, None), ("", "a directory")],
)
def test_what_is_no_program(content, value, tmp_path):
    path = tmp_path / "m.pt2"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(InputError, match=r"expected a PyTorch program saved by torch\.export\.save") as caught:
        load_torch("m", path, CPU, 0.002)
    assert caught.value.file == path
    assert value in (None, caught.value.value)


@pytest.mark.parametrize("part", [0.1, 0.9])
def test_a_truncated_program(part, programs, tmp_path):
    content = programs["attention"].read_bytes()
    (tmp_path / "m.pt2").write_bytes(content[: int(part * len(content))])
    with pytest.raises(InputError, match=r"m\.pt2: got .* expected a PyTorch program"):
        load_torch("m", tmp_path / "m.pt2", CPU, 0.002)
