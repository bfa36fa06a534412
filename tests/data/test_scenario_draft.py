"""Drafts of scenarios: entries of nodes are the YAML that PyYAML would write."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data.files import parse_yaml
from commonwatt.data.inventory import InventoryNode
from commonwatt.data.scenario_draft import drafted_nodes, observed_text
from commonwatt.model.scenario import Scenario

NAMES = [
    "gpu-1",
    "n1.example.org",
    "no",
    "on",
    "null",
    "1e3",
    "0x10",
    "true",
    "y",
    "e1",
    "a: b",
    "- x1",
    "#1",
    "ü1",
    "1-2",
]


def written(node: InventoryNode) -> str:
    """Return the entry of a node."""
    text = observed_text(drafted_nodes([node]), "it", (0.2, 1.4, "EUR"))
    (line,) = (line for line in text.splitlines() if line.startswith("  - {name: "))
    return line.removeprefix("  - ")


def entry(name: str, partitions: tuple[str, ...] = ()) -> None:
    text = written(InventoryNode(name, "A100", 8, partitions=partitions))
    expected = {"name": name, "gpu_type": "A100", "gpus": 8, **({"partitions": list(partitions)} if partitions else {})}
    for read in (parse_yaml, yaml.safe_load):
        found = read(text)
        assert {key: found[key] for key in expected} == expected
        assert found.keys() - expected.keys() == {"idle_w", "gpu_w"}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_look_like_something_else(name):
    entry(name)
    entry(name, (name, "b"))


@pytest.mark.parametrize("domain", ["01", "1e3", "no", "block-1/rack-2", "b[0-1]/b0", "#1", "a:b/c"])
def test_domains_are_written_as_they_are(domain):
    alone = InventoryNode("n1", "A100", 8, domain=domain)
    mixed = [InventoryNode(f"n1:{kind}", kind, 1, host="n1", domain=domain) for kind in ("A100", "T4")]
    for nodes in ([alone], mixed):
        text = observed_text(drafted_nodes(nodes), "it", (0.2, 1.4, "EUR"))
        assert {node.domain for node in Scenario.model_validate(parse_yaml(text)).nodes} == {domain}


def test_only_nodes_of_one_domain_are_one_entry():
    found = [InventoryNode(f"n-{k}", "T4", 4, domain="a" if k < 3 else "b") for k in range(1, 5)]
    drafted = drafted_nodes(found)
    assert [(node.name, node.count, node.domain) for node in drafted] == [
        ("n", 2, "a"),
        ("n-3", 1, "b"),
        ("n-4", 1, "b"),
    ]


@pytest.mark.slow
@given(st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9.:-]{0,20}[a-zA-Z0-9])?", fullmatch=True))
def test_any_name_of_a_node_is_read_as_it_was(name):
    entry(name)
