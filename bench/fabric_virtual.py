"""A plane is cut under load, or many write to one, in virtual time: what MRC makes of it with no scheduler in the way.

python bench/fabric_virtual.py [--cuts 200] [--planes 4] [--rate 250] [--seed 1]
python bench/fabric_virtual.py --incast [--senders 3,7,15] [--rates 20,100,250] [--of-planes 2,4,8] [--packets 30000]
                                        [--pace 125]

Two engines of the transport, in plain Python, with the profile that sockets get, over planes of a rate and 50 us each
way. One plane, drawn from the seed, loses everything from a drawn moment on, for 0.2 s. Timed, by the arrival of
packets, is what `bench/fabric_faults.py` times on live hosts: `placed`, `again`, `stall`, `back`.

With `--incast` so many engines write to one host over links shaped as a lab's (tests/support/transport_links.py):
bucket 32 KiB, queue 256 KiB, no marks. Told for each case: Jain's index of their rates, their sum of what is shaped,
packets sent again and those that had only been late, and the queueing delay. A case goes on for so many packets, but
0.5 to 4 s, after half of that to settle.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import statistics
import sys
import time
from pathlib import Path as FilePath

from fabric_faults import GOAL, PAYLOAD, Came, share

from fairlead.fabric.mrc.packets import WRITES, Path

sys.path.insert(0, str(FilePath(__file__).parent.parent / "tests"))
from support.transport_links import Flows, counted, jain, usual_delay_ms
from support.transport_net import Faults, Net, Pair

MESSAGE, DEPTH = 1 << 20, 8
WARM_NS, HOLD_NS = 100_000_000, 200_000_000
WIRE, DELAY_NS, QUEUE_NS = 96, 50_000, 20_000_000
"""Headers of a packet on the wire; a way; what a port's queue holds, by its rate."""


class Links(Net):
    """Each plane a link of a rate into each end, with a queue that is full at some time."""

    rate_bps = 250e6

    def __init__(self, faults: Faults, seed: int) -> None:
        super().__init__(faults, seed)
        self.free: dict[str, int] = {}
        self.came: list[tuple[int, int, int]] = []
        """Time, plane and PSN of each Write's packet."""

    def due(self, to: str, path: Path, data: bytes) -> int | None:
        begin = max(self.now, self.free.get(to, 0))
        if begin - self.now > QUEUE_NS:
            return None
        self.free[to] = begin + int(8e9 * (len(data) + WIRE) / self.rate_bps)
        arrives = self.free[to] + DELAY_NS
        if data[0] in WRITES:
            self.came.append((arrives, path.plane, int.from_bytes(data[9:12], "big")))
        return arrives


class LinkedPair(Pair):
    """Two ends of such links."""

    kind_of_net = Links


def one_cut(planes: int, seed: int) -> dict[str, float | None]:
    """Milliseconds of one cut."""
    chance = random.Random(seed)
    faults, plane = Faults(), chance.randrange(planes)
    pair = LinkedPair(faults, seed=seed, planes=planes, mtu=PAYLOAD)
    net = pair.net
    assert isinstance(net, Links)
    region = pair.b.engine.device.domain.register(bytearray(MESSAGE))
    cut = net.now + WARM_NS + chance.randrange(10_000_000)
    healed = cut + HOLD_NS
    faults.dead.append((plane, 0xFF, cut, healed))
    posted, data = 0, bytes(MESSAGE)
    while net.now < healed + HOLD_NS:
        while posted - len(pair.a.done) < DEPTH:
            pair.a.line.qp.post_write(data, wr_id=posted, remote_addr=region.addr, rkey=region.rkey)
            pair.a.engine.wake(pair.a.line)
            posted += 1
        assert pair.turn()
    assert all(done.status.name == "SUCCESS" for done in pair.a.done)
    return judged(net.came, planes, plane, cut, healed)


def judged(
    arrivals: list[tuple[int, int, int]], planes: int, plane: int, cut: int, healed: int
) -> dict[str, float | None]:
    """What `fabric_faults.judged` says of live ones."""
    came = Came()
    for now, over, psn in sorted(arrivals):
        came.packet(now, psn, over)
    own = came.by_device[plane]
    last = max(t for t in own if t < cut + DELAY_NS + QUEUE_NS and t < healed)
    before = came.rate(came.placed, cut - WARM_NS // 2, cut)
    wanted = GOAL * before * (planes - 1) / planes
    row: dict[str, float | None] = {"before": 8e3 * before, "stall": came.stall_ns(last, healed) / 1e6}
    for key, series in (("placed", came.placed), ("again", came.in_order)):
        took = came.again_ns(series, last, healed, wanted)
        row[key] = None if took is None else took / 1e6
    row["back"] = next(((t - healed) / 1e6 for t in own if t > healed), None)
    return row


def incast(senders: int, planes: int, rate: int, packets: int, *, seed: int, pace: int) -> str:
    """A row of the table."""
    per_s = 1e6 * rate * planes / 8 / (PAYLOAD + WIRE)
    long_ns = int(1e9 * min(max(packets / per_s, 0.5), 4))
    shape = {"planes": planes, "rate_mbps": rate, "within_ns": long_ns // 8}
    world = Flows([(i, 100) for i in range(senders)], seed=seed, pace_percent=pace, **shape)
    world.run(long_ns // 2)
    places = ("num_new", "num_rtx", "num_spurious")
    before = [counted(world.flows, place) for place in places]
    rates = world.run(long_ns)
    new, again, late = (counted(world.flows, place) - b for place, b in zip(places, before, strict=True))
    parts = f"{jain(rates):.4f} | {sum(rates) / planes / rate:.2f} | {again / new:.2%} | {late / new:.2%}"
    return f"| {senders}:1, {planes} x {rate} Mb/s | {parts} | {usual_delay_ms(world.flows):.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("cuts", 200), ("planes", 4), ("rate", 250), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--incast", action="store_true")
    for name, some in (("senders", "3,7,15"), ("rates", "20,100,250"), ("of-planes", "2,4,8")):
        parser.add_argument(f"--{name}", default=some)
    parser.add_argument("--packets", type=int, default=30_000)
    parser.add_argument("--pace", type=int, default=0, help="pace_percent of the profile")
    asked = parser.parse_args()
    if asked.incast:
        print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, seed {asked.seed}\n")
        print("| | Jain | of shaped | sent again | only late | delay, ms |\n|---|---:|---:|---:|---:|---:|")
        every = ([int(word) for word in words.split(",")] for words in (asked.senders, asked.of_planes, asked.rates))
        for senders, planes, rate in itertools.product(*every):
            print(incast(senders, planes, rate, asked.packets, seed=asked.seed, pace=asked.pace), flush=True)
        return
    Links.rate_bps = 1e6 * asked.rate
    rows = []
    for seed in range(asked.seed, asked.seed + asked.cuts):
        rows.append(one_cut(asked.planes, seed))
        if len(rows) % 20 == 0:
            print(f"{len(rows)} cuts", file=sys.stderr, flush=True)
    shape = f"{asked.planes} planes of {asked.rate} Mb/s, {asked.cuts} cuts from seed {asked.seed}"
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {shape}\n")
    print("| ms | median | p99 | worst |\n|---|---:|---:|---:|")
    for key in ("stall", "placed", "again", "back"):
        values = [row[key] for row in rows]
        print(f"| {key} | {share(values, 0.5)} | {share(values, 0.99)} | {share(values, 1.0)} |")
    print(f"\nbefore: {statistics.median(row['before'] for row in rows):.0f} Mb/s")


if __name__ == "__main__":
    main()
