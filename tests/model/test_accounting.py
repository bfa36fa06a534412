"""Accounts in accounts: which limits are whose, and what shares are worth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from commonwatt.data.files import validate
from commonwatt.model.accounting import AccountTree, Association
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario


def tree(*rows: dict) -> AccountTree:
    return AccountTree([Association(**row) for row in rows])


def test_levels_are_from_the_user_up():
    found = tree(
        {"account": "root"}, {"account": "lab", "parent": "root"}, {"account": "phys", "parent": "lab"},
        {"account": "phys", "user": "ann"}, {"account": "phys", "user": "ann", "partition": "gpu"},
    )  # fmt: skip

    def names(*who: object) -> list[tuple[str, str, str]]:
        return [one.name for one in found.levels(*who)]

    above = [("phys", "", ""), ("lab", "", ""), ("root", "", "")]
    assert names("phys", "ann") == [("phys", "ann", ""), *above]
    assert names("phys", "ann", ["long", "gpu"]) == [("phys", "ann", "gpu"), *above]
    assert names("phys", "bob") == [("phys", "bob", ""), *above]  # as if it were listed
    assert names("phys", "") == above
    assert names("chem", "ann") == []


def test_shares_of_accounts_in_one_account_are_their_weights():
    found = tree(
        {"account": "root"}, {"account": "a", "parent": "root", "shares": 10},
        {"account": "b", "parent": "root", "shares": 30}, {"account": "a", "user": "ann"},
    )  # fmt: skip
    assert found.weights == pytest.approx({"root": 1e-9, "a": 10, "b": 30})


def test_shares_of_accounts_in_accounts():
    found = tree(
        {"account": "lab", "shares": 60}, {"account": "chem", "shares": 40},
        {"account": "phys", "parent": "lab", "shares": 2}, {"account": "bio", "parent": "lab", "shares": 1},
        {"account": "lab", "user": "ann", "shares": 3},
    )  # fmt: skip
    # of 100: lab 60, of which phys has 2/6, bio 1/6, and the users of lab itself 3/6
    assert found.weights == pytest.approx({"chem": 40, "lab": 30, "phys": 20, "bio": 10})


def test_members_of_an_account_without_shares_claim_beside_it():
    found = tree(
        {"account": "lab", "shares": None}, {"account": "chem", "shares": 1},
        {"account": "phys", "parent": "lab", "shares": 3}, {"account": "chem", "user": "bob", "shares": None},
    )  # fmt: skip
    assert found.weights == pytest.approx({"chem": 1, "phys": 3, "lab": 1e-9})


def test_an_account_without_any_share_weighs_next_to_nothing():
    found = tree({"account": "a", "shares": 0}, {"account": "b", "shares": 2})
    assert found.weights == pytest.approx({"a": 1e-9, "b": 2})


@st.composite
def trees(draw: st.DrawFn) -> list[Association]:
    rows = [Association(account="a0", shares=draw(st.integers(1, 9)))]
    for k in range(1, draw(st.integers(1, 8))):
        parent = draw(st.sampled_from(["", *(row.account for row in rows)]))
        rows.append(Association(account=f"a{k}", parent=parent, shares=draw(st.integers(1, 9))))
    inner = {row.parent for row in rows}
    users = [Association(account=row.account, user="u") for row in rows if row.account not in inner]
    return [*rows, *users]


@settings(max_examples=60, deadline=None)
@given(trees(), st.randoms())
def test_weights_of_leaves_add_up_to_the_shares_at_the_top_whatever_the_order(rows, random) -> None:
    weights = AccountTree(rows).weights
    tops = [row for row in rows if not row.parent and not row.user]
    total = sum(row.shares for row in tops)
    if len(tops) == 1:
        below = [row.shares for row in rows if row.parent == tops[0].account and not row.user]
        total = sum(below) if below else 1.0
    leaves = {row.account for row in rows if row.user}
    assert sum(weights[name] for name in leaves) == pytest.approx(total)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert AccountTree(shuffled).weights == pytest.approx(weights)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"account": "a"}, {"account": "a"}], "'a' twice"),
        ([{"account": "a", "user": "u"}, {"account": "a", "user": "u"}], "'a, u' twice"),
        ([{"account": "a", "parent": "b"}], "'b', the parent of 'a'"),
        ([{"account": "a", "parent": "b"}, {"account": "b", "parent": "a"}], "not in themselves"),
        ([{"account": "a", "parent": "a"}], "not in themselves"),
        ([{"account": "a", "partition": "p"}], "a partition of users only"),
        ([{"account": "a"}, {"account": "a", "user": "u", "parent": "a"}], "a parent of accounts only"),
        ([{"account": "a", "max_gpus_of": {"V100": -1}}], "max_gpus_of"),
        ([{"account": ""}], "account"),
    ],
)
def test_what_is_no_tree_is_refused_in_one_line(rows, said):
    node = {"name": "n", "gpu_type": "V100", "gpus": 1, "idle_w": 1, "gpu_w": 1}
    with pytest.raises((InputError, ValidationError)) as caught:
        validate({"nodes": [node], "associations": rows}, Scenario)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
