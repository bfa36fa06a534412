"""What jobs ask of nodes by their features, against Python's own ``and`` and ``or``."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.model.errors import FieldError
from commonwatt.model.features import check_constraint, meets
from commonwatt.model.nodes import Cluster, NodeSpec

NAMES = ("ib", "a100", "h100.80", "gpu_mem:40", "x86-64")
NODE = {"gpu_type": "A100", "gpus": 8, "idle_w": 100, "gpu_w": 300}


def joined(parts):
    operator = st.sampled_from("&|")
    return st.tuples(operator, st.lists(parts, min_size=2, max_size=3))


trees = st.recursive(st.sampled_from(NAMES), joined, max_leaves=8)


def text(tree, inside=False):
    if isinstance(tree, str):
        return tree
    operator, parts = tree
    whole = operator.join(text(part, inside=True) for part in parts)
    return f"({whole})" if inside else whole


def true(tree, features):
    if isinstance(tree, str):
        return tree in features
    operator, parts = tree
    values = [true(part, features) for part in parts]
    return values[0] and all(values) if operator == "&" else any(values)


@given(trees, st.sets(st.sampled_from(NAMES)))
def test_what_is_joined_means_what_it_says(tree, features):
    written = text(tree)
    assert check_constraint(written) == written
    assert meets(written, features) == true(tree, features)
    assert meets(written.replace("(", " [ ").replace(")", " ] "), features) == true(tree, features)


@given(st.text(alphabet="ab&|()[] *", max_size=12))
def test_any_text_is_read_or_refused(written):
    known = {"a", "b", "ab", "aa", "bb"}
    with suppress(FieldError):
        check_constraint(written)
        assert meets(written, known.union(re.findall("[ab]+", written)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a&b|c", "parentheses where both are"), ("ib*2", "no numbers of nodes"), ("a b", "& or |"),
        ("a&", "before and after"), ("&a", "before and after"), ("(a|b", r"\) after \("), ("a)", r"no \) without"),
        ("[a|b)", r"\] after \["), ("()", "before and after"), ("(" * 200 + "a" + ")" * 200, "at most 50"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(written, expected):
    with pytest.raises(FieldError, match=expected):
        check_constraint(written)


def test_only_nodes_with_the_features_can_hold_a_job():
    specs = [
        NodeSpec(name="a", count=2, features=("ib", "new"), **NODE), NodeSpec(name="b", features=("ib",), **NODE),
        NodeSpec(name="c", **NODE),
    ]  # fmt: skip
    cluster = Cluster.of(specs)
    assert [k for k, _, _ in cluster.shapes("A100", 8, constraint="ib")] == [0, 1]
    assert cluster.shapes("A100", 16, constraint="ib&new") == [(0, 2, 8)]
    assert cluster.shapes("A100", 24, constraint="ib") == []  # nodes of a job are alike
    assert [k for k, _, _ in cluster.shapes("A100", 8)] == [0, 1, 2]
