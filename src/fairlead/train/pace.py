"""How long a step takes, and what binds it: the work that was played, over what this machine was measured to do.

The store's thread reads, updates and writes while layers are computed. On a GPU they have processors of their own; on a
CPU both want the same ones, so the sum of their work over all processors is a bound, too. Of several ranks each updates
its own blocks; those of one node share its processors and its disk, whose bytes are a bound of their own. The wire
between nodes is not among the bounds: what it carries stands in the need.

Pure. Must not know: how rates are measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.train.activations import Work
from fairlead.train.layout import Block


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine does, measured."""

    product_s: Mapping[tuple[int, int, int], float]
    """Seconds of one matrix product, for those shapes that weigh most."""
    attention_flops: float
    """Floating-point operations of attention a second."""
    moved_bytes_s: float
    """Bytes that operations on elements read and write a second."""
    call_s: float
    """What an operation costs before it does anything."""
    draw_s: float
    """Seconds of a random number of dropout."""
    update_s: float
    """Seconds of the updating thread a parameter: optimizer, and from a store reading and writing."""
    update_cpu_s: float
    """Processor seconds a parameter, of all threads that take part."""
    block_s: float
    """Of a block's update, whatever its size: waiting for the disk to say that it has it."""
    load_s: float
    """Seconds a parameter that is loaded without an update: from the store, or over the bus."""
    keep_s: float
    """Seconds a gradient on its way home."""
    commit_s: float
    """Of a step."""
    read_bytes_s: float
    """What the store's disk gives at most, to all threads; infinite where there is no store."""
    write_bytes_s: float
    processors: int
    threads: int
    """That compute."""
    is_host: bool
    """Computing and updates share processors."""

    @property
    def flops(self) -> float:
        """Of the measured products, weighted by their sizes."""
        return sum(2.0 * m * k * n for m, k, n in self.product_s) / sum(self.product_s.values())


@dataclass(frozen=True, slots=True)
class Pace:
    """A step."""

    bounds: Mapping[str, float]
    """Seconds that each resource is busy in a step, by name."""

    @property
    def binding(self) -> str:
        """The resource that decides."""
        return max(self.bounds, key=lambda name: self.bounds[name])

    @property
    def seconds(self) -> float:
        """Of a step: what the busiest resource takes, as the others work meanwhile."""
        return max(self.bounds.values())


def reached(seconds: Mapping[str, float], step_s: float, *, on_disk: bool, is_host: bool) -> tuple[str, float]:
    """Which resource a step that was done was bound by, and for how much of its time that one was busy.

    No step of the same work can be shorter than its busiest resource takes, so the share is how near the step came to
    that bound; it is less than 1 where resources waited for each other. Of the disk count loads, and writes where
    something waited for them. What a GPU computes, the host's clock does not show: there it is not among the resources.

    Parameters
    ----------
    seconds
        As the engine tells them: forward, backward, update; loading of weights, writing that was waited for; waited is
        the part of forward and backward in which nothing was computed.
    step_s
        Of the whole step.
    """
    busy = {"the disk": seconds["loading"] + seconds["writing"]} if on_disk else {"updates": seconds["update"]}
    if is_host:
        busy["computing"] = seconds["forward"] + seconds["backward"] - seconds["waited"]
    name = max(busy, key=lambda name: busy[name])
    return name, min(1.0, max(0.0, busy[name]) / step_s)


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank does, or the one host."""

    micro: int
    """Micro-batches that it computes."""
    held: Sequence[Block]
    """Blocks whose state it has."""
    loaded: int
    """Parameters of these that are loaded in a step without an update."""
    moved: tuple[int, int] = (0, 0)
    """Bytes that it reads from the store and writes to it in a step."""
    on_node: int = 1
    """Ranks like this one that share a node's processors and disk."""


def pace(work: Work, blocks: Sequence[Block], share: Share, rates: Rates, *, on_disk: bool, width: int) -> Pace:
    """A step over `blocks`, of which a rank does its share. Gradients come in numbers of `width` bytes."""
    trained = sum(block.trained for block in share.held)
    sums = summing_bytes(sum(block.trained for block in blocks), share.micro, width)
    computing = share.micro * computing_s(work, rates) + sums / rates.moved_bytes_s
    thread = trained * rates.update_s + len(share.held) * rates.block_s
    way = share.loaded * rates.load_s + trained * rates.keep_s
    alone = rates.commit_s  # nothing is computed while a step is committed
    bounds = {"computing": computing + alone}
    if on_disk:
        bounds["the disk"] = thread + way + alone
        if share.on_node > 1:
            read, written = (share.on_node * num for num in share.moved)
            bytes_s = read / rates.read_bytes_s + written / rates.write_bytes_s
            bounds[f"the disk that {share.on_node} ranks share"] = bytes_s + alone
    elif rates.is_host:
        bounds["updates"] = thread + way
    else:
        bounds |= {"updates": thread, "the bus": way}
    if rates.is_host:
        busy = computing * rates.threads + trained * rates.update_cpu_s
        bounds["processors, for computing and updates"] = share.on_node * busy / rates.processors + alone
    return Pace(bounds)


def summing_bytes(trained: int, micro: int, width: int) -> int:
    """What is read and written to sum gradients over micro-batches, in fp32, or to copy those of one; and for norms."""
    return trained * (micro * (width + 8) + 4 if micro > 1 else 3 * width)


def computing_s(work: Work, rates: Rates) -> float:
    """Seconds of one micro-batch on the device."""
    total = 0.0
    for (m, k, n), num in work.products.items():
        one = rates.product_s.get((m, k, n))
        total += num * (one if one is not None else 2.0 * m * k * n / rates.flops)
    total += work.attention_flop / rates.attention_flops
    total += work.drawn * rates.draw_s
    return total + work.moved_bytes / rates.moved_bytes_s + work.calls * rates.call_s
