"""All files together, as rules ask for them: objects by kind, pods wherever they stand, charts, calls, sizes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from fairlead.base.units import whole
from fairlead.plan.lint.commands import Command
from fairlead.plan.lint.read import Document, Path, Place
from fairlead.spec.vmsize import VmSize
from fairlead.spec.vmsize import size as size_of_name

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
CHARTS = ("gpu-operator", "network-operator", "amd-gpu-operator")


class Object:
    """A Kubernetes object, or a part of one."""

    def __init__(self, document: Document, path: Path = (), kind: str = "") -> None:
        self.document, self.path, self._listed = document, path, kind
        self.value = mapping(dig(document.value, *path))

    @property
    def kind(self) -> str:
        """`MPIJob`; of a part without one, what its list says; else empty."""
        return str(self.value.get("kind", "") or self._listed)

    @property
    def name(self) -> str:
        """Its own name."""
        return str(mapping(self.value.get("metadata")).get("name", ""))

    @property
    def namespace(self) -> str:
        """Where it lies; `default` where nobody says."""
        return str(mapping(self.value.get("metadata")).get("namespace", "") or "default")

    def get(self, *path: str | int) -> Any:
        """What stands at a path; None where nothing does."""
        return dig(self.value, *path)

    def at(self, *path: str | int) -> Place:
        """Where it stands, or the nearest thing around it."""
        return self.document.at((*self.path, *path))

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.kind else self.document.file


class Container:
    """A container of a pod."""

    def __init__(self, pod: Pod, path: tuple[str | int, ...]) -> None:
        self.pod, self.path = pod, path
        self.value = mapping(pod.top.get(*path))

    @property
    def name(self) -> str:
        """Its own name."""
        return str(self.value.get("name", "?"))

    def at(self, *path: str | int) -> Place:
        """Where something of it stands."""
        return self.pod.top.at(*self.path, *path)

    def asked(self, which: str = "limits") -> dict[str, str]:
        """Resources by name: of `limits`, else of `requests`."""
        found = mapping(dig(self.value, "resources", which))
        return {name: str(amount) for name, amount in found.items()}

    @property
    def resources(self) -> dict[str, str]:
        """What it gets."""
        return {**self.asked("requests"), **self.asked("limits")}

    @property
    def privileged(self) -> bool:
        """Whether it may do anything."""
        return dig(self.value, "securityContext", "privileged") is True

    @property
    def capabilities(self) -> list[str]:
        """What it may do beyond others."""
        return [str(c) for c in items(dig(self.value, "securityContext", "capabilities", "add"))]

    @property
    def script(self) -> str:
        """What it runs, as one text."""
        return " ".join(str(w) for w in [*items(self.value.get("command")), *items(self.value.get("args"))])

    def amount(self, name: str) -> int | None:
        """How many of an extended resource; None where it asks for none, or not for a whole number."""
        return whole(self.resources.get(name), 9)

    @property
    def gpus(self) -> int:
        """GPUs of any maker."""
        return sum(self.amount(name) or 0 for name in self.resources if name.endswith(".com/gpu"))

    @property
    def rdma(self) -> list[str]:
        """Resources that are RDMA ports or slots of them, by the usual prefix."""
        return [name for name in self.resources if name.startswith("rdma/")]


class Pod:
    """A pod, or the template of one, wherever it stands."""

    def __init__(self, top: Object, path: tuple[str | int, ...]) -> None:
        self.top, self.path = top, path
        self.spec = mapping(top.get(*path))
        self.metadata = mapping(top.get(*path[:-1], "metadata")) if path else {}

    @property
    def containers(self) -> list[Container]:
        """Its containers, those that run first included."""
        return [
            Container(self, (*self.path, key, i))
            for key in ("initContainers", "containers")
            for i, item in enumerate(items(self.spec.get(key)))
            if isinstance(item, dict)
        ]

    @property
    def role(self) -> str:
        """`Worker` of an MPIJob; empty elsewhere."""
        return next((str(p) for p in self.path if p in ("Worker", "Launcher", "Master")), "")

    @property
    def replicas(self) -> int:
        """How many of it there are, as far as its owner says."""
        spec = mapping(self.top.get(*self.path[:-2])) if len(self.path) > 1 else {}
        number = spec.get("replicas", spec.get("parallelism", 1))
        return number if isinstance(number, int) else 1

    @property
    def annotations(self) -> Mapping[str, Any]:
        """Notes of its own, not of its owner."""
        return mapping(self.metadata.get("annotations"))

    @property
    def size_name(self) -> str:
        """The VM size that its node selector or affinity names."""
        name = mapping(self.spec.get("nodeSelector")).get(INSTANCE_TYPE)
        if isinstance(name, str):
            return name
        where = dig(self.spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        for term in items(mapping(where).get("nodeSelectorTerms")):
            for row in items(mapping(term).get("matchExpressions")):
                if mapping(row).get("key") == INSTANCE_TYPE and mapping(row).get("operator") == "In":
                    return str(next(iter(items(mapping(row).get("values"))), ""))
        return ""

    def at(self, *path: str | int) -> Place:
        """Where something of it stands."""
        return self.top.at(*self.path, *path)

    def __str__(self) -> str:
        return f"{self.top}{' ' + self.role if self.role else ''}"


class Chart:
    """An operator's Helm chart: its values from files and from `--set`, its version where a call says it."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self.place = name, place
        self.values: dict[str, Any] = {}
        self.places: dict[tuple[str, ...], Place] = {}
        self.version = ""
        self.version_place = place
        self.namespace = ""

    def get(self, *path: str, default: Any = None) -> Any:
        """A value, or what stands in for one that is not set."""
        found = dig(self.values, *path)
        return default if found is None else found

    def at(self, *path: str) -> Place:
        """Where a value stands, or the chart is called."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return self.place


class Bundle:
    """Everything that was read."""

    def __init__(self, documents: Iterable[Document], commands: Iterable[Command], sizes: Iterable[str] = ()) -> None:
        self.documents, self.commands, self._said = list(documents), list(commands), list(sizes)

    @cached_property
    def objects(self) -> list[Object]:
        """Every object, those of lists one by one."""
        found = []
        for document in self.documents:
            top = Object(document)
            if top.kind.endswith("List") and isinstance(top.value.get("items"), list):
                kind = top.kind.removesuffix("List")  # an API server's NodeList names no kind in its items
                found += [Object(document, ("items", i), kind) for i in range(len(top.value["items"]))]
            elif top.kind:
                found.append(top)
        return found

    def of(self, *kinds: str) -> list[Object]:
        """Objects of some kinds."""
        return [o for o in self.objects if o.kind in kinds]

    @cached_property
    def pods(self) -> list[Pod]:
        """Every pod and template of one."""
        return [Pod(o, path) for o in self.objects for path in _pod_paths(o.value, ())]

    @cached_property
    def charts(self) -> dict[str, Chart]:
        """Operators' charts by name."""
        found: dict[str, Chart] = {}
        for document in self.documents:
            name = _chart_of(document)
            if name:
                chart = found.setdefault(name, Chart(name, Place(document.file, 1, 1)))
                chart.values = _merged(chart.values, document.value)
                for path, spot in document.places.items():
                    chart.places[tuple(str(p) for p in path)] = Place(document.file, *spot)
        for command in self.commands:
            name = _chart_called(command)
            if name:
                chart = found.setdefault(name, Chart(name, command.place))
                _take_call(chart, command)
        return found

    @cached_property
    def sizes(self) -> dict[str, tuple[VmSize | None, Place | None]]:
        """VM sizes that are named anywhere, in small letters; None where fairlead has no facts about one."""
        named: list[tuple[str, Place | None]] = [(name, None) for name in self._said]
        for command in self.commands:
            for option in ("--node-vm-size", "-s", "--vm-sku", "--size"):
                value = command.get(option)
                if value and value.casefold().startswith("standard_") and _is_node_call(command):
                    named.append((value, command.place))
        named += [(p.size_name, p.at("nodeSelector")) for p in self.pods if p.size_name]
        found: dict[str, tuple[VmSize | None, Place | None]] = {}
        for name, place in named:
            found.setdefault(name.casefold(), (size_of_name(name), place))
        return found

    def size_of(self, pod: Pod) -> VmSize | None:
        """The VM size a pod runs on: its own word, else the only size with GPUs or RDMA that anybody names."""
        if pod.size_name:
            return size_of_name(pod.size_name)
        fast = [s for s, _ in self.sizes.values() if s is None or s.gpus or s.rdma]
        return fast[0] if len(fast) == 1 else None

    def env_of(self, container: Container) -> dict[str, tuple[str, Place]]:
        """Variables of a container: its own, those of ConfigMaps among the files, and what its launcher passes on."""
        found: dict[str, tuple[str, Place]] = {}
        maps = {(o.namespace, o.name): o for o in self.of("ConfigMap")}
        for i, source in enumerate(items(container.value.get("envFrom"))):
            name = dig(source, "configMapRef", "name")
            taken = next((o for (_, n), o in maps.items() if n == name), None)
            for key, value in mapping(taken.get("data") if taken else None).items():
                found[key] = (str(value), taken.at("data", key) if taken else container.at("envFrom", i))
        for i, row in enumerate(items(container.value.get("env"))):
            if isinstance(row, dict) and "value" in row:
                found[str(row.get("name"))] = (str(row["value"]), container.at("env", i, "value"))
        for match in re.finditer(r"(?:-x|--env|export)\s+([A-Z][A-Z0-9_]*)=(\S+)", container.script):
            value = match[2].strip("\"'")
            if "$" not in value:
                found[match[1]] = (value, container.at("args"))
        return found

    def job_env(self, pod: Pod) -> dict[str, tuple[str, Place]]:
        """Variables of every pod of the same job: mpirun's launcher sets what its workers see."""
        found: dict[str, tuple[str, Place]] = {}
        for other in self.pods:
            if other.top is pod.top:
                for container in other.containers:
                    found |= self.env_of(container)
        return found

    @cached_property
    def policies(self) -> list[Object]:
        """What the network operator is told."""
        return self.of("NicClusterPolicy")

    @cached_property
    def offered(self) -> dict[str, tuple[str, Object]]:
        """Extended resource -> (which plugin offers it: `sriov` or `shared`, the policy)."""
        found: dict[str, tuple[str, Object]] = {}
        for policy in self.policies:
            for key, which, rows in (
                ("sriovDevicePlugin", "sriov", "resourceList"),
                ("rdmaSharedDevicePlugin", "shared", "configList"),
            ):
                for row in items(config_of(policy, key).get(rows)):
                    prefix = mapping(row).get("resourcePrefix") or ("rdma" if which == "shared" else "nvidia.com")
                    found[f"{prefix}/{mapping(row).get('resourceName')}"] = (which, policy)
        return found

    def text_has(self, *needles: str) -> bool:
        """Whether any script calls something with one of these words in it."""
        return any(
            needle in part
            for command in self.commands
            for part in (*command.words, *(v for values in command.options.values() for v in values))
            for needle in needles
        )


def config_of(policy: Object, plugin: str) -> Mapping[str, Any]:
    """The configuration of a plugin, which is JSON in a text; nothing where it is none."""
    text = policy.get("spec", plugin, "config")
    try:
        return mapping(json.loads(text)) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


def dig(value: Any, *path: str | int) -> Any:
    """What stands at a path of maps and lists; None where nothing does."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """A map, or an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A list, or an empty one."""
    return value if isinstance(value, list) else []


def _pod_paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Every map with containers in it."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list) and path:
            yield path
            return
        for key, inner in value.items():
            if key not in ("status", "openAPIV3Schema"):
                yield from _pod_paths(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _pod_paths(inner, (*path, i))


def _chart_of(document: Document) -> str:
    """Whose values a map without a kind is, by its name or by the keys that only one chart has."""
    value = document.value
    if not isinstance(value, dict) or "kind" in value or "apiVersion" in value:
        return ""
    where = document.file.casefold().replace("_", "-")
    for name in ("amd-gpu-operator", "network-operator", "gpu-operator"):
        if name in where:
            return name
    if {"kmm", "deviceConfig"} & set(value):
        return "amd-gpu-operator"
    if {"toolkit", "devicePlugin", "migManager", "dcgmExporter", "vgpuDeviceManager"} & set(value):
        return "gpu-operator"
    if "sriovNetworkOperator" in value or dig(value, "nfd", "deployNodeFeatureRules") is not None:
        return "network-operator"
    return ""


def _chart_called(command: Command) -> str:
    if command.program != "helm" or not command.words or command.words[0] not in ("install", "upgrade"):
        return ""
    said = [*command.words[1:], *(v for values in command.options.values() for v in values)]
    for word in said:
        if word.startswith("rocm/") and "gpu-operator" in word:
            return "amd-gpu-operator"
        if word in ("nvidia/gpu-operator", "nvidia/network-operator"):
            return word.partition("/")[2]
    return ""


def _take_call(chart: Chart, command: Command) -> None:
    version = command.get("--version")
    if version and "$" not in version:
        chart.version, chart.version_place = version, command.place
    chart.namespace = command.get("-n", "--namespace") or chart.namespace
    for name in ("--set", "--set-string"):
        for text in command.options.get(name, ()):
            for pair in text.split(","):
                key, eq, value = pair.partition("=")
                if eq:
                    plain: Any = {"true": True, "false": False}.get(value, value)
                    path = tuple(key.split("."))
                    nested: Any = plain
                    for step in reversed(path):
                        nested = {step: nested}
                    chart.values = _merged(chart.values, nested)
                    chart.places[path] = command.place


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    made = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = _merged(made[key], value) if both else value
    return made


def _is_node_call(command: Command) -> bool:
    """Whether a call makes nodes for jobs: a pool, a scale set, a VM; a cluster's first pool is for its own pods."""
    return command.program == "az" and (
        command.starts("aks", "nodepool", "add") or command.starts("vmss", "create") or command.starts("vm", "create")
    )
