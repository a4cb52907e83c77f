"""Files for Slurm, nodes, Azure and CycleCloud: what they say, and what they leave out where nobody says it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

import fairlead
from fairlead.base.nodeset import NodeSet
from fairlead.errors import UsageError
from fairlead.plan.azure.aks import aks, pool_name
from fairlead.plan.azure.cyclecloud import cyclecloud, parameters
from fairlead.plan.azure.vms import scale_sets
from fairlead.plan.everything import TARGETS, plan_files, targets_for
from fairlead.plan.kubernetes.variant import variant_of
from fairlead.plan.node.files import manager_of, nccl_conf, node_files, unmanaged
from fairlead.plan.slurm.files import gpu_ranges, gres, nodes, slurm_files
from fairlead.plan.slurm.scripts import health, prolog
from fairlead.plan.slurm.topology import block, groups_of, parse_groups, tree
from fairlead.plan.table import PlanTable
from fairlead.plan.wanted import PoolWanted, Wanted, wanted_of
from fairlead.spec.loader import preset, preset_names
from fairlead.spec.model import Fabric
from fairlead.spec.vmsize import VmSize, size

HOWTO = Path(fairlead.__file__).parents[2] / "docs/howto/slurm-prolog.md"


def wanted(name="Standard_ND96isr_H100_v5", num=16, fabric=None, **said):
    pool = PoolWanted(name="gpu", nodes=NodeSet(f"g-[000-{num - 1:03}]"), size=size(name))
    return Wanted(cluster="train", pools=(pool,), said=PlanTable(**said), fabric=fabric or Fabric())


def texts(files):
    return {f.path: f.text for f in files}


def test_gpus_by_their_device_files_and_the_cpus_near_them():
    """GPU 0 and 1 of ND A100 v4 are on NUMA node 1, as azhpc-images' ndv4-topo.xml has it."""
    assert gpu_ranges(wanted("Standard_ND96asr_v4").pools[0]) == [
        (0, 1, (24, 47)), (2, 3, (0, 23)), (4, 5, (72, 95)), (6, 7, (48, 71)),
    ]  # fmt: skip
    text = gres(wanted())
    assert "Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-47" in text
    assert "AutoDetect=rsmi" in gres(wanted("Standard_ND96isr_MI300X_v5"))
    assert "AutoDetect=nvml" in gres(wanted(mig="all-1g.10gb"))
    assert "no source says which CPUs" in gres(wanted("Standard_ND128isr_GB300_v6"))


def test_what_no_source_names_is_left_out_with_a_word():
    blank = PoolWanted(name="x", nodes=NodeSet("x-0"), size=VmSize(name="Standard_Blank", gpus=2))
    text = nodes(Wanted(cluster="c", pools=(blank,), said=PlanTable(), fabric=Fabric()))
    assert "CPUs: no source names them" in text
    assert "RealMemory=" not in text
    assert "Gres=gpu:2" in text


def test_scripts_are_those_of_the_recipe():
    """docs/howto/slurm-prolog.md and what is written are one recipe, so a change of one shows here."""
    blocks = re.findall(r"```sh\n(.*?)```", HOWTO.read_text(), re.DOTALL)
    assert health(PlanTable()) in blocks
    assert prolog(PlanTable()) in blocks
    settings = re.search(r"`slurm.conf`.*?```\n(.*?)```", HOWTO.read_text(), re.DOTALL)[1]
    written = texts(slurm_files(wanted())[0])["slurm/fairlead.conf"]
    for line in settings.splitlines():
        assert line.partition(" ")[0] in written


@pytest.mark.parametrize("name", [n for n in preset_names() if n != "lab"])
def test_scripts_of_every_preset_are_shell(name):
    spec = preset(name).spec
    found = plan_files(wanted_of(spec), [t for t in TARGETS if t != "kubernetes" or spec.access.via == "kubernetes"])
    assert found.files
    for file in found.files:
        if file.path.endswith(".sh"):
            shell = "bash" if file.text.startswith("#!/bin/bash") else "sh"
            assert subprocess.run([shell, "-n"], input=file.text, text=True, capture_output=True).stderr == ""
            assert file.executable


def test_tree_and_block():
    where = {"b": NodeSet("n[3-5]"), "a": NodeSet("n[0-2]")}
    assert tree(where) == (
        "# a: 3 nodes\nSwitchName=sw000 Nodes=n[0-2]\n# b: 3 nodes\nSwitchName=sw001 Nodes=n[3-5]\n"
        "SwitchName=core Switches=sw[000-001]\n"
    )
    assert tree({"a": NodeSet("n[0-2]")}).count("SwitchName") == 1
    text, notes = block({**where, "c": NodeSet("n6")}, 3)
    assert "BlockName=block000 Nodes=n[0-2]\n" in text
    assert "#BlockName=block002 Nodes=n6" in text
    assert text.endswith("BlockSizes=3\n")
    assert len(notes) == 1
    with pytest.raises(UsageError, match="the largest has 3"):
        block(where, 18)


def test_places_from_the_fabric_or_from_nobody():
    files, notes = slurm_files(wanted())
    assert "slurm/topology.conf" not in texts(files)
    assert "TopologyPlugin" not in texts(files)["slurm/fairlead.conf"]
    assert "--groups" in notes[0]
    spread = wanted(fabric=Fabric(link="infiniband", rdma="ib", t0=4, t1=2))
    assert [len(g) for g in groups_of(spread).values()] == [4, 4, 4, 4]
    # a node of 8 ports in one plane has 8 NICs: 32 NICs below a T0 are 4 nodes
    told = wanted(fabric=Fabric(t0=4, t1=2, hosts_per_t0=32))
    assert [len(g) for g in groups_of(told).values()] == [4, 4, 4, 4]
    files, notes = slurm_files(spread)
    assert "TopologyPlugin=topology/tree" in texts(files)["slurm/fairlead.conf"]
    assert notes == []


def test_racks_become_blocks():
    racks = wanted("Standard_ND128isr_GB300_v6", 36)
    lines = "\n".join(f"g-{i:03} 8f2c_{i // 18}" for i in range(36))
    files, _ = slurm_files(racks, parse_groups(lines, racks.nodes, file="g"))
    found = texts(files)
    assert (
        found["slurm/topology.conf"].count("\nBlockName=") + found["slurm/topology.conf"].startswith("BlockName=") == 2
    )
    assert "TopologyPlugin=topology/block\nTopologyParam=BlockAsNodeRank" in found["slurm/fairlead.conf"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("n0 a\nn1", "g:2: `n1` is not NODE GROUP"),
        ("n0 a\nn9 a", "g:2: the cluster has no node n9"),
        ("n0 a\nn0 b\nn1 a", "g:2: n0 stands in line 1 already"),
        ("n0 a\n", "says nothing of n1"),
        ("n0 a b c", "is not NODE GROUP"),
    ],
)
def test_groups_that_cannot_be(text, word):
    with pytest.raises(UsageError, match=re.escape(word)):
        parse_groups(text, NodeSet("n[0-1]"), file="g")


def test_groups_with_colons_and_comments():
    found = parse_groups("# racks\nn0: r1\n\nn1 r1  # the same\n", NodeSet("n[0-1]"), file="g")
    assert found == {"r1": NodeSet("n[0-1]")}


def test_one_rule_for_one_manager_and_mana_is_in_it():
    assert manager_of("microsoft-dsvm:ubuntu-hpc:2404:latest") == "networkd"
    assert manager_of("almalinux:almalinux-hpc:8_10-hpc-gen2:latest") == "NetworkManager"
    assert "mana" in unmanaged("debian").text
    assert "hv_pci" in unmanaged("rhel").text
    for image in ("ubuntu", "almalinux"):
        rules = [f for f in node_files(wanted(image=image)) if "unmanaged" in f.path]
        assert len(rules) == 1


def test_nccl_settings_follow_the_images():
    """azhpc-images components/customizations/ndv4.sh, ndv5.sh and ncv6.sh."""
    for name in ("Standard_ND96asr_v4", "Standard_ND96isr_H100_v5"):
        lines = nccl_conf(wanted(name).pools[0]).splitlines()
        assert {"NCCL_IB_PCI_RELAXED_ORDERING=1", "NCCL_IGNORE_CPU_AFFINITY=1"} <= set(lines)
        assert any(line.startswith("NCCL_TOPO_FILE=") for line in lines)
    assert "NCCL_SOCKET_IFNAME=eth0" in nccl_conf(wanted("Standard_NC144ds_xl_RTXPRO6000BSE_v6").pools[0])


def test_aks_pools_and_their_drivers():
    for driver, word in {
        "operator": "--gpu-driver none",
        "aks": "--gpu-driver install",
        "managed": "EnableManagedGPUExperience=true",
    }.items():
        told = wanted(gpu_driver=driver)
        text = texts(aks(told, variant_of(told)))["azure/create-aks.sh"]
        assert word in text
        assert "AKSInfinibandSupport" in text
        assert "--node-taints sku=gpu:NoSchedule" in text
    cold = wanted(api_server="isolated")
    text = texts(aks(cold, variant_of(cold)))["azure/create-aks.sh"]
    for word in (
        "--outbound-type none",
        "--bootstrap-artifact-source Cache",
        "--enable-private-cluster",
        "--default-outbound-access false",
    ):
        assert word in text
    slow = wanted("Standard_NC96ads_A100_v4")
    assert "AKSInfinibandSupport" not in texts(aks(slow, variant_of(slow)))["azure/create-aks.sh"]
    assert pool_name(msgspec.structs.replace(slow.pools[0], name="1-very-long-name")) == "p1verylongna"


def test_nodes_of_slurm_in_one_placement_group():
    text = texts(scale_sets(wanted(num=300), None))["azure/create-nodes.sh"]
    assert "--single-placement-group true" in text
    assert "ask Azure's support" in text


def test_a_name_from_outside_is_quoted():
    told = wanted(resource_group="rg_x.y-1")
    assert "--name rg_x.y-1" in texts(scale_sets(told, None))["azure/create-nodes.sh"]


def test_cyclecloud_parameters_and_page():
    found = texts(cyclecloud(wanted()))
    said = json.loads(found["cyclecloud/parameters.json"])
    assert said["GPUMachineType"] == "Standard_ND96isr_H100_v5"
    assert said["MaxGPUExecuteNodeCount"] == 16
    assert said["EnableNodeHealthChecks"] is True
    assert said["EnableTerminateNotification"] is True
    # slurmctld does not start with a topology plugin and without its file
    assert "Topology" not in said["additional_slurm_config"]
    for word in ("azslurm keep_alive", "Scheduled events", "Node health checks", "arrays scale"):
        assert word in found["cyclecloud/README.md"]
    assert parameters(wanted("Standard_HB176rs_v4"))["HPCMachineType"] == "Standard_HB176rs_v4"


def test_what_a_cluster_gets_without_a_word():
    assert targets_for("kubernetes") == ("kubernetes", "azure")
    assert "slurm" in targets_for("slurm")
