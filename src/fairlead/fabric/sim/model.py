"""A scenario as its TOML file says it: one Struct a table, every key with its unit and its meaning.

Knows: names, units, defaults and single-key bounds. Must not know: how keys hang together (rules.py), or numpy.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.fabric.sim.nicset import NicSet

Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Natural = Annotated[int, Meta(ge=0, le=10_000_000)]
Bytes = Annotated[int, Meta(ge=1, le=10_000_000_000_000)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(ge=1, le=100_000)]
Latency = Annotated[float, Meta(ge=1, le=1_000_000)]
Time = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
Index = Annotated[int, Meta(ge=-1)]


class Topology(Struct, frozen=True, kw_only=True):
    """The fabric: planes of two tiers, a three-tier fat tree, or a topology file of htsim."""

    kind: Literal["planes", "fat-tree", "file"] = "planes"
    """`planes`: two tiers, several planes. `fat-tree`: three tiers. `file`: a topology file of htsim."""
    planes: Annotated[int, Meta(ge=1, le=32)] = 1
    """Planes; a NIC has one port in each."""
    t0: Count = 2
    """T0 switches in each plane (`planes`), or in each pod (`fat-tree`)."""
    t1: Count = 2
    """T1 switches in each plane, or aggregation switches in each pod."""
    hosts_per_t0: Count = 2
    """NICs below each T0."""
    nics: Natural = 0
    """NICs in all; with it `hosts_per_t0` follows from `t0`. 0: not said."""
    pods: Count = 1
    """Pods of a fat tree."""
    cores: Natural = 0
    """Core switches of a fat tree."""
    links_per_pair: Count = 1
    """Parallel links between a T0 and a T1."""
    file: str = ""
    """A `.topo` file, beside the scenario."""


class Links(Struct, frozen=True, kw_only=True):
    """Rates and lengths. A topology file says its own."""

    host_gbps: Rate = 100.0
    """Each port of a NIC, Gb/s."""
    fabric_gbps: Rate | None = None
    """Between T0 and T1; as hosts, unless said."""
    core_gbps: Rate | None = None
    """Between aggregation and core switches; as hosts, unless said."""
    host_latency_ns: Latency = 1000.0
    """Between a NIC and its T0. The shortest latency is the simulator's window: short links play more slowly."""
    fabric_latency_ns: Latency = 1000.0
    """Between T0 and T1."""
    core_latency_ns: Latency = 1000.0
    """Between aggregation and core switches."""
    switch_latency_ns: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """Added by each switch."""


class Queues(Struct, frozen=True, kw_only=True):
    """Switch queues. Shares are of one bandwidth-delay product of a port."""

    size_bdp: NotNegative = 0.0
    """Data queue; 0: 1 with trimming, 5 without."""
    size_bytes: Natural = 0
    """Data queue in bytes, instead of `size_bdp`."""
    ecn: bool = True
    """Mark packets at all."""
    ecn_low_bdp: Share = 0.2
    """Above this a packet that leaves is marked (ECN), with a probability that rises to the next threshold."""
    ecn_high_bdp: Share = 0.8
    """Above this every packet is marked."""
    ecn_last_hop: bool | None = None
    """Mark also on the way to the NIC. Unless said: not for mrc, whose marks mean a busy path, not a busy receiver."""
    trim: bool = True
    """Cut packets that do not fit to their header, which then goes ahead of data; otherwise drop them."""
    trim_bytes: Annotated[int, Meta(ge=64, le=512)] = 64
    """Size of a trimmed packet."""
    pfc: bool = False
    """Pause instead of drop; no trimming then."""
    xoff_bytes: Natural = 0
    """Bytes of one ingress that pause its sender; 0: half a bandwidth-delay product."""


class Transport(Struct, frozen=True, kw_only=True):
    """What the NICs speak."""

    kind: Literal["mrc", "uec", "roce"] = "mrc"
    """`uec`: the protocol core with the parameters of the UEC reference simulator."""
    paths: Literal["", "mrc", "oblivious", "bitmap", "reps", "mixed"] = ""
    """Path choice; empty: `mrc` for mrc, `mixed` for uec."""
    congestion: Literal["nscc", "constant"] = "nscc"
    """Congestion control: NSCC, or a window that stays as it is."""
    routing: Literal["", "source", "hash"] = ""
    """Who chooses the uplink: the packet (SRv6), or a hash in the switch; empty: source for mrc on planes."""
    evs: Annotated[int, Meta(ge=0, le=256)] = 0
    """Entropy values of a queue pair, all planes together; 0: 128 active and as many in reserve (mrc), 64 (uec)."""
    payload_bytes: Annotated[int, Meta(ge=0, le=9000)] = 0
    """Payload of a full packet; 0: 4096 (mrc, roce), 4086 (uec)."""
    header_bytes: Annotated[int, Meta(ge=0, le=512)] = 0
    """Bytes on the wire beyond the payload; 0: 96 (mrc), 64 (uec, roce)."""
    window_packets: Natural = 0
    """PSNs beyond the acknowledged one that a responder takes; 0: 1024, or twice the bandwidth-delay product."""
    cwnd_bdp: NotNegative = 0.0
    """Initial congestion window; 0: 1.5."""
    cwnd_packets: Natural = 0
    """Initial congestion window in packets, instead of `cwnd_bdp`."""
    sack_bytes: Natural = 0
    """Bytes received that call for a SACK; 0: 4096 (mrc), 16384 (uec)."""
    timeout_us: Time = 0.0
    """Local ACK timeout; 0: 262 (mrc), 15 + six queues (uec), 500 (roce), 67,109 (roce with PFC)."""
    announce_ports: bool = True
    """Tell peers which ports are up."""
    dcqcn: bool = True
    """Rate control of RoCE."""

    def names_uplinks(self, cores: int) -> bool:
        """Whether packets name their uplink, on a fabric of so many core switches; otherwise switches hash."""
        return self.routing == "source" or (self.routing == "" and self.kind == "mrc" and not cores)


class Traffic(Struct, frozen=True, kw_only=True):
    """One part of the load. Which keys count depends on `kind`."""

    kind: Literal[
        "permutation",
        "incast",
        "all-to-all",
        "ring-all-reduce",
        "tree-all-reduce",
        "send-recv",
        "flow",
        "file",
        "training",
    ]
    """What is sent; the how-to page has them in a table."""
    name: str = ""
    """A word for results; the kind, unless said."""
    nics: NicSet = NicSet("")
    """Who takes part; empty: every NIC."""
    to: Index = -1
    """Receiver of an incast or a flow."""
    size_bytes: Bytes = 1_000_000
    """Of each message; of the buffer that a collective reduces."""
    start_us: Time = 0.0
    """When the first messages may go."""
    qps: Annotated[int, Meta(ge=1, le=256)] = 1
    """Queue pairs that share each transfer."""
    messages: Count = 1
    """One after the other on each pair; of a collective: repetitions."""
    depth: Count = 2
    """Messages under way at once on each pair."""
    chunk_bytes: Natural = 0
    """Pipelining unit of a tree; 0: a sixteenth of the buffer."""
    collective: Literal["ring-all-reduce", "tree-all-reduce", "all-to-all"] = "ring-all-reduce"
    """What ends a training step."""
    steps: Count = 1
    """Training steps."""
    compute_us: Time = 0.0
    """Computation of each NIC before each step's collective."""
    compute_jitter: Share = 0.0
    """Share by which computation times differ, at random."""
    file: str = ""
    """A connection matrix (`.cm`), beside the scenario."""
    start_unit: Literal["us", "ps"] = "us"
    """What `start` means in a connection matrix: htsim's UEC program reads us, its other loader ps."""


class Fault(Struct, frozen=True, kw_only=True):
    """Something that happens to the fabric. Times are rounded up to the next window (the shortest link latency); a
    fault holds for one window at least. Of faults that overlap each end takes away its own alone: a link is down while
    any of them says so, losses are independent of each other, the slowest rate counts.
    """

    kind: Literal["link", "port", "t0", "t1", "loss", "slow", "paths"]
    """link: T0-T1. port: NIC-T0. loss, slow: a link, a port, or a plane. paths: some paths of NICs lose packets."""
    at_us: Time = 0.0
    """When it begins."""
    until_us: Time = 0.0
    """Repaired then; 0: never."""
    plane: Index = -1
    """-1: every plane."""
    t0: Index = -1
    """A T0, or the lower end of a link."""
    t1: Index = -1
    """A T1, or the upper end of a link."""
    nic: Index = -1
    """A NIC: its links to the T0s."""
    core: Index = -1
    """With `t1`: the link between that aggregation switch and this core (slow, loss)."""
    planes: NicSet = NicSet("")
    """Several planes: it happens in each."""
    nics: NicSet = NicSet("")
    """Several NICs: it happens to each (`paths`: those whose packets are lost)."""
    t1s: NicSet = NicSet("")
    """Several T1 switches: it happens to each (`paths`: those over which packets are lost)."""
    apart_us: Time = 0.0
    """Of several, each so much later than the one before; 0: all at once."""
    loss: Share = 0.0
    """Share of the packets that is lost."""
    rate: Annotated[float, Meta(ge=0.01, le=1)] = 1.0
    """Share of its rate that a `slow` link keeps."""
    direction: Literal["both", "up", "down"] = "both"
    """Of a link that loses or is slow: `up` is away from the NICs."""
    flap_us: Time = 0.0
    """Down for so long, up for so long, in turn, until `until_us`; 0: down all the time."""
    reroute_us: Time = 0.0
    """When hashing switches have routed around it; 0: never."""


class Run(Struct, frozen=True, kw_only=True):
    """How long, how much, how seen."""

    until_us: Annotated[float, Meta(gt=0, le=1e9)] = 100_000.0
    """The run ends then, whether or not every message is complete."""
    seed: Annotated[int, Meta(ge=0, le=4_294_967_295)] = 1
    """Of everything random: pairs, paths, marks, losses, computation times."""
    threads: Annotated[int, Meta(ge=0, le=64)] = 0
    """0: two where the fabric is large enough to gain."""
    memory_gib: NotNegative = 0.0
    """Most memory the run may take; 0: what is free."""
    bin_us: Time = 0.0
    """Width of the goodput record; 0: a window."""
    packet_room: Positive = 1.0
    """Room for packets under way, relative to the estimate."""


class Scenario(Struct, frozen=True, kw_only=True):
    """A simulation."""

    title: str = ""
    """A headline for the answer and the page."""
    topology: Topology
    links: Links = Links()
    queues: Queues = Queues()
    transport: Transport = Transport()
    traffic: tuple[Traffic, ...]
    fault: tuple[Fault, ...] = ()
    run: Run = Run()
