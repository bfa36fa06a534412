"""What each decision of a fleet is worth: the scenario, and how it is shown."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from commonwatt.data.files import load_yaml, validate
from commonwatt.model.scenario import Scenario
from commonwatt.report.fleet import WORTH, fleet_section, fleet_table
from commonwatt.reproduce.fleet_worth import _draw, _points, _rows, edge_fleet, generated_fleet
from commonwatt.simulation.runner import run_seeds
from commonwatt.simulation.workload import prepare
from tests.simulation.test_fleet import fraction, scenario, service

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet.yaml"


def test_the_example_is_what_is_reproduced():
    assert validate(generated_fleet(), Scenario) == load_yaml(EXAMPLE, Scenario)


def test_the_edge_box_serves_its_published_networks():
    edge = validate(edge_fleet(), Scenario)
    times = {s.name: (s.profiles["TX2"].request_s, s.profiles["TX2"].power_w) for s in edge.services}
    assert times == {"door": (0.021406, 3.736), "shelf": (0.057005, 4.261)}  # resnet18 and resnet50 at 1300.5 MHz
    assert {p.capacity.policy for p in edge.policies if p.capacity} == {"last-value", "always-on"}


def drawn(table, width):
    console = Console(width=width, file=StringIO())
    console.print(table)
    return console.file.getvalue().splitlines()


@pytest.mark.slow
def test_a_decision_left_out_is_compared_and_shown(tmp_path):
    policies = [
        {"name": "all", "solver": "fifo"}, {"name": "whole", "solver": "fifo", "sharing": {"modes": []}},
        {"name": "only placement", "solver": "srtf", "sharing": {"modes": []}},
    ]  # fmt: skip
    document = scenario(
        services=[service(tenant="<shop>")], policies=policies,
        fractional={"source": "jobs", "jobs": [fraction("f", 0, 600, 250)]},
    )  # fmt: skip
    results, _ = run_seeds([prepare(validate(document, Scenario), Path(), 0)])
    rows = {row.quantity: row.ours for row in _rows(results)}
    ours, other, single = results[0].policies
    assert ours.window_energy_kwh is not None
    assert other.window_energy_kwh is not None
    change = 100 * (other.window_energy_kwh / ours.window_energy_kwh - 1)
    assert rows["whole instead of all: energy in the window"] == pytest.approx(change)
    assert single.window_energy_kwh is not None
    against = rows["all instead of only placement, the best single decision: energy in the window"]
    assert against == pytest.approx(100 * (ours.window_energy_kwh / single.window_energy_kwh - 1))
    assert len(_points(results)) == 3 * len(WORTH)
    _draw(results, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 1000
    page = fleet_section(results[0])
    assert "&lt;shop&gt;" in page
    assert "<shop>" not in page
    shown = fleet_table(results[0])
    assert shown.row_count == 3
    shown.add_row("policy of fair", "1,234 MWh", "100.0%", "100.0%", "12,345 h", "59.9 min", "12.34×", "1,234", "1,234")
    assert max(map(len, drawn(shown, width=200))) <= 80
