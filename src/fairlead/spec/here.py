"""What this machine shows of a cluster: its name, GPUs, RDMA ports, VM size, and Slurm's partitions if there are any.

Reading (`look`) and turning what was read into a cluster file (`tree_of`) are apart, so that the second runs on any
captured tree. Reads small files and asks two programs or services that may not be there; changes nothing.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.base.nodeset import NodeSet
from fairlead.errors import UsageError
from fairlead.spec.vmsize import size

AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The chassis asset tag of every Azure VM; elsewhere the metadata service is not asked."""

METADATA_URL = "http://169.254.169.254/metadata/instance/compute/vmSize?api-version=2021-02-01&format=text"
"""Azure's instance metadata service, on a link-local address."""

_GPU_VENDORS = {"0x10de": ("0x0300", "0x0302"), "0x1002": ("0x0302", "0x0380", "0x1200")}
"""PCI vendor -> the class codes its GPUs appear under."""

_SINFO = ["sinfo", "--noheader", "--format=%P|%N|%G"]


@dataclass(frozen=True, kw_only=True)
class Here:
    """What was found."""

    hostname: str
    num_gpus: int = 0
    infiniband_ports: int = 0
    vm_size: str = ""
    partitions: tuple[Partition, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Where each came from, for the head of the file."""


@dataclass(frozen=True)
class Partition:
    """One line of sinfo."""

    name: str
    nodes: str
    gpus: int | None
    is_default: bool


def look(
    root: Path = Path("/"),
    *,
    hostname: str | None = None,
    run: Callable[[list[str]], str] | None = None,
    fetch: Callable[[str], str] | None = None,
) -> Here:
    """Look around. `root` may be a captured tree; `run` and `fetch` replace programs and the metadata service."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    gpus = sum(_text(d / "class")[:6] in _GPU_VENDORS.get(_text(d / "vendor"), ()) for d in devices)
    layers = [_text(f) for f in sorted((root / "sys/class/infiniband").glob("*/ports/*/link_layer"))]
    ports = sum(layer.casefold() == "infiniband" for layer in layers)
    is_azure = _text(root / "sys/class/dmi/id/chassis_asset_tag") == AZURE_ASSET_TAG
    vm_size = (fetch or _fetch)(METADATA_URL).strip() if is_azure else ""
    partitions = tuple(_partitions((run or _run)(_SINFO)))
    notes = [f"{gpus} GPUs and {ports} InfiniBand ports, from PCI and /sys/class/infiniband"]
    if vm_size:
        notes.append(f"VM size {vm_size}, from the instance metadata service")
    if partitions:
        notes.append(f"{len(partitions)} partitions, from sinfo")
    return Here(
        hostname=hostname or socket.gethostname().split(".")[0],
        num_gpus=gpus,
        infiniband_ports=ports,
        vm_size=vm_size,
        partitions=partitions,
        notes=tuple(notes),
    )


def tree_of(here: Here) -> dict[str, Any]:
    """A cluster file of what was found: Slurm's default partition as one pool, else this machine alone."""
    chosen = next((p for p in here.partitions if p.is_default), next(iter(here.partitions), None))
    known = size(here.vm_size)
    pool: dict[str, Any] = {"name": "here", "size": known.name if known else "other"}
    pool["nodes"] = chosen.nodes if chosen else here.hostname
    if not known:
        pool["gpus"] = chosen.gpus if chosen and chosen.gpus is not None else here.num_gpus
        pool["ports"] = here.infiniband_ports
    has_infiniband = here.infiniband_ports > 0 or bool(known and known.link_layer == "infiniband")
    tree: dict[str, Any] = {
        "schema": 1,
        "cluster": {"name": _label(here.hostname)},
        "pool": [pool],
        "fabric": {"link": "infiniband", "rdma": "ib"} if has_infiniband else {"link": "ethernet", "rdma": "none"},
        "access": {"via": "slurm" if chosen else "local"},
    }
    if chosen:
        tree["slurm"] = {"partition": chosen.name}
    return tree


def _partitions(text: str) -> Iterable[Partition]:
    """The lines of sinfo, one partition from several lines; what cannot be read is left out."""
    nodes: dict[str, NodeSet] = {}
    gpus: dict[str, int | None] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition("|")
        names, _, gres = rest.partition("|")
        try:
            found = NodeSet(names)
        except UsageError:
            continue
        if name and found:
            nodes[name] = nodes.get(name, NodeSet()) | found
            counted = re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", gres)  # one for each kind, or for each socket
            gpus[name] = sum(map(int, counted)) if counted else gpus.get(name)
    for name, members in nodes.items():
        yield Partition(name.rstrip("*"), str(members), gpus[name], name.endswith("*"))


def _label(hostname: str) -> str:
    """A host's name as a name of the file."""
    return re.sub(r"[^a-z0-9-]+", "-", hostname.lower()).strip("-")[:32] or "cluster"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _run(argv: list[str]) -> str:
    """What a program says; nothing where it is missing, fails or is slow."""
    if not shutil.which(argv[0]):
        return ""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""


def _fetch(url: str) -> str:
    """What the metadata service says; never through a proxy, and nothing where it does not answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Metadata": "true"})  # noqa: S310 - the URL is METADATA_URL
    try:
        with opener.open(request, timeout=2) as answer:
            return str(answer.read(200).decode("ascii", "replace"))
    except (OSError, ValueError):
        return ""
