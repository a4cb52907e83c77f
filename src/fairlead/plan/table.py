"""`[plan]` in the cluster file."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.base.suggest import did_you_mean
from fairlead.spec.model import Count, Positive, Seconds, Spec
from fairlead.spec.problems import Problems

Job = Literal["training", "finetuning", "inference", "hpc"]
Network = Literal["auto", "sriov", "shared", "ipoib", "host", "dra", "none"]
Drivers = Literal["operator", "aks", "managed"]
Topology = Literal["auto", "tree", "block", "none"]
ApiServer = Literal["public", "private", "isolated"]

Name = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9]([A-Za-z0-9._-]{0,60}[A-Za-z0-9])?$|^$",
        description="up to 62 letters, digits, dots, dashes and underscores",
        examples=["rg-train"],
    ),
]
Place = Annotated[
    str, Meta(pattern="^/[A-Za-z0-9._/-]*$|^$", description="an absolute path of letters, digits and ._/-")
]
Image = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9][A-Za-z0-9._:/@-]*$|^$", description="an image or registry name", examples=["reg.example"]
    ),
]


class PlanTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the cluster is for, and what `fairlead plan` shall write for it."""

    job: Job = "training"
    """What runs on it: it decides how much memory a parameter takes."""

    parameters_b: Annotated[float, Meta(gt=0, le=100_000, examples=[70.0])] | None = None
    """Parameters of the model, in billions (10^9)."""

    gpus: Count | None = None
    """GPUs of the whole job; left out, the fewest that hold the model."""

    gpu_vendor: Literal["any", "nvidia", "amd"] = "any"
    """Whose GPUs it runs on."""

    rdma_aware: bool = True
    """Whether the programs speak RDMA (NCCL, RCCL, MPI, UCX do); false for those that only know sockets."""

    region: Annotated[str, Meta(pattern="^[a-z0-9]*$", description="a region's short name", examples=["eastus"])] = ""
    """The Azure region."""

    prices: dict[str, Annotated[float, Meta(ge=0)]] = {}
    """What you pay for one VM for an hour, by VM size: {Standard_ND96isr_H100_v5 = 98.3}. fairlead knows no prices."""

    budget_per_hour: Annotated[float, Meta(gt=0, examples=[2000.0])] | None = None
    """The most that all VMs may cost in an hour, in the currency of `prices`."""

    checkpoint_s: Seconds = 60.0
    """The longest that writing one checkpoint to the shared file system may take."""

    dataset_tib: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """Size of the data set on the shared file system, in TiB."""

    dataset_mbs: Annotated[float, Meta(ge=0, le=10_000_000)] = 0.0
    """What all nodes read together, in MB/s."""

    numbers: Annotated[
        dict[str, Annotated[float, Meta(gt=0)]], Meta(examples=[{"train_bytes_per_parameter": 12.0}])
    ] = {}
    """Other numbers for the choice, by the names `fairlead limits plan` lists."""

    network: Network = "auto"
    """How pods get the RDMA ports: sriov (each port to one pod), shared, ipoib, host (privileged pods), dra. auto: dra
    where ports have no net device, sriov where the size has InfiniBand, none without."""

    gpu_driver: Drivers = "operator"
    """Who installs the GPU driver on Kubernetes nodes: operator (the GPU Operator), aks (AKS, driver alone), managed
    (AKS with device plugin and metrics, preview)."""

    autoscale_to: Count | None = None
    """Most nodes of each GPU pool on AKS, which then scales by itself; left out, it has the pool's nodes."""

    api_server: ApiServer = "public"
    """The AKS cluster: public, private (no public address), isolated (no way out either)."""

    registry: Image = ""
    """A registry that mirrors all images, for clusters with no way out: its host name."""

    mig: Annotated[str, Meta(pattern="^[a-z0-9.+-]*$", description="a MIG profile", examples=["all-1g.10gb"])] = ""
    """The MIG configuration of every GPU, as NVIDIA's MIG manager names it; left out, whole GPUs."""

    time_slices: Annotated[int, Meta(ge=1, le=64)] = 1
    """How many pods share one GPU by time slicing."""

    networks: tuple[Annotated[str, Meta(examples=["10.224.0.0/12"])], ...] = (
        "10.224.0.0/12",
        "10.0.0.0/16",
        "10.244.0.0/16",
    )
    """Address ranges in use: virtual network, services, pods. Nothing that is written overlaps them."""

    topology: Topology = "auto"
    """Slurm's topology: tree (switches), block (NVLink racks), none. auto: block where the rack runs the NVLink fabric,
    else tree."""

    block_nodes: Positive | None = None
    """Nodes of one block; left out, 18, the nodes of an NVL72 rack with 4 GPUs each."""

    program: Place = "/opt/fairlead/bin/fairlead"
    """Where fairlead is installed on the nodes."""

    cluster_file: Place = "/etc/fairlead/cluster.toml"
    """Where the cluster file lies on the nodes."""

    runs: Place = "/shared/fairlead/runs"
    """Where health programs on nodes leave their run folders."""

    archive: Place = "/shared/fairlead/jobs"
    """Where the scripts and outputs of jobs are kept; empty: nowhere."""

    resource_group: Name = ""
    """The Azure resource group; left out, `rg-` and the cluster's name."""

    image: Image = "microsoft-dsvm:ubuntu-hpc:2404:latest"
    """The VM image of Slurm nodes, as `az vm create --image` takes it."""

    filesystem_tib: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    """Least size of the shared file system, in TiB, beyond data set and checkpoints."""


def rules(spec: Spec, report: Problems) -> None:
    """Numbers must be known ones; sizes and address ranges must be such."""
    from fairlead.spec.vmsize import size, sizes

    said = spec.table(PlanTable)
    for name in said.numbers:
        from fairlead.plan.choice.need import numbers

        if name not in numbers():
            path = ("plan", "numbers", name)
            report(path, "plan/no-number", f"no number `{name}`; {did_you_mean(name, numbers())}", on="key")
    for name in said.prices:
        if size(name) is None:
            path = ("plan", "prices", name)
            report(path, "plan/no-size", f"no VM size `{name}`; {did_you_mean(name, sizes())}", on="key")
    for i, text in enumerate(said.networks):
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            report(("plan", "networks", i), "plan/no-network", f"`{text}` is no address range: {error}")
    if said.mig and said.time_slices > 1:
        why = "MIG and time slicing of one GPU are not written together; choose one"
        report(("plan", "time_slices"), "plan/mig-and-slices", why, needs=[("plan", "mig")])
