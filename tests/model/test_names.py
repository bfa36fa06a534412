import pytest

from commonwatt.model.names import did_you_mean, one_of

SOLVERS = ("random-greedy", "local-search", "lookahead", "exact", "fifo", "edf")
GPUS = ("K80", "P100", "V100", "T4", "RTX2080Ti", "RTX6000", "A40", "A100")


@pytest.mark.parametrize(
    ("value", "names", "meant"),
    [
        ("lookahed", SOLVERS, "lookahead"), ("FIFO ", SOLVERS, "fifo"), ("random_greedy", SOLVERS, "random-greedy"),
        ("local", SOLVERS, "local-search"), ("v100", GPUS, "V100"), ("rtx2080", GPUS, "RTX2080Ti"),
        ("V10", GPUS, "V100"), ("dayz", ("begin", "days"), "days"),
        ("table3", ("table-3", "table-4"), "table-3"),
    ],
)  # fmt: skip
def test_the_name_that_was_meant(value, names, meant):
    assert did_you_mean(value, names) == f" (did you mean {meant}?)"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("H100", GPUS), ("RTX5000", GPUS), ("magic", SOLVERS), ("", SOLVERS), (None, SOLVERS), ("x", ()),
        ("figure-12", ["figure-11"]),
    ],
)  # fmt: skip
def test_no_name_where_none_is_near(value, names):
    assert did_you_mean(value, names) == ""


def test_one_of():
    assert one_of(("fifo", "edf"), "fifoo") == "one of fifo, edf (did you mean fifo?)"
    assert one_of(name for name in ("fifo", "edf")) == "one of fifo, edf"


def test_numbers_may_differ_where_they_are_no_names_of_their_own():
    assert did_you_mean("resnet51", ["resnet50", "vgg16"]) == ""
    assert did_you_mean("resnet51", ["resnet50", "vgg16"], any_number=True) == " (did you mean resnet50?)"
