"""What the documents that this tool was made from tell a reader to do: each instruction, and the file that has it.

The documents are named by title and section: "Simplifying InfiniBand on AKS" (AKS engineering blog, 2025-04-11);
"Accelerated Networking overview" (learn.microsoft.com, 2024-10-22); of techcommunity.microsoft.com "Running GPU
accelerated workloads with NVIDIA GPU Operator on AKS", "Deploy NDm_v4 (A100) Kubernetes Cluster", "Azure NCv6 Virtual
Machines", "New Performance Tiers for Azure Managed Lustre", and articles on inference in isolated clusters, on a DDP
gate on CycleCloud with Slurm, and on centralised logs of CycleCloud Workspace for Slurm.
"""

from __future__ import annotations

import re

import pytest
import yaml

from fairlead.base.nodeset import NodeSet
from fairlead.plan.azure.aks import IMAGE_SOURCES
from fairlead.plan.choice.fabric import choose_fabric
from fairlead.plan.choice.need import Need
from fairlead.plan.everything import TARGETS, plan_files
from fairlead.plan.table import PlanTable
from fairlead.plan.wanted import PoolWanted, Wanted
from fairlead.spec.model import Fabric
from fairlead.spec.vmsize import size, storage

A100, H100, MI300X = "Standard_ND96amsr_A100_v4", "Standard_ND96isr_H100_v5", "Standard_ND96isr_MI300X_v5"


def files(name=A100, nodes=4, **said):
    pool = PoolWanted(name="gpu", nodes=NodeSet(f"gpu-[0-{nodes - 1}]"), size=size(name))
    fabric = Fabric(link="infiniband", rdma="ib")
    wanted = Wanted(cluster="c", pools=(pool,), said=PlanTable(**said), fabric=fabric, partition="hpc")
    return {f.path: f.text for f in plan_files(wanted, list(TARGETS)).files}


def objects(found):
    return [
        o
        for path, text in found.items()
        if path.endswith(".yaml")
        for o in yaml.safe_load_all(text)
        if o and "kind" in o
    ]


def said_in(text, *parts):
    plain = re.sub(r"\\\n\s*", "", text)
    return [part for part in parts if part not in plain] == []


# ---- Simplifying InfiniBand on AKS: the five steps of "InfiniBand on AKS" --------------------------------------------


@pytest.mark.parametrize(("is_aware", "kind"), [(True, "rdma"), (False, "ipoib")])
def test_the_approach_follows_from_what_the_programs_speak(is_aware, kind):
    """ "RDMA over InfiniBand versus IPoIB": the one for RDMA-aware programs, the other for all else."""
    assert choose_fabric(Need(parameters=70e9, gpus=128, rdma_aware=is_aware), size(H100), 16).kind == kind


@pytest.mark.parametrize("name", ["Standard_HB120rs_v3", "Standard_HB176rs_v4", A100, H100])
def test_the_sizes_it_names_have_infiniband(name):
    """ "Consider using HBv3 and HBv4 ... or ND series"."""
    assert (size(name).rdma, size(name).link_layer) == (True, "infiniband")


def test_the_network_operator_has_its_namespace_and_nodes_their_label():
    made = objects(files(network="sriov"))
    assert {"network-operator", "gpu-operator"} <= {o["metadata"]["name"] for o in made if o["kind"] == "Namespace"}
    (rule,) = [o for o in made if o["kind"] == "NodeFeatureRule"]
    assert "feature.node.kubernetes.io/pci-15b3.present" in rule["spec"]["rules"][0]["labels"]


@pytest.mark.parametrize(
    ("network", "kind", "resource"),
    [
        ("sriov", "NicClusterPolicy", "rdma/ib"),
        ("shared", "NicClusterPolicy", "rdma/shared_ib"),
        ("ipoib", "IPoIBNetwork", ""),
    ],
)
def test_performance_efficiency_or_programs_without_rdma(network, kind, resource):
    """One policy for each: ports of a pod's own, ports shared by pods, addresses; with the pod that uses it."""
    made = objects(files(network=network))
    assert kind in {o["kind"] for o in made}
    text = yaml.safe_dump([o for o in made if o["kind"] in ("Job", "MPIJob")])
    assert (resource or "k8s.v1.cni.cncf.io/networks") in text


# ---- Deploy NDm_v4 (A100) Kubernetes Cluster -------------------------------------------------------------------------


def test_pods_get_all_eight_gpus_and_all_eight_ports_and_an_all_reduce_runs_over_two_nodes():
    found = files(A100, network="sriov")
    (job,) = [o for o in objects(found) if o["kind"] == "MPIJob"]
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]
    container = worker["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/ib": "8"}
    assert worker["replicas"] == 2
    (topology,) = [o for o in objects(found) if o["kind"] == "ConfigMap" and "topo.xml" in o["data"]]
    assert topology["data"]["topo.xml"].count('class="0x020700"') == 8  # InfiniBand controllers
    assert topology["data"]["topo.xml"].count('class="0x030200"') == 8  # GPUs


# ---- Running GPU accelerated workloads with NVIDIA GPU Operator on AKS -----------------------------------------------


def test_versions_time_slicing_and_mig_of_the_gpu_operator():
    """ "Driver versions ..., time-slicing for GPU oversubscription, MIG profiles", not chosen at the pool's birth."""
    found = files(H100, gpu_driver="operator")
    values = yaml.safe_load(found["kubernetes/21-gpu-operator.values.yaml"])
    assert values["driver"]["enabled"] is True
    assert said_in(found["azure/create-aks.sh"], "--gpu-driver none")
    assert re.search(
        r'"replicas": ?4\b', "".join(t for p, t in files(H100, time_slices=4).items() if p.startswith("kubernetes/"))
    )
    mig = yaml.safe_load(files(H100, mig="all-1g.10gb")["kubernetes/21-gpu-operator.values.yaml"])
    assert mig["migManager"]["config"]["default"] == "all-1g.10gb"
    assert "--gpu-instance-profile" not in files(H100, mig="all-1g.10gb")["azure/create-aks.sh"]


def test_amd_has_its_own_operator():
    """MI300X: "VM series featuring AMD's flagship"."""
    assert any(o["kind"] == "DeviceConfig" for o in objects(files(MI300X)))


# ---- Inference in isolated AKS clusters ------------------------------------------------------------------------------


def test_the_managed_pool_as_the_article_adds_it():
    """The call of "fully managed NVIDIA GPU node pools": taint, autoscaler from 1 to 3, the tag."""
    text = files("Standard_NC24ads_A100_v4", nodes=1, gpu_driver="managed", autoscale_to=3)["azure/create-aks.sh"]
    call = next(line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.startswith("az aks nodepool add"))
    for part in (
        "--node-count 1",
        "--node-vm-size Standard_NC24ads_A100_v4",
        "--node-taints sku=gpu:NoSchedule",
        "--enable-cluster-autoscaler",
        "--min-count 1",
        "--max-count 3",
        "--tags EnableManagedGPUExperience=true",
    ):
        assert part in call


def test_a_cluster_without_a_way_out_has_none_of_the_four_the_article_lists():
    """ "Air-gapped clusters": no public load balancer, NAT gateway, public address, default outbound access; images by
    the registry's artifact cache, from docker.io and nvcr.io too.
    """
    text = files(H100, api_server="isolated", registry="cimages.azurecr.io")["azure/create-aks.sh"]
    assert said_in(text, "--outbound-type none", "--default-outbound-access false", "--enable-private-cluster")
    assert not re.search(r"nat gateway|public-ip create|--outbound-type loadBalancer", text)
    assert said_in(text, "--source-repo 'nvcr.io/nvidia/*'", "--target-repo 'nvidia/*'")


def test_every_image_of_an_isolated_cluster_has_a_cache_rule():
    cached = {target for _, target in IMAGE_SOURCES} | {"mirror"}  # mcr.microsoft.com/mirror: AKS's own rule
    for name in (H100, MI300X):
        text = "".join(t for p, t in files(name, registry="r.example.com").items() if p.startswith("kubernetes/"))
        found = set(re.findall(r"r\.example\.com/([a-z0-9-]+)", text))
        assert found
        assert found <= cached


# ---- CycleCloud with Slurm: the DDP gate, and centralised logs -------------------------------------------------------


def test_the_first_job_has_the_shape_of_the_articles():
    """ "nodes=2 ntasks-per-node=8 gpus-per-node=8 cpus-per-task=12", partition hpc, `srun --cpu-bind=none`."""
    text = files("Standard_ND96asr_v4")["slurm/job-gpu.sbatch"]
    asked = dict(re.findall(r"--([a-z-]+)=(\S+)", " ".join(x for x in text.splitlines() if x.startswith("#SBATCH"))))
    assert (asked["nodes"], asked["ntasks-per-node"], asked["cpus-per-task"]) == ("2", "8", "12")
    assert (asked["gres"], asked["partition"]) == ("gpu:a100:8", "hpc")
    assert "srun --cpu-bind=none" in text


@pytest.mark.parametrize("what", ["scontrol write batch_script", "--env-vars", "StdOut", "StdErr"])
def test_what_the_log_archive_keeps_of_a_job(what):
    """ "job submission scripts, environmental variables, stdout/stderr"."""
    assert what in files()["slurm/epilog.sh"]


def test_healthagent_keeps_its_place():
    text = files()["cyclecloud/README.md"]
    assert said_in(text, "EnableNodeHealthChecks", "EnableTerminateNotification", "azslurm keep_alive --node-list")


# ---- Azure NCv6, and the tiers of Azure Managed Lustre ---------------------------------------------------------------

NCV6 = """
NC36ds_xl 36 132 22500 1/4 24 256 1600
NC72ds_xl 72 264 45000 1/2 48 512 3200
NC144ds_xl 144 516 90000 1 96 1024 6400
NC288ds_xl 288 1032 180000 2 192 2048 12800
NC324ds_xl 324 1284 180000 2 192 2048 12800
NC24lds_xl 24 72 22500 1/4 24 256 1600
NC36lds_xl 36 72 22500 1/4 24 256 1600
NC72lds_xl 72 132 45000 1/2 48 512 3200
NC144lds_xl 144 264 90000 1 96 1024 6400
NC288lds_xl 288 516 180000 2 192 2048 12800
NC324lds_xl 324 648 180000 2 192 2048 12800
"""


@pytest.mark.parametrize("row", NCV6.split("\n")[1:-1])
def test_ncv6_as_its_tables_have_it(row):
    """vCPUs, GB, Mb/s, GPUs or a part of one, GB of GPU memory, temporary disk, NVMe."""
    name, vcpus, memory, mbps, gpus, gpu_memory, temp, nvme = row.split()
    vm = size(f"Standard_{name}_RTXPro6000_v6")
    count, share = (1, gpus) if "/" in gpus else (int(gpus), "1")
    assert (vm.vcpus, vm.memory_gib, vm.ethernet_gbps) == (int(vcpus), float(memory), int(mbps) / 1000)
    assert (vm.gpus, vm.gpu_share, vm.gpu_memory_gb * count) == (count, share, float(gpu_memory))
    assert (vm.temp_disk_gib, vm.nvme_gib) == (float(temp), float(nvme))


@pytest.mark.parametrize("mbs", [40, 125, 250, 500])
def test_the_tiers_of_managed_lustre(mbs):
    """ "two new performance tiers: 40MB/s per TiB and 500MB/s per TiB", beside the two there were."""
    assert mbs in {t.mbs_per_tib for t in storage()}


# ---- Accelerated Networking overview ---------------------------------------------------------------------------------


def test_nodes_are_made_with_accelerated_networking_and_leave_the_function_alone():
    """ "Custom VM images": the function's drivers are unmanaged, by one manager; MANA's with them."""
    found = files(H100)
    assert said_in(found["azure/create-nodes.sh"], "--accelerated-networking true")
    (rule,) = [text for path, text in found.items() if "unmanaged" in path]
    assert "Unmanaged=yes" in rule
    assert all(driver in rule for driver in ("mlx4", "mlx5", "mana"))
