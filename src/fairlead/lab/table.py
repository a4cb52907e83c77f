"""`[lab]` in the cluster file: what can be set, what must fit together, and what follows from other values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.spec.locate import KeyPath
from fairlead.spec.model import Label, Rate, Spec
from fairlead.spec.problems import Problems
from fairlead.spec.resolve import Fill, Origin

MAX_NODES = 256
"""Each lab host is a process and a handful of namespaces; a machine that holds more than this is not a laptop."""
MAX_PLANES = 8
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")
"""What can name a lab, and a host in one: it becomes a host name and a file name."""
RESERVED = frozenset({"mgmt", "head"})
"""Hosts a lab has besides the nodes."""

_VIA: KeyPath = ("access", "via")


class Lab(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of the lab: virtual hosts in network namespaces on this machine. Read only with `via = "lab"`."""

    name: Label | None = None
    """The lab's name, for machines with several; left out, the cluster's."""

    rate_mbps: Rate = 250
    """Rate of every host port, in both directions."""

    uplink_rate_mbps: Rate | None = None
    """Rate of every link between T0 and T1; left out, as `rate_mbps`."""

    burst_kib: Annotated[int, Meta(ge=1, le=65_536)] = 32
    """Token bucket of a port: how much may leave at once."""

    buffer_kib: Annotated[int, Meta(ge=1, le=1_048_576)] = 256
    """Queue of a port; what does not fit is dropped."""

    trim_kib: Annotated[int, Meta(ge=0, le=1_048_576)] = 0
    """Queue of a switch port beyond which MRC's data packets lose their payload and go first, as real switches trim;
    0: never. Needs root."""

    mtu: Annotated[int, Meta(ge=1280, le=65_535)] = 9000
    """Largest packet on the fabric, in bytes."""

    segmentation_offload: bool = False
    """Let packets larger than the MTU cross a hop whole, as real NICs do: faster, but counts and drops are then
    coarser."""

    checksum_offload: bool = True
    """Leave out checksums that no wire can spoil; false computes them all."""

    scratch_mib: Annotated[int, Meta(ge=16, le=1_048_576)] = 256
    """Size of each host's private scratch space, in memory."""

    sshd: bool = False
    """Run an OpenSSH server on each host."""

    facts: str = ""
    """A folder with one captured tree per node (NODE/sys, NODE/proc, ...) laid over the host; left out, generated."""


def rules(spec: Spec, report: Problems) -> None:
    """What one machine can hold, and what a virtual host can be called."""
    if not spec.is_lab:
        return
    pools = range(len(spec.pools))
    total = sum(len(p.nodes) for p in spec.pools)
    if total > MAX_NODES:
        text = f"the lab would need {total} virtual hosts; {MAX_NODES} is the most"
        report(("pool", 0, "nodes"), "lab/too-large", text, needs=[_VIA, *(("pool", n, "nodes") for n in pools)])
    if spec.fabric.planes > MAX_PLANES:
        text = f"the lab would need {spec.fabric.planes} planes; {MAX_PLANES} is the most"
        report(("fabric", "planes"), "lab/too-large", text, needs=[_VIA])
    for number, pool in enumerate(spec.pools):
        real = [n for n in pool.nodes if not NAME.match(n)]
        if real:
            text = f"`{real[0]}` cannot be a lab host: lower-case letters, digits and dashes only, no address or domain"
            hint = 'for real nodes use via = "ssh" or "slurm"'
            report(("pool", number, "nodes"), "lab/real-nodes", text, hint=hint, needs=[_VIA])
        for taken in sorted(RESERVED & set(pool.nodes)):
            text = f"`{taken}` cannot be a lab host: the lab has one of its own"
            report(("pool", number, "nodes"), "lab/reserved-name", text, needs=[_VIA])


def derived(spec: Spec, said: set[KeyPath]) -> Iterator[Fill]:
    """The lab's name, the rate of its uplinks, and what its ranks run on."""
    if spec.is_lab and ("lab", "name") not in said:
        yield ("lab", "name"), spec.cluster.name, Origin("derived", "from [cluster] name")
    if spec.is_lab and ("preflight", "ranks_on") not in said:
        yield ("preflight", "ranks_on"), "cpus", Origin("derived", "the GPUs of lab hosts are only shown")
    if ("lab", "uplink_rate_mbps") not in said:
        yield ("lab", "uplink_rate_mbps"), spec.table(Lab).rate_mbps, Origin("derived", "from `rate_mbps`")
