"""Every manifest that is written is valid by schemas of others, and means what it should."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.errors import UsageError
from fairlead.plan.kubernetes import RESOURCES, jobs, variants
from fairlead.plan.kubernetes.nic import free_range
from fairlead.plan.kubernetes.topology import topology_xml
from fairlead.plan.kubernetes.variant import variant_of
from fairlead.plan.table import PlanTable
from fairlead.plan.wanted import PoolWanted, Wanted
from fairlead.spec.layout import layouts
from fairlead.spec.model import Fabric
from fairlead.spec.vmsize import size

ALL = list(variants())


def one(name="Standard_ND96amsr_A100_v4", **said):
    pool = PoolWanted(name="pool", nodes=NodeSet("n-[0-3]"), size=size(name))
    return variant_of(Wanted(cluster="c", pools=(pool,), said=PlanTable(**said), fabric=Fabric()))


def of(variant, kind):
    return [o for o in variant.objects if o["kind"] == kind]


def distinct():
    return list({json.dumps(o, sort_keys=True): o for v in ALL for o in v.objects}.values())


@pytest.mark.parametrize("release", ["1.34", "1.37"])
def test_core_kinds_are_valid_for_the_api_servers_own_schemas(release):
    schemas = pytest.importorskip("support.kubeschemas", reason="the package kubernetes-validate is not installed")
    found = {}
    for made in distinct():
        if schemas.is_core(made):
            found |= {(made["kind"], p): made for p in schemas.problems_of(made, release)}
    assert found == {}
    broken = json.loads(json.dumps(of(one(), "Job")[0]))
    broken["spec"]["template"]["spec"]["tolerationz"] = []
    assert schemas.problems_of(broken, release)


def test_operators_kinds_are_valid_for_their_crds():
    schemas = pytest.importorskip("support.kubeschemas", reason="the package kubernetes-validate is not installed")
    found, num = {}, 0
    for made in distinct():
        if not schemas.is_core(made):
            num += 1
            found |= {(made["kind"], p): made for p in schemas.problems_of(made)}
    assert found == {}
    assert num > 20
    broken = json.loads(json.dumps(of(one(), "NicClusterPolicy")[0]))
    broken["spec"]["ofedDriver"]["versoin"] = "x"
    assert schemas.problems_of(broken)


def test_all_eight_gpus_and_ports_and_the_topology_of_the_size():
    """NDm A100 v4: pods that get 8 GPUs and 8 InfiniBand devices, and NCCL's file of this size."""
    variant = one(network="sriov")
    (job,) = of(variant, "MPIJob")
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = worker["containers"]
    asked = {"nvidia.com/gpu": "8", "rdma/ib": "8"}
    assert container["resources"] == {"requests": asked, "limits": asked}
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    args = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"][0]
    assert "-np 16 " in args
    assert "-x NCCL_TOPO_FILE=/opt/topology/topo.xml" in args
    assert " -c 1" in args
    # up to the message that the limits of this size hold for, so that the result can be judged
    assert "-e 17179869184" in args
    (topology,) = [o for o in of(variant, "ConfigMap") if "topo.xml" in o["data"]]
    tree = ET.fromstring(topology["data"]["topo.xml"])
    kinds = [p.get("class") for p in tree.iter("pci")]
    assert (kinds.count("0x030200"), kinds.count("0x020700")) == (8, 8)


@pytest.mark.parametrize(("comes_at", "status"), [(1, 0), (3, 0), (4, 1)])
def test_a_launcher_waits_for_its_workers_and_not_for_ever(comes_at, status, tmp_path, monkeypatch):
    """Its own words, run by a real shell; `mpirun` reaches all workers from the given try on."""
    monkeypatch.setattr(jobs, "WAIT_TRIES", 3)
    monkeypatch.setattr(jobs, "WAIT_S", 0)
    (job,) = of(one(network="sriov"), "MPIJob")
    (container,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\nfor last; do :; done\n[ "$last" = true ] || { echo ranks; exit 0; }\n'
        f'echo >>"$0.tries"; [ "$(wc -l <"$0.tries")" -ge {comes_at} ]\n'
    )
    mpirun.chmod(0o755)
    words = [*container["command"], *container["args"]]
    done = subprocess.run(
        words, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == status, done.stderr
    assert done.stdout == ("ranks\n" if status == 0 else "")
    assert ("not all workers came" in done.stderr) == bool(status)


@pytest.mark.parametrize("layout", layouts(), ids=lambda f: f.name)
def test_a_topology_file_has_each_device_once_and_each_cpu_once(layout):
    tree = ET.fromstring(topology_xml(layout))
    ids = [p.get("busid") for p in tree.iter("pci")]
    assert len(set(ids)) == len(ids)
    masks = [int(cpu.get("affinity").replace(",", ""), 16) for cpu in tree.iter("cpu")]
    assert sum(m.bit_count() for m in masks) == layout.numa[-1].cpus[1] + 1
    whole = 0
    for mask in masks:
        assert whole & mask == 0
        whole |= mask
    known = size(layout.sizes[0])
    assert len(layout.gpus) == known.gpus
    assert sum(len(g.ports) for n in layout.numa for g in n.groups) == known.hca_ports


def test_pods_ask_for_what_the_plugin_offers_and_for_nothing_else():
    for variant in ALL:
        offered = {"nvidia.com/gpu", "amd.com/gpu"}
        for policy in of(variant, "NicClusterPolicy"):
            for plugin, rows in (("sriovDevicePlugin", "resourceList"), ("rdmaSharedDevicePlugin", "configList")):
                for row in json.loads(policy["spec"].get(plugin, {}).get("config", "{}")).get(rows, []):
                    offered.add(f"{row['resourcePrefix']}/{row['resourceName']}")
        text = json.dumps(variant.objects)
        for name in RESOURCES:
            assert name in offered or f'"{name}": "' not in text, (variant.name, name)


def test_gpu_operator_and_network_operator_do_not_install_the_same():
    for variant in ALL:
        values = variant.values
        if "nvidia/network-operator" in values and "nvidia/gpu-operator" in values:
            assert values["nvidia/gpu-operator"]["nfd"]["enabled"] is False
    own, aks = one(gpu_driver="operator"), one(gpu_driver="aks")
    assert own.values["nvidia/gpu-operator"]["driver"] == {"enabled": True, "rdma": {"enabled": True}}
    assert aks.values["nvidia/gpu-operator"]["driver"]["enabled"] is False
    assert aks.values["nvidia/gpu-operator"]["toolkit"]["enabled"] is False
    assert [o["metadata"]["name"] for o in of(aks, "DaemonSet")] == ["nvidia-peermem"]
    assert of(own, "DaemonSet") == []
    assert "nvidia/gpu-operator" not in one(gpu_driver="managed").values


def test_values_name_only_keys_of_the_charts_own_values():
    """Top-level keys of deployments/gpu-operator/values.yaml, tag v26.3.3; a slip would be ignored."""
    known = {
        "platform", "nfd", "psa", "cdi", "sandboxWorkloads", "hostPaths", "daemonsets", "validator", "operator", "mig",
        "driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter", "gfd", "migManager", "nodeStatusExporter", "gds",
        "gdrcopy", "vgpuManager", "vgpuDeviceManager", "vfioManager", "kataManager", "sandboxDevicePlugin", "ccManager",
        "node-feature-discovery",
    }  # fmt: skip
    for variant in ALL:
        assert set(variant.values.get("nvidia/gpu-operator", {})) <= known


def test_mig_and_time_slicing():
    mig = one(mig="all-1g.10gb").values["nvidia/gpu-operator"]
    assert mig["migManager"] == {"enabled": True, "config": {"default": "all-1g.10gb"}}
    assert mig["mig"] == {"strategy": "single"}
    variant = one(time_slices=4)
    (config,) = [o for o in of(variant, "ConfigMap") if o["metadata"]["name"] == "time-slicing"]
    name = variant.values["nvidia/gpu-operator"]["devicePlugin"]["config"]
    assert name == {"name": "time-slicing", "default": next(iter(config["data"]))}
    assert json.loads(config["data"][name["default"]])["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 4


def test_amd_gets_its_own_operator_and_rccl():
    variant = one("Standard_ND96isr_MI300X_v5", network="sriov")
    assert [o["kind"] for o in variant.objects if o["apiVersion"].startswith("amd.com")] == ["DeviceConfig"]
    assert "nvidia/gpu-operator" not in variant.values
    (job,) = of(variant, "MPIJob")
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert worker["resources"]["limits"] == {"amd.com/gpu": "8", "rdma/ib": "8"}
    assert "rccl" in worker["image"]


def test_ports_without_a_network_device_are_claimed():
    variant = one("Standard_ND128isr_GB300_v6")
    (claim,) = of(variant, "ResourceClaimTemplate")
    devices = claim["spec"]["spec"]["devices"]
    assert devices["requests"][0]["exactly"]["count"] == 4
    assert devices["constraints"] == [{"requests": ["ports"], "matchAttribute": "azure.dra.net/placementGroupId"}]
    assert of(variant, "NicClusterPolicy") == []
    (job,) = of(variant, "MPIJob")
    pod = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["resourceClaims"][0]["resourceClaimTemplateName"] == claim["metadata"]["name"]


def test_a_size_without_rdma_gets_no_network_operator():
    variant = one("Standard_NC96ads_A100_v4")
    kinds = {o["kind"] for o in variant.objects}
    assert not kinds & {"NicClusterPolicy", "NodeFeatureRule", "IPoIBNetwork", "ResourceClaimTemplate"}
    assert variant.values["nvidia/gpu-operator"]["nfd"]["enabled"] is True


def test_ip_over_infiniband_takes_a_free_range_and_the_sizes_own_device():
    (network,) = of(one(network="ipoib"), "IPoIBNetwork")
    assert network["spec"]["master"] == "ibP257p0s0"
    assert str(free_range(["192.168.10.0/24"])) == "198.18.0.0/16"
    with pytest.raises(UsageError, match="overlaps"):
        free_range(["0.0.0.0/0"])
    with pytest.raises(UsageError, match="no source names"):
        one("Standard_HB176rs_v4", network="ipoib")


def test_every_image_comes_from_the_mirror_where_there_is_one():
    for variant in (
        one(registry="mirror.example.com"),
        one("Standard_ND96isr_MI300X_v5", registry="mirror.example.com"),
    ):
        text = json.dumps([variant.objects, variant.values])
        for host in ("nvcr.io", "ghcr.io", "docker.io", "mcr.microsoft.com"):
            assert host not in text
        assert "mirror.example.com/" in text


def test_yaml_reads_back_as_the_same_objects():
    import yaml

    for variant in ALL[::7]:
        for part in variant.parts:
            assert [o for o in yaml.safe_load_all(variant.files[part.path]) if o] == list(part.objects)
