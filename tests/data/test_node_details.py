"""Where nodes are in the network, as Slurm prints it. The texts are written by hand after real ones."""

from __future__ import annotations

import json

import pytest

from commonwatt.data.inventory import read_inventory
from commonwatt.engines.slurm.parsing import host_names
from commonwatt.model.errors import InputError

LISTED = "".join(f"NodeName=n-{k} Gres=gpu:v100:8 State=IDLE\n" for k in range(1, 5))
TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n-[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n-3,gone
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n-4
SwitchName=left Level=1 LinkSpeed=1 Nodes=n-[1-3] Switches=s[0-1]
SwitchName=right Level=1 LinkSpeed=1 Nodes=n-4 Switches=s2
SwitchName=top Level=2 LinkSpeed=1 Nodes=n-[1-4] Switches=left,right
"""
BLOCKS = """\
BlockName=b0 BlockIndex=0 Nodes=n-1 BlockSize=1
BlockName=b1 BlockIndex=1 Nodes=n-2 BlockSize=1
BlockName=b2 BlockIndex=2 Nodes=n-3 BlockSize=1
BlockName=b3 BlockIndex=3 Nodes=n-4 BlockSize=1
AggregatedBlock=b[0-1] BlockIndex=4 Nodes=n-[1-2] BlockSize=2
AggregatedBlock=b[2-3] BlockIndex=5 Nodes=n-[3-4] BlockSize=2
AggregatedBlock=b[0-3] BlockIndex=6 Nodes=n-[1-4] BlockSize=4
"""


def domains(topology: str, nodes: str = LISTED) -> list[str | None]:
    return [node.domain for node in read_inventory(f"{nodes}\n{topology}", host_names).nodes]


def test_switches_from_the_top_down_without_what_all_share():
    assert domains(TREE) == ["left/s0", "left/s0", "left/s1", "right/s2"]
    assert domains(TREE, LISTED.partition("NodeName=n-4")[0]) == ["s0", "s0", "s1"]


def test_the_file_of_topology_tree_says_the_same():
    lines = [line for line in TREE.splitlines() if "Level=0" in line]
    upper = "SwitchName=left Switches=s[0-1]\nSwitchName=right Switches=s2\nSwitchName=top Switches=left,right\n"
    assert domains("\n".join(lines).replace("Level=0 ", "") + f"\n{upper}") == domains(TREE)


def test_several_roots_stay_and_so_does_one_that_not_all_are_below():
    assert domains("SwitchName=a Nodes=n-[1-2]\nSwitchName=b Nodes=n-[3-4]\n") == ["a", "a", "b", "b"]
    tree = "SwitchName=s0 Level=0 Nodes=n-[1-2]\nSwitchName=s1 Level=0 Nodes=n-3\nSwitchName=top Switches=s[0-1]\n"
    assert domains(tree) == ["top/s0", "top/s0", "top/s1", None]


@pytest.mark.parametrize(
    "topology",
    [
        "", "SwitchName=all Level=0 Nodes=n-[1-4]\n", "SwitchName=s0 Level=0 Nodes=other-[1-4]\n",
        "SwitchName=s0 Nodes=n-[1-4]\nSwitchName=top Switches=s0\n",
        "BlockName=b0 BlockIndex=0 Nodes=n-[1-4] BlockSize=4\n",
    ],
)  # fmt: skip
def test_one_switch_says_nothing(topology):
    assert domains(topology) == [None] * 4


def test_a_switch_that_is_higher_up_has_its_nodes_near_each_other():
    lower = "SwitchName=s0 Nodes=n-1\nSwitchName=s1 Nodes=n-2\nSwitchName=s2 Nodes=n-[3-4]\n"
    upper = "SwitchName=row Switches=s[0-1]\nSwitchName=top Switches=row,s2\n"
    assert domains(lower + upper) == ["row/s0", "row/s1", "s2/s2", "s2/s2"]


def test_blocks_and_blocks_of_blocks():
    assert domains(BLOCKS) == ["b[0-1]/b0", "b[0-1]/b1", "b[2-3]/b2", "b[2-3]/b3"]
    assert domains("".join(BLOCKS.splitlines(keepends=True)[::-1])) == domains(BLOCKS)
    plain = (
        "BlockName=b1 BlockIndex=0 Nodes=n-[1-2] BlockSize=16\nBlockName=b2 BlockIndex=1 Nodes=n-[3-4] BlockSize=16\n"
    )
    assert domains(plain) == ["b1", "b1", "b2", "b2"]


def test_a_machine_with_several_types_and_json_have_domains_too():
    mixed = "NodeName=n-1 Gres=gpu:a100:4,gpu:t4:1\nNodeName=n-4 Gres=gpu:t4:1\nNodeName=n-2 Gres=(null)\n"
    assert domains(TREE, mixed) == ["left/s0", "left/s0", "right/s2"]
    nodes = json.dumps({"nodes": [{"name": f"n-{k}", "gres": "gpu:v100:8"} for k in (1, 3)]}, indent=1)
    assert domains(TREE, nodes) == ["s0", "s1"]


def test_nothing_else_of_nodes_changes_and_the_order_of_the_two_does_not_matter():
    found, plain = (read_inventory(text, host_names) for text in (f"{TREE}{LISTED}", LISTED))
    assert [node.domain for node in found.nodes] == domains(TREE)
    assert [(node.name, node.gpus) for node in found.nodes] == [(node.name, node.gpus) for node in plain.nodes]
    assert found.without_gpus == 0


def test_names_that_a_path_cannot_have():
    assert domains("SwitchName=a/b Nodes=n-[1-2]\nSwitchName=b Nodes=n-[3-4]\n") == ["a-b", "a-b", "b", "b"]


def test_switches_above_each_other_end():
    tree = "SwitchName=a Nodes=n-[1-2] Switches=b\nSwitchName=b Nodes=n-[3-4] Switches=a\n"
    assert domains(tree) == ["b/a", "b/a", "a/b", "a/b"]


@pytest.mark.parametrize("field", ["Nodes=n-[1-", "Nodes=n-[a-b]", "Nodes=n-[1-900000000]", "Switches=s[0-"])
def test_a_list_that_is_cut_off_is_told(field):
    found = read_inventory(f"{LISTED}SwitchName=s0 Nodes=n-[1-2]\nSwitchName=s1 {field}\n", host_names)
    assert [node.domain for node in found.nodes] == [None] * 4
    assert found.notes == (f"the topology of Slurm is left out: {field.partition('=')[2]} is no list of names",)


def test_a_topology_alone_is_no_cluster():
    with pytest.raises(InputError, match=r"t\.txt: got 'SwitchName=s0 .*', expected what `scontrol show node`"):
        read_inventory(TREE, host_names, file="t.txt")
