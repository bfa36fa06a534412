import math

import pytest

from commonwatt.report import format as fmt


def spaced(text):
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("value", "currency", "text"),
    [
        (0, "EUR", "€0.00"),
        (0.0042, "EUR", "€0.0042"),
        (0.4119, "EUR", "€0.41"),
        (0.0996, "EUR", "€0.10"),
        (0.0994, "EUR", "€0.099"),
        (12.3, "EUR", "€12.30"),
        (999.999, "USD", "$1,000"),
        (2898.4, "USD", "$2,898"),
        (999_960, "GBP", "£1.00 million"),
        (10_450_000, "CHF", "10.4 million CHF"),
        (2.5e9, "EUR", "€2.50 billion"),
        (-3.2, "EUR", "−€3.20"),
        (0.000_63, "EUR", "€0.00063"),
        (6.3e-5, "EUR", "<€0.0001"),
        (-1e-9, "CHF", ">−0.0001 CHF"),
    ],
)
def test_money(value, currency, text):
    assert spaced(fmt.money(value, currency)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.42, "0.42 s"), (9.87, "9.87 s"), (42, "42 s"), (99.6, "1.66 min"), (252, "4.20 min"),
        (3 * 3600, "3.00 h"), (47.96 * 3600, "48.0 h"), (48 * 3600, "2.00 days"), (150 * 86400, "150 days"),
        (-90, "−90 s"),
    ],
)  # fmt: skip
def test_duration(seconds, text):
    assert spaced(fmt.duration(seconds)) == text


@pytest.mark.parametrize(
    ("show", "values", "texts"),
    [
        (fmt.duration, [4590, 7488, 7200], ["1.27 h", "2.08 h", "2.00 h"]),
        (fmt.duration, [0, 18, 1.6, 106.8], ["0 s", "18 s", "1.60 s", "107 s"]),
        (fmt.duration, [None, 86400 * 30, 3600], ["unknown", "720 h", "1.00 h"]),
        (fmt.energy, [953.0, 1200.0, 0.0], ["0.95 MWh", "1.20 MWh", "0 MWh"]),
        (fmt.carbon, [0.0, math.nan], ["0 g", "unknown"]),
    ],
)
def test_a_column_has_one_unit(show, values, texts):
    assert [spaced(text) for text in fmt.column(show, values)] == texts


@pytest.mark.parametrize(
    ("kwh", "text"), [(0, "0 Wh"), (0.0123, "12.3 Wh"), (0.9999, "1.00 kWh"), (12.34, "12.3 kWh"), (276_900, "277 MWh")]
)
def test_energy(kwh, text):
    assert spaced(fmt.energy(kwh)) == text


@pytest.mark.parametrize(("kg", "text"), [(0.25, "250 g"), (306.2, "306 kg"), (83_160, "83.2 t")])
def test_carbon(kg, text):
    assert spaced(fmt.carbon(kg)) == text


@pytest.mark.parametrize(
    ("share", "signed", "text"),
    [(0.133, False, "13.3%"), (1, False, "100%"), (0, True, "0%"), (0.05, True, "+5.0%"), (-0.066, True, "−6.6%"),
     (0.0001, False, "less than 0.1%")],
)  # fmt: skip
def test_percent(share, signed, text):
    assert fmt.percent(share, signed=signed) == text


@pytest.mark.parametrize(("value", "text"), [(1.036, "1.04×"), (13.52, "13.5×"), (154.4, "154×")])
def test_ratio(value, text):
    assert fmt.ratio(value) == text


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
@pytest.mark.parametrize(
    "show", [lambda v: fmt.money(v, "EUR"), fmt.duration, fmt.energy, fmt.carbon, fmt.percent, fmt.ratio, fmt.count]
)
def test_unknown_is_never_a_number(show, value):
    assert show(value) == "unknown"


def test_power_unit():
    assert [fmt.power_unit(w) for w in (0, 1999, 2000, 3e6)] == [("W", 1.0), ("W", 1.0), ("kW", 1e3), ("MW", 1e6)]


def test_plural():
    assert fmt.plural(1, "node") == "1 node"
    assert fmt.plural(1000, "node") == "1,000 nodes"
