"""A plan under a limit of power, under prices over time, and with a price of delay."""

import json
import math

import numpy as np
import pytest

from commonwatt.data.series_files import SeriesFile
from commonwatt.model.demand import Arrivals, DemandSeries
from commonwatt.model.electricity import Electricity, ElectricityPoint
from commonwatt.model.errors import InputError
from commonwatt.planning.budget import CANDIDATES, PowerBudget, within_budget
from commonwatt.planning.series import LoadedSeries
from commonwatt.planning.waiting import Hindsight, Price
from tests.cli.console import run

CAPPED = Electricity(
    series=(
        ElectricityPoint(from_s=0, price_per_kwh=0.1, carbon_g_per_kwh=100, power_cap_w=1_000),
        ElectricityPoint(from_s=180, price_per_kwh=0.3, carbon_g_per_kwh=500),
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Two days of jobs, of which the last run on when the log ends; at most some 60 GPUs."""
    rng = np.random.default_rng(6)
    path = tmp_path_factory.mktemp("budget") / "jobs.csv"
    rows = [f"{t},{rng.integers(600, 3_600)},{rng.choice([1, 2, 8])}" for t in np.sort(rng.integers(0, 172_800, 600))]
    path.write_text("submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n")
    return path


def loaded(*gpus: float) -> LoadedSeries:
    return LoadedSeries(SeriesFile(DemandSeries(0.0, 60.0, np.array(gpus)), dated=False, holes=0))


def test_the_budget_is_the_least_limit_over_the_power_of_a_gpu():
    """1,000 W until 180 s, then none, beside 2,100 W always: 3 GPUs of 300 W, then 7."""
    price = Price(300.0, tariff=CAPPED.tariff(), limit_w=2_100.0)
    budget = PowerBudget.of(loaded(1, 2, 3, 4), 2, price)
    assert budget is not None
    assert budget.gpus.tolist() == [3, 3, 3, 7, 7, 7]
    assert PowerBudget.of(loaded(1, 2), 2, Price(300.0)) is None
    alone = PowerBudget.of(loaded(1, 2, 3, 4), 2, Price(300.0, tariff=CAPPED.tariff()))
    assert alone is not None
    assert alone.gpus.tolist() == [3, 3, 3, math.inf, math.inf, math.inf]


def test_a_budget_below_what_runs_and_one_without_a_power_are_refused():
    with pytest.raises(InputError, match=r"1\.2 kW or more, as 4 GPUs run"):
        PowerBudget.of(loaded(1, 2, 4), 2, Price(300.0, limit_w=1_199.0))
    assert PowerBudget.of(loaded(1, 2, 4), 2, Price(300.0, limit_w=1_200.0)) is not None
    with pytest.raises(InputError, match="power of a GPU"):
        PowerBudget.of(loaded(1, 2, 4), 2, Price(limit_w=1_200.0))


def test_who_waits_for_power_and_who_for_the_forecast():
    """Wanted on 4, 4, 4, 9, 9; 3 GPUs allowed for three minutes, then 7.

    The job of minute 1 (meets 3) finds its GPUs on either way. That of minute 2 (meets 4) waits a minute for power.
    That of minute 3 (meets 8) waits for ever, two minutes here, as 7 are allowed. That of minute 4 (meets 12) waits two
    minutes for the forecast, whatever the power.
    """
    budget = PowerBudget(np.array([1e3, 1e3, 1e3, 2.1e3, 2.1e3, 2.1e3, 2.1e3]), 300.0)
    actual = np.array([2.0, 3.0, 4.0, 8.0, 12.0])
    jobs = Arrivals(np.array([1, 2, 3, 4]), np.ones(4), np.array([3.0, 4.0, 8.0, 12.0]))
    outcome = Hindsight(actual, jobs, 60.0, 2, Price())
    found = within_budget(budget, outcome, 0, np.array([4.0, 4.0, 4.0, 9.0, 9.0]))
    assert (found.binding, found.beyond, found.jobs_delayed) == (5, 3, 2)
    assert found.mean_delay_s == 90.0
    assert found.least_kw == 1.0
    assert "at 5 of 5 instants, fewer than were wanted at 3; 2 jobs waited" in found.sentence


def test_prices_and_carbon_are_those_of_the_time():
    """2 GPUs of 300 W: three minutes at .1, two at .3; 10 Wh a minute."""
    outcome = Hindsight(np.ones(5), None, 60.0, 2, Price(300.0, tariff=CAPPED.tariff()), 0.0)
    worth = outcome.worth("two", np.full(5, 2.0))
    assert worth.energy_kwh == pytest.approx(0.05)
    assert worth.cost == pytest.approx(0.01 * (3 * 0.1 + 2 * 0.3))
    assert worth.carbon_kg == pytest.approx(0.01 * (3 * 0.1 + 2 * 0.5))
    later = Hindsight(np.ones(5), None, 60.0, 2, Price(300.0, tariff=CAPPED.tariff()), 180.0)
    assert later.worth("two", np.full(5, 2.0)).cost == pytest.approx(0.05 * 0.3)


def test_a_part_of_nothing_serves_nobody():
    """Where no GPUs were on, no factor helps: with one instant in four that may miss, the rest need twice as much."""
    outcome = Hindsight(np.array([2.0, 4.0, 6.0, 1.0]), None, 60.0, 2, Price())
    assert outcome.factor(0.75, np.array([1.0, 2.0, 3.0, 0.0])) == 1.0
    assert outcome.factor(1.0, np.array([1.0, 2.0, 2.0, 0.0])) == 2.0  # cannot be kept: the nearest
    assert outcome.factor(1.0, np.zeros(4)) == 0.0


@pytest.mark.slow
def test_no_more_is_on_than_the_budget_allows(log, tmp_path):
    options = ("forecast", "plan", log, "--gpu-w", 300, "--target", "jobs:0.95", "--json")
    free, bound = run(*options).document, run(*options, "--power-kw", 9).document
    assert free["budget"] is None
    assert bound["budget"]["binding"] > 0
    assert bound["budget"]["jobs_delayed"] > 0
    assert max(row["mean_gpus_on"] for row in bound["replay"]) <= 30
    assert max(step["gpus_on"] for step in bound["plan"]) <= 30
    assert all(row["gpu_hours"] <= 30 * free["replayed"] / 60 for row in bound["worth"])
    series = tmp_path / "power.csv"
    series.write_text("from_s,price_per_kwh,power_cap_w\n0,0.1,\n150000,0.4,9000\n")
    over_time = run(*options, "--electricity", series).document
    assert 0 < over_time["budget"]["binding"] <= bound["budget"]["binding"]
    text = run(*options[:-1], "--power-kw", 9).out
    assert "budget      the power budget allowed fewer GPUs" in text


@pytest.mark.long
@pytest.mark.slow
def test_the_dearer_the_delay_the_more_is_promised(log):
    options = ("forecast", "plan", log, "--gpu-w", 300, "--price-per-kwh", 0.3, "--json")
    found = [run(*options, "--delay-price", price).document for price in (0, 1, 1_000)]
    assert found[0]["promise"]["label"] == "jobs:0.5"
    targets = [one["promise"]["target"] for one in found]
    assert targets == sorted(targets)
    assert targets[-1] > targets[0]
    for one in found:
        assert len(one["priced"]) == len(CANDIDATES)
        best = min(one["priced"], key=lambda row: row["energy_cost"] + row["delay_cost"])
        assert one["promise"]["label"] == best["label"]
    text = run(*options[:-1], "--delay-price", 1).out
    assert text.count("<- cheapest, and promised") == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--power-kw", 9), "--gpu-w"),
        (("--power-kw", 0, "--gpu-w", 300), "--power-kw"),
        (("--power-kw", 0.001, "--gpu-w", 300), "GPUs run at the end"),
        (("--delay-price", 1, "--gpu-w", 300), "price of energy"),
        (("--delay-price", 1, "--gpu-w", 300, "--price-per-kwh", 0.1, "--target", "0.9"), "--delay-price"),
        (("--electricity", "none.csv", "--gpu-w", 300), "none.csv"),
        (("--electricity", "none.yaml", "--gpu-w", 300, "--price-per-kwh", 0.1), "--price-per-kwh"),
        (("--pools", "tenant", "--power-kw", 9, "--gpu-w", 300), "--pools"),
    ],
)
def test_refused_in_one_line(log, options, word):
    done = run("forecast", "plan", log, *options)
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert "Traceback" not in done.err


def test_a_price_of_delay_needs_jobs(tmp_path):
    series = tmp_path / "demand.csv"
    series.write_text("t_s,gpus\n" + "\n".join(f"{60 * k},{k % 7}" for k in range(900)) + "\n")
    done = run("forecast", "plan", series, "--gpu-w", 300, "--price-per-kwh", 0.3, "--delay-price", 1)
    assert done.code == 2
    assert "job log" in done.err
    budget = json.loads(run("forecast", "plan", series, "--gpu-w", 300, "--power-kw", 1.2, "--json").out)["budget"]
    assert budget["jobs_delayed"] is None


def test_a_price_of_delay_needs_jobs_in_the_history(tmp_path):
    log = tmp_path / "jobs.csv"
    rows = ["0,170000,4", *(f"{at},600,2" for at in range(150_000, 170_000, 500))]
    log.write_text("submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n")
    done = run("forecast", "plan", log, "--gpu-w", 300, "--price-per-kwh", 0.3, "--delay-price", 1)
    assert done.code == 2
    assert "jobs in the week before the replay" in done.err
