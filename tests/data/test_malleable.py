import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.files import validate
from commonwatt.data.log import JobLog
from commonwatt.data.malleable import counts, malleable
from commonwatt.data.profiles import LAW, known_gpu_type
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import DueDates, LogWorkload, WeekWorkload


class Plain:
    """Speeds one can compute in the head; 4 GPUs of a V100 are slower than 2, 8 faster again."""

    kinds = ("even", "single")
    source = "made up"

    def type_named(self, name, field=None, file=None):
        return known_gpu_type(name, field, file)

    def speed(self, kind, gpu_type, gpus):
        name = known_gpu_type(gpu_type)
        if kind == "single":
            return {"P100": 1.0, "V100": 2.0}.get(name) if gpus == 1 else None
        if name == "V100":
            return {1: 2.0, 2: 4.0, 3: 4.5, 4: 3.0, 8: 16.0, 16: 20.0}.get(gpus)
        return float(gpus) if name in ("P100", "T4") else None

    def gpu_w(self, kind, gpu_type):
        return 100.0 if known_gpu_type(gpu_type) == "V100" else None


def log_of(gpus, duration_s=None, gpu_type=None, **more):
    n = len(gpus)
    fields = {"tenant": ["b", "a"] * n} | more
    return JobLog.of(
        "a log", job=[f"j{i}" for i in range(n)], submit_s=np.arange(n) * 10.0,
        duration_s=[100.0] * n if duration_s is None else duration_s, gpus=gpus, gpu_type=gpu_type,
        tenant=fields.pop("tenant")[:n], **fields,
    )  # fmt: skip


def spec(**more):
    return LogWorkload(source="csv", **more)


def made(log, gpu_types=("V100",), profiles=None, seed=0, **more):
    return malleable(log, spec(**more), profiles or Plain(), gpu_types, np.random.default_rng(seed))


def configs(table, j):
    rows = table.configs(j)
    names = [table.gpu_types[t] for t in table.config_type[rows]]
    return dict(
        zip(zip(names, table.config_gpus[rows].tolist(), strict=True), table.config_time_s[rows].tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("asked", "growth", "expected"),
    [
        (1, 1.0, [1]),
        (1, 2.0, [1, 2]),
        (2, 2.0, [1, 2, 4]),
        (3, 2.0, [1, 2, 3, 4]),
        (3, 1.0, [1, 2, 3]),
        (8, 2.0, [1, 2, 4, 8, 16]),
        (8, 1.5, [1, 2, 4, 8]),
        (12, 2.0, [12, 24]),
        (16, 2.0, [8, 16, 32]),
        (24, 1.0, [24]),
        (32, 1.0, [8, 16, 32]),
        (48, 4.0, [24, 48, 96, 192]),
        (6, 4.0, [1, 2, 4, 6, 8, 16]),
    ],
)
def test_counts(asked, growth, expected):
    assert counts(asked, growth) == expected


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(1, 512), st.floats(1, 8))
def test_counts_keep_their_promise(asked, growth):
    found = counts(asked, growth)
    assert found == sorted(set(found))
    assert asked in found
    assert max(found) <= asked * growth
    assert min(found) >= 1
    if asked > 8:
        assert all(g % 8 == 0 for g in found if g < asked)


def test_times_follow_the_speeds():
    table = made(log_of([2]), ("V100", "T4"))  # logged: 2 P100, speed 2
    assert table.kinds == ("even",)  # "single" was never measured on two
    assert configs(table, 0) == {
        ("V100", 1): 100.0, ("V100", 2): 50.0, ("T4", 1): 200.0, ("T4", 2): 100.0, ("T4", 4): 50.0,
    }  # fmt: skip
    assert table.config_gpu_w[:2].tolist() == [100, 100]
    assert np.isnan(table.config_gpu_w[2:]).all()


def test_a_count_that_is_not_faster_is_left_out_unless_asked_for():
    assert configs(made(log_of([2])), 0).keys() == {("V100", 1), ("V100", 2)}  # 4 are slower than 2
    assert configs(made(log_of([4])), 0).keys() == {("V100", 1), ("V100", 2), ("V100", 4), ("V100", 8)}
    assert configs(made(log_of([4], gpu_type=["v100"])), 0)["V100", 4] == 100.0


def test_the_log_names_the_type():
    table = made(log_of([1, 1, 1], gpu_type=["V100", "tesla-p100", ""]), ("v100", "T4"), logged_gpu_type="p100")
    assert configs(table, 0)["v100", 1] == 100.0
    assert configs(table, 1)["v100", 1] == 50.0
    assert configs(table, 2)["v100", 1] == 50.0
    assert table.requested_type.tolist() == [0, -1, -1]  # no P100 in this cluster; no type named
    assert table.gpu_types == ("v100", "T4")  # as the cluster spells them
    assert table.requested_gpus.tolist() == [1, 1, 1]


def test_kinds_are_drawn_evenly_and_with_the_seed():
    log = log_of([1] * 2000)
    one, again, other = (made(log, seed=s) for s in (1, 1, 2))
    assert one.kinds == again.kinds
    assert one.kinds != other.kinds
    share = one.kinds.count("single") / 2000
    assert abs(share - 0.5) < 4 * 0.5 / 2000**0.5


def test_due_dates_and_weights():
    due = DueDates(slack_factor=(2, 3), least_slack_s=50, tardiness_weights=(1, 7))
    log = log_of([1, 4] * 500, duration_s=np.linspace(10, 1000, 1000))
    table = made(log, due_dates=due)
    factor = (table.due_s - table.submit_s - 50) / log.duration_s
    assert 2 <= factor.min() < 2.02
    assert 2.98 < factor.max() <= 3
    assert set(table.tardiness_weight / log.gpus) == {1.0, 7.0}
    assert set(table.tardiness_weight) == {1.0, 7.0, 4.0, 28.0}


def test_due_dates_by_the_time_limit():
    log = log_of([1, 2, 4], time_limit_s=[np.nan, 5000, np.inf])
    table = made(log, due_dates=DueDates(rule="time-limit", limit_factor=1.5, tardiness_weights=(3,)))
    assert table.due_s.tolist() == [np.inf, 10 + 7500, np.inf]
    assert table.tardiness_weight.tolist() == [3, 6, 12]
    assumed = made(log, due_dates=DueDates(rule="time-limit"), time_limit_factor=2.0)
    assert assumed.due_s.tolist() == [200, 5010, np.inf]


def test_due_dates_by_qos():
    log = log_of([1, 2, 4], qos=("high", "normal", ""))
    table = made(log, due_dates=DueDates(rule="qos", by_qos_s={"high": 60, "normal": 600}, tardiness_weights=(3,)))
    assert (table.due_s - table.submit_s).tolist() == [60, 600, np.inf]
    with pytest.raises(InputError, match="got 'qos', expected a log that says which QOS jobs had"):
        made(log_of([1]), due_dates=DueDates(rule="qos", by_qos_s={"high": 60}))


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"rule": "qos"}, "by_qos_s"), ({"by_qos_s": {"high": 60}}, "by_qos_s"),
        ({"rule": "qos", "by_qos_s": {"high": 0}}, "by_qos_s.high"),
    ],
)  # fmt: skip
def test_due_dates_by_qos_want_seconds(raw, field):
    with pytest.raises(InputError) as caught:
        validate(raw, DueDates)
    assert caught.value.field == field


def test_no_due_dates():
    table = made(log_of([1, 2]), due_dates="none")
    assert table.due_s.tolist() == [np.inf, np.inf]
    assert table.tardiness_weight.tolist() == [0, 0]


def test_fixed_counts():
    table = made(log_of([2, 4, 12], gpu_type=["V100", "V100", "T4"]), ("V100", "T4"), LAW, malleable=False)
    assert [set(configs(table, j)) for j in range(3)] == [{("V100", g), ("T4", g)} for g in (2, 4, 12)]


def test_fixed_types():
    log = log_of([1, 1, 1, 1], gpu_type=["V100", "tesla-p100", "", "t4"])
    table = made(log, ("v100", "T4"), LAW, other_types=False)
    types = [{name for name, _ in configs(table, j)} for j in range(4)]
    assert types == [{"v100"}, {"v100", "T4"}, {"v100", "T4"}, {"T4"}]  # the cluster has no P100
    unnamed = made(log, ("v100", "T4"), LAW, other_types=False, logged_gpu_type="V100")
    assert {name for name, _ in configs(unnamed, 2)} == {"v100"}


SWITCHES = st.fixed_dictionaries(
    {
        "malleable": st.booleans(),
        "other_types": st.booleans(),
        "due_dates": st.sampled_from(["none", DueDates(), DueDates(rule="time-limit", limit_factor=2)]),
    }
)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["", "V100", "T4", "K80"])), min_size=1, max_size=15),
    st.integers(0, 5),
    SWITCHES,
)
def test_switches_leave_what_is_drawn_alone(rows, seed, switches):
    log = log_of([g for g, _ in rows], gpu_type=[t for _, t in rows], time_limit_s=[900.0] * len(rows))
    plain = made(log, ("V100", "T4", "A100"), LAW, seed)
    table = made(log, ("V100", "T4", "A100"), LAW, seed, **switches)
    assert table.kinds == plain.kinds
    if switches["due_dates"] != "none":
        assert table.tardiness_weight.tolist() == plain.tardiness_weight.tolist()
        if switches["due_dates"].rule == "drawn":
            assert table.due_s.tolist() == plain.due_s.tolist()
    for j, (asked, ran_on) in enumerate(rows):
        found = configs(table, j)
        assert found
        assert found.items() <= configs(plain, j).items()
        assert all(g == asked for _, g in found) or switches["malleable"]
        own = ran_on in ("V100", "T4")
        assert all(name == ran_on for name, _ in found) or switches["other_types"] or not own


def test_everything_else():
    log = log_of([1, 1, 1], duration_s=[100, 900, 1600], time_limit_s=[np.nan, 5000, np.inf])
    table = made(log, epoch_s=600)
    assert table.epochs.tolist() == [1, 2, 3]
    assert table.names == ("j0", "j1", "j2")
    assert table.tenants == ("b", "a")
    assert table.tenant.tolist() == [0, 1, 0]
    assert table.submit_s.tolist() == [0, 10, 20]
    assert table.time_limit_s.tolist() == [np.inf, 5000, np.inf]
    assert made(log, time_limit_factor=2).time_limit_s.tolist() == [200, 5000, np.inf]
    assert table.start[0] == 0
    assert table.start[-1] == len(table.config_time_s) == len(table.config_gpus) == len(table.config_type)


def test_a_generated_week_has_no_declared_limits():
    table = malleable(log_of([1]), WeekWorkload(source="week"), Plain(), ["V100"], np.random.default_rng(0))
    assert table.time_limit_s.tolist() == [np.inf]


@pytest.mark.parametrize(
    ("log", "gpu_types", "more", "line"),
    [
        (
            log_of([1]),
            ("H100",),
            {},
            "field 'nodes.gpu_type': got 'H100', expected a GPU type whose speed is known (K80, ",
        ),
        (
            log_of([1]),
            ("V100",),
            {"logged_gpu_type": "GH200"},
            "field 'workload.logged_gpu_type': got 'GH200', expected a",
        ),
        (
            log_of([1], gpu_type=["mi300"], path="x.csv"),
            ("V100",),
            {},
            "x.csv: field 'gpu_type': got 'mi300', expected a",
        ),
        (
            log_of([1]),
            ("A100",),
            {},
            "field 'gpu_type': got '1 P100', expected a GPU type on which some kind of model has",
        ),
    ],
)
def test_unknown_types(log, gpu_types, more, line):
    with pytest.raises(InputError) as caught:
        made(log, gpu_types, **more)
    assert str(caught.value).startswith(line)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 10**6)), min_size=1, max_size=20),
    st.integers(0, 5),
    st.floats(1, 4),
)
def test_properties_with_the_laws(rows, seed, growth):
    log = log_of([g for g, _ in rows], duration_s=[float(d) for _, d in rows])
    types = ("V100", "T4", "A100")
    table = malleable(log, spec(largest_growth=growth), LAW, types, np.random.default_rng(seed))
    assert len(table) == len(rows)
    assert (table.due_s > table.submit_s).all()
    assert (table.tardiness_weight > 0).all()
    assert (table.config_time_s > 0).all()
    for j, (asked, duration_s) in enumerate(rows):
        found = configs(table, j)
        for name in types:
            own = sorted((g, t) for (kind, g), t in found.items() if kind == name)
            assert asked in [g for g, _ in own]
            assert (np.diff([t for _, t in own]) < 0).all()  # more GPUs are faster
            work = [LAW.speed(table.kinds[j], name, g) * t for g, t in own]
            assert np.allclose(work, duration_s * LAW.speed(table.kinds[j], "P100", asked))


@pytest.mark.slow
def test_a_hundred_thousand_jobs():
    rng = np.random.default_rng(0)
    log = log_of(rng.choice([1, 2, 4, 8, 16, 32], size=100_000), tenant=["t"] * 100_000)
    table = malleable(log, spec(), LAW, ("V100", "T4", "P100"), rng)
    assert len(table) == 100_000
    assert table.start[-1] > 500_000
