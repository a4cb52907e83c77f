"""Traps in operators: policies, networks, labels, drivers, versions, namespaces. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from typing import Any

from fairlead.plan.kubernetes.nic import INFINIBAND_CLASS, MELLANOX, RESERVED, netdev_name
from fairlead.plan.lint.bundle import Bundle, Chart, Object, config_of, dig, items, mapping
from fairlead.plan.lint.read import Place
from fairlead.plan.lint.rule import Hit, Lacks, Said, Well, rule
from fairlead.plan.lint.rules_pods import networks_of
from fairlead.records.verdict import Verdict
from fairlead.spec.layout import layout_of
from fairlead.spec.vmsize import VmSize

NETWORK_KINDS = ("IPoIBNetwork", "HostDeviceNetwork", "MacvlanNetwork", "SriovIBNetwork", "NetworkAttachmentDefinition")
OPERATOR_NAMESPACES = ("network-operator", "nvidia-network-operator", "gpu-operator", "kube-amd-gpu", "gpu-resources")
AKS_RANGES = {
    "10.224.0.0/12": "AKS's own virtual network",
    "10.0.0.0/16": "AKS's services",
    "10.244.0.0/16": "AKS's pods",
}
"""What `az aks create` takes where nobody says (AKS documentation, azure-cni-overlay and configure-kubenet)."""
_SHARED_IDS = ("1016", "1018", "101a", "101e")
"""PCI ids that Azure's accelerated Ethernet ports have too (ConnectX-4 Lx, 5, and the generic mlx5 function)."""
_RELEASE = re.compile(r"(\d{2})\.(\d{1,2})(?:\.|-|$)")


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
        releases = [r for p in bundle.policies for _, _, r in _releases(p) if r is not None]
        chart = bundle.charts.get("network-operator")
        if chart is not None and (found := _release(chart.version)):
            releases.append(found)
        if kind is None or not bundle.policies:
            continue
        whereabouts = kind[1] == "whereabouts" and not any(
            "whereabouts" in o.name for o in bundle.objects if o is not made
        )
        missing = kind[1] == "nv-ipam" and not any(p.get("spec", "nvIpam") for p in bundle.policies)
        if whereabouts and any(r >= (25, 10) for r in releases):
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
def two_nfd(bundle: Bundle) -> Iterator[Said]:
    """Node feature discovery once in a cluster: two of them write each other's labels away."""
    code = "plan/two-nfd"
    have = {"gpu-operator": ("nfd", "enabled"), "network-operator": ("nfd", "enabled"),
            "amd-gpu-operator": ("node-feature-discovery", "enabled")}  # fmt: skip
    found = [chart for name, chart in bundle.charts.items() if chart.get(*have[name], default=True) is not False]
    if len(found) > 1:
        first, second = found[0], found[-1]
        path = have[second.name]
        yield Hit(
            code=code,
            place=second.at(*path),
            about=f"charts {first.name} and {second.name}",
            message=f"{first.name} and {second.name} both install node feature discovery",
            read=f"{'.'.join(path)}: {second.get(*path, default='not set, which is true')}",
            remedy="nfd.enabled: false in one of them.",
        )
    elif len(bundle.charts) > 1:
        yield Well(code, "charts")


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


@rule
def gpudirect(bundle: Bundle) -> Iterator[Said]:
    """The operator's driver without nvidia-peermem, though RDMA is planned."""
    code = "plan/no-gpudirect"
    chart = bundle.charts.get("gpu-operator")
    if chart is None or chart.get("driver", "enabled", default=True) is False:
        return
    if not bundle.policies and "network-operator" not in bundle.charts:
        return
    if chart.get("driver", "rdma", "enabled", default=False) is True:
        yield Well(code, "chart gpu-operator")
        return
    yield Hit(
        code=code,
        place=chart.at("driver", "rdma", "enabled"),
        about="chart gpu-operator",
        message="driver.rdma.enabled is not true: nvidia-peermem is not loaded; without DMA-BUF all messages take "
        "the way through the host's memory",
        read=f"driver.rdma.enabled: {chart.get('driver', 'rdma', 'enabled', default='not set, which is false')}",
        remedy="driver: {rdma: {enabled: true}}",
        verdict=Verdict.WARN,
    )


@rule
def versions(bundle: Bundle) -> Iterator[Said]:
    """The network operator's chart and its images of one release."""
    code = "plan/version-skew"
    chart = bundle.charts.get("network-operator")
    wanted = _release(chart.version) if chart else None
    for policy in bundle.policies:
        found = [(path, text, release) for path, text, release in _releases(policy) if release is not None]
        if not found:
            continue
        against, who = (
            (wanted, f"the chart is {chart.version}")
            if wanted and chart
            else (found[0][2], f"{'.'.join(found[0][0][1:])} is {found[0][1]}")
        )
        other = next(((path, text) for path, text, release in found if release != against), None)
        if other is None:
            yield Well(code, str(policy))
            continue
        path, text = other
        yield Hit(
            code=code,
            place=policy.at(*path, "version"),
            about=str(policy),
            message=f"{'.'.join(path[1:])} has version {text}, and {who}: one release is tested together",
            read=f"version: {text}",
            remedy="Take all versions from one release of the network operator (its hack/release.yaml).",
            verdict=Verdict.WARN,
        )


@rule
def pod_security(bundle: Bundle) -> Iterator[Said]:
    """Namespaces of operators must admit privileged pods, else their DaemonSets make none."""
    code = "plan/pod-security"
    made = {o.name: o for o in bundle.of("Namespace")}
    used = {c.namespace or OPERATOR_NAMESPACES[0]: c for c in bundle.charts.values() if c.namespace}
    for name in sorted({n for n in made if n in OPERATOR_NAMESPACES} | set(used)):
        chart, level = used.get(name), ""
        if name in made:
            level = str(mapping(made[name].get("metadata", "labels")).get("pod-security.kubernetes.io/enforce", ""))
        if (
            level == "privileged"
            or _labelled(bundle, name)
            or (chart is not None and chart.get("psa", "enabled") is True)
        ):
            yield Well(code, f"Namespace/{name}")
            continue
        place = made[name].at("metadata") if name in made else chart.place if chart is not None else Place("")
        yield Hit(
            code=code,
            place=place,
            about=f"Namespace/{name}",
            message=f"namespace {name} does not admit privileged pods, which its drivers and plugins are",
            read=f"pod-security.kubernetes.io/enforce: {level or 'not set'}",
            remedy=f"kubectl label --overwrite namespace {name} pod-security.kubernetes.io/enforce=privileged",
            verdict=Verdict.FAIL if level else Verdict.WARN,
        )
    yield from _pods_not_admitted(bundle, made)


def _pods_not_admitted(bundle: Bundle, made: dict[str, Object]) -> Iterator[Said]:
    """IPC_LOCK is beyond the levels baseline and restricted; so is privileged."""
    for pod in bundle.pods:
        home = made.get(pod.top.namespace)
        level = (
            str(mapping(home.get("metadata", "labels")).get("pod-security.kubernetes.io/enforce", "")) if home else ""
        )
        beyond = next((c for c in pod.containers if c.privileged or "IPC_LOCK" in c.capabilities), None)
        if beyond is not None and level in ("baseline", "restricted"):
            yield Hit(
                code="plan/pod-security",
                place=beyond.at("securityContext"),
                about=str(pod),
                message=f"namespace {pod.top.namespace} enforces `{level}`, which refuses privileged pods and IPC_LOCK",
                read=f"pod-security.kubernetes.io/enforce: {level}",
                remedy="enforce=privileged for a namespace of RDMA jobs.",
            )


def _labelled(bundle: Bundle, name: str) -> bool:
    return any(
        c.program == "kubectl"
        and "label" in c.words
        and any("pod-security.kubernetes.io/enforce=privileged" in w for w in _all(c))
        and name in " ".join(_all(c))
        for c in bundle.commands
    )


def _all(command: Any) -> list[str]:
    return [*command.words, *(v for values in command.options.values() for v in values)]


def _releases(policy: Object) -> Iterator[tuple[tuple[str, ...], str, tuple[int, int] | None]]:
    """(path, version, release) of every image of a policy that the operator's own release has."""
    spec = mapping(policy.get("spec"))
    for key in (
        "ofedDriver",
        "sriovDevicePlugin",
        "rdmaSharedDevicePlugin",
        "nvIpam",
        "ibKubernetes",
        "nicFeatureDiscovery",
    ):
        text = dig(spec, key, "version")
        if isinstance(text, str):
            yield ("spec", key), text, _release(text)
    for key in ("cniPlugins", "multus", "ipoib"):
        text = dig(spec, "secondaryNetwork", key, "version")
        if isinstance(text, str):
            yield ("spec", "secondaryNetwork", key), text, _release(text)


def _release(text: str) -> tuple[int, int] | None:
    """Year and month of a release: `network-operator-v25.10.0`, `doca3.2.0-25.10-1.2.8.0-2`, `v26.4.0`.

    >>> _release("doca3.4.0-26.04-0.8.6.0-0"), _release("network-operator-v26.4.0"), _release("v1.2.3")
    ((26, 4), (26, 4), None)
    """
    for found in _RELEASE.finditer(re.sub(r"^doca[\d.]+-", "", text.removeprefix("network-operator-").lstrip("v"))):
        year, month = int(found[1]), int(found[2])
        if 20 <= year <= 40 and 1 <= month <= 12:
            return year, month
    return None


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


def chart_default(chart: Chart | None, *path: str, default: Any) -> Any:
    """A chart's value, with the chart's own default where it is not set."""
    return default if chart is None else chart.get(*path, default=default)
