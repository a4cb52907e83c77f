"""Traps in pods: resources, locked memory, shared memory, placement, settings of NCCL. Pure.

Most were found in Azure/aks-rdma-infiniband (configs/, tests/scenarios/, website/docs) and in issues about it; the
explanation of each code says what it does to a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.plan.lint.bundle import Bundle, Container, Pod, dig, items, mapping
from fairlead.plan.lint.read import Place
from fairlead.plan.lint.rule import Hit, Lacks, Said, Well, rule
from fairlead.records.verdict import Verdict
from fairlead.spec.layout import layout_of

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_PERF = re.compile(
    r"(?:all_reduce|all_gather|alltoall|broadcast|reduce_scatter|reduce|sendrecv|scatter|gather)_perf\b([^;&|\n]*)"
)
_UNCHECKED = re.compile(r"(?:^|\s)(?:-c|--check)[ =]?0(?:\s|$)")


def _containers(bundle: Bundle) -> Iterator[tuple[Pod, Container]]:
    for pod in bundle.pods:
        for container in pod.containers:
            yield pod, container


@rule
def two_rdma_resources(bundle: Bundle) -> Iterator[Said]:
    """A port of one's own and a slot of the shared ones: no node offers both."""
    code = "plan/two-rdma-resources"
    for pod, container in _containers(bundle):
        if len(container.rdma) > 1:
            names = " and ".join(sorted(container.rdma))
            yield Hit(
                code=code,
                place=container.at("resources"),
                about=str(pod),
                message=f"container {container.name} asks for {names}: a node offers its ports by one plugin",
                read=names,
                remedy="Keep rdma/ib for ports of its own, or the shared resource for a slot of all.",
            )
        elif container.rdma:
            yield Well(code, str(pod))


@rule
def no_such_resource(bundle: Bundle) -> Iterator[Said]:
    """A resource that no plugin among the files offers: the pod stays pending."""
    code = "plan/no-such-resource"
    asked = [(pod, c, name) for pod, c in _containers(bundle) for name in c.rdma]
    if asked and not bundle.policies:
        yield Lacks(code, "no NicClusterPolicy among the files, so nothing says which RDMA resources nodes offer")
        return
    for pod, container, name in asked:
        if name in bundle.offered:
            yield Well(code, str(pod))
            continue
        there = ", ".join(sorted(bundle.offered)) or "none"
        yield Hit(
            code=code,
            place=container.at("resources", "limits", name),
            about=str(pod),
            message=f"nothing among the files offers {name}; the NicClusterPolicy offers {there}",
            read=f"{name}: {container.resources[name]}",
            remedy="Ask for what the policy offers, or add the plugin to the policy.",
        )


@rule
def too_many_ports(bundle: Bundle) -> Iterator[Said]:
    """More ports or GPUs than a node of the size has: the pod stays pending."""
    code = "plan/too-many"
    for pod, container in _containers(bundle):
        wants = [(n, "hca_ports") for n in container.rdma if _which(bundle, n) == "sriov"]
        wants += [(n, "gpus") for n in container.resources if n in ("nvidia.com/gpu", "amd.com/gpu")]
        size = bundle.size_of(pod)
        for name, fact in wants:
            most, amount = getattr(size, fact, None), container.amount(name)
            if size is None or most is None or amount is None:
                yield Lacks(code, f"{pod} names no VM size of which it is known how many it has of {name}: --size")
            elif amount > most and not _is_sliced(bundle, name):
                yield Hit(
                    code=code,
                    place=container.at("resources", "limits", name),
                    about=str(pod),
                    message=f"{amount} of {name} are asked for, a node of {size.name} has {most}",
                    read=f"{name}: {amount}",
                    remedy=f"At most {most}." if most else "Another VM size.",
                )
            else:
                yield Well(code, str(pod))


@rule
def slots_as_ports(bundle: Bundle) -> Iterator[Said]:
    """Slots of the shared plugin are pods, not ports: each slot has every port."""
    code = "plan/slots-as-ports"
    for pod, container in _containers(bundle):
        for name in container.rdma:
            amount = container.amount(name)
            if _which(bundle, name) == "shared" and amount is not None and amount > 1:
                yield Hit(
                    code=code,
                    place=container.at("resources", "limits", name),
                    about=str(pod),
                    message=f"{amount} of {name} are {amount} slots of which each has all ports, not {amount} ports",
                    read=f"{name}: {amount}",
                    remedy=f"{name}: 1.",
                    verdict=Verdict.WARN,
                )
            elif _which(bundle, name) == "shared":
                yield Well(code, str(pod))


@rule
def ipc_lock(bundle: Bundle) -> Iterator[Said]:
    """RDMA registers memory, which is locked; a container may lock 64 KiB."""
    code = "plan/no-ipc-lock"
    for pod, container in _containers(bundle):
        claims = [str(mapping(c).get("name")) for c in items(dig(container.value, "resources", "claims"))]
        if not container.rdma and not any(_is_rdma_claim(bundle, pod, c) for c in claims):
            continue
        if container.privileged or {"IPC_LOCK", "ALL", "CAP_IPC_LOCK"} & set(container.capabilities):
            yield Well(code, str(pod))
            continue
        yield Hit(
            code=code,
            place=container.at("securityContext") if "securityContext" in container.value else container.at(),
            about=str(pod),
            message=f"container {container.name} has RDMA ports and may lock 64 KiB of memory",
            read=f"capabilities: {', '.join(container.capabilities) or 'none added'}",
            remedy='securityContext: {capabilities: {add: ["IPC_LOCK"]}}',
        )


@rule
def shared_memory(bundle: Bundle) -> Iterator[Said]:
    """Shared memory is 64 MiB in a container; NCCL and data loaders need more, in memory."""
    code = "plan/shm"
    for pod, container in _containers(bundle):
        if container.gpus < 2 or pod.role == "Launcher":
            continue
        mounts = [mapping(m) for m in items(container.value.get("volumeMounts"))]
        mount = next((m for m in mounts if str(m.get("mountPath", "")).rstrip("/") == "/dev/shm"), None)  # noqa: S108
        volume = next(
            (
                mapping(v)
                for v in items(pod.spec.get("volumes"))
                if mount and mapping(v).get("name") == mount.get("name")
            ),
            None,
        )
        if dig(volume, "emptyDir", "medium") == "Memory" or pod.spec.get("hostIPC") is True:
            yield Well(code, str(pod))
            continue
        why = "is on the node's disk" if volume is not None and "emptyDir" in volume else "is 64 MiB"
        yield Hit(
            code=code,
            place=container.at("volumeMounts"),
            about=str(pod),
            message=f"shared memory of container {container.name}, which has {container.gpus} GPUs, {why}",
            read=f"volumes: {dict(volume)}" if volume is not None else "no volume at /dev/shm",
            remedy="A volume {emptyDir: {medium: Memory}} mounted at /dev/shm.",
            verdict=Verdict.WARN,
        )


@rule
def requests_and_limits(bundle: Bundle) -> Iterator[Said]:
    """Extended resources cannot be shared out: the API server refuses requests that are not the limits."""
    code = "plan/requests-limits"
    for pod, container in _containers(bundle):
        wants, may = container.asked("requests"), container.asked("limits")
        for name in sorted({*wants, *may}):
            if name in _NATIVE or "/" not in name or name.startswith("hugepages-"):
                continue
            if name in wants and wants[name] != may.get(name):
                yield Hit(
                    code=code,
                    place=container.at("resources", "requests", name),
                    about=str(pod),
                    message=f"requests {wants[name]} and limits {may.get(name, 'none')} of {name} must be equal",
                    read=f"requests {wants[name]}, limits {may.get(name, '-')}",
                    remedy="Write the same number in limits; requests may be left out.",
                )
            else:
                yield Well(code, str(pod))


@rule
def interface(bundle: Bundle) -> Iterator[Said]:
    """NCCL's sockets on an interface that the pod has: net1 with a second network, eth0 without."""
    code = "plan/nccl-interface"
    for pod in bundle.pods:
        env = bundle.job_env(pod)
        if "NCCL_SOCKET_IFNAME" not in env or pod.role == "Launcher":
            continue
        value, place = env["NCCL_SOCKET_IFNAME"]
        if "$" in value or not value:
            continue
        second = bool(networks_of(pod))
        names = [name.lstrip("=") for name in value.lstrip("^").split(",")]
        wanted, has = ("net1", any(name.startswith("net") for name in names)) if second else ("eth0", True)
        wrong = (second and not has) or (not second and any(name.startswith("net") for name in names))
        if not wrong or value.startswith("^"):
            yield Well(code, str(pod))
            continue
        what = "has a second network, and NCCL's sockets go past it" if second else "has no second network"
        yield Hit(
            code=code,
            place=place,
            about=str(pod),
            message=f"NCCL_SOCKET_IFNAME={value}: the pod {what}",
            read=f"NCCL_SOCKET_IFNAME={value}",
            remedy=f"NCCL_SOCKET_IFNAME={wanted}",
        )


@rule
def rdma_off(bundle: Bundle) -> Iterator[Said]:
    """RDMA ports are asked for, and NCCL told not to use them."""
    code = "plan/nccl-ib-off"
    for pod in bundle.pods:
        if not any(c.rdma for c in pod.containers):
            continue
        value, place = bundle.job_env(pod).get("NCCL_IB_DISABLE", ("0", pod.at()))
        if value == "1":
            yield Hit(
                code=code,
                place=place,
                about=str(pod),
                message="the pod has RDMA ports, and NCCL_IB_DISABLE=1 keeps NCCL from using them",
                read="NCCL_IB_DISABLE=1",
                remedy="NCCL_IB_DISABLE=0, or no RDMA resource.",
            )
        else:
            yield Well(code, str(pod))


@rule
def topology_file(bundle: Bundle) -> Iterator[Said]:
    """A guest sees no PCI switches: NCCL needs the size's topology file, and the right one."""
    code = "plan/topology-file"
    for pod, container in _containers(bundle):
        size = bundle.size_of(pod)
        layout = layout_of(size.name) if size else None
        if container.gpus < 2 or not (container.rdma or container.privileged) or pod.role == "Launcher":
            continue
        if layout is None:
            yield Lacks(code, f"{pod} names no VM size whose topology is known: --size")
            continue
        value, place = bundle.job_env(pod).get("NCCL_TOPO_FILE", ("", container.at()))
        mounts = [str(mapping(m).get("mountPath", "")) for m in items(container.value.get("volumeMounts"))]
        problem = ""
        if not value:
            problem = "NCCL_TOPO_FILE is not set, so NCCL takes every port for equally far from every GPU"
        elif "$" not in value and not any(m and value.startswith(m.rstrip("/")) for m in mounts):
            problem = f"NCCL_TOPO_FILE={value}, and nothing is mounted there"
        elif (named := re.search(r"(n[dc]v\d)-topo", value)) and named[1] != layout.name:
            problem = f"NCCL_TOPO_FILE={value} is another family's: this size has {layout.name}-topo.xml"
        if not problem:
            problem, place = _other_topology(bundle, pod, layout.gpus, place)
        if problem:
            yield Hit(
                code=code,
                place=place,
                about=str(pod),
                message=problem,
                read=f"NCCL_TOPO_FILE={value}" if value else "NCCL_TOPO_FILE is not set",
                remedy=f"Mount the file of {layout.name} and name it; fairlead plan writes it as a ConfigMap.",
                verdict=Verdict.WARN if not value else Verdict.FAIL,
            )
        else:
            yield Well(code, str(pod))


@rule
def slots(bundle: Bundle) -> Iterator[Said]:
    """Slots are GPUs of a worker, and processes are slots times workers."""
    code = "plan/mpi-slots"
    for job in bundle.of("MPIJob"):
        workers = [p for p in bundle.pods if p.top is job and p.role == "Worker"]
        count = job.get("spec", "slotsPerWorker")
        number = count if isinstance(count, int) else 1
        for pod in workers:
            gpus = sum(c.gpus for c in pod.containers)
            if gpus and number != gpus:
                yield Hit(
                    code=code,
                    place=job.at("spec", "slotsPerWorker"),
                    about=str(job),
                    message=f"slotsPerWorker is {number}, and a worker has {gpus} GPUs",
                    read=f"slotsPerWorker: {count}",
                    remedy=f"slotsPerWorker: {gpus}",
                )
            elif gpus:
                yield Well(code, str(job))
            for launcher in [p for p in bundle.pods if p.top is job and p.role == "Launcher"]:
                yield from _processes(job_name=str(job), launcher=launcher, slots=number, workers=pod.replicas)


@rule
def same_node(bundle: Bundle) -> Iterator[Said]:
    """Workers that may share a node test that node, not the network."""
    code = "plan/same-node"
    for pod in bundle.pods:
        if pod.replicas < 2 or pod.role in ("Launcher", "Master") or not any(c.rdma or c.gpus for c in pod.containers):
            continue
        size, gpus = bundle.size_of(pod), sum(c.gpus for c in pod.containers)
        ports = sum(c.amount(n) or 0 for c in pod.containers for n in c.rdma if _which(bundle, n) == "sriov")
        whole = size is not None and bool(
            (size.gpus and gpus * 2 > size.gpus) or (size.hca_ports and ports * 2 > size.hca_ports)
        )
        if whole or _is_spread(pod):
            yield Well(code, str(pod))
            continue
        yield Hit(
            code=code,
            place=pod.at("affinity") if "affinity" in pod.spec else pod.at(),
            about=str(pod),
            message=f"{pod.replicas} of it may stand on one node: nothing keeps them apart",
            read="no required podAntiAffinity by hostname, no topologySpreadConstraints",
            remedy="podAntiAffinity with topologyKey kubernetes.io/hostname.",
            verdict=Verdict.WARN,
        )


@rule
def unchecked(bundle: Bundle) -> Iterator[Said]:
    """nccl-tests with `-c 0` does not look at what arrived: a corrupted result passes."""
    code = "plan/data-unchecked"
    for pod, container in _containers(bundle):
        script = container.script.replace("\\\n", " ")
        for match in _PERF.finditer(script):
            if _UNCHECKED.search(match[1]):
                yield Hit(
                    code=code,
                    place=container.at("args") if "args" in container.value else container.at("command"),
                    about=str(pod),
                    message="the collective's values are not checked (-c 0): a result that arrived wrong passes",
                    read=" ".join(match[0].split())[:120],
                    remedy="-c 1",
                    verdict=Verdict.WARN,
                )
            else:
                yield Well(code, str(pod))


def networks_of(pod: Pod) -> list[str]:
    """The second networks that a pod's annotation names; the long form is JSON."""
    text = pod.annotations.get("k8s.v1.cni.cncf.io/networks")
    if not isinstance(text, str):
        return []
    if text.lstrip().startswith("["):
        return re.findall(r'"name"\s*:\s*"([^"]+)"', text)
    return [name.strip() for name in text.split(",") if name.strip()]


def _which(bundle: Bundle, name: str) -> str:
    """Which plugin a resource is of: by the policy, else by its usual name."""
    if name in bundle.offered:
        return bundle.offered[name][0]
    return "shared" if "shared" in name else "sriov"


def _is_sliced(bundle: Bundle, name: str) -> bool:
    """GPUs that are shared in turns or cut into MIG devices are more than there are."""
    return name == "nvidia.com/gpu" and (
        any("timeSlicing" in str(o.get("data")) or "replicas" in str(o.get("data")) for o in bundle.of("ConfigMap"))
        or bundle.text_has("mig")
    )


def _is_rdma_claim(bundle: Bundle, pod: Pod, name: str) -> bool:
    """Whether a claim is for ports: its template among the files asks for a class of RDMA devices or of DRANET."""
    row = next((mapping(c) for c in items(pod.spec.get("resourceClaims")) if mapping(c).get("name") == name), {})
    template = row.get("resourceClaimTemplateName")
    found = next((o for o in bundle.of("ResourceClaimTemplate") if o.name == template), None)
    text = str(found.get("spec") if found else row).casefold()
    return any(word in text for word in ("rdma", "dranet", "dra.net"))


def _is_spread(pod: Pod) -> bool:
    rules = dig(pod.spec, "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    if any(mapping(r).get("topologyKey") == "kubernetes.io/hostname" for r in items(rules)):
        return True
    spread = [mapping(s) for s in items(pod.spec.get("topologySpreadConstraints"))]
    return any(
        s.get("topologyKey") == "kubernetes.io/hostname" and s.get("whenUnsatisfiable") == "DoNotSchedule"
        for s in spread
    )


def _processes(*, job_name: str, launcher: Pod, slots: int, workers: int) -> Iterator[Said]:
    for container in launcher.containers:
        found = [
            int(n)
            for n in re.findall(r"mpirun\b[^\n;&|]*?\s-(?:np|n)\s+(\d{1,6})\b", container.script.replace("\\\n", " "))
        ]
        # a first mpirun may start one process a worker, to wait until all are there
        most = max(found, default=0)
        if found and most != slots * workers:
            yield Hit(
                code="plan/mpi-slots",
                place=container.at("args") if "args" in container.value else container.at("command"),
                about=job_name,
                message=f"mpirun starts {most} processes; {workers} workers of {slots} slots take {slots * workers}",
                read=f"-np {most}",
                remedy=f"-np {slots * workers}",
            )


def _other_topology(bundle: Bundle, pod: Pod, gpus: tuple[str, ...], place: Place) -> tuple[str, Place]:
    """A ConfigMap that the pod mounts and that holds the topology of other GPUs."""
    names = {str(dig(v, "configMap", "name")) for v in items(pod.spec.get("volumes")) if dig(v, "configMap")}
    for made in bundle.of("ConfigMap"):
        for key, text in mapping(made.get("data")).items():
            if made.name in names and "busid=" in str(text):
                found = set(re.findall(r'busid="([^"]+)"\s+class="0x0302', str(text)))
                if found and found != set(gpus):
                    return (
                        f"ConfigMap {made.name} is another family's topology: its GPUs are {', '.join(sorted(found))}",
                        made.at("data", key),
                    )
    return "", place
