"""Traps in networks: their names, devices, addresses, and the rule that labels their nodes. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from typing import Any

from fairlead.plan.kubernetes.nic import INFINIBAND_CLASS, MELLANOX, RESERVED, netdev_name
from fairlead.plan.lint.bundle import Bundle, Object, config_of, items, mapping
from fairlead.plan.lint.read import Place
from fairlead.plan.lint.rule import Hit, Lacks, Said, Well, rule
from fairlead.plan.lint.rules_operators import release_of, releases
from fairlead.plan.lint.rules_pods import networks_of
from fairlead.records.verdict import Verdict
from fairlead.spec.layout import layout_of
from fairlead.spec.vmsize import VmSize

NETWORK_KINDS = ("IPoIBNetwork", "HostDeviceNetwork", "MacvlanNetwork", "SriovIBNetwork", "NetworkAttachmentDefinition")
AKS_RANGES = {
    "10.224.0.0/12": "AKS's own virtual network",
    "10.0.0.0/16": "AKS's services",
    "10.244.0.0/16": "AKS's pods",
}
"""What `az aks create` takes where nobody says (AKS documentation, azure-cni-overlay and configure-kubenet)."""
_SHARED_IDS = ("1016", "1018", "101a", "101e")
"""PCI ids that Azure's accelerated Ethernet ports have too (ConnectX-4 Lx, 5, and the generic mlx5 function)."""


def _fast_sizes(bundle: Bundle) -> list[VmSize]:
    return [s for s, _ in bundle.sizes.values() if s is not None and s.rdma]


@rule
def ports_without_netdev(bundle: Bundle) -> Iterator[Said]:
    """Plugins tell a port's link type by its network device; ports that have none are not found."""
    code = "plan/no-netdev"
    for policy in bundle.policies:
        for plugin in ("sriovDevicePlugin", "rdmaSharedDevicePlugin"):
            if "linkTypes" not in json.dumps(config_of(policy, plugin)):
                continue
            without = [s.name for s in _fast_sizes(bundle) if s.port_netdevs is False]
            if without:
                yield Hit(
                    code=code,
                    place=policy.at("spec", plugin, "config"),
                    about=str(policy),
                    message=f"linkTypes is told by network devices, and ports of {', '.join(without)} have none: "
                    "the plugin may offer 0 of them",
                    read="linkTypes",
                    remedy="Dynamic resource allocation (DRANET); fairlead plan writes the claims.",
                    verdict=Verdict.WARN,
                )
            else:
                yield Well(code, str(policy))


@rule
def network_name(bundle: Bundle) -> Iterator[Said]:
    """A pod's second network by a name that there is, in a namespace where it is."""
    code = "plan/network-name"
    there = {}
    for made in bundle.of(*NETWORK_KINDS):
        where = made.get("spec", "networkNamespace") or (
            made.namespace if made.kind == "NetworkAttachmentDefinition" else "default"
        )
        there[str(where), made.name] = made
    for pod in bundle.pods:
        for name in networks_of(pod):
            if not there:
                yield Lacks(code, f"no network object among the files for `{name}` of {pod}")
                continue
            space, slash, short = name.partition("/")
            space, short = (space, short) if slash else (pod.top.namespace, name)
            short = short.partition("@")[0]
            if (space, short) in there:
                yield Well(code, str(pod))
                continue
            elsewhere = sorted({s for s, n in there if n == short})
            why = (
                f"it is in namespace {', '.join(elsewhere)}, the pod in {space}"
                if elsewhere
                else f"there are {', '.join(sorted(n for _, n in there))}"
            )
            yield Hit(
                code=code,
                place=pod.top.at(*pod.path[:-1], "metadata", "annotations", "k8s.v1.cni.cncf.io/networks"),
                about=str(pod),
                message=f"no network `{name}` for this pod: {why}",
                read=f"k8s.v1.cni.cncf.io/networks: {name}",
                remedy="The annotation's name is the network object's; networkNamespace is the pod's namespace.",
                # one of another name may be made elsewhere; one in another namespace is what was meant
                verdict=Verdict.FAIL if elsewhere else Verdict.WARN,
            )


@rule
def ipoib_master(bundle: Bundle) -> Iterator[Said]:
    """IP over InfiniBand on a device that nodes of the size have."""
    code = "plan/ipoib-master"
    for made in bundle.of("IPoIBNetwork"):
        master, place = made.get("spec", "master"), made.at("spec", "master")
        if not master:
            yield Hit(
                code=code,
                place=made.at("spec"),
                about=str(made),
                message="no master: the interface of the default route is taken, which is Ethernet",
                read="master is not set",
                remedy="master: the host's InfiniBand device, such as ibP257p0s0.",
            )
            continue
        known = [(s, layout_of(s.name)) for s in _fast_sizes(bundle)]
        known = [(s, layout) for s, layout in known if layout is not None]
        if not known:
            yield Lacks(
                code, f"whether nodes have a device {master}: no VM size is named whose devices are known: --size"
            )
        for size, layout in known:
            assert layout is not None
            names = [netdev_name(p) for node in layout.numa for group in node.groups for p in group.ports]
            if master in names or re.fullmatch(r"ib\d+", str(master)):
                yield Well(code, str(made))
            else:
                yield Hit(
                    code=code,
                    place=place,
                    about=str(made),
                    message=f"{size.name} has no device {master}; it has {', '.join(sorted(names))}",
                    read=f"master: {master}",
                    remedy=f"master: {min(names)}",
                )


@rule
def overlapping_ranges(bundle: Bundle) -> Iterator[Said]:
    """A second network in a range that somebody else has: answers go the wrong way."""
    code = "plan/address-overlap"
    used: dict[Any, str] = {ipaddress.ip_network(RESERVED): "the range of Azure's InfiniBand"}
    said = _ranges_said(bundle)
    used |= said or {ipaddress.ip_network(text): what for text, what in AKS_RANGES.items()}
    for made, mine, place in _second_ranges(bundle):
        other = next((u for u in used if u.version == mine.version and u.overlaps(mine)), None)
        if other is None:
            yield Well(code, str(made))
            continue
        yield Hit(
            code=code,
            place=place,
            about=str(made),
            message=f"{mine} overlaps {other}, which is {used[other]}",
            read=str(mine),
            remedy="A range that nobody has, such as 192.168.0.0/16 or 198.18.0.0/16.",
        )


@rule
def no_ipam(bundle: Bundle) -> Iterator[Said]:
    """Addresses by whereabouts, which the network operator brings no more since 25.10."""
    code = "plan/no-ipam"
    for made in bundle.of("IPoIBNetwork", "HostDeviceNetwork", "MacvlanNetwork"):
        text = str(made.get("spec", "ipam") or "")
        kind = re.search(r'"type"\s*:\s*"([^"]+)"', text)
        found = [r for p in bundle.policies for _, _, r in releases(p) if r is not None]
        chart = bundle.charts.get("network-operator")
        if chart is not None and (said := release_of(chart.version)):
            found.append(said)
        if kind is None or not bundle.policies:
            continue
        whereabouts = kind[1] == "whereabouts" and not any(
            "whereabouts" in o.name for o in bundle.objects if o is not made
        )
        missing = kind[1] == "nv-ipam" and not any(p.get("spec", "nvIpam") for p in bundle.policies)
        if whereabouts and any(r >= (25, 10) for r in found):
            why = "whereabouts gives the addresses, and the network operator brings it no more since 25.10"
        elif missing:
            why = "nv-ipam gives the addresses, and the NicClusterPolicy does not install it"
        else:
            yield Well(code, str(made))
            continue
        yield Hit(
            code=code,
            place=made.at("spec", "ipam"),
            about=str(made),
            message=f"{why}: without it the pod's second interface is never made",
            read=kind[0],
            remedy="nvIpam in the NicClusterPolicy and an IPPool, or whereabouts installed by yourself.",
            verdict=Verdict.WARN,  # it may come from elsewhere: OpenShift has one of its own
        )


@rule
def node_rule(bundle: Bundle) -> Iterator[Said]:
    """A label for InfiniBand nodes by maker and class: a device id alone is Ethernet ports' too."""
    code = "plan/node-rule"
    for made in bundle.of("NodeFeatureRule"):
        for i, row in enumerate(items(made.get("spec", "rules"))):
            matches = [mapping(m) for m in items(mapping(row).get("matchFeatures"))]
            matches += [
                mapping(m)
                for any_ in items(mapping(row).get("matchAny"))
                for m in items(mapping(any_).get("matchFeatures"))
            ]
            for match in matches:
                if match.get("feature") != "pci.device":
                    continue
                wanted = mapping(match.get("matchExpressions"))
                values = {key: [str(v).casefold() for v in items(mapping(w).get("value"))] for key, w in wanted.items()}
                ids = values.get("device", [])
                problems = []
                if "vendor" not in wanted and "subsystem_vendor" not in wanted:
                    problems.append("it names no vendor, and a device id of another maker may be the same")
                if MELLANOX in values.get("vendor", [MELLANOX]) and INFINIBAND_CLASS not in values.get("class", []):
                    shared = [x for x in ids if x in _SHARED_IDS]
                    if shared or not ids:
                        what = f"ids {', '.join(shared)} are" if shared else "without ids and class it is"
                        problems.append(f"{what} true of accelerated Ethernet ports as well")
                if problems:
                    yield Hit(
                        code=code,
                        place=made.at("spec", "rules", i),
                        about=f"{made} {mapping(row).get('name', '')}".rstrip(),
                        message="; ".join(problems),
                        read=json.dumps(wanted, default=str)[:160],
                        remedy=f'vendor: {{op: In, value: ["{MELLANOX}"]}}, class: the same with "{INFINIBAND_CLASS}"',
                        verdict=Verdict.WARN,
                    )
                else:
                    yield Well(code, str(made))


def _ranges_said(bundle: Bundle) -> dict[Any, str]:
    """Ranges that `az` calls give to networks, pods and services."""
    found: dict[Any, str] = {}
    for command in bundle.commands:
        for option in (
            "--pod-cidr",
            "--service-cidr",
            "--address-prefixes",
            "--address-prefix",
            "--vnet-address-prefixes",
        ):
            for text in command.options.get(option, ()):
                try:
                    found[ipaddress.ip_network(text)] = f"{option} of `az {' '.join(command.words)}`"
                except ValueError:
                    continue
    return found


def _second_ranges(bundle: Bundle) -> Iterator[tuple[Object, Any, Place]]:
    for made in bundle.of("IPoIBNetwork", "HostDeviceNetwork", "MacvlanNetwork", "IPPool"):
        key = "subnet" if made.kind == "IPPool" else "ipam"
        text = str(made.get("spec", key) or "")
        texts = [text] if made.kind == "IPPool" else re.findall(r'"(?:range|subnet)"\s*:\s*"([^"-]+)"', text)
        for part in texts:
            try:
                yield made, ipaddress.ip_network(part.strip(), strict=False), made.at("spec", key)
            except ValueError:
                continue
