"""GPU types that a scenario declares, estimates from data sheets, slices, and clusters of one type."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.files import load_yaml, validate
from commonwatt.data.inventory import board_power
from commonwatt.data.profiles import GPU_TYPES, LAW, canonical, profiles_for
from commonwatt.data.profiles.base import MigSlice, mig_slice
from commonwatt.data.profiles.declared import Declared, OneType
from commonwatt.data.profiles.law import data_sheet, data_sheets, misfit, relative_speed
from commonwatt.data.workload import make_workload
from commonwatt.model.errors import InputError
from commonwatt.model.nodes import GpuTypeSpec
from commonwatt.model.scenario import Scenario


def spec(**fields):
    return validate(fields, GpuTypeSpec)


def declared(**types):
    return Declared(LAW, {name.replace("_", "-"): spec(**fields) for name, fields in types.items()})


def says(call, *args) -> str:
    with pytest.raises(InputError) as caught:
        call(*args)
    line = str(caught.value)
    assert "\n" not in line
    return line


# -- declared speeds


def test_a_declared_speed_is_a_multiple_and_scales_like_the_other_type():
    profiles = declared(X9={"speed": 1.5, "relative_to": "V100", "gpu_w": 310})
    for kind in LAW.kinds:
        for gpus in (1, 2, 8):
            assert profiles.speed(kind, "x9", gpus) == pytest.approx(1.5 * LAW.speed(kind, "V100", gpus))
        assert profiles.gpu_w(kind, "X9") == 310
    assert profiles.gpu_w("bert", "V100") == LAW.gpu_w("bert", "V100")


def test_a_declared_speed_goes_before_the_tables():
    profiles = declared(V100={"speed": 3, "relative_to": "P100"}, H100={"speed": 5})
    assert profiles.speed("bert", "Tesla V100", 4) == pytest.approx(3 * LAW.speed("bert", "P100", 4))
    assert profiles.speed("bert", "NVIDIA H100 80GB HBM3", 4) == pytest.approx(5 * LAW.speed("bert", "A100", 4))
    assert profiles.speed("bert", "P100", 1) == 1


def test_a_speed_by_kind_leaves_out_the_others():
    profiles = declared(X9={"speed": {"bert": 2, "resnet50": 1.5}, "gpu_w": {"bert": 300}})
    assert profiles.speed("bert", "X9", 1) == pytest.approx(2 * LAW.speed("bert", "A100", 1))
    assert profiles.speed("lm", "X9", 1) is None
    assert (profiles.gpu_w("bert", "X9"), profiles.gpu_w("resnet50", "X9")) == (300, None)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.sampled_from(LAW.kinds), st.integers(1, 16))
def test_a_chain_multiplies(factors, kind, gpus):
    names = [f"T{i}" for i in range(len(factors))]
    types = {
        name: spec(speed=factor, relative_to=other)
        for name, factor, other in zip(names, factors, [*names[1:], "A40"], strict=True)
    }
    expected = math.prod(factors) * LAW.speed(kind, "A40", gpus)
    assert Declared(LAW, types).speed(kind, "T0", gpus) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("types", "line"),
    [
        ({"X": {"speed": 1, "relative_to": "Y"}, "Y": {"speed": 1, "relative_to": "x"}}, "got 'X -> Y -> X'"),
        ({"X": {"speed": 1, "relative_to": "X"}}, "got 'X -> X'"),
        ({"X": {"speed": 1, "relative_to": "Q"}}, "field 'gpu_types.X.relative_to': got 'Q', expected a GPU type"),
        ({"X": {"speed": {"resnet5": 1}}}, "field 'gpu_types.X.speed': got 'resnet5', expected one of resnet18"),
    ],
)
def test_declarations_that_cannot_be(types, line):
    assert line in says(Declared, LAW, {name: spec(**fields) for name, fields in types.items()})


@pytest.mark.parametrize("fields", [{"speed": 0}, {"speed": -1}, {"speed": {"bert": 0}}, {"gpu_w": -1}, {"speed": {}}])
def test_figures_that_are_none(fields):
    assert "expected a number" in says(lambda: spec(**fields))


def test_an_unknown_type_says_what_to_write_and_that_works():
    line = says(declared().type_named, "B900", "nodes.gpu_type")
    assert line.startswith("field 'nodes.gpu_type': got 'B900', expected a GPU type whose speed is known (K80, P100")
    told = line.partition("its speed in the scenario: ")[2]
    types = {name: spec(**fields) for name, fields in yaml.safe_load(told)["gpu_types"].items()}
    assert Declared(LAW, types).speed("bert", "b900", 1) == LAW.speed("bert", "A100", 1)


@pytest.mark.parametrize(
    ("spelt", "name"),
    [("x-9", "X-9"), ("nvidia_x9_80gb", "X-9"), ("H100 PCIe", "H100-PCIE"), ("h100", "H100"), ("tesla_v100", "V100"),
     ("RTX 6000 Ada Generation", "RTX6000Ada"), ("AMD Instinct MI300X", "MI300X"), ("a100_1g.5gb", "A100-1g.5gb")],
)  # fmt: skip
def test_spellings(spelt, name):
    assert declared(X_9={"speed": 1}).type_named(spelt) == name


def test_what_the_source_says():
    types = {"X": spec(speed=1.1, relative_to="H100"), "Unused": spec(speed=2)}
    source = Declared(LAW, types, ("V100", "x", "A100-2g.10gb")).source
    assert source.startswith(LAW.source)
    assert "speed of X declared as 1.1 of H100" in source
    assert "speed of H100 an estimate from data sheets, 1.9 of A100" in source
    assert "A100-2g.10gb taken as 2/7 of A100, one slice a job" in source
    assert "Unused" not in source


# -- data sheets


def test_the_rule_against_the_measured_types():
    """What the docs say of the rule's error."""
    found = misfit(LAW)
    every = np.array([error for row in found.values() for error in row.values()])
    others = np.array([e for kind, row in found.items() if kind != "recommendation" for e in row.values()])
    assert (len(every), len(others)) == (41, 34)
    assert float(np.sqrt(np.mean(every**2))) == pytest.approx(0.71, abs=0.005)
    assert float(np.sqrt(np.mean(others**2))) == pytest.approx(0.36, abs=0.005)
    assert float(others.mean()) == pytest.approx(-0.20, abs=0.005)
    assert float(np.exp(others.min())) == pytest.approx(0.37, abs=0.005)
    assert float(np.exp(others.max())) == pytest.approx(1.45, abs=0.005)


def test_data_sheets_are_of_the_types_with_a_power_limit():
    for sheet in data_sheets():
        power = board_power(f"{sheet.gpu_type} {sheet.form}")
        assert power is not None
        assert (power.gpu_type, power.form or "", sheet.peak_tflops > 0) == (sheet.gpu_type, sheet.form, True)
        assert any(word in sheet.source for word in ("data sheet", "white paper", "specifications", "technical brief"))
    names = [sheet.name for sheet in data_sheets()]
    assert len(set(names)) == len(names)
    assert set(GPU_TYPES) <= set(names)


def test_estimates_are_relative_to_the_measured_a100():
    a100, h100 = data_sheet("A100"), data_sheet("NVIDIA H100 80GB HBM3")
    assert relative_speed(a100, a100) == 1
    ratio = (989.5 / 312 * 3350 / 1555) ** (1 / 3)
    assert relative_speed(h100, a100) == pytest.approx(ratio)
    assert declared().speed("bert", "H100", 4) == pytest.approx(ratio * LAW.speed("bert", "A100", 4))
    assert declared().gpu_w("bert", "H100") is None  # the node's


# -- MIG


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("A100-1g.5gb", MigSlice("A100", 1, "1g.5gb")), ("a100_3g.20gb", MigSlice("a100", 3, "3g.20gb")),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb+me", MigSlice("NVIDIA-H100-80GB-HBM3", 1, "1g.10gb+me")),
        ("1g.5gb", MigSlice("", 1, "1g.5gb")), ("A100", None), ("NVIDIA A100-SXM4-40GB", None), ("8g.5gb", None),
    ],
)  # fmt: skip
def test_names_of_slices(name, found):
    assert mig_slice(name) == found
    if found:
        assert canonical(name) is None  # not a whole GPU


def test_a_slice_is_its_share_of_the_whole_for_one_slice_a_job():
    profiles = declared()
    assert profiles.speed("bert", "A100-3g.20gb", 1) == pytest.approx(3 / 7 * LAW.speed("bert", "A100", 1))
    assert profiles.speed("bert", "A100-3g.20gb", 2) is None
    h100 = profiles.speed("bert", "H100", 1)
    assert profiles.speed("bert", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", 1) == pytest.approx(h100 / 7)
    assert "got '1g.5gb', expected a GPU type whose speed" in says(profiles.type_named, "1g.5gb")
    own = Declared(LAW, {"1g.5gb": spec(speed=0.125, most_gpus=2), "A100": spec(speed=2, relative_to="V100")})
    assert own.speed("bert", "1G.5GB", 2) == pytest.approx(0.125 * 2 * LAW.speed("bert", "V100", 2))
    assert own.speed("bert", "1g.5gb", 3) is None
    assert own.speed("bert", "A100-1g.5gb", 1) == pytest.approx(2 / 7 * LAW.speed("bert", "V100", 1))


# -- clusters of one type


def test_known_types_alone_change_nothing():
    assert profiles_for(LAW, {}, ("V100", "T4"), ["p100", ""], None) == (LAW, None)
    assert profiles_for(LAW, {}, ("V100",), [], "p100") == (LAW, "p100")


@pytest.mark.parametrize("log", [[], [""], ["H100"], ["nvidia_h100"], ["flux", ""]])
@pytest.mark.parametrize("logged", [None, "h100"])
def test_one_type_needs_no_speed(log, logged):
    profiles, ran_on = profiles_for(LAW, {}, ("H100",), log, logged)
    assert isinstance(profiles, OneType)
    assert ran_on == "H100"
    for kind in profiles.kinds:
        mean = np.mean(list(LAW.exponent[kind].values()))
        assert profiles.speed(kind, "H100", 1) == 1
        assert profiles.speed(kind, "H100", 8) == pytest.approx(8**mean)
    assert ("flux" in profiles.source) == ("flux" in log)


def test_one_type_of_another_name_than_the_logs_needs_a_speed():
    profiles, logged = profiles_for(LAW, {}, ("H100",), ["V100", ""], None)
    assert isinstance(profiles, Declared)  # both are known: by the table and by an estimate
    assert logged == "H100"
    profiles, _ = profiles_for(LAW, {}, ("B900",), [], "V100")
    assert "gpu_types: {B900: {speed: 1.0" in says(profiles.type_named, "B900", "nodes.gpu_type")
    profiles, logged = profiles_for(LAW, {"B900": spec(speed=4)}, ("B900",), ["V100", ""], None)
    assert isinstance(profiles, Declared)
    assert logged == "B900"


NODES = "nodes: [{{name: n, count: 2, gpu_type: {0}, gpus: 8, idle_w: 100, gpu_w: 200}}]\n"
LOG = "submit_s,duration_s,gpus,gpu_type\n0,100,1,\n10,100,2,{0}\n20,300,4,{0}\n"


@pytest.fixture
def make(write, no_traces):
    def build(scenario, log):
        write("log.csv", log)
        path = write("s.yaml", f"{scenario}workload: {{source: csv, path: log.csv}}\n")
        return make_workload(load_yaml(path, Scenario), path.parent, np.random.default_rng(0))

    return build


@pytest.mark.parametrize("name", ["H100", "B900", "Quantum-X"])
def test_a_log_of_a_cluster_of_one_type_keeps_its_times(make, name):
    made = make(NODES.format(name), LOG.format(name))
    table = made.table
    for j, (gpus, seconds) in enumerate([(1, 100), (2, 100), (4, 300)]):
        rows = table.configs(j)
        at = list(table.config_gpus[rows]).index(gpus)
        assert table.config_time_s[rows][at] == pytest.approx(seconds)
    assert f"run times taken to be of {name}" in made.sentence
    assert ("whose speed is not known" in made.sentence) == (name != "H100")


def test_a_declared_type_of_the_log_and_of_the_cluster(make):
    text = NODES.format("B900") + "gpu_types: {B900: {speed: 2, relative_to: Old}, Old: {speed: 0.5}}\n"
    made = make(text, LOG.format("old"))
    rows = made.table.configs(2)
    at = list(made.table.config_gpus[rows]).index(4)
    assert made.table.config_time_s[rows][at] == pytest.approx(150)
    assert "speed of B900 declared as 2 of Old; speed of Old declared as 0.5 of A100" in made.sentence


def test_two_unknown_types_are_told_how_to_be_declared(make):
    two = NODES.format("B900").replace("}]", "}, {name: m, gpu_type: V100, gpus: 8, idle_w: 1, gpu_w: 1}]")
    line = says(make, two, LOG.format("V100"))
    assert "field 'nodes.gpu_type': got 'B900'" in line
    assert "gpu_types: {B900: {speed: 1.0, relative_to: A100}}" in line
    make(f"{two}gpu_types: {{B900: {{speed: 1.0, relative_to: A100}}}}\n", LOG.format("V100"))
