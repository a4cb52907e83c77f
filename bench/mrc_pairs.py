"""What a queue pair costs to make, hold and let go, and how much of that its rows are.

    python bench/mrc_pairs.py            # some twenty seconds

Each pair is led to RTS. Time is processor time of the thread without the garbage collector, the median of the rounds;
bytes are those that Python's allocators hand out (tracemalloc, in a round of its own).
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from itertools import count

from fairlead.fabric.mrc import state
from fairlead.fabric.mrc.completion import CompletionQueue
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.qp import QueuePair
from fairlead.fabric.mrc.verbs import QpState

CASES = {
    "MRC, 256 EVs, 1,024 PSNs": Profile.mrc(),
    "programs, 4 planes": Profile.software(100_000, planes=4),
    "one EV, 128 PSNs": Profile.mrc(planes=1, evs_per_plane=1, evs_active=1, mpr=128),
}
ROUNDS = {1: 200, 10_000: 3}


def made(profile: Profile, number: int) -> list[QueuePair]:
    """So many queue pairs of a device, ready to send."""
    device, cq = Device(profile, count(1)), CompletionQueue(64)
    pairs = [device.create_qp(cq, cq) for _ in range(number)]
    for qp in pairs:
        qp.modify(QpState.INIT)
        qp.modify(QpState.RTR, dest_qp_num=7, rq_psn=0)
        qp.modify(QpState.RTS, sq_psn=0)
    return pairs


def spent_us(profile: Profile, number: int) -> tuple[float, float, float]:
    """Microseconds a pair: to make all of it, to let it go, and for memory of its rows alone."""
    rounds = []
    for _ in range(ROUNDS[number]):
        gc.collect()
        t0 = time.thread_time()
        pairs = made(profile, number)
        t1 = time.thread_time()
        del pairs
        t2 = time.thread_time()
        held = [state.allocate([profile], 1, 1) for _ in range(number)]
        rounds.append((t1 - t0, t2 - t1, time.thread_time() - t2))
        del held
    make, release, rows = (statistics.median(column) / number * 1e6 for column in zip(*rounds, strict=True))
    return make, release, rows


def bytes_of(profile: Profile, number: int) -> tuple[float, float]:
    """Bytes that a pair holds, and that are left once all are gone without the garbage collector."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    pairs = made(profile, number)
    held = tracemalloc.get_traced_memory()[0] - before
    del pairs
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / number, left / number


def main() -> None:
    print("| profile | pairs | made, us | of it memory of rows | let go, us | bytes | of it rows | left |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    gc.disable()
    for name, profile in CASES.items():
        made(profile, 10)  # what is imported and kept once
        for number in ROUNDS:
            make, release, rows = spent_us(profile, number)
            held, left = bytes_of(profile, number)
            own = state.num_words([profile], 1, 1) * 8
            cells = f"{make:.0f} | {rows:.0f} | {release:.1f} | {held:,.0f} | {own:,} | {left:.0f}"
            print(f"| {name} | {number:,} | {cells} |")


if __name__ == "__main__":
    main()
