"""What a cluster's API server says of nodes and operators (`kubectl get ... -o json`), held against VM sizes. Pure.

An object with a uid was made by an API server; a manifest has none, and nothing here is about it. Fields are those of
Kubernetes' API reference (NodeStatus, DaemonSetStatus, PodStatus) and of its page on device plugins (a device that is
not healthy leaves allocatable, not capacity); of NVIDIA's network operator (status.state of NicClusterPolicy, the label
network.nvidia.com/operator.mofed.wait) and GPU operator (status.state of ClusterPolicy, labels of MIG and slices).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fairlead.base.units import whole
from fairlead.plan.lint.bundle import INSTANCE_TYPE, Bundle, Object, items, mapping
from fairlead.plan.lint.claims import Published, has_driver
from fairlead.plan.lint.claims import published as claimable
from fairlead.plan.lint.rule import Hit, Lacks, Said, Well, rule
from fairlead.plan.lint.rules_operators import OPERATOR_NAMESPACES
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import size as size_of_name

GPUS = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu")
MOFED_WAIT = "network.nvidia.com/operator.mofed.wait"
POLICIES = ("ClusterPolicy", "NicClusterPolicy")
_OF_OPERATORS = re.compile(
    r"^(?:nvidia-|gpu-feature-discovery|mofed-|doca-|rdma-shared-dp|sriov-device-plugin|network-operator-|gpu-operator-"
    r"|kube-ipoib-|kube-multus|nv-ipam-|amdgpu-)"
)
"""DaemonSets of the two operators and of AMD's, wherever they were put; AKS has the device plugin in kube-system."""
_CHECK = "kubectl get nodes,pods,daemonsets,nicclusterpolicies -A -o json > cluster.json"
_SLICES = "kubectl get nodes,pods,daemonsets,deviceclasses,resourceslices -A -o json > cluster.json"


@rule
def node_resources(bundle: Bundle) -> Iterator[Said]:
    """Every node offers the GPUs and RDMA ports that its VM size has."""
    for node in _live(bundle, "Node"):
        name = _label(node, INSTANCE_TYPE)
        size = size_of_name(name) if name else None
        offered = node.get("status", "allocatable")
        if size is None and name and not _looks_fast(node, name):
            continue  # a node of the system pool, of a size that fairlead needs no facts about
        if size is None:
            why = f"fairlead has no facts about {name}" if name else f"no label {INSTANCE_TYPE}"
            yield _unknown(node, f"what it should offer is not known: {why}", f"labels: {INSTANCE_TYPE}: {name}")
        elif not (size.gpus or size.rdma):
            continue
        elif not isinstance(offered, dict):
            yield _unknown(node, "it says nothing of what it offers", "status.allocatable is not there")
        elif _condition(node, "Ready") != "True":
            yield _unknown(node, "it is not Ready: what it says it offers is of an earlier day", "conditions: Ready")
        else:
            yield from _gpus(bundle, node, size.gpus, size.name)
            if size.rdma:
                yield from _ports(bundle, node, size.hca_ports, size.name)


def _looks_fast(node: Object, size: str) -> bool:
    """Whether a node of a size without facts may have GPUs or RDMA: Azure's families N and H, labels, resources."""
    labels, offered = mapping(node.get("metadata", "labels")), mapping(node.get("status", "allocatable"))
    return (
        re.match(r"(?i)standard_[nh]", size) is not None
        or "nvidia.com/gpu.present" in labels
        or "kubernetes.azure.com/accelerator" in labels
        or any(name in GPUS or str(name).startswith("rdma/") for name in offered)
    )


def _gpus(bundle: Bundle, node: Object, wanted: int | None, size: str) -> Iterator[Said]:
    if not wanted:
        return
    code = "plan/node-resources"
    mig = [key for key in mapping(node.get("status", "allocatable")) if str(key).startswith("nvidia.com/mig-")]
    if mig or "-MIG-" in _label(node, "nvidia.com/gpu.product"):
        yield Lacks(code, f"GPUs of {node}: MIG divides them, and a slice is no GPU")
        return
    slices = _label(node, "nvidia.com/gpu.replicas")
    each = whole(slices, 4) or 1
    names = [name for name in GPUS if _amount(node, name) is not None]
    claims = claimable(bundle, node.name)
    if any(_amount(node, name) for name in names) or not (claims or _may_be_claimed(bundle, names)):
        why = f"{size} has {wanted} GPUs" + f", {each} slices each" * (each > 1)
        yield from _held(node, names, wanted * each, why)
    elif claims is None:
        why = "no GPU is offered as a resource; whether claims (DRA) give them, no ResourceSlice among the files says"
        yield _unknown(node, why, f"allocatable: none of {', '.join(GPUS)}", _SLICES)
    else:
        yield from _by_claims(node, claims, wanted, size)


def _may_be_claimed(bundle: Bundle, names: list[str]) -> bool:
    """Whether a node without GPUs to offer may be in order: no other offers any, and nothing rules claims out."""
    if any(_amount(other, name) for other in _live(bundle, "Node") for name in GPUS):
        return False
    return has_driver(bundle) or not (names or _live(bundle, "Pod", "DaemonSet"))


def _by_claims(node: Object, claims: Published, wanted: int, size: str) -> Iterator[Said]:
    read = f"{claims.gpus} devices of type gpu in {', '.join(claims.slices[:4])}"
    if claims.parts and claims.gpus < wanted:
        yield Lacks("plan/node-resources", f"GPUs of {node}: {claims.parts} parts of GPUs are published, and no whole")
    elif not claims.is_whole:
        yield _unknown(node, "not all slices of its pool are among the files", read, _SLICES)
    elif claims.gpus == wanted:
        yield Well("plan/node-resources", str(node))
    else:
        yield _few(node, f"claims (DRA) can have {claims.gpus} of its GPUs, and {size} has {wanted} GPUs", read)


def _ports(bundle: Bundle, node: Object, ports: int | None, size: str) -> Iterator[Said]:
    code = "plan/node-resources"
    names = [
        str(name)
        for name in mapping(node.get("status", "allocatable"))
        if str(name).startswith("rdma/") or name in bundle.offered
    ]
    elsewhere = bundle.offered or any(n.startswith("rdma/") for n in _all_offered(bundle))
    if not names and elsewhere:
        yield _few(node, "no RDMA resource at all, though the cluster has a plugin for them", "allocatable: no rdma/*")
        return
    if not names:
        yield Lacks(code, f"RDMA ports of {node}: no node offers a resource rdma/*; claims (DRA) are not counted here")
        return
    slots = [n for n in names if "shared" in (bundle.offered[n][0] if n in bundle.offered else n)]
    for name in slots:
        yield from _held(node, [name], None, "each slot gives all ports")
    own = [n for n in names if n not in slots]
    total = sum(_amount(node, n) or 0 for n in own)
    if not own:
        return
    if ports is None or (total > ports and not any(n in bundle.offered for n in own)):
        why = (
            f"{total} of {', '.join(own)}: ports or slots of the shared plugin? No NicClusterPolicy is among the files"
        )
        yield _unknown(node, why if ports else f"no source says how many ports {size} has", f"allocatable: {total}")
        return
    yield from _held(node, own, ports, f"{size} has {ports} RDMA ports")


def _held(node: Object, names: list[str], wanted: int | None, why: str) -> Iterator[Said]:
    """Amounts against what there should be (None: any but 0), and against what the kubelet has seen healthy."""
    total = sum(_amount(node, n) or 0 for n in names)
    seen = sum(_amount(node, n, "capacity") or 0 for n in names)
    read = ", ".join(f"{n}: {_amount(node, n)}" for n in names) or f"none of {', '.join(GPUS)}"
    if total == wanted or (wanted is None and total > 0 and seen <= total):
        yield Well("plan/node-resources", str(node))
    elif seen > total:
        yield _few(node, f"{seen - total} of {seen} are not healthy by their plugin; {why}", f"allocatable {read}")
    elif wanted is not None and total > wanted:
        yield _few(node, f"it offers {total}, and {why}: something else is counted, as an Ethernet function", read)
    else:
        yield _few(node, f"it offers {total}, and {why}", f"allocatable {read}")


def _few(node: Object, message: str, read: str) -> Hit:
    return Hit(
        code="plan/node-resources",
        place=node.at("status", "allocatable"),
        about=str(node),
        message=message,
        read=read,
        remedy=f"kubectl describe node {node.name}; the plugin's log there; `fairlead audit -w {node.name}`",
    )


def _unknown(node: Object, message: str, read: str, remedy: str = _CHECK) -> Hit:
    return Hit(
        code="plan/node-resources",
        place=node.at("status"),
        about=str(node),
        message=message,
        read=read,
        remedy=remedy,
        verdict=Verdict.UNKNOWN,
    )


@rule
def operators_ready(bundle: Bundle) -> Iterator[Said]:
    """Policies, DaemonSets and pods of operators are ready, and the network driver is there before its plugin."""
    for policy in _live(bundle, *POLICIES):
        yield from _policy(policy)
    for made in _live(bundle, "DaemonSet"):
        if _of_operators(made):
            yield from _daemons(made)
    yield from _pods(bundle)
    for node in _live(bundle, "Node"):
        wait = _label(node, MOFED_WAIT)
        if wait == "true":
            yield _not_ready(
                node, "its network driver (DOCA/MOFED) is not ready: plugins wait for it", f"{MOFED_WAIT}: {wait}"
            )
        elif wait == "false":
            yield Well("plan/operator-ready", str(node))


def _policy(policy: Object) -> Iterator[Said]:
    state = policy.get("status", "state")
    if not isinstance(state, str):
        yield _not_ready(
            policy, "no state: its operator has not looked at it", "status.state is not there", Verdict.UNKNOWN
        )
    elif state == "ready":
        yield Well("plan/operator-ready", str(policy))
    else:
        rows = [mapping(r) for r in items(policy.get("status", "appliedStates"))]
        parts = [f"{r.get('name')} {r.get('state')}" for r in rows if r.get("state") in ("notReady", "error")]
        more = f" ({', '.join(parts[:6])})" if parts else ""
        yield _not_ready(policy, f"it is {state}{more}", f"status.state: {state}")


def _daemons(made: Object) -> Iterator[Said]:
    wanted, ready = made.get("status", "desiredNumberScheduled"), made.get("status", "numberReady")
    if not isinstance(wanted, int) or not isinstance(ready, int):
        yield _not_ready(
            made, "it does not say how many pods are ready", "status.numberReady is not there", Verdict.UNKNOWN
        )
    elif ready < wanted:
        yield _not_ready(made, f"{ready} of {wanted} pods are ready", f"numberReady: {ready}, desired: {wanted}")
    elif wanted:  # of 0 nodes nothing can be said: drivers that the image brings leave a DaemonSet without nodes
        yield Well("plan/operator-ready", str(made))


def _pods(bundle: Bundle) -> Iterator[Said]:
    """Pods of an operator by their owner. One that ended counts only where none took its place on its node."""
    groups = defaultdict[tuple[str, str], list[Object]](list)
    for pod in _live(bundle, "Pod"):
        if _of_operators(pod) and not pod.get("metadata", "deletionTimestamp"):
            groups[pod.namespace, str(pod.get("metadata", "ownerReferences", 0, "name") or pod.name)].append(pod)
    for (space, owner), pods in groups.items():
        ready = {p.get("spec", "nodeName") for p in pods if _condition(p, "Ready") == "True"}
        bad = [p for p in pods if not _is_well(p, ready, moves=not _is_bound(p) and any(_is_done(q) for q in pods))]
        dumb = [p for p in bad if not isinstance(p.get("status", "phase"), str)]
        if not bad:
            yield Well("plan/operator-ready", f"{space}/{owner}")
            continue
        first = dumb[0] if dumb and len(dumb) == len(bad) else next(p for p in bad if p not in dumb)
        nodes = [str(p.get("spec", "nodeName") or "no node") for p in bad]
        why = _why(first) or "it does not say why"
        shown = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
        verdict = Verdict.UNKNOWN if first in dumb else Verdict.FAIL
        yield _not_ready(
            first, f"{len(bad)} of {len(pods)} pods of {owner} are not ready, on {shown}: {why}", why, verdict
        )


def _is_well(pod: Object, ready: set[object], *, moves: bool) -> bool:
    """`moves`: another pod of its owner may have taken its place anywhere, and one did."""
    is_failed = pod.get("status", "phase") == "Failed"
    return _is_done(pod) or (is_failed and (moves or pod.get("spec", "nodeName") in ready))


def _is_done(pod: Object) -> bool:
    return pod.get("status", "phase") == "Succeeded" or _condition(pod, "Ready") == "True"


def _is_bound(pod: Object) -> bool:
    """Whether it belongs to its node: only a ReplicaSet or a Job makes the next one wherever there is room."""
    return pod.get("metadata", "ownerReferences", 0, "kind") not in ("ReplicaSet", "Job")


def _why(pod: Object) -> str:
    """The reason that the kubelet or the scheduler gives."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for i, row in enumerate(items(pod.get("status", key))):
            if mapping(row).get("ready") is True:
                continue
            for way in ("waiting", "terminated"):
                found = mapping(pod.get("status", key, i, "state", way))
                if found.get("reason") not in (None, "PodInitializing", "Completed"):
                    return f"{mapping(row).get('name')} {found['reason']} {found.get('message', '')}".strip()[:200]
    for row in items(pod.get("status", "conditions")):
        if mapping(row).get("type") == "PodScheduled" and mapping(row).get("status") == "False":
            return f"{mapping(row).get('reason')} {mapping(row).get('message', '')}".strip()[:200]
    return " ".join(str(w) for w in (pod.get("status", "phase"), pod.get("status", "reason")) if w)


def _not_ready(made: Object, message: str, read: str, verdict: Verdict = Verdict.FAIL) -> Hit:
    return Hit(
        code="plan/operator-ready",
        place=made.at("status"),
        about=str(made),
        message=message,
        read=read,
        remedy=f"kubectl describe {made.kind.lower()} {made.name}"
        + ("" if made.kind in ("Node", *POLICIES) else f" -n {made.namespace}"),
        verdict=verdict,
    )


def _of_operators(made: Object) -> bool:
    return made.namespace in OPERATOR_NAMESPACES or bool(_OF_OPERATORS.match(made.name))


def _live(bundle: Bundle, *kinds: str) -> list[Object]:
    return [o for o in bundle.of(*kinds) if o.get("metadata", "uid")]


def _all_offered(bundle: Bundle) -> set[str]:
    return {str(name) for node in _live(bundle, "Node") for name in mapping(node.get("status", "allocatable"))}


def _label(made: Object, name: str) -> str:
    return str(mapping(made.get("metadata", "labels")).get(name, ""))


def _condition(made: Object, name: str) -> str:
    rows = [mapping(row) for row in items(made.get("status", "conditions"))]
    return next((str(r.get("status")) for r in rows if r.get("type") == name), "")


def _amount(node: Object, name: str, which: str = "allocatable") -> int | None:
    """How many of an extended resource; `1k` is a thousand (Kubernetes' quantities). None where none is named."""
    text = mapping(node.get("status", which)).get(name)
    found = re.fullmatch(r"(\d{1,9})(k?)", str(text))
    return int(found[1]) * (1000 if found[2] else 1) if found else None
