"""A scenario turned into what the engine runs: shape, workload, protocol profile, queue rules, options.

Knows: defaults that follow from the fabric (bandwidth-delay products, windows, timeouts). Must not know: files, output.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairlead.base.units import size
from fairlead.errors import FabricError
from fairlead.fabric.mrc import layout as mrc
from fairlead.fabric.mrc.profile import Profile, timers_for
from fairlead.fabric.sim import traffic
from fairlead.fabric.sim.engine.layout import KIND_SACK
from fairlead.fabric.sim.engine.memory import Options, Queues, Roce, estimate_bytes, window_ps
from fairlead.fabric.sim.htsim_files import read_topology
from fairlead.fabric.sim.kinds import MRC_HEADER_BYTES, OTHER_BYTES, OTHERS, Kinds, of_mrc
from fairlead.fabric.sim.model import Scenario
from fairlead.fabric.sim.shape import Shape, Tier
from fairlead.fabric.sim.workload import Workload
from fairlead.spec.topology import Topology

PATH_RULES = {
    "mrc": mrc.PATH_MRC,
    "oblivious": mrc.PATH_OBLIVIOUS,
    "bitmap": mrc.PATH_BITMAP,
    "reps": mrc.PATH_REPS,
    "mixed": mrc.PATH_MIXED,
}
MOST_MESSAGES = 1 << 27
MESSAGE_BYTES = 64  # of a message or a wait, while the load is worked out
PFC_TIMEOUT_US = 67_108.864  # 4.096 us << 14, the usual one of verbs: nothing is lost, packets only wait
NO_LIMIT = 1 << 30  # bytes that no queue holds
LARGE_FABRIC = 2048  # NICs from which a second thread pays


@dataclass(frozen=True)
class Setup:
    """Everything a run is made of, before memory is taken."""

    scenario: Scenario
    shape: Shape
    workload: Workload
    profile: Profile
    queues: Queues
    options: Options
    network_rtt_ns: int

    @property
    def estimate(self) -> dict[str, int]:
        """Bytes of memory by what they are for."""
        return estimate_bytes(self.shape, self.workload, self.profile, self.queues, self.options)

    @property
    def nic_bits_per_s(self) -> float:
        """What a NIC can send, all ports together."""
        return self.shape.tiers[0].rate_gbps * 1e9 * self.shape.planes

    @property
    def payload_share(self) -> float:
        """Payload per byte on the wire of a full packet."""
        return self.profile.mtu / (self.profile.mtu + self.options.wire_overhead)


def prepare(scenario: Scenario, folder: Path = Path()) -> Setup:
    """Work out every part of a run. Raises UsageError or SpecError where topology or traffic files do not fit."""
    shape = shape_of(scenario, folder)
    _check_messages(scenario, shape, folder)
    workload = traffic.build(scenario, shape.num_nics, folder)
    kind = scenario.transport.kind
    header = scenario.transport.header_bytes or (MRC_HEADER_BYTES if kind == "mrc" else OTHER_BYTES)
    payload = scenario.transport.payload_bytes or (4096 if kind != "uec" else 4086)
    packet = payload + header
    kinds = of_mrc(header) if kind == "mrc" else OTHERS
    rtt = shape.round_trip_ns(packet, kinds.sizes[KIND_SACK])
    bdp = math.ceil(rtt * shape.tiers[0].rate_gbps / 8 / packet)  # packets, one port
    queues = queues_of(scenario, bdp, packet)
    profile = profile_of(scenario, shape, workload, queues, rtt=rtt, payload=payload, header=header)
    options = options_of(scenario, shape, workload, header, kinds)
    return Setup(scenario, shape, workload, profile, queues, options, rtt)


def _check_messages(scenario: Scenario, shape: Shape, folder: Path) -> None:
    counts = [traffic.count(part, shape.num_nics, folder) for part in scenario.traffic]
    messages, waits = (sum(column) for column in zip(*counts, strict=True))
    if messages + waits > MOST_MESSAGES:
        raise FabricError(
            "sim/memory",
            f"the traffic is {messages:,} messages and {waits:,} waits between them, "
            f"at least {size((messages + waits) * MESSAGE_BYTES)}; {MOST_MESSAGES:,} are the most",
            hint="use fewer NICs, queue pairs or repetitions",
        )


def shape_of(scenario: Scenario, folder: Path) -> Shape:
    """The fabric."""
    t, links = scenario.topology, scenario.links
    if t.kind == "file":
        return read_topology(folder / t.file)
    host = Tier(links.host_gbps, links.host_latency_ns, links.switch_latency_ns)
    fabric = Tier(links.fabric_gbps or links.host_gbps, links.fabric_latency_ns, links.switch_latency_ns)
    if t.kind == "planes":
        if t.nics:
            topology = Topology.divide(planes=t.planes, t0=t.t0, t1=t.t1, hosts=t.nics)
        else:
            topology = Topology(planes=t.planes, t0=t.t0, t1=t.t1, hosts_per_t0=t.hosts_per_t0)
        return Shape.two_tier(topology, host=host, fabric=fabric, bundle=t.links_per_pair)
    core = Tier(links.core_gbps or links.host_gbps, links.core_latency_ns, links.switch_latency_ns)
    return Shape(
        planes=t.planes, pods=t.pods, pod_t0=t.t0, pod_t1=t.t1, cores=t.cores, hosts=t.hosts_per_t0,
        bundle1=t.links_per_pair, bundle2=1, tiers=(host, fabric, core),
    )  # fmt: skip


def queues_of(scenario: Scenario, bdp: int, packet: int) -> Queues:
    """Queue limits and thresholds, whole packets of one bandwidth-delay product."""
    q = scenario.queues
    trim = q.trim and not q.pfc
    size = q.size_bytes or math.ceil(bdp * (q.size_bdp or (1 if trim else 5))) * packet
    xoff = (q.xoff_bytes or bdp * packet // 2) if q.pfc else 0
    return Queues(
        data_limit=NO_LIMIT if q.pfc else size,
        control_limit=2 * size,
        ecn_low=math.ceil(bdp * q.ecn_low_bdp) * packet if q.ecn else NO_LIMIT,
        ecn_high=math.ceil(bdp * q.ecn_high_bdp) * packet if q.ecn else NO_LIMIT,
        ecn_last_hop=scenario.transport.kind != "mrc" if q.ecn_last_hop is None else q.ecn_last_hop,
        trim=trim,
        trim_bytes=q.trim_bytes,
        xoff=xoff,
        xon=xoff * 4 // 5,
    )


def profile_of(
    scenario: Scenario, shape: Shape, workload: Workload, queues: Queues, *, rtt: int, payload: int, header: int
) -> Profile:
    """Parameters of the queue pairs."""
    t = scenario.transport
    packet = payload + header
    rate_mbps = round(shape.tiers[0].rate_gbps * 1000 * shape.planes)
    bdp = rtt * rate_mbps // 8000
    longest = int(np.bincount(workload.flow, -(-workload.size // payload)).max())  # packets
    window = min(t.window_packets or max(1024, 2 * math.ceil(bdp / packet)), longest)  # no row is longer than its flow
    most_messages = int(np.bincount(workload.flow).max())
    common: dict[str, object] = {
        "mtu": payload, "overhead": header, "planes": shape.planes, "rate_mbps": rate_mbps, "network_rtt_ns": rtt,
        "mpr": min(max(128, -(-window // 128) * 128), 32_640), "trim": queues.trim,
        "max_messages": min(64, 1 << (most_messages - 1).bit_length()),
        "cc_rule": mrc.CC_CONSTANT if t.congestion == "constant" else mrc.CC_NSCC,
        "cwnd": t.cwnd_packets * packet or round(t.cwnd_bdp * bdp),
    }  # fmt: skip
    if t.paths:
        common["path_rule"] = PATH_RULES[t.paths]
    if t.sack_bytes:
        common["sack_bytes"] = t.sack_bytes
    if t.timeout_us:
        common["rto_ns"] = round(t.timeout_us * 1000)
    if t.kind == "uec":
        per_plane = _power_below((t.evs or 64 * shape.planes) // shape.planes)
        common |= {"evs_per_plane": per_plane, "evs_active": per_plane}
        if not t.timeout_us:
            # the reference: two priority queues, three hops of an incast
            common["rto_ns"] = round(15_000 + queues.data_limit * 6 * 8 / shape.tiers[0].rate_gbps)
        if t.paths == "reps":
            common["ring_size"] = 8
        return Profile.uec(**common)
    active = _power_below(max(1, (t.evs or 128) // shape.planes))
    active = min(active, _power_below(256 // shape.planes))
    total = min(2 * active, _power_below(256 // shape.planes))
    return Profile.mrc(evs_per_plane=total, evs_active=active, **(timers_for(rtt) | common))


def _power_below(n: int) -> int:
    """The power of two at or below n."""
    return 1 << max(0, n.bit_length() - 1)


def options_of(scenario: Scenario, shape: Shape, workload: Workload, header: int, kinds: Kinds) -> Options:
    """How the run is played."""
    run, t = scenario.run, scenario.transport
    roce = None
    if t.kind == "roce":
        roce = Roce(
            rate_gbps=shape.tiers[0].rate_gbps, dcqcn=t.dcqcn,
            timeout_us=t.timeout_us or (PFC_TIMEOUT_US if scenario.queues.pfc else 500.0),
            window_packets=t.window_packets or 4096, step_mbps=shape.tiers[0].rate_gbps * 4,
        )  # fmt: skip
    return Options(
        seed=run.seed,
        threads=run.threads or (min(2, os.cpu_count() or 1) if shape.num_nics >= LARGE_FABRIC else 1),
        hashed=not t.names_uplinks(shape.cores),
        wire_overhead=header,
        kinds=kinds,
        bin_ps=round(run.bin_us * 1e6) or window_ps(shape),
        announce_ports=t.announce_ports,
        slowest=min((fault.rate for fault in scenario.fault), default=1.0),
        packet_room=run.packet_room,
        path_faults=sum(fault.kind == "paths" for fault in scenario.fault),
        roce=roce,
    )
