"""Traps in operators: drivers, feature discovery, versions, namespaces. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairlead.plan.lint.bundle import Bundle, Chart, Object, dig, mapping
from fairlead.plan.lint.read import Place
from fairlead.plan.lint.rule import Hit, Said, Well, rule
from fairlead.records.verdict import Verdict

OPERATOR_NAMESPACES = ("network-operator", "nvidia-network-operator", "gpu-operator", "kube-amd-gpu", "gpu-resources")
_RELEASE = re.compile(r"(\d{2})\.(\d{1,2})(?:\.|-|$)")


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
    wanted = release_of(chart.version) if chart else None
    for policy in bundle.policies:
        found = [(path, text, release) for path, text, release in releases(policy) if release is not None]
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


def releases(policy: Object) -> Iterator[tuple[tuple[str, ...], str, tuple[int, int] | None]]:
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
            yield ("spec", key), text, release_of(text)
    for key in ("cniPlugins", "multus", "ipoib"):
        text = dig(spec, "secondaryNetwork", key, "version")
        if isinstance(text, str):
            yield ("spec", "secondaryNetwork", key), text, release_of(text)


def release_of(text: str) -> tuple[int, int] | None:
    """Year and month of a release: `network-operator-v25.10.0`, `doca3.2.0-25.10-1.2.8.0-2`, `v26.4.0`.

    >>> release_of("doca3.4.0-26.04-0.8.6.0-0"), release_of("network-operator-v26.4.0"), release_of("v1.2.3")
    ((26, 4), (26, 4), None)
    """
    for found in _RELEASE.finditer(re.sub(r"^doca[\d.]+-", "", text.removeprefix("network-operator-").lstrip("v"))):
        year, month = int(found[1]), int(found[2])
        if 20 <= year <= 40 and 1 <= month <= 12:
            return year, month
    return None


def chart_default(chart: Chart | None, *path: str, default: Any) -> Any:
    """A chart's value, with the chart's own default where it is not set."""
    return default if chart is None else chart.get(*path, default=default)
