"""Drafts of scenarios: entries of nodes are the YAML that PyYAML would write."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data._node_details import measured_power
from commonwatt.data.files import parse_yaml
from commonwatt.data.inventory import InventoryNode
from commonwatt.data.scenario_draft import draft_scenario, drafted_nodes, observed_text
from commonwatt.engines.slurm.parsing import host_names
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


def node_line(name, state, watts, *, tres="", cpus=0, gres="gpu:a100:4"):
    return (
        f"NodeName={name} CPUAlloc={cpus} CPUTot=64 Gres={gres} State={state} AllocTRES={tres} "
        f"CurrentWatts={watts} AveWatts=0\n"
    )


MEASURED = "".join(
    [
        node_line("a1", "IDLE", 500),
        node_line("a2", "IDLE+DRAIN", 540),
        node_line("a3", "IDLE", 520),
        node_line("a4", "IDLE+POWERED_DOWN", 9),
        node_line("a5", "ALLOCATED", 1720, tres="cpu=64,gres/gpu=4,gres/gpu:a100=4", cpus=64),
        node_line("a6", "MIXED", 1170, tres="cpu=8,gres/gpu=2", cpus=8),
        node_line("a7", "MIXED", 9999, tres="cpu=8,gres/gpu=1", cpus=8),
        node_line("a8", "IDLE", 0),
        node_line("a9", "IDLE*", 100),
        node_line("b1", "IDLE", 90, gres="gpu:t4:2"),
        node_line("c1", "MIXED", 800, gres="gpu:v100:2", tres="gres/gpu=2", cpus=2),
    ]
)


def by_name(text):
    _, result = draft_scenario(text, host_names)
    return {node.name: node for node in result.nodes}


def test_power_that_slurm_measures_is_taken_and_said():
    """Idle: the median of 500, 520 and 540; a busy GPU: (1720 - 520) / 4 and (1170 - 520) / 2."""
    nodes = by_name(MEASURED)
    assert (nodes["a4"].idle_w, nodes["a4"].gpu_w) == (520.0, (300.0 + 325.0) / 2)
    assert nodes["a1"].power_source == "measured by Slurm: idle_w on 3 idle nodes, gpu_w on 2 busy"
    assert nodes["b1"].idle_w == 90.0
    assert nodes["b1"].power_source.endswith("idle_w measured by Slurm on 1 idle node")
    assert "Slurm" not in nodes["c1"].power_source  # none of its kind is idle
    assert nodes["c1"].idle_w == by_name(MEASURED.replace("CurrentWatts", "Other"))["c1"].idle_w
    text, _ = draft_scenario(MEASURED, host_names)
    assert "#   a100: " not in text
    assert "measured by Slurm: idle_w on 3 idle nodes, gpu_w on 2 busy" in text


@pytest.mark.parametrize(
    ("lines", "idle_w"),
    [
        (node_line("a1", "IDLE", 4294967294), None),
        (node_line("a1", "IDLE", "9" * 400), None),
        (node_line("a1", "IDLE", 55), None),  # as a plugin says that measures processors alone
        (node_line("a1", "IDLE", 500) + node_line("a2", "MIXED", 510, tres="gres/gpu=4", cpus=4), None),
        (node_line("a1", "IDLE", 500) + node_line("a2", "MIXED", 90_000, tres="gres/gpu=4", cpus=4), None),
        (node_line("a1", "IDLE+NOT_RESPONDING", 500), None),
        (node_line("a1", "IDLE", 900) + node_line("a2", "MIXED", 600, tres="gres/gpu=4", cpus=4), None),
        (node_line("a1", "IDLE", 500) + node_line("a2", "IDLE", 700).replace("\n", " Reason=CurrentWatts=9 x\n"), 600),
        (node_line("a1", "IDLE", 500) + node_line("a2", "MIXED", 900, tres=f"gres/gpu={'9' * 5000}", cpus=4), 500),
    ],
)
def test_power_that_cannot_be_is_not_taken(lines, idle_w):
    assumed = by_name(lines.replace("CurrentWatts", "Other"))["a1"]
    found = by_name(lines)["a1"]
    assert found.idle_w == (assumed.idle_w if idle_w is None else idle_w)
    assert found.gpu_w == assumed.gpu_w


def test_gpus_in_use_are_read_from_gres_where_sites_do_not_count_them():
    busy = node_line("a2", "MIXED", 1100, tres="cpu=8", cpus=8).replace(
        "AllocTRES", "GresUsed=gpu:a100:2(IDX:0-1) AllocTRES"
    )
    assert by_name(node_line("a1", "IDLE", 500) + busy)["a1"].gpu_w == 300.0


@pytest.mark.parametrize("energy", [[], 5, "x", {"current_watts": []}, {"current_watts": True}, {"current_watts": "7"}])
def test_power_in_json_that_is_none_is_no_error(energy):
    node = {"name": "a1", "gres": "gpu:a100:4", "state": 5, "state_flags": 7, "alloc_cpus": 0, "energy": energy}
    assert "Slurm" not in by_name(json.dumps({"nodes": [node]}))["a1"].power_source


@pytest.mark.parametrize("wrapped", [False, True])
def test_power_in_json_is_read_alike_in_all_versions(wrapped):
    def number(value):
        return {"set": True, "infinite": False, "number": value} if wrapped else value

    rows = [
        ("a1", ["IDLE"], 500, 0, ""),
        ("a2", ["MIXED"], 1100, 8, "cpu=8,gres/gpu=2"),
        ("a3", ["IDLE", "POWERED_DOWN"], 7, 0, ""),
        ("a4", ["IDLE"], 0xFFFFFFFE, 0, ""),
    ]
    nodes = [
        {
            "name": name, "gres": "gpu:a100:4", "state": state if wrapped else state[0].lower(), "tres_used": tres,
            "state_flags": state[1:], "alloc_cpus": cpus, "energy": {"current_watts": number(watts)},
        }
        for name, state, watts, cpus, tres in rows
    ]  # fmt: skip
    found = by_name(json.dumps({"nodes": nodes}))["a1"]
    assert (found.idle_w, found.gpu_w) == (500.0, 300.0)


@given(st.text("NodeName=aIDLE CurrentWatts019gpu:\n", max_size=200))
def test_nothing_that_slurm_prints_of_power_is_an_error(text):
    found = measured_power(f"{node_line('a1', 'IDLE', 500)}{text}", {"a1": "kind"}, {"a1": 4})
    assert set(found) <= {"kind"}
