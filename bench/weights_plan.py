"""What a spread costs the control side, and how near it ends to the bound, at up to 1,000 nodes: the real scheduler in
virtual time, so the machine need not be quiet. Prints a table.

    python bench/weights_plan.py
"""

from __future__ import annotations

import time

from fairlead.weights.scheduler import Scheduler
from fairlead.weights.simulate import World, simulate

LINK = 45e6
WORLDS = {
    "16 nodes, E = B": World(nodes=16, chunks=2048, link=LINK, origin=LINK),
    "16 nodes, E = 4 B": World(nodes=16, chunks=2048, link=LINK, origin=4 * LINK),
    "16 nodes, E = B / 3": World(nodes=16, chunks=2048, link=LINK, origin=LINK / 3),
    "16 nodes, one fetches": World(nodes=16, chunks=2048, link=LINK, origin=LINK, fetching=1),
    "16 nodes, one at 1/10": World(nodes=16, chunks=1024, link=LINK, origin=LINK, slow={5: 0.1}),
    "16 nodes, two die": World(nodes=16, chunks=1024, link=LINK, origin=LINK, dies={5: 20.0, 9: 40.0}),
    "16 nodes, one late": World(nodes=16, chunks=1024, link=LINK, origin=LINK, joins_s=(20.0,)),
    "1,000 nodes": World(nodes=1000, chunks=1000),
}


def main() -> None:
    """The table."""
    heads = ("seconds", "bound", "of bound", "all but last", "from origin", "messages a chunk")
    print(f"{'world':24}" + "".join(f"{head:>{len(head) + 2}}" for head in heads))
    for name, world in WORLDS.items():
        done = simulate(world)
        took = sorted(done.done_s.values())
        ratio, without = took[-1] / world.bound_s, took[-2] / world.bound_s
        messages = (done.orders + done.told) / world.chunks
        egress = done.from_origin / world.chunks
        times = (f"{took[-1]:.2f}", f"{world.bound_s:.2f}", f"{ratio:.3f}", f"{without:.3f}")
        columns = (*times, f"{egress:.3f}", f"{messages:.2f}")
        print(f"{name:24}" + "".join(f"{c:>{len(h) + 2}}" for h, c in zip(heads, columns, strict=True)), flush=True)
    began = time.process_time()
    Scheduler(100_000, [bytearray(100_000) for _ in range(1000)], fetching=range(1000), window=64).start()
    print(f"plan of 1,000 nodes and 100,000 chunks: {time.process_time() - began:.2f} s of processor time")


if __name__ == "__main__":
    main()
