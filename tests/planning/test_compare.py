"""Energy against waiting: each way keeps on what it says, with what was known a horizon before."""

import numpy as np
import pytest

from commonwatt.forecasting import make_predictor
from commonwatt.model.errors import InputError
from commonwatt.planning import evaluation
from commonwatt.planning.series import LoadedSeries, load_series
from tests.cli.console import run


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("compare") / "jobs.csv"
    rows = [f"{t},{rng.integers(600, 3_600)},{rng.choice([1, 2, 8])}" for t in np.sort(rng.integers(0, 172_800, 500))]
    path.write_text("submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.slow
def test_every_way_keeps_on_what_it_says(log, monkeypatch):
    monkeypatch.setattr(evaluation, "SHARES", (0.9,))
    loaded = load_series(log)
    gpus = loaded.file.series.gpus
    begin = len(gpus) * 6 // 7
    found = evaluation.compare_ways(loaded, make_predictor("last-value"), total_gpus=60)
    ways = {(row.name, row.setting): row for row in found.ways}
    length = len(gpus) - begin
    assert ways["always-on", "60 GPUs"].gpu_hours == length
    assert ways["perfect-foresight", ""].gpu_hours == pytest.approx(gpus[begin:].sum() / 60)
    for name in ("always-on", "perfect-foresight"):
        waiting = next(row for row in found.ways if row.name == name).waiting
        assert (waiting.jobs_served, waiting.p99_delay_s) == (1.0, 0.0)
    by_hand = {
        ("last-value", "+8 GPUs"): [min(60, gpus[k - 5] + 8) for k in range(begin, len(gpus))],
        ("max-k", "30 values"): [gpus[k - 34 : k - 4].max() for k in range(begin, len(gpus))],
    }
    for key, on in by_hand.items():
        assert ways[key].gpu_hours == pytest.approx(sum(on) / 60)
        assert ways[key].performance == np.mean(np.array(on) >= gpus[begin:])
    waits = [row.waiting.mean_delay_s for row in found.ways if row.name == "last-value"]
    assert waits == sorted(waits, reverse=True)
    assert {row.name for row in found.ways} == {
        "always-on", "last-value", "max-k", "threshold", "cuff", "ours", "perfect-foresight"
    }  # fmt: skip


@pytest.mark.slow
def test_the_command_draws_and_prints_one_row_a_setting(log, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "SHARES", (0.9,))
    plot = tmp_path / "ways.png"
    document = run("forecast", "compare", log, "--gpu-w", 50, "--json", "--plot", plot).document
    assert plot.stat().st_size > 10_000
    assert document["ways"][0]["energy_kwh"] == pytest.approx(document["ways"][0]["gpu_hours"] * 0.05)
    text = run("forecast", "compare", log, "--gpu-w", 50, "--price-per-kwh", 0.3).out
    assert text.count("last-value") == 1 + len(evaluation.EXTRA_GPUS)
    assert "100.0%" in text.splitlines()[-1]


@pytest.mark.slow
def test_refused_in_one_line(tmp_path, log):
    series = tmp_path / "demand.csv"
    series.write_text("t_s,gpus\n" + "\n".join(f"{60 * k},{k % 7}" for k in range(400)) + "\n")
    for options, word in (((series,), "job log"), ((log, "--price-per-kwh", 0.3), "--gpu-w")):
        done = run("forecast", "compare", *options)
        assert done.code == 2
        assert word in done.err
        assert "Traceback" not in done.err
    with pytest.raises(InputError, match="job log"):
        evaluation.compare_ways(LoadedSeries(load_series(log).file), make_predictor("last-value"))
