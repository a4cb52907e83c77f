"""Traps between `az` calls and what runs on the nodes they make: drivers, taints, InfiniBand, sizes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.plan.lint.bundle import Bundle, Pod, items, mapping
from fairlead.plan.lint.commands import Command
from fairlead.plan.lint.rule import Hit, Lacks, Said, Well, rule
from fairlead.plan.lint.rules_operators import chart_default
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import VmSize
from fairlead.spec.vmsize import size as size_of_name

_SIZE = ("--node-vm-size", "-s", "--vm-sku", "--size")


def _pools(bundle: Bundle) -> Iterator[tuple[Command, VmSize | None]]:
    """Every call that adds a node pool, and its VM size."""
    for command in bundle.commands:
        if command.program == "az" and command.starts("aks", "nodepool", "add"):
            yield command, size_of_name(command.get(*_SIZE) or "")


def _driver_of(command: Command) -> str:
    """Who installs the GPU driver of a pool: aks, nobody, or managed."""
    if any("EnableManagedGPUExperience=true" in v for v in command.options.get("--tags", ())):
        return "managed"
    if command.get("--skip-gpu-driver-install") is not None:
        return "nobody"
    return "nobody" if (command.get("--gpu-driver") or "install").casefold() == "none" else "aks"


@rule
def two_drivers(bundle: Bundle) -> Iterator[Said]:
    """AKS's driver and the operator's exclude each other; with neither there is none."""
    code = "plan/two-drivers"
    chart = bundle.charts.get("gpu-operator")
    if chart is None:
        return
    own = chart_default(chart, "driver", "enabled", default=True) is not False
    pools = [(c, s) for c, s in _pools(bundle) if s is None or (s.gpus and s.gpu_vendor == "nvidia")]
    if not pools:
        yield Lacks(code, "no `az aks nodepool add` among the files says who installs the GPU driver")
    for command, size in pools:
        name = size.name if size else command.get(*_SIZE) or "the pool"
        who = _driver_of(command)
        if who == "aks" and command.get("--gpu-driver") is None and not command.is_whole:
            yield Lacks(code, f"{command.place} passes on options that the files do not show")
            continue
        if own == (who == "nobody"):
            yield Well(code, name)
            continue
        if own:
            why = f"AKS installs a driver on {name}, and so does the GPU Operator: containerd is broken for good"
            read, remedy = f"driver: {who}, driver.enabled: true", "--gpu-driver none, or driver: {enabled: false}."
        else:
            why = f"nobody installs a driver on {name}: neither AKS nor the GPU Operator"
            read, remedy = "--gpu-driver none, driver.enabled: false", "driver: {enabled: true}"
        yield Hit(code=code, place=command.place, about="az aks nodepool add", message=why, read=read, remedy=remedy)


@rule
def peermem(bundle: Bundle) -> Iterator[Said]:
    """AKS's driver does not load nvidia-peermem, which GPUDirect RDMA needs."""
    code = "plan/no-peermem"
    loads = any(
        "nvidia-peermem" in str(o.value) or "nvidia_peermem" in str(o.value)
        for o in bundle.of("DaemonSet", "ConfigMap", "Pod")
    )
    for command, size in _pools(bundle):
        if (
            size is None
            or not size.gpus
            or size.gpu_vendor != "nvidia"
            or not size.rdma
            or _driver_of(command) == "nobody"
        ):
            continue
        if loads:
            yield Well(code, size.name)
            continue
        yield Hit(
            code=code,
            place=command.place,
            about="az aks nodepool add",
            message=f"AKS's driver on {size.name} does not load nvidia-peermem, and nothing among the files does",
            read=f"driver: {_driver_of(command)}",
            remedy="A DaemonSet that keeps it loaded; fairlead plan writes one.",
            verdict=Verdict.WARN,
        )


@rule
def infiniband_feature(bundle: Bundle) -> Iterator[Said]:
    """Nodes on one InfiniBand network: AKS's feature for pools, one placement group for scale sets."""
    code = "plan/infiniband-feature"
    asked = bundle.text_has("AKSInfinibandSupport")
    for command, size in _pools(bundle):
        if size is None or not size.rdma or size.link_layer != "infiniband":
            continue
        problem, read, remedy = "", "", ""
        if not asked:
            problem = (
                "AKSInfinibandSupport is registered by none of the files: the pool may spread over several networks"
            )
            read, remedy = (
                "no `az feature register`",
                "az feature register --namespace Microsoft.ContainerService --name AKSInfinibandSupport",
            )
        zones = command.options.get("--zones", ()) or command.options.get("-z", ())
        if len(zones) > 1:
            problem = f"zones {' '.join(zones)}: nodes of two zones share no InfiniBand"
            read, remedy = f"--zones {' '.join(zones)}", "One zone, or none."
        if problem:
            yield Hit(code=code, place=command.place, about="az aks nodepool add", message=problem, read=read,
                      remedy=remedy, verdict=Verdict.WARN if not zones else Verdict.FAIL)  # fmt: skip
        else:
            yield Well(code, size.name)
    for command in bundle.commands:
        size = size_of_name(command.get("--vm-sku") or "")
        if command.program != "az" or not command.starts("vmss", "create") or size is None or not size.rdma:
            continue
        if (command.get("--single-placement-group") or "").casefold() == "true":
            yield Well(code, size.name)
            continue
        yield Hit(
            code=code,
            place=command.place,
            about="az vmss create",
            message=f"{size.name} without --single-placement-group true: two placement groups share no InfiniBand",
            read=f"--single-placement-group {command.get('--single-placement-group') or 'not given'}",
            remedy="--single-placement-group true",
        )


@rule
def tolerations(bundle: Bundle) -> Iterator[Said]:
    """A pod that wants GPUs and does not tolerate the taint of the nodes that have them."""
    code = "plan/no-toleration"
    taints = [
        (taint, command)
        for command, size in _pools(bundle)
        if size is None or size.gpus
        for text in command.options.get("--node-taints", ())
        for taint in text.split(",")
        if taint.endswith((":NoSchedule", ":NoExecute"))
    ]
    wants = [p for p in bundle.pods if any(c.gpus for c in p.containers)]
    if wants and not taints:
        yield Lacks(code, "no `az aks nodepool add --node-taints` among the files says which taints GPU nodes have")
    for pod in wants:
        missing = next((taint for taint, _ in taints if not _tolerates(pod, taint)), "")
        if missing:
            yield Hit(
                code=code,
                place=pod.at("tolerations") if "tolerations" in pod.spec else pod.at(),
                about=str(pod),
                message=f"GPU nodes have the taint {missing}, which the pod does not tolerate: it stays pending",
                read=f"tolerations: {len(items(pod.spec.get('tolerations')))}",
                remedy=f"tolerations: [{{key: {missing.partition('=')[0]}, operator: Exists}}]",
            )
        elif taints:
            yield Well(code, str(pod))


@rule
def size_without_rdma(bundle: Bundle) -> Iterator[Said]:
    """RDMA on a size that has none."""
    code = "plan/no-rdma-size"
    wants = [p for p in bundle.pods if any(c.rdma for c in p.containers)]
    for pod in wants:
        size = bundle.size_of(pod)
        if size is None or size.rdma is None:
            yield Lacks(code, f"{pod} names no VM size of which it is known whether it has RDMA: --size")
        elif size.rdma:
            yield Well(code, str(pod))
        else:
            container = next(c for c in pod.containers if c.rdma)
            yield Hit(
                code=code,
                place=container.at("resources"),
                about=str(pod),
                message=f"{size.name} has no RDMA between nodes ({size.source('rdma')}): the pod stays pending",
                read=", ".join(container.rdma),
                remedy="A size with RDMA (ND...r..., HB), or the job by sockets.",
            )
    if bundle.policies and not wants:
        slow = [(s, p) for s, p in bundle.sizes.values() if s is not None and s.rdma is False and s.gpus]
        fast = [s for s, _ in bundle.sizes.values() if s is not None and s.rdma]
        for size, place in slow if not fast else []:
            yield Hit(
                code=code,
                place=place or bundle.policies[0].at(),
                about=str(bundle.policies[0]),
                message=f"a policy for InfiniBand, and {size.name} has no RDMA between nodes ({size.source('rdma')})",
                read=size.name,
                remedy="A size with RDMA, or no network operator.",
            )


def _tolerates(pod: Pod, taint: str) -> bool:
    """As the scheduler compares them (Kubernetes documentation, taints and tolerations)."""
    pair, _, effect = taint.rpartition(":")
    key, _, value = pair.partition("=")
    for row in items(pod.spec.get("tolerations")):
        said = mapping(row)
        if said.get("effect") not in (None, "", effect):
            continue
        if said.get("operator", "Equal") == "Exists":
            if said.get("key") in (None, "", key):
                return True
        elif said.get("key") == key and str(said.get("value", "")) == value:
            return True
    return False
