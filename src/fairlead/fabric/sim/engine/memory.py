"""The tables of one run: how large each is, where it stands, and the world vector that ties them together.

Knows: sizes, and how a workload and a shape become rows. Must not know: what happens when the run plays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.state import State, allocate, num_words
from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine import roce
from fairlead.fabric.sim.engine.rows import WorkRows, work_rows
from fairlead.fabric.sim.kinds import OTHERS, Kinds
from fairlead.fabric.sim.shape import Shape
from fairlead.fabric.sim.workload import Workload

Table = NDArray[np.int64] | NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Queues:
    """Rules of the switch queues. Sizes in bytes."""

    data_limit: int
    control_limit: int
    ecn_low: int
    ecn_high: int
    ecn_last_hop: bool = True
    trim: bool = True
    trim_bytes: int = 64
    xoff: int = 0
    xon: int = 0


@dataclass(frozen=True, kw_only=True)
class Roce:
    """Parameters of RoCE RC flows."""

    rate_gbps: float
    min_rate_gbps: float = 0.1
    step_mbps: float = 400.0
    window_packets: int = 4096
    timeout_us: float = 500.0
    dcqcn: bool = True
    coalesce: int = 16

    def words(self, mtu: int) -> list[int]:
        """The parameters as the engine reads them."""
        values = {
            roce.RP_RATE: self.rate_gbps * 1e6,
            roce.RP_MIN_RATE: self.min_rate_gbps * 1e6,
            roce.RP_STEP: self.step_mbps * 1e3,
            roce.RP_WINDOW: self.window_packets,
            roce.RP_TIMEOUT: self.timeout_us * 1e6,
            roce.RP_MTU: mtu,
            roce.RP_DCQCN: self.dcqcn,
            roce.RP_COALESCE: self.coalesce,
        }
        return [int(values[i]) for i in range(roce.NUM_PARAMETERS)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is played; none of it changes what happens in the fabric, except seed and hashing."""

    seed: int = 1
    threads: int = 1
    hashed: bool = False
    """Switches choose uplinks by hash; otherwise the packet names its uplink (SRv6)."""
    wire_overhead: int = 64
    kinds: Kinds = OTHERS
    """What switches make of each kind of packet."""
    bin_ps: int = 1_000_000
    num_bins: int = 4096
    announce_ports: bool = True
    slowest: float = 1.0
    """Share of its rate that the slowest port of a NIC will ever have."""
    packet_room: float = 1.0
    """Room for packets under way, relative to the estimate."""
    path_faults: int = 0
    """Faults that are losses on some paths of some NICs."""
    roce: Roce | None = None
    """Parameters of RoCE, where flows use it instead of MRC."""


@dataclass
class World:
    """One run in memory."""

    w: NDArray[np.int64]
    tables: dict[str, Table]
    shape: Shape
    workload: Workload
    profile: Profile
    state: State
    rows: WorkRows

    @property
    def address(self) -> int:
        """Where the world vector stands; the world must be kept as long as this is used."""
        return int(self.w.ctypes.data)


def empty(num_words: int) -> NDArray[np.int64]:
    """Words that begin at a cache line; pages are taken from the system when first touched."""
    raw = np.empty(num_words + 8, dtype=np.int64)
    first = -(raw.ctypes.data // 8) % 8
    return raw[first : first + num_words]


def _min_wire_ps(shape: Shape, queues: Queues, options: Options) -> int:
    smallest = min(queues.trim_bytes, *options.kinds.sizes)
    fastest = min(t.fs_per_byte for t in shape.tiers)
    return max(1, smallest * fastest // 1000)


def window_ps(shape: Shape) -> int:
    """The length of a window."""
    return shape.shortest_link_ps


def packets_in_flight(workload: Workload, profile: Profile, options: Options) -> int:
    """How many packets can be under way at once.

    A PSN that is not acknowledged has its packet or the answer to it under way, now and then two copies; go-back-N
    sends whole windows twice.
    """
    sizes = np.zeros(workload.num_flows, dtype=np.int64)
    np.add.at(sizes, workload.flow, -(-workload.size // profile.mtu))
    if options.roce:
        return int(np.minimum(sizes, options.roce.window_packets).sum()) * 3 + 16 * workload.num_flows + 4096
    return int(np.minimum(sizes, profile.mpr).sum()) * 5 // 4 + 16 * workload.num_flows + 4096


@dataclass(frozen=True)
class Sizes:
    """Rows of each table whose size is a matter of judgement."""

    slots: int
    chunks: int
    places: int
    scratch_room: int

    @classmethod
    def of(cls, shape: Shape, workload: Workload, profile: Profile, queues: Queues, options: Options) -> Sizes:
        """Room for the worst that can happen; pages are taken from the system only when used."""
        window = window_ps(shape)
        slots = 1 << int(-(-shape.longest_link_ps // window) + 1 + _slow_windows(shape, profile, options)).bit_length()
        packets = int(packets_in_flight(workload, profile, options) * options.packet_room)
        open_chunks = shape.num_nodes * 3 * options.threads
        per_port = window // _min_wire_ps(shape, queues, options) + 2
        in_ports = max(shape.t0_radix, shape.t1_radix, shape.core_radix, shape.hosts * shape.planes)
        return cls(
            slots=slots,
            chunks=packets // at.CHUNK + open_chunks + 64,
            places=min(packets, shape.num_ports * (queues.data_limit // 512 + queues.control_limit // 64 + 4)) + 1024,
            scratch_room=min(in_ports * per_port, packets) + 1,
        )


def _slow_windows(shape: Shape, profile: Profile, options: Options) -> int:
    """Windows that a full packet takes to leave a NIC: it is put on the wire when it begins to leave."""
    packet = (profile.mtu + options.wire_overhead) * shape.tiers[0].fs_per_byte / 1000 / options.slowest
    return -(-int(packet) // window_ps(shape))


def estimate_bytes(
    shape: Shape, workload: Workload, profile: Profile, queues: Queues, options: Options
) -> dict[str, int]:
    """Bytes of each kind of table, before anything is allocated."""
    s = Sizes.of(shape, workload, profile, queues, options)
    pairs = 0 if options.roce else workload.num_flows
    return {
        "switches and ports": shape.num_ports * (4 * (at.PORT_COLUMNS + at.COUNT_COLUMNS) + 8) + shape.num_nodes * 64,
        "packets on the wire": s.chunks * (at.CHUNK * at.RECORD_WORDS * 8 + 4 + 4 * options.threads)
        + shape.num_nodes * s.slots * options.threads * 8 * at.STREAM_COLUMNS,
        "packets in queues": s.places * (at.RECORD_WORDS * 8 + 4 * at.LINK_COLUMNS + 4 * options.threads),
        "queue pairs": 8
        * (num_words([profile], pairs, pairs) if pairs else workload.num_flows * (roce.RT_COLUMNS + roce.RR_COLUMNS))
        + workload.num_flows * 8 * (at.FLOW_COLUMNS + at.RECEIVER_COLUMNS),
        "messages": workload.num_messages * 8 * at.MESSAGE_COLUMNS + len(workload.edges) * 4,
        "the rest": shape.num_nics * 8 * at.NIC_COLUMNS
        + options.threads
        * (8 * at.SCRATCH_ROWS * s.scratch_room + 8 * (shape.planes + at.DEPTH_KINDS) * options.num_bins),
    }


def build(shape: Shape, workload: Workload, profile: Profile, queues: Queues, options: Options) -> World:
    """Allocate and fill every table of a run."""
    workload.check()
    assert not profile.pace_percent, "NICs of the engine have no pace: law_calls.py sends by next_unpaced"
    s = Sizes.of(shape, workload, profile, queues, options)
    num_pairs = 0 if options.roce else workload.num_flows
    state = allocate([profile], num_pairs, num_pairs)
    rows = work_rows(shape, workload, options.seed, profile.mtu)
    threads = options.threads
    tables: dict[str, Table] = {
        "threads": _thread_rows(threads, s, shape.num_nodes),
        "nodes": shape.nodes.copy(),
        "order": np.concatenate([np.arange(t, shape.num_nodes, threads, dtype=np.int32) for t in range(threads)]),
        "ports": _port_rows(shape),
        "counts": np.zeros((shape.num_ports, at.COUNT_COLUMNS), dtype=np.int32),
        "until": np.zeros(shape.num_ports, dtype=np.int64),
        "streams": np.zeros((shape.num_nodes * s.slots * threads, at.STREAM_COLUMNS), dtype=np.int64),
        "store": empty(s.chunks * at.CHUNK * at.RECORD_WORDS),
        "chain": np.empty(s.chunks, dtype=np.int32),
        "chunk_free": np.empty(s.chunks * threads, dtype=np.int32),
        "pool": empty(s.places * at.RECORD_WORDS),
        "links": empty(s.places * at.LINK_COLUMNS // 2).view(np.int32).reshape(-1, at.LINK_COLUMNS),
        "pool_free": np.empty(s.places * threads, dtype=np.int32),
        "nics": rows.nics,
        "flows": rows.flows,
        "receivers": rows.receivers,
        "messages": rows.messages,
        "successors": rows.successors,
        "memory": state.m,
        "blocks": np.zeros((threads, at.BLOCK_COLUMNS), dtype=np.int64),
        "bodies": np.zeros((threads, at.BLOCK_COLUMNS), dtype=np.int64),
        "scratch": np.empty((threads * at.SCRATCH_ROWS, s.scratch_room), dtype=np.int64),
        "goodput": np.zeros((threads * shape.planes, options.num_bins), dtype=np.int64),
        "ev_loss": np.zeros((options.path_faults, shape.planes * shape.up0), dtype=np.int64),
        **_roce_rows(workload, profile, options.roce),
        "dead_links": np.zeros(shape.planes * shape.t1 * shape.t0 if options.hashed else 1, dtype=np.int32),
        "held": np.zeros((shape.num_nodes, at.HELD_COLUMNS), dtype=np.int64),
        "depths": np.zeros((threads * at.DEPTH_KINDS, options.num_bins), dtype=np.int64),
    }
    nodes = tables["nodes"]
    nodes[:, at.ND_SALT] = np.random.default_rng(options.seed).integers(0, 1 << 40, len(nodes))
    nodes[shape.num_switches :, at.ND_WAKE] = rows.nics[:, at.NC_WAKE].reshape(shape.t0, shape.hosts).min(axis=1)
    w = _world_vector(shape, workload, profile, queues, options, state, s)
    for i, name in enumerate(at.TABLES):
        array = tables[name]
        w[at.FIRST_TABLE + 2 * i] = array.ctypes.data
        w[at.FIRST_TABLE + 2 * i + 1] = len(array)
    w[at.W_SELF] = w.ctypes.data
    return World(w, tables, shape, workload, profile, state, rows)


def _roce_rows(workload: Workload, profile: Profile, parameters: Roce | None) -> dict[str, Table]:
    """RoCE rows of every flow, or one of each where there is no RoCE."""
    num = workload.num_flows if parameters else 1
    words = parameters.words(profile.mtu) if parameters else [0] * roce.NUM_PARAMETERS
    return {
        "roce": np.array([words], dtype=np.int64),
        "roce_tx": np.zeros((num, roce.RT_COLUMNS), dtype=np.int64),
        "roce_rx": np.zeros((num, roce.RR_COLUMNS), dtype=np.int64),
    }


def _thread_rows(threads: int, s: Sizes, num_nodes: int) -> Table:
    """Each thread begins with its share of fresh chunks and places, and of the nodes."""
    rows = np.zeros((threads, at.THREAD_COLUMNS), dtype=np.int64)
    first = 0
    for t in range(threads):
        for store, size in ((at.TH_CHUNKS, s.chunks), (at.TH_PLACES, s.places)):
            rows[t, store + at.ST_STACK] = t * size
            rows[t, store + at.ST_FRESH], rows[t, store + at.ST_END] = size * t // threads, size * (t + 1) // threads
        num = len(range(t, num_nodes, threads))
        rows[t, at.TH_FIRST_NODE], rows[t, at.TH_LAST_NODE] = first, first + num
        first += num
    return rows


def _port_rows(shape: Shape) -> Table:
    ports = empty(shape.num_ports * at.PORT_COLUMNS // 2).view(np.int32).reshape(-1, at.PORT_COLUMNS)
    ports[:] = 0
    for column in (at.PT_DATA_HEAD, at.PT_DATA_TAIL, at.PT_CONTROL_HEAD, at.PT_CONTROL_TAIL, at.PT_SERVING):
        ports[:, column] = -1
    shape.wire(ports)
    return ports


def _world_vector(
    shape: Shape, workload: Workload, profile: Profile, queues: Queues, options: Options, state: State, s: Sizes
) -> NDArray[np.int64]:
    w = np.zeros(at.WORLD_WORDS, dtype=np.int64)
    shift = profile.evs_per_plane.bit_length() - 1
    values = {
        at.W_THREADS: options.threads,
        at.W_WINDOW: window_ps(shape),
        at.W_SLOTS: s.slots,
        at.W_SEED: options.seed * 1_000_003,
        at.W_TIERS: shape.num_tiers,
        at.W_PLANES: shape.planes,
        at.W_T0: shape.t0,
        at.W_HOSTS: shape.hosts,
        at.W_UP0: shape.up0,
        at.W_UP1: shape.up1,
        at.W_BUNDLE1: shape.bundle1,
        at.W_BUNDLE2: shape.bundle2,
        at.W_POD_T0: shape.pod_t0,
        at.W_GROUP0: shape.num_switches,
        at.W_HASHED: options.hashed,
        at.W_DATA_LIMIT: queues.data_limit,
        at.W_CONTROL_LIMIT: queues.control_limit,
        at.W_ECN_LOW: queues.ecn_low,
        at.W_ECN_HIGH: queues.ecn_high,
        at.W_ECN_LAST_HOP: queues.ecn_last_hop,
        at.W_CONTROL_KINDS: options.kinds.control,
        at.W_TRIM_KINDS: options.kinds.trimmable if queues.trim else 0,
        at.W_TRIM_BYTES: queues.trim_bytes,
        at.W_XOFF: queues.xoff,
        at.W_XON: queues.xon,
        at.W_TRANSPORT: at.TRANSPORT_ROCE if options.roce else at.TRANSPORT_MRC,
        at.W_TX_BASE: state.tx_base,
        at.W_TX_STRIDE: state.tx_stride,
        at.W_RX_BASE: state.rx_base,
        at.W_RX_STRIDE: state.rx_stride,
        at.W_EV_SHIFT: shift,
        at.W_EV_MASK: (1 << shift) - 1,
        at.W_OVERHEAD: options.wire_overhead,
        at.W_ECHO: profile.reorder_ns > 0,
        at.W_ANNOUNCE: options.announce_ports,
        at.W_BIN: options.bin_ps,
        at.W_BINS: options.num_bins,
        at.W_MESSAGES: workload.num_messages,
        at.W_SCRATCH_ROOM: s.scratch_room,
    }
    for place, value in values.items():
        w[place] = int(value)
    w[at.W_SIZES : at.FIRST_TABLE] = options.kinds.sizes
    return w
