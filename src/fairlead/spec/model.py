"""The cluster file, as types. Every field has its sentence: `init` writes it as a comment, the schema and the reference
page print it. What a field means is said here; what must fit together between fields is said in rules.py.

Here stand the tables that every room reads. One that belongs to a room stands in that room, whose room.py names it
(tables.py joins them); `spec.table(Preflight)` is its value.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal, TypeVar, overload

from msgspec import Meta, Struct, field

from fairlead.base.nodeset import NodeSet

T = TypeVar("T")

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
    """The Python on the nodes, by name or path. It needs no fairlead; the ranks of a job need torch in it. It is code:
    what it names is run on every node, as the user that reaches them."""

    container: str = ""
    """The container image of the ranks on these nodes; left out, the one in [slurm]."""


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The network between the nodes, as it is meant to be. What a NIC really is, the audit finds out."""

    link: Literal["infiniband", "ethernet"] = "ethernet"
    """The link layer of the RDMA ports, or of the only network where there are none."""

    rdma: Literal["none", "ib", "roce", "mrc"] = "none"
    """The RDMA transport jobs use: InfiniBand, RoCE v2, Multipath Reliable Connection, or none."""

    lossless: Annotated[bool | None, Meta(examples=[True])] = None
    """Whether switches hold packets back rather than drop them, so that any loss is a fault: InfiniBand does by itself,
    Ethernet where priority flow control is on for the jobs' traffic. Left out: true with InfiniBand, else false."""

    planes: Annotated[int, Meta(ge=1, le=256)] = 1
    """Independent planes; each NIC has one port in each."""

    t0: Positive | None = None
    """T0 switches in each plane, the ones the nodes are attached to. Needed where fairlead computes paths: for the lab
    and for MRC."""

    t1: Positive | None = None
    """T1 switches in each plane, the ones that join the T0 switches."""

    hosts_per_t0: Positive | None = None
    """NICs below each T0; left out, they are spread evenly. A node has as many NICs as `ports` is times `planes`."""

    @property
    def is_lossless(self) -> bool:
        """Whether any loss is a fault: on InfiniBand credits let no port send what the next one has no room for."""
        return self.link == "infiniband" if self.lossless is None else self.lossless


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
    """Time limit for a node to accept a connection."""

    login_timeout_s: Seconds = 20.0
    """Time limit for the login behind it, until the node speaks: accounts, home directories, the start of Python."""

    ssh_options: tuple[str, ...] = ()
    """Settings for ssh beyond your ssh configuration, as ssh_config writes them: ["Port=2222"]. They are code: ssh runs
    what a ProxyCommand says on this machine, as you. Refused are settings that forward anything to nodes, or that are
    less strict about host keys than your own."""


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

    message_bytes: Annotated[int, Meta(ge=0, le=1 << 40, examples=[17_179_869_184])] | None = None
    """For a rate of messages: the smallest message it holds for; left out, as the VM-size table says."""

    min_nodes: Positive | None = None
    """For a quantity of a job: the fewest nodes it holds for; left out, any number."""

    max_nodes: Positive | None = None
    """And the most nodes."""


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
    expects: tuple[Expect, ...] = field(default=(), name="expect")

    @overload
    def table(self, which: type[T]) -> T: ...
    @overload
    def table(self, which: str) -> Any: ...
    def table(self, which: type[T] | str) -> Any:
        """A room's table: `spec.table(Preflight).timeout_s`; by its name for who must not know the room.

        At its defaults where this value was not read from a file.
        """
        from fairlead.spec.tables import kind_of

        kind = kind_of(which) if isinstance(which, str) else which
        values = (getattr(self, name) for name in self.__struct_fields__)
        return next((v for v in values if type(v) is kind), None) or kind()

    def with_table(self, value: Struct) -> Spec:
        """A copy with a room's table replaced."""
        from fairlead.spec.tables import name_of, spec_type

        kept = {f: getattr(self, f) for f in self.__struct_fields__}
        return spec_type()(**{**kept, name_of(type(value)): value})

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which would look for the joined type by its name and find this one."""
        fields = {f: getattr(self, f) for f in self.__struct_fields__}
        return (_bare if type(self) is Spec else _joined), (fields,)

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


def _bare(fields: dict[str, Any]) -> Spec:
    return Spec(**fields)


def _joined(fields: dict[str, Any]) -> Spec:
    from fairlead.spec.tables import spec_type

    return spec_type()(**fields)
