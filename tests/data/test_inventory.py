"""Nodes from what clusters print, and the scenario made of them. The texts are written by hand after real ones."""

from __future__ import annotations

import json

import pytest
import yaml

from commonwatt.data.inventory import InventoryNode, board_power, read_inventory, type_of
from commonwatt.data.scenario_draft import draft_text, drafted_nodes, unknown_types
from commonwatt.engines.slurm.parsing import host_names
from commonwatt.model.errors import InputError
from commonwatt.model.scenario import Scenario

SCONTROL = """\
NodeName=gpu001 Arch=x86_64 CoresPerSocket=24
   CPUAlloc=96 CPUEfctv=96 CPUTot=96 CPULoad=35.77
   AvailableFeatures=v100,nvlink
   Gres=gpu:v100:8(S:0-1)
   NodeAddr=gpu001 NodeHostName=gpu001 Version=23.02.7
   OS=Linux 5.14.0-362.8.1.el9_3.x86_64 #1 SMP PREEMPT_DYNAMIC Tue Nov 7 14:54:22 EST 2023
   State=MIXED ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   CfgTRES=cpu=96,mem=772000M,billing=96,gres/gpu=8,gres/gpu:v100=8
   AllocTRES=cpu=96,mem=500G,gres/gpu=6

NodeName=gpu002 Arch=x86_64 CoresPerSocket=24
   Gres=gpu:a100:4,gpu:t4:1
   State=IDLE+DRAIN ThreadsPerCore=2
   Reason=fan [root@2024-01-01T00:00:00]

NodeName=cpu001 Arch=x86_64 CoresPerSocket=32
   Gres=(null)
   State=IDLE
"""
SLURM_CONF = """\
NodeName=n[1-8] CPUs=96 RealMemory=772000 Gres=gpu:v100:8 State=UNKNOWN
NodeName=m1,m[03-04] CPUs=32 RealMemory=1024 Gres=gpu:t4:1
"""
SMI_TABLE = """\
Mon Jan  1 00:00:00 2024
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  Tesla V100-SXM2-16GB           On  | 00000000:00:1B.0 Off |                    0 |
| N/A   44C    P0              43W / 300W |      0MiB / 16384MiB |      0%      Default |
|                                         |                      |                  N/A |
+-----------------------------------------+----------------------+----------------------+
|   1  Tesla V100-SXM2-16GB           On  | 00000000:00:1C.0 Off |                    0 |
| N/A   42C    P0              41W / 250W |      0MiB / 16384MiB |      0%      Default |
|                                         |                      |                  N/A |
+-----------------------------------------+----------------------+----------------------+
"""
QUERY = """\
index, name, power.limit [W]
0, NVIDIA H100 80GB HBM3, 700.00 W
1, NVIDIA H100 80GB HBM3, 700.00 W
"""
LISTED = "GPU 0: Tesla T4 (UUID: GPU-1)\nGPU 1: Tesla T4 (UUID: GPU-2)\n"


def pod_node(name: str, gpus: str | None, **labels: str) -> dict:
    capacity = {"cpu": "96", "memory": "790000000Ki"} | ({} if gpus is None else {"nvidia.com/gpu": gpus})
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"capacity": capacity}}


KUBERNETES = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            pod_node("pool-1", "8", **{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}),
            pod_node("pool-2", "8", **{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}),
            pod_node("edge", "1", **{"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}),
            pod_node("control", None),
        ],
    }
)


def read(text: str):
    return read_inventory(text, host_names, host="here")


def rows(text: str) -> list[tuple[str, str, int]]:
    return [(node.name, node.gpu_type, node.gpus) for node in read(text).nodes]


@pytest.mark.parametrize("one_line", [True, False])
def test_scontrol(one_line):
    text = SCONTROL
    if one_line:
        text = "\n".join(" ".join(block.split()) for block in SCONTROL.split("\n\n"))
    found = read(text)
    assert (found.source, found.without_gpus) == ("scontrol", 1)
    assert rows(text) == [("gpu001", "V100", 8), ("gpu002:A100", "A100", 4), ("gpu002:T4", "T4", 1)]
    assert [node.host for node in found.nodes] == [None, "gpu002", "gpu002"]
    assert found.notes == (
        "gpu002 has several GPU types (a100, t4): it stays on, as it cannot sleep by halves",
        "counted as if they were up: gpu002 (IDLE+DRAIN)",
    )


def test_scontrol_as_json():
    nodes = [{"name": "n1", "gres": "gpu:h100:8(S:0-1)"}, {"name": "n2", "gres": ""}]
    assert rows(json.dumps({"nodes": nodes})) == [("n1", "H100", 8)]


def test_cpus_and_memory_of_nodes_with_one_gpu_type():
    text = SCONTROL.replace("State=MIXED", "RealMemory=786432 State=MIXED")
    (first, *parts) = read(text).nodes
    assert (first.cpus, first.memory_gib) == (96, 768.0)
    assert {(part.cpus, part.memory_gib) for part in parts} == {(None, None)}  # its two types share what the node has
    node = {"name": "n1", "gres": "gpu:h100:8", "cpus": 64, "effective_cpus": 60, "real_memory": 2048}
    (found,) = read(json.dumps({"nodes": [node]})).nodes
    assert (found.cpus, found.memory_gib) == (60, 2.0)
    assert drafted_nodes([found])[0].cpus == 60


@pytest.mark.parametrize(
    "text",
    [
        "gpu[01-02]|gpu:v100:4(S:0-1)\ncpu[1-9]|(null)\n",
        "NODELIST   GRES\ngpu01   gpu:v100:4(S:0-1)\ngpu01   gpu:v100:4(S:0-1)\ngpu02   gpu:v100:4\n",
    ],
)
def test_sinfo(text):
    assert rows(text) == [("gpu01", "V100", 4), ("gpu02", "V100", 4)]


def test_sinfo_without_gres_names_the_command_to_run():
    text = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu*  up  infinite  2  idle gpu[01-02]\n"
    with pytest.raises(InputError, match=r"a column GRES, as in: sinfo -N -h -o '%N\|%G'"):
        read(text)


@pytest.mark.parametrize(
    ("gres", "kind", "gpus"),
    [
        ("gpu:4", "", 4), ("gpu:tesla_v100-sxm2-16gb:2", "tesla_v100-sxm2-16gb", 2),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", "A100", 4),
        ("mps:400,gpu:t4:4", "T4", 4), ("gpu:mi210:4(S:0-3)", "MI210", 4),
    ],
)  # fmt: skip
def test_gres(gres, kind, gpus):
    assert rows(f"n1|{gres}") == [("n1", kind, gpus)]


def test_nvidia_smi():
    assert rows(SMI_TABLE) == [("here", "V100", 2)]
    assert read(SMI_TABLE).nodes[0].limit_w == 300.0
    assert read(QUERY).nodes == (InventoryNode("here", "H100", 2, "NVIDIA H100 80GB HBM3", 700.0),)
    assert rows(LISTED) == [("here", "T4", 2)]


def test_several_types_on_this_machine():
    text = "index, name, power.limit [W]\n0, Tesla T4, 70 W\n1, NVIDIA H100 PCIe, 350 W\n2, Tesla T4, 60 W\n"
    found = read(text)
    assert [(node.name, node.gpu_type, node.gpus, node.limit_w) for node in found.nodes] == [
        ("here:T4", "T4", 2, 70.0), ("here:H100", "H100", 1, 350.0),
    ]  # fmt: skip
    whole_w = 200 + 0.1 * (2 * 70 + 350)
    assert [(node.name, node.idle_w) for node in drafted_nodes(found.nodes)] == [
        ("here:H100", pytest.approx(whole_w / 3)), ("here:T4", pytest.approx(whole_w * 2 / 3)),
    ]  # fmt: skip


def test_slices():
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    mixed = pod_node("cut", "1", **labels)
    mixed["status"]["capacity"] |= {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-2g.10gb": "0"}
    single = pod_node("all", "14", **{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"})
    text = json.dumps({"kind": "List", "items": [mixed, single]})
    assert rows(text) == [
        ("cut:A100", "A100", 1), ("cut:A100-1g.5gb", "A100-1g.5gb", 7), ("all", "A100-1g.5gb", 14),
    ]  # fmt: skip
    nodes = drafted_nodes(read(text).nodes)
    assert unknown_types(nodes) == ()
    share = next(node for node in nodes if node.name == "all")
    assert share.gpu_w == pytest.approx(0.9 * 400 / 7)
    assert share.power_source == "57.1429 W, 1/7 of 400 W, NVIDIA A100 data sheet: maximum power of SXM"


def test_kubernetes():
    found = read(KUBERNETES)
    assert rows(KUBERNETES) == [("pool-1", "A100", 8), ("pool-2", "A100", 8), ("edge", "T4", 1)]
    assert (found.source, found.without_gpus) == ("kubernetes", 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "expected what `scontrol show node`"), ("{", "valid JSON"), ("[]", "the JSON of kubectl"),
        ('{"kind": "Pod"}', "a list of nodes"), ('{"items": [{"kind": "Node"}]}', "metadata.name"),
        (json.dumps({"items": [pod_node("a", "many")]}), "metadata.name"),
        ("NodeName=a Gres=(null)", "at least one node with GPUs"), ("n[1-x]|gpu:t4:1", "a list of node names"),
        ("index, name\n0, T4, 70 W\n", "as many cells"), ("name\n", "at least one node with GPUs"),
    ],
)  # fmt: skip
def test_what_is_no_such_text(text, says):
    with pytest.raises(InputError) as caught:
        read(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("product", "kind", "watts"),
    [
        ("Tesla V100-SXM2-16GB", "V100", 300), ("Tesla-V100-PCIE-32GB", "V100", 250), ("v100", "V100", 300),
        ("NVIDIA A100 80GB PCIe", "A100", 300), ("NVIDIA A100-PCIE-40GB", "A100", 250),
        ("NVIDIA-A100-SXM4-40GB", "A100", 400), ("nvidia-tesla-t4", "T4", 70),
        ("Quadro RTX 6000", "RTX6000", 260), ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada", 300),
        ("NVIDIA L40S", "L40S", 350), ("AMD Instinct MI250X", "MI250X", 560),
    ],
)  # fmt: skip
def test_board_power(product, kind, watts):
    row = board_power(product)
    assert (type_of(product), row.gpu_type, row.board_w) == (kind, kind, watts)
    assert "data sheet" in row.source or "specifications" in row.source


def test_a_board_nobody_knows():
    assert board_power("Flux 9000") is None
    (node,) = drafted_nodes([InventoryNode("n", "Flux-9000", 4, "Flux 9000")])
    assert (node.power_source, node.gpu_w) == (None, 270.0)


def test_nodes_called_alike_become_one_entry():
    found = [InventoryNode(f"n-{i}", "T4", 4, "t4") for i in (2, 1, 3)] + [
        InventoryNode("m-2", "T4", 4),
        InventoryNode("x", "T4", 4),
    ]
    assert [(node.name, node.count) for node in drafted_nodes(found)] == [("m-2", 1), ("n", 3), ("x", 1)]
    wide = [InventoryNode(f"n-{i:02}", "T4", 4) for i in range(1, 12)]
    (one,) = drafted_nodes(wide)
    assert (one.name, one.count) == ("n", 11)
    assert len(drafted_nodes(wide[1:])) == 10


@pytest.mark.parametrize(
    "text", [SCONTROL, SMI_TABLE, QUERY, LISTED, KUBERNETES], ids=["scontrol", "smi", "query", "list", "k8s"]
)
def test_the_draft_is_a_scenario_with_the_same_nodes(text, tmp_path):
    found = read(text)
    nodes = drafted_nodes(found.nodes)
    scenario = Scenario.model_validate(yaml.safe_load(draft_text(found, nodes, tmp_path / "cluster.yaml")))
    from commonwatt.model.nodes import Cluster

    cluster = Cluster.of(scenario.nodes)
    assert sorted(cluster.names) == sorted(node.name for node in found.nodes)
    assert cluster.total_gpus == sum(node.gpus for node in found.nodes)
    assert scenario.workload.source == "week"
    assert set(scenario.gpu_types) == set(unknown_types(nodes))


def test_types_nobody_knows_get_a_placeholder_unless_there_is_one_alone(tmp_path):
    alone = drafted_nodes([InventoryNode("a", "Flux-9", 4), InventoryNode("b", "Flux-9", 4)])
    assert unknown_types(alone) == ()
    nodes = drafted_nodes([InventoryNode("a", "Flux-9", 4), InventoryNode("b", "H100", 4), InventoryNode("c", "", 1)])
    assert unknown_types(nodes) == ("Flux-9", "GPU")
    text = draft_text(read(SCONTROL), nodes, tmp_path / "s.yaml")
    types = Scenario.model_validate(yaml.safe_load(text)).gpu_types
    assert {name: (spec.speed, spec.relative_to) for name, spec in types.items()} == {
        "Flux-9": (1.0, "A100"), "GPU": (1.0, "A100"),
    }  # fmt: skip


def test_a_range_of_nodes_is_as_many():
    nodes = read_inventory(SLURM_CONF, host_names).nodes
    assert [node.name for node in nodes] == [*(f"n{k}" for k in range(1, 9)), "m1", "m03", "m04"]
    assert {(node.gpus, node.memory_gib) for node in nodes} == {(8, 772000 / 1024), (1, 1.0)}


@pytest.mark.parametrize("name", ["n[1-", "n[a-b]", "n[8-1]", "n[1-900000000]"])
def test_a_range_that_is_none_is_refused(name):
    with pytest.raises(InputError, match=r"nodes.txt: field 'NodeName': got .*, expected a node, or a list of nodes"):
        read_inventory(f"NodeName={name} Gres=gpu:v100:8\n", host_names, file="nodes.txt")


@pytest.mark.parametrize("nodes", [None, 5, [1], [None, {"name": "a"}]])
def test_nodes_in_json_that_are_none_are_refused_by_their_name(nodes):
    with pytest.raises(InputError, match="scontrol show node --json") as refused:
        read_inventory(json.dumps({"nodes": nodes}), lambda name: (name,))
    assert refused.value.field == "nodes"


def test_partitions_however_they_are_written_are_no_error():
    node = {"name": "a", "gres": "gpu:v100:2", "partitions": 3, "active_features": 5, "state": None}
    assert read_inventory(json.dumps({"nodes": [node]}), lambda name: (name,)).nodes[0].partitions == ("3",)
