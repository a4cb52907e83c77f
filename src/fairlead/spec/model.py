"""The cluster file, as types. Every field has its sentence: `init` writes it as a comment, the schema and the reference
page print it. What a field means is said here; what must fit together between fields is said in rules.py.

A table belongs to the part of fairlead that reads it, and appears with its first reader.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from fairlead.base.nodeset import NodeSet

Label = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
        description="up to 32 lower-case letters, digits and dashes, no dash at an end",
        examples=["name"],
    ),
]
"""A name that also becomes a part of host names, interface names and folders."""

Nodes = Annotated[NodeSet, Meta(extra_json_schema={"type": "string"})]
Count = Annotated[int, Meta(ge=0, le=1_000_000, examples=[8])]
Positive = Annotated[int, Meta(ge=1, le=1_000_000, examples=[2])]
Rate = Annotated[int, Meta(ge=1, le=100_000, examples=[250])]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the cluster is called."""

    name: Label = "cluster"
    """A short name; it appears in reports and run folders, and names the lab."""


class Pool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of node. Write one [[pool]] for each VM size."""

    name: Label
    """A short name for the pool."""

    size: str
    """The VM size, in any case; "lab" for virtual hosts, "other" for hardware that no table describes."""

    nodes: Nodes
    """The nodes, folded as Slurm folds them: "h200-[000-127],h200-200"."""

    count: Count | None = None
    """How many nodes there must be; left out, as many as `nodes` names. It guards against a slip in a range."""

    gpus: Count | None = None
    """GPUs of each node; left out, as the VM size says."""

    ports: Count | None = None
    """RDMA ports of each node, without the accelerated Ethernet port; left out, as the VM size says. A NIC with a port
    in each of several planes counts once for each."""

    python: str = "python3"
    """The Python on the nodes, by name or path. It needs no fairlead; the ranks of a job need torch in it."""


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The network between the nodes, as it is meant to be. What a NIC really is, the audit finds out."""

    link: Literal["infiniband", "ethernet"] = "ethernet"
    """The link layer of the RDMA ports, or of the only network where there are none."""

    rdma: Literal["none", "ib", "roce", "mrc"] = "none"
    """The RDMA transport jobs use: InfiniBand, RoCE v2, Multipath Reliable Connection, or none."""

    planes: Annotated[int, Meta(ge=1, le=256)] = 1
    """Independent planes; each NIC has one port in each."""

    t0: Positive | None = None
    """T0 switches in each plane, the ones the nodes are attached to. Needed where fairlead computes paths: for the lab
    and for MRC."""

    t1: Positive | None = None
    """T1 switches in each plane, the ones that join the T0 switches."""

    hosts_per_t0: Positive | None = None
    """NICs below each T0; left out, they are spread evenly. A node has as many NICs as `ports` is times `planes`."""


class Access(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fairlead reaches the nodes."""

    via: Literal["local", "ssh", "slurm", "lab", "kubernetes"]
    """local: this machine; ssh: OpenSSH; slurm: srun and sbatch; lab: virtual hosts on this machine; kubernetes:
    kubectl."""

    user: Annotated[str, Meta(pattern="^([A-Za-z0-9_][A-Za-z0-9._-]*)?$", description="a user name")] = ""
    """The user to log in as, for ssh; left out, as your ssh configuration says. Keys stay in ssh-agent or ~/.ssh."""

    fanout: Annotated[int, Meta(ge=1, le=1024)] = 64
    """How many nodes are talked to at the same time."""

    timeout_s: Seconds = 60.0
    """Time limit for one command on one node."""

    connect_timeout_s: Seconds = 10.0
    """Time limit for reaching a node."""

    ssh_options: tuple[str, ...] = ()
    """Settings for ssh beyond your ssh configuration, as ssh_config writes them: ["Port=2222"]."""


class Waiver(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known fault that shall not close the gate for a while."""

    code: Annotated[str, Meta(examples=["ib/port-rate"])]
    """The finding's code, as it is printed: "ib/port-rate"."""

    nodes: Annotated[Nodes, Meta(examples=["all"])]
    """The nodes it is waived on; "all" for every node."""

    reason: Annotated[str, Meta(min_length=1, examples=["port 3 at 200 Gb/s, ticket 1234"])]
    """Why, and where the repair is tracked."""

    expires: Annotated[dt.date, Meta(examples=["2027-01-31"])]
    """The last day it applies, as a date without quotes: 2027-01-31. After that day the finding counts again."""

    def covers(self, node: str) -> bool:
        """Whether the waiver names a node."""
        return self.covers_all or node in self.nodes

    @property
    def covers_all(self) -> bool:
        """Written as "all"."""
        return list(self.nodes) == ["all"]

    def is_active(self, today: dt.date) -> bool:
        """Whether the waiver still applies."""
        return today <= self.expires


class Runs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where runs are kept: every command that touches nodes leaves a folder with its facts, commands and findings."""

    dir: str = ""
    """The place; left out, ./runs where that can be written, else your state directory."""

    keep: Annotated[int, Meta(ge=1, le=100_000)] = 50
    """How many runs are kept; the oldest go first."""


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


class Slurm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slurm, for `via = "slurm"`, and for the lab."""

    partition: str = ""
    """The partition to run in; left out, Slurm's default."""

    account: str = ""
    """The account to charge; left out, Slurm's default."""

    reservation: str = ""
    """A reservation to run in."""

    options: tuple[str, ...] = ("--exclusive", "--mem=0")
    """More sbatch options for the job that holds the nodes. The default asks for whole nodes, with all their memory."""

    time_limit_min: Annotated[int, Meta(ge=1, le=43_200)] = 60
    """How long that job may hold its nodes, in minutes; fairlead cancels it when it is done with them."""

    pending_s: Seconds = 60.0
    """How long to wait for that job to start."""

    container: str = ""
    """A container image for ranks: a path or a URL, as the runtime takes it."""

    container_runtime: Literal["none", "pyxis", "apptainer"] = "none"
    """What starts the container: pyxis (with enroot) or apptainer."""

    lab: bool = False
    """Run a real Slurm in the lab: a controller, and a slurmd on each host."""


class Preflight(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gate before a job."""

    timeout_s: Seconds = 120.0
    """Time limit for the pair phase, and again for the ranks."""

    node_limit_s: Seconds = 60.0
    """The longest a node's own probe may take. Usually less is waited: once half of the nodes have answered, the others
    get three times as long, and four seconds at least."""

    message_bytes: Annotated[tuple[Annotated[int, Meta(ge=8, le=1 << 34)], ...], Meta(min_length=1)] = (
        8,
        65_536,
        67_108_864,
    )
    """Message sizes of the all-reduce. Sizes between them are tried too, growing while they fit into `reduce_s`."""

    reduce_s: Seconds = 1.0
    """How long all-reduces may take: on a slow network the largest size is left out rather than waited for."""

    warn_as_fail: bool = False
    """Let a warning close the gate."""


class Expect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fact about nodes that differs from the VM-size table, or that no table can know. Checks judge against it."""

    fact: Annotated[str, Meta(examples=["memlock_gib"])]
    """The fact's name, as the VM-size reference lists it: "hca_rates_gbps", "memlock_gib", ..."""

    value: Annotated[Any, Meta(examples=[64])]
    """What to expect instead, in the unit of the fact's name."""

    why: Annotated[str, Meta(min_length=1, examples=["our images set this limit"])]
    """Where the value comes from; it is printed beside what it judges."""

    pool: str = ""
    """The pool it is about; left out, every pool."""


class Spec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster file."""

    schema: int
    """The version of this file's format: 1."""

    cluster: Cluster = Cluster()
    pools: tuple[Pool, ...] = field(default=(), name="pool")
    fabric: Fabric = Fabric()
    access: Access
    waivers: tuple[Waiver, ...] = field(default=(), name="waiver")
    runs: Runs = Runs()
    lab: Lab = Lab()
    slurm: Slurm = Slurm()
    preflight: Preflight = Preflight()
    expects: tuple[Expect, ...] = field(default=(), name="expect")

    @property
    def is_lab(self) -> bool:
        """Whether the nodes are virtual hosts on this machine. Nothing else decides this."""
        return self.access.via == "lab"

    @property
    def nodes(self) -> NodeSet:
        """Every node of every pool."""
        return NodeSet(name for pool in self.pools for name in pool.nodes)

    def pool_of(self, node: str) -> Pool | None:
        """The pool a node is in."""
        return next((p for p in self.pools if node in p.nodes), None)
