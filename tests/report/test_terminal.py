import pytest
from rich.console import Console

from commonwatt.report.text import change, change_text, rivals, service_table, summary, table
from tests.report.make_records import MEDIUM, SMALL, make, make_result


def shown(result, width, of=table):
    console = Console(width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(of(result))
    return capture.get().replace("\N{NO-BREAK SPACE}", " ")


def with_costs(*costs, **fields):
    result, records = make(SMALL, tuple(f"p{i}" for i in range(len(costs))))
    policies = tuple(
        policy.model_copy(update={"total_cost": cost, "lower_bound_cost": 5.0, "jobs": 8} | fields)
        for policy, cost in zip(result.policies, costs, strict=True)
    )
    return make_result(records, policies=policies)


@pytest.mark.parametrize("of", [table, service_table])
@pytest.mark.parametrize("width", [80, 100])
def test_one_line_for_each_policy(width, of):
    result, _ = make(MEDIUM)
    lines = shown(result, width, of).splitlines()
    assert max(len(line) for line in lines) <= width
    for policy in result.policies:
        assert sum(line.startswith(policy.policy) for line in lines) == 1
    assert "…" not in "".join(lines)


def test_saving_and_unknown():
    text = shown(with_costs(10.0, 20.0, 8.0, None), 100)
    rows = {line.split()[0]: line.split()[-1] for line in text.splitlines() if line.startswith("p")}
    assert rows["p1"] == "50.0%"
    assert rows["p2"] == "−25.0%"
    assert rows["p3"] == "?"


def test_who_waits():
    result, _ = make(SMALL, ("p0", "p1"))
    unknown = result.policies[1].model_copy(update={"window_energy_kwh": None, "window_cost": None, "most_starts": 7})
    text = shown(make_result(make(SMALL)[1], policies=(result.policies[0], unknown)), 80, service_table)
    row = next(line.split() for line in text.splitlines() if line.startswith("p1"))
    assert row[1:3] == ["?", "?"]
    assert row[-1] == "7"


def test_markup_in_names_is_text():
    result, _ = make(SMALL, ("[bold]a", "b"))
    assert "[bold]a" in shown(result, 100)


def test_summary():
    assert summary(with_costs(10.0, 20.0, 8.0)) == (
        "p0 ran 8 jobs for €10.00 (2.00× the lower bound), 25.0% more than p2 (€8.00) and 50.0% less than p1 (€20.00)."
    )
    assert summary(with_costs(10.0, 4.0)) == (
        "p0 ran 8 jobs for €10.00 (2.00× the lower bound), 2.50× as much as p1 (€4.00)."
    )
    assert summary(with_costs(10.0)) == "p0 ran 8 jobs for €10.00 (2.00× the lower bound)."
    assert summary(with_costs(10.0, None)) == "p0 ran 8 jobs for €10.00 (2.00× the lower bound)."
    assert summary(with_costs(None, 4.0)) == "p0 ran 8 jobs; their cost is unknown."
    assert summary(with_costs(10.0, lower_bound_cost=0.0)) == "p0 ran 8 jobs for €10.00."


def test_what_the_window_says_otherwise_is_said_too():
    result = with_costs(10.0, 20.0)

    def with_energy(*costs):
        fields = ("energy_cost", "window_cost")
        changed = [
            p.model_copy(update=dict(zip(fields, c, strict=True))) for p, c in zip(result.policies, costs, strict=True)
        ]
        return summary(result.model_copy(update={"policies": tuple(changed)}))

    assert with_energy((5.0, 4.5), (10.0, 5.0)).endswith("(€20.00). In the window its energy costs 10.0% less than p1.")
    assert with_energy((5.0, 4.0), (10.0, 8.05)).endswith("(€20.00).")
    assert with_energy((5.0, None), (10.0, 8.0)).endswith("(€20.00).")


def test_change():
    assert change(8.0, 10.0) == pytest.approx(-0.2)
    assert change(0.0, 0.0) == 0
    assert change(1.0, 0.0) is None
    assert change(None, 1.0) is None
    assert change(1.0, float("nan")) is None
    assert change_text(1.0, 0.0, "x") == "more than x"
    assert change_text(1.0, 1.0001, "x") == "the same as x"
    assert change_text(None, 1.0, "x") == "unknown against x"


def test_rivals():
    best_and_worst = rivals(with_costs(10.0, 20.0, 8.0, None))
    assert (best_and_worst.best.policy, best_and_worst.worst.policy) == ("p2", "p1")
    assert rivals(with_costs(10.0, 20.0)).worst is None
    assert rivals(with_costs(10.0)) is None
    assert rivals(with_costs(10.0, None, None)).best.policy == "p1"
