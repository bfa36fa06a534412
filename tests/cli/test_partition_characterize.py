"""``commonwatt partition characterize`` as a user runs it."""

import json
import sys

import pytest

from commonwatt.cli.partition.divide import characterize
from tests.cli.partition_console import call
from tests.partitioning.test_mig_layouts import market_data

SLEEP = "import os, time; n = int(os.environ['N']); time.sleep(1.2 * (0.1 + 0.9 / n))"


@pytest.mark.long
def test_a_command_is_timed(tmp_path):
    out, plot = tmp_path / "r.json", tmp_path / "p.svg"
    for _ in range(10):  # on a busy machine a measurement may be refused as too noisy
        done = call(
            characterize, "--threads", "1,2", "--repeats", "3", "--env", "N", "--out", out, "--plot", plot, "--json",
            "--", sys.executable, "-S", "-c", SLEEP,
        )  # fmt: skip
        if done.code == 0:
            break
    assert done.code == 0, done.err
    answer = done.document
    assert json.loads(out.read_text()) == answer
    assert plot.exists()
    (kernel,) = answer["kernels"]
    assert [(run["threads"], run["runs"]) for run in kernel["runs"]] == [(1, 3), (2, 3)]
    assert 0.1 < kernel["fractions"][1]["parallel_fraction"] < 0.95
    assert kernel["chosen"] == "amdahl"
    assert {"version", "seed", "input_digest", "cpus"} <= answer.keys()


def table(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return path


def test_a_table_is_read(tmp_path):
    rows = "".join(f"{n},{100 * (0.1 + 0.9 / n)}\n" for n in (1, 2, 4, 8))
    done = call(characterize, "--from", table(tmp_path, "threads,seconds\n" + rows), "--json")
    (kernel,) = done.document["kernels"]
    assert [f["parallel_fraction"] for f in kernel["fractions"]] == pytest.approx([0.9, 0.9])
    assert (kernel["name"], kernel["chosen"], done.document["unit"]) == ("t", "amdahl", "s")
    told = call(characterize, "--from", table(tmp_path, "threads,seconds\n" + rows))
    assert "F by least-squares: 0.9000" in told.err


@pytest.mark.slow
@pytest.mark.data
def test_kernels_of_the_measured_gpu_follow_different_laws():
    done = call(characterize, "--from", market_data("vortex_cycles.csv"), "--json")
    kernels = done.document["kernels"]
    assert len(kernels) == 8
    assert {k["chosen"] for k in kernels} >= {"amdahl", "usl"}
    for kernel in kernels:
        errors = {law["law"]: law["left_out"] for law in kernel["laws"]}
        assert errors[kernel["chosen"]] <= errors["amdahl"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either a command after -- or --from FILE"),
        (["--", "no-such-command-here"], "expected a command that can be run"),
        (["--", sys.executable, "-c", "import sys; sys.exit('out of luck')"], "exit code 1: out of luck"),
        (["--threads", "2,4", "--", "true"], "--threads': got '2,4', expected 1 and at least one more"),
        (["--threads", "1,x", "--", "true"], "--threads"),
        (["--from", "/nowhere.csv"], "expected an existing file"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments, said):
    done = call(characterize, *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("threads,watts\n1,2\n", "a column seconds or cycles"),
        ("threads,seconds\n2,2\n4,1\n", "runs at one thread and at more"),
        ("threads,seconds\n1,0\n2,1\n", "line 2: field 'seconds': got '0', expected a number above 0"),
        ("threads,seconds\n0,1\n2,1\n", "expected 1 or more"),
        ("cores,seconds\n1,1\n", "threads"),
    ],
)
def test_a_wrong_table_is_one_line(text, said, tmp_path):
    done = call(characterize, "--from", table(tmp_path, text))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err


@pytest.mark.long
def test_noise_is_refused_and_too_many_threads_are_told(tmp_path):
    state = tmp_path / "n"
    state.write_text("0")
    noisy = (
        f"import pathlib, time; p = pathlib.Path({str(state)!r}); n = int(p.read_text()) + 1; "
        "p.write_text(str(n)); time.sleep(0.2 * (n % 3))"
    )
    done = call(characterize, "--threads", "1,2", "--repeats", "3", "--", sys.executable, "-S", "-c", noisy)
    assert (done.code, "too noisy to say how it scales" in done.err) == (1, True)
    many = call(characterize, "--threads", "1,9999", "--repeats", "1", "--", sys.executable, "-S", "-c", "")
    assert "warning: 9999 threads on" in many.err


def counted(tmp_path, text):
    runs = table(tmp_path, "threads,seconds\n1,100\n2,75\n4,62.5\n")
    path = tmp_path / "counters.csv"
    path.write_text(text)
    return call(characterize, "--from", runs, "--counters", path, "--json")


def test_counters_stand_beside_the_other_estimates(tmp_path):
    """Half the cycles with one thread, half with two: F = 2 (1 - 3/4) = 0.5, as the run times say too."""
    done = counted(tmp_path, "active,cycles\n1,50\n2,50\n")
    (kernel,) = done.document["kernels"]
    assert [f["method"] for f in kernel["fractions"]] == ["karp-flatt", "least-squares", "counters"]
    counters = kernel["fractions"][2]
    assert counters["parallel_fraction"] == pytest.approx(0.5)
    assert counters["misfit"] == pytest.approx(abs((1 / 0.75) / (100 / 75) - 1), abs=1e-12)
    assert 0 < counters["standard_error"] < 0.1
    twice = counted(tmp_path, "active,cycles\n1,50\n2,50\n1,60\n2,40\n").document["kernels"][0]["fractions"][2]
    assert twice["parallel_fraction"] == pytest.approx((0.5 + 0.4) / 2)
    assert twice["standard_error"] == pytest.approx(0.05)
    eight = counted(tmp_path, "active,cycles\n" + "".join(f"{n},{10 if n < 3 else 0}\n" for n in range(1, 9)))
    assert eight.document["kernels"][0]["fractions"][2]["misfit"] is None  # no run at eight threads


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("active,cycles\n1,50\n3,50\n", "cycles with 1, 2, .. threads at work"),
        ("active,cycles\n1,-1\n2,50\n", "a number, 0 or more"),
        ("active,cycles\n1,0\n2,0\n", "not all 0"),
        ("active,cycles\n1,5\n2,5\n1,5\n", "as many rows for each number of threads"),
        ("kernel,active,cycles\nx,1,5\nx,2,5\n", "one of those measured: t"),
    ],
)
def test_wrong_counters_are_one_line(text, said, tmp_path):
    done = counted(tmp_path, text)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err
