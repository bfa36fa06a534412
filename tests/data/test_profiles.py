"""Profiles: hand-written tables, the law, and (marked data) the public tables."""

import json
import math

import numpy as np
import pytest

from commonwatt.data import third_party
from commonwatt.data.profiles import GPU_TYPES, LAW, Measured, canonical, known_gpu_type, load_profiles, lucid
from commonwatt.data.profiles.fit import SiaStep, fit_law, read_sia
from commonwatt.data.profiles.gavel import GavelRun, read_gavel
from commonwatt.data.profiles.zeus import Training, read_limits, read_zeus
from commonwatt.data.table import read_table
from commonwatt.model.errors import InputError

GAVEL = """model,batch_size,gpu_type,num_gpus,consolidated,steps_per_s,samples_per_s
ResNet-50,64,p100,1,1,2,128
ResNet-50,64,p100,2,1,4,256
ResNet-50,64,v100,1,1,4,256
ResNet-50,64,v100,2,1,9,576
ResNet-50,64,v100,2,0,1,64
ResNet-50,64,v100,4,1,8,512
ResNet-50,64,k80,1,1,,
CycleGAN,,p100,1,1,0.5,
CycleGAN,,v100,1,1,1.5,
LM,5,v100,1,1,9,45
"""
ZEUS = """gpu_type,dataset,model,batch_size,optimizer,power_limit_w,time_per_epoch_s,average_power_w,energy_per_epoch_j
V100,imagenet,resnet50,32,adadelta,100,200,99,19800
V100,imagenet,resnet50,32,adadelta,250,100,220,22000
V100,imagenet,resnet50,256,adadelta,250,80,240,19200
P100,imagenet,resnet50,32,adadelta,250,150,160,24000
"""


def fails(call, *args) -> str:
    with pytest.raises(InputError) as caught:
        call(*args)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v100", "V100"),
        ("tesla_v100-sxm2-32gb", "V100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Quadro RTX 6000", "RTX6000"),
        ("quadro_rtx_6000", "RTX6000"),
        ("rtx2080ti", "RTX2080Ti"),
        ("GeForce RTX 2080 Ti", "RTX2080Ti"),
        ("t4", "T4"),
        ("RTX 6000 Ada Generation", None),
        ("a1000", None),
        ("gt40", None),
        ("h100", None),
        ("", None),
    ],
)
def test_gpu_type_names(name, expected):
    assert canonical(name) == expected


def test_unknown_gpu_type():
    line = fails(known_gpu_type, "H100", "nodes.gpu_type", "s.yaml")
    types = "K80, P100, V100, T4, RTX2080Ti, RTX6000, A40, A100"
    assert line == f"s.yaml: field 'nodes.gpu_type': got 'H100', expected a GPU type whose speed is known ({types})"


def test_gavel_table(write):
    table = read_gavel(write("g.csv", GAVEL))
    assert table[GavelRun("ResNet-50", 64)] == {
        ("P100", 1): 128, ("P100", 2): 256, ("V100", 1): 256, ("V100", 2): 576, ("V100", 4): 512,
    }  # fmt: skip
    assert table[GavelRun("CycleGAN", 0)] == {("P100", 1): 0.5, ("V100", 1): 1.5}


def test_gavel_as_published_says_the_same(write):
    document = {
        "p100": {
            "('ResNet-50 (batch size 64)', 1)": {"null": 2, "('A3C', 1)": [1, 1]},
            "('ResNet-50 (batch size 64)', 2)": {"null": 4},
            "('CycleGAN', 1)": {"null": 0.5},
        },
        "v100": {
            "('ResNet-50 (batch size 64)', 1)": {"null": 4},
            "('ResNet-50 (batch size 64)', 2)": {"null": 9},
            "('ResNet-50 (batch size 64)', 4)": {"null": 8},
            "('CycleGAN', 1)": {"null": 1.5},
            "('LM (batch size 5)', 1)": {"null": 9},
        },
        "k80": {"('ResNet-50 (batch size 64)', 1)": {"null": 0.0}},
        "v100_unconsolidated": {"('ResNet-50 (batch size 64)', 2)": {"null": 1}},
    }
    assert read_gavel(write("g.json", json.dumps(document))) == read_gavel(write("g.csv", GAVEL))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            GAVEL.replace("k80,1,1,,", "h100,1,1,5,5"),
            ", line 8: field 'gpu_type': got 'h100', expected a GPU type whose speed",
        ),
        (GAVEL.replace("128", "fast"), ", line 2: field 'samples_per_s': got 'fast', expected a number of seconds"),
        (GAVEL.replace("num_gpus", "gpus"), ": field 'num_gpus': expected a column of this name; the file has model"),
        (GAVEL.split("ResNet")[0] + "A3C,,p100,1,1,0,\n", ": got 'none', expected at least one measured speed"),
        ('{"p100": {"x": {"null": 1}}}', ": field 'p100.x': got '1', expected a job such as"),
        ('{"p100": {"(\'A3C\', 1)": {}}}', ": field 'p100.('A3C', 1)': expected a job such as"),
        ('{"h100": {}}', ": got 'h100', expected a GPU type whose speed is known"),
        ('{"p100": ', ", line 1: got 'Expecting value', expected valid JSON"),
    ],
)
def test_bad_gavel(write, text, line):
    path = write("g.csv", text)
    assert fails(read_gavel, path).startswith(f"{path}{line}")


def test_zeus_keeps_the_highest_power_limit(write):
    table = read_zeus(write("z.csv", ZEUS))
    assert table[Training("imagenet", "resnet50", 32, "adadelta")] == {"V100": (100, 220), "P100": (150, 160)}
    assert len(table) == 2


def test_power_limits_are_relative_to_the_highest_and_noise_is_no_gain(write):
    noisy = "V100,imagenet,resnet50,32,adadelta,200,98,221,21658\n"
    curves = read_limits(write("z.csv", ZEUS + noisy))
    [(training, by_type)] = curves.items()  # the others were measured at one limit
    assert (training.batch_size, list(by_type)) == (32, ["V100"])
    assert by_type["V100"].at(0.4) == pytest.approx((2.0, 0.45))
    assert by_type["V100"].at(0.8) == (1.0, 1.0)
    assert by_type["V100"].at(0.6) == pytest.approx((1.49, (0.45 + 221 / 220) / 2))
    with_zeus = Measured.read(write("g.csv", GAVEL), write("z.csv", ZEUS))
    assert with_zeus.limited("resnet50-b64", "V100", 0.7) == pytest.approx((1.5, 0.725))
    assert with_zeus.limited("resnet50-b64", "P100", 0.7) == LAW.limited("resnet50", "P100", 0.7)


def test_zeus_as_published_takes_the_type_from_the_name(write):
    head = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
    text = head + "imagenet,resnet50,32,adadelta,260,100,230\n"
    path = write("summary_power_rtx6000.csv", text)
    assert read_zeus(path) == {Training("imagenet", "resnet50", 32, "adadelta"): {"RTX6000": (100, 230)}}
    path = write("power.csv", text)
    assert fails(read_zeus, path) == f"{path}: expected a name that ends in the GPU type, as summary_power_v100.csv"


def test_sia_takes_one_node_and_named_types(write):
    text = (
        "model,cluster,gpu_type,table,num_nodes,num_gpus,placement,local_bsz,step_time_s,sync_time_s\n"
        "bert,aws,T4,placements,1,1,1,4,0.5,0\n"
        "bert,aws,T4,placements,1,2,2,4,0.5,0\n"
        "bert,aws,T4,placements,2,2,11,4,0.8,0\n"
        "bert,aws,T4,scalability,1,4,,4,0.5,0\n"
        "bert,azure,,placements,1,1,1,4,0.5,0\n"
        "bert,dgx-ext,A100,placements,1,1,1,4,0.5,0\n"
    )
    assert read_sia(write("s.csv", text)) == {SiaStep("bert", 4.0): {("T4", 1): 8.0, ("T4", 2): 16.0}}


def test_measured_speeds_are_the_tables(write):
    measured = Measured.read(write("g.csv", GAVEL))
    assert measured.kinds == ("resnet50-b64", "cyclegan")  # LM was never measured on a P100
    assert [measured.speed("resnet50-b64", "v100", g) for g in (1, 2, 4)] == [2.0, 4.5, 4.0]
    assert measured.speed("resnet50-b64", "P100", 2) == 2.0


def test_measured_elsewhere_follows_the_law(write):
    measured = Measured.read(write("g.csv", GAVEL))
    law = {(t, g): LAW.speed("resnet50", t, g) for t in GPU_TYPES for g in (1, 2, 3, 4, 8)}
    assert measured.speed("resnet50-b64", "V100", 3) == pytest.approx(4.5 * law["V100", 3] / law["V100", 2])
    assert measured.speed("resnet50-b64", "V100", 8) == pytest.approx(4.0 * law["V100", 8] / law["V100", 4])
    assert measured.speed("resnet50-b64", "T4", 2) == pytest.approx(2.0 * law["T4", 2] / law["V100", 1])
    assert measured.speed("cyclegan", "T4", 1) is None
    assert measured.speed("cyclegan", "V100", 2) is None
    assert measured.speed("cyclegan", "V100", 1) == 3.0


def test_measured_power(write):
    gavel, zeus = write("g.csv", GAVEL), write("z.csv", ZEUS)
    with_zeus, without = Measured.read(gavel, zeus), Measured.read(gavel)
    assert with_zeus.gpu_w("resnet50-b64", "V100") == 220  # batch size 32 is nearer to 64 than 256
    assert with_zeus.gpu_w("resnet50-b64", "A40") == LAW.gpu_w("resnet50", "A40")
    assert without.gpu_w("resnet50-b64", "V100") == LAW.gpu_w("resnet50", "V100")
    assert with_zeus.gpu_w("cyclegan", "V100") is None
    assert with_zeus.gpu_w("resnet50-b64", "T4") is None
    assert "Zeus" in with_zeus.source
    assert "power by the fitted laws" in without.source


def test_measured_without_any_p100(write):
    path = write("g.csv", "\n".join(line for line in GAVEL.split("\n") if "p100" not in line))
    assert fails(Measured.read, path) == f"{path}: got 'none', expected at least one run on one P100"


def test_law_is_monotone_and_relative_to_one_p100():
    for kind in LAW.kinds:
        assert LAW.speed(kind, "P100", 1) == 1.0
        for name in GPU_TYPES:
            speeds = [LAW.speed(kind, name, g) for g in (1, 2, 3, 4, 8, 16)]
            if None in speeds:
                assert (kind, name) == ("bert", "K80")
                continue
            assert (np.diff(speeds) > 0).all()
            assert (np.array(speeds) / speeds[0] <= [1, 2, 3, 4, 8, 16]).all()  # never superlinear
    assert LAW.speed("bert", "K80", 1) is None


def test_law_figures():
    assert LAW.speed("resnet50", "v100", 4) == pytest.approx(1.52 * 4**0.57)
    assert LAW.gpu_w("resnet50", "V100") == 222
    assert LAW.gpu_w("resnet50", "T4") is None  # unknown, not 0


@pytest.mark.parametrize("profiles", [LAW, None])
def test_unknown_kind_and_type(write, profiles):
    profiles = profiles or Measured.read(write("g.csv", GAVEL))
    assert "field 'kind': got 'vgg', expected one of " in fails(profiles.speed, "vgg", "V100", 1)
    assert "got 'H100', expected a GPU type whose speed is known" in fails(profiles.speed, profiles.kinds[0], "H100", 1)
    assert "got 'H100', expected a GPU type whose speed is known" in fails(profiles.gpu_w, profiles.kinds[0], "H100")


def test_choice_of_profiles(write, monkeypatch, tmp_path):
    monkeypatch.setenv(third_party.VARIABLE, str(tmp_path))
    assert load_profiles("auto") is LAW
    assert load_profiles("law") is LAW
    line = fails(load_profiles, "measured")
    assert line == (
        "field 'profiles': got 'measured', expected gavel_throughputs.csv in the folder COMMONWATT_DATA names"
    )
    write("gavel_throughputs.csv", GAVEL)
    assert load_profiles("auto").kinds == load_profiles("measured").kinds == ("resnet50-b64", "cyclegan")
    assert load_profiles("law") is LAW
    assert "expected one of auto, measured, law" in fails(load_profiles, "guess")


@pytest.mark.slow
@pytest.mark.data
def test_the_typed_in_laws_are_what_the_fit_gives(traces):
    fitted = fit_law(traces)
    for name, digits in (("speed_of_one", 2), ("exponent", 2), ("power_w", 0)):
        typed, again = getattr(LAW, name), getattr(fitted.law, name)
        assert {k: set(v) for k, v in typed.items()} == {k: set(v) for k, v in again.items()}
        for kind, by_type in typed.items():
            for gpu_type, value in by_type.items():
                assert value == pytest.approx(again[kind][gpu_type], abs=0.5001 * 10**-digits), (name, kind, gpu_type)
    assert LAW.at_limit.keys() == fitted.law.at_limit.keys()
    for kind, pairs in LAW.at_limit.items():
        assert np.array(pairs) == pytest.approx(np.array(fitted.law.at_limit[kind]), abs=0.00501), kind


@pytest.mark.data
def test_the_misfit_is_what_the_docstring_says(traces):
    misfit = fit_law(traces).misfit
    of_lm = misfit.pop("lm")
    others = [value for by_type in misfit.values() for value in by_type.values()]
    assert 0.025 <= min(others) < 0.035
    assert 0.25 < max(others) <= 0.305
    assert 0.41 < max(of_lm.values()) <= 0.425


@pytest.mark.data
def test_the_real_tables(traces):
    measured = Measured.read(traces / "gavel_throughputs.csv", traces / "zeus_power.csv")
    assert len(measured.kinds) == 26
    assert measured.speed("resnet50-b64", "P100", 8) == pytest.approx(6.96, abs=0.01)
    assert measured.speed("lm-b5", "V100", 4) < measured.speed("lm-b5", "V100", 2)  # as measured
    assert 30 < measured.gpu_w("recommendation-b512", "P100") < 40
    known = [(k, t) for k in measured.kinds for t in GPU_TYPES if measured.speed(k, t, 1) is not None]
    assert len(known) == 24 * 8 + 2 * 3
    assert all(math.isfinite(measured.speed(k, t, g) or 0.0) for k, t in known for g in (1, 2, 3, 5, 8, 32))


@pytest.mark.data
def test_what_is_typed_in_of_lucid_is_what_its_tables_say(traces, monkeypatch):
    monkeypatch.setenv(third_party.VARIABLE, str(traces))
    for kind, alone in lucid.USE.items():
        assert vars(alone) == pytest.approx(vars(lucid.make_packing([kind], []).use[kind]), abs=0.0051)
    packing = lucid.make_packing(["resnet18-b32", "lm-b80", "bert"], ["V100"])
    assert packing.speed("resnet18-b32", "lm-b80") == 0.786  # ResNet18 of 32 beside LSTM of 64
    assert packing.speed("lm-b80", "bert") == pytest.approx(1 / (1 + lucid.SLOWDOWN * 0.97 * 0.99689))  # no such pair


@pytest.mark.data
def test_the_law_of_two_on_a_gpu_is_the_least_squares_fit(traces):
    single, both = read_table(traces / lucid.SINGLE), read_table(traces / lucid.PAIRS)
    names = ("model", "dataset", "batchsize", "amp")
    runs = zip(*(single.text(name) for name in names), strict=True)
    alone = dict(zip(runs, single.numbers("gpu_util") / 100, strict=True))
    one, other = (
        np.array([alone[run] for run in zip(*(both.text(f"{name}{k}") for name in names), strict=True)]) for k in "12"
    )
    speed = np.minimum(1.0, np.concatenate((both.numbers("speed1"), both.numbers("speed2"))))
    work = np.tile(one * other, 2)
    misses = {c: float(np.sqrt(np.mean((1 / (1 + c * work) - speed) ** 2))) for c in np.arange(0.0, 1.0, 0.01).round(2)}
    assert len(speed) == 2776
    assert min(misses, key=misses.__getitem__) == lucid.SLOWDOWN
    assert misses[lucid.SLOWDOWN] == pytest.approx(0.073, abs=5e-4)
