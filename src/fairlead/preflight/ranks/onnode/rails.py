"""Every rail between nodes, one message at a time, by the collective library itself.

A rail is the way from a rank to the rank with the same local number on another node: on a GPU node the port that the
library chose for that GPU, whatever the link; for CPU ranks an interface that all nodes have.

Who sends to whom follows pairs/schedule.py: shifts 1, 2, 4, ... Each shift is cut into two or three turns in which no
rank both sends and receives, so that a time belongs to one direction; all ranks begin a turn together. What looks slow
is repeated, with no other test on either end. The receiver asks, hears one byte, and times the message behind it, so
that a sender that comes late costs nobody a time. Nothing waits for longer than DEAD_S.

Gloo is never told how long to wait: when an operation times out, it closes every connection that this rank has in the
group (gloo/transport/tcp/unbound_buffer.cc: "Application timeout caused pair closure"), and the other ends of healthy
ones see theirs closed or reset. A message that is late goes on by itself instead, and its pair is left alone; one that
comes after all was slow, and its rail is not dead.
"""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from math import gcd

from fairlead.launch.onnode.me import Me
from fairlead.launch.onnode.place import interfaces
from fairlead.preflight.pairs.schedule import Test, fit, log_degree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Timed = tuple[float | None, str]
    """(seconds of a message that was received, what went wrong: empty for nothing)."""

DEAD_S = 4.0
"""A message that has not arrived after this long is late, which is told; after twice that it does not come. Whoever
watches has more patience than that."""
LATE = f"not done after {DEAD_S:g} s"
MOST_AT_ONCE = 1024
"""Messages of a rank that may be late."""
LEAST_BYTES, MOST_BYTES = 256 << 10, 128 << 20
MESSAGE_S = 0.03
"""The message is as large as a rail of usual speed carries in this time."""
SUSPECT = 0.7
"""Repeated is what has less than this share of the median: more than will be accused."""
REPEATS, AT_ONCE = 6, 16
"""Rounds of repetitions; in each, one pair in so many nodes, so that repetitions do not meet on the way."""
RAILS_S = 6.0
"""No new shift, once two are done, and no new repetition after this long."""


def turns(num_nodes: int, shift: int) -> list[list[tuple[int, int]]]:
    """`i sends to i + shift`, in two or three turns in which no node both sends and receives.

    The pairs of a shift form rings; along a ring turns alternate, and the last pair of an odd ring has one of its own.
    """
    rings = gcd(num_nodes, shift)
    length = num_nodes // rings
    out: list[list[tuple[int, int]]] = [[], [], []]
    for first in range(rings):
        for k in range(length):
            node = (first + k * shift) % num_nodes
            turn = 2 if length % 2 and k == length - 1 else k % 2
            out[turn].append((node, (node + shift) % num_nodes))
    return [sorted(turn) for turn in out if turn]


def suspects(rates: Sequence[tuple[int, int, float]], usual: float) -> list[Test]:
    """(from, to, bytes/s) that are to be repeated, the slowest first; 0 is a message that did not arrive."""
    slow = sorted((rate, src, dst) for src, dst, rate in rates if rate < SUSPECT * usual)
    return [Test(src, dst, (0,)) for _, src, dst in slow]


def repeats(tests: Sequence[Test], num_nodes: int) -> list[list[Test]]:
    """Rounds that repeat each test once, each node in one test of a round at most."""
    left = list(tests)
    rounds: list[list[Test]] = []
    while left and len(rounds) < REPEATS:
        rounds.append(fit(left)[: max(1, num_nodes // AT_ONCE)])
        left = [t for t in left if t not in rounds[-1]]
    return rounds


@dataclass
class Part:
    """This rank's part in one message over one rail."""

    rail: int
    src: int
    dst: int
    """Nodes."""
    peer: int
    """The rank at the other end."""
    num_bytes: int
    again: bool
    result: Future[Timed] | None = None
    until: float = 0.0
    """When it is no longer waited for."""

    def rate(self, took_s: float | None) -> float:
        """Bytes/s; 0 for what did not come."""
        return self.num_bytes / took_s if took_s else 0.0


class Rails:
    """The test of the rails of one rank."""

    def __init__(self, me: Me, torch: Any, device: Any, *, is_gpu: bool) -> None:
        self.me, self.torch, self.dist = me, torch, torch.distributed
        self.device, self.is_gpu = device, is_gpu
        self.per_node = max(1, int(me.config.get("per_node", 1)))
        self.num_nodes = me.world // self.per_node
        self.here = me.rank // self.per_node
        self.groups: dict[int, Any] = {}
        self.bound: dict[int, str] = {}
        self.dead: set[tuple[int, int]] = set()
        """(rail, peer) of which nothing more is asked."""
        self.pool = ThreadPoolExecutor(MOST_AT_ONCE)
        self.late: list[Part] = []
        self.began = time.perf_counter()

    def run(self) -> None:
        """All rails, or say why not."""
        why = self.prepare()
        if why:
            self.me.say("rails", skipped=why)
            return
        mine = [r for r in range(self.num_rails) if r % self.per_node == self.me.local and r in self.groups]
        num_bytes = self.calibrate(mine)
        self.me.say("rails", rails=[self.bound.get(r, "") for r in mine], bytes=num_bytes)
        messages = self.messages(mine, num_bytes)
        shifts = log_degree(self.num_nodes)
        found: dict[int, list[tuple[int, int, float]]] = {r: [] for r in range(self.num_rails)}
        for done, shift in enumerate(shifts):
            if done > 1 and self.in_step() > RAILS_S:
                break
            for turn in turns(self.num_nodes, shift):
                self.in_step()
                for rail, took in self.together(dict.fromkeys(mine, turn), messages).items():
                    found[rail] += took
        for rail, row in self.came_late():
            found[rail] = [*(other for other in found[rail] if other[:2] != row[:2]), row]
        everywhere = self.share(found)
        rates = [rate for _, _, _, rate in everywhere if rate > 0]
        usual = sorted(rates)[len(rates) // 2] if rates else 0.0
        plan = {
            r: repeats(suspects([(s, d, v) for k, s, d, v in everywhere if k == r], usual), self.num_nodes)
            for r in found
        }
        for number in range(max(map(len, plan.values()), default=0)):
            if self.in_step() > 2 * RAILS_S:
                break
            repeated = {r: [(t.src, t.dst) for t in plan[r][number]] for r in mine if number < len(plan[r])}
            self.together(repeated, messages, again=True)
        self.came_late()

    # ---- before ------------------------------------------------------------------------------------------------------

    def prepare(self) -> str:
        """Groups and interfaces; why there is nothing to test, empty where there is."""
        if self.num_nodes < 2:
            return "one node"
        if not self.agreed([self.me.rank % self.per_node == self.me.local and self.me.world % self.per_node == 0])[0]:
            return "ranks are not numbered node by node"
        if self.is_gpu:
            self.num_rails = self.per_node
            self.groups = dict.fromkeys(range(self.num_rails), None)
            return ""
        wanted = self.me.settings.get("rails") or []
        self.num_rails = len(wanted)
        if not wanted:
            return "no interface that all nodes have"
        found = [interface_of(rail) for rail in wanted]
        usable = self.agreed([bool(name) for name in found])
        before = os.environ.get("GLOO_SOCKET_IFNAME")
        limit = timedelta(seconds=self.me.config["timeout_s"])
        for rail, name in enumerate(found):
            if usable[rail]:
                os.environ["GLOO_SOCKET_IFNAME"] = name
                ranks = [n * self.per_node + rail % self.per_node for n in range(self.num_nodes)]
                self.groups[rail] = self.dist.new_group(ranks, timeout=limit, backend="gloo")
                self.bound[rail] = name
        if before is None:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before
        return "" if any(usable) else "no interface that all nodes have"

    def calibrate(self, mine: Sequence[int]) -> int:
        """How large a message is, alike everywhere: by the quickest rail."""
        best = 0.0
        small = self.messages(mine, LEAST_BYTES)
        for _ in range(2):  # the first makes the connection
            for turn in turns(self.num_nodes, 1):
                self.in_step()
                for rail in mine:
                    took = self.one(turn, rail, small[rail], again=False, is_silent=True)
                    best = max([best, *(rate for _, _, rate in took)])
        quickest = self.slowest(best)
        most = int(self.me.settings.get("rail_bytes") or MOST_BYTES)
        return max(LEAST_BYTES, min(most, int(quickest * MESSAGE_S)))

    def messages(self, mine: Sequence[int], num_bytes: int) -> dict[int, Any]:
        """One for each of this rank's rails, as they are used at the same time."""
        return {rail: self.torch.zeros(num_bytes, dtype=self.torch.uint8, device=self.device) for rail in mine}

    # ---- one message -------------------------------------------------------------------------------------------------

    def together(
        self,
        pairs: dict[int, list[tuple[int, int]]],
        messages: dict[int, Any],
        *,
        again: bool = False,
    ) -> dict[int, list[tuple[int, int, float]]]:
        """One turn of several rails at the same time, each an interface of its own; a rank on a GPU has one."""
        out: dict[int, list[tuple[int, int, float]]] = {}

        def go(rail: int) -> None:
            out[rail] = self.one(pairs[rail], rail, messages[rail], again=again)

        first, *others = pairs or [None]
        threads = [threading.Thread(target=go, args=(rail,)) for rail in others]
        for thread in threads:
            thread.start()
        if first is not None:
            go(first)
        for thread in threads:
            thread.join()
        return out

    def one(
        self, pairs: Sequence[tuple[int, int]], rail: int, message: Any, *, again: bool, is_silent: bool = False
    ) -> list[tuple[int, int, float]]:
        """This rank's part in one turn of a rail: [(from, to, bytes/s)] where it received; 0 for what did not come."""
        out = []
        for src, dst in pairs:
            peer = (dst if self.here == src else src) * self.per_node + rail % self.per_node
            if (rail, peer) in self.dead:
                continue
            part = Part(rail, src, dst, peer, message.numel(), again)
            if self.here == src:
                _, error = self.soon(part, self.pass_on, message)
            elif self.here == dst:
                took_s, error = self.soon(part, self.receive, message)
                out.append((src, dst, part.rate(took_s)))
                if not is_silent or error:
                    self.tell(part, took_s, error)
            else:
                continue
            if error:
                self.dead.add((rail, peer))
            if error and self.is_gpu:  # its stream waits for ever: no further work can be done here
                raise TimeoutError(f"nothing came from rank {peer} within {DEAD_S:g} s, on rail {rail}")
        return out

    def soon(self, part: Part, work: Callable[[Any, int, int], Timed], message: Any) -> Timed:
        """What `work` returns, or that it is late: it then goes on by itself."""
        if self.is_gpu:  # it keeps the time itself
            return work(message, part.peer, part.rail)
        part.result = self.pool.submit(work, message, part.peer, part.rail)
        wait([part.result], timeout=DEAD_S)
        if part.result.done():
            return part.result.result()
        part.until = time.perf_counter() + DEAD_S
        self.late.append(part)
        return None, LATE

    def came_late(self) -> list[tuple[int, tuple[int, int, float]]]:
        """[(rail, (from, to, bytes/s))] of what this rank has received after all, which is told."""
        out = []
        for part in self.late:
            assert part.result is not None
            wait([part.result], timeout=max(0.0, part.until - time.perf_counter()))
            if not part.result.done():
                continue
            took_s, error = part.result.result()
            if not error:
                self.dead.discard((part.rail, part.peer))
            if self.here == part.dst:
                self.tell(part, took_s, error)
                out.append((part.rail, (part.src, part.dst, part.rate(took_s))))
        self.late.clear()
        return out

    def tell(self, part: Part, took_s: float | None, error: str) -> None:
        """How a message came to this rank."""
        said = {"device": self.bound.get(part.rail, ""), "again": part.again, "error": error[:200]}
        self.me.say("rail", src=part.peer, rail=part.rail, bytes=part.num_bytes, s=took_s, **said)

    def pass_on(self, message: Any, peer: int, rail: int) -> Timed:
        """Wait until the receiver asks, send a byte and the message. What goes wrong, the receiver tells."""
        byte = self.torch.zeros(1, dtype=self.torch.uint8, device=self.device)
        for how, data in (("irecv", byte), ("isend", byte), ("isend", message)):
            if error := self.exchange(how, data, peer, rail):
                return None, error
        return None, ""

    def receive(self, message: Any, peer: int, rail: int) -> Timed:
        """The seconds of the message alone."""
        byte = self.torch.zeros(1, dtype=self.torch.uint8, device=self.device)
        error = self.exchange("isend", byte, peer, rail) or self.exchange("irecv", byte, peer, rail)
        started = time.perf_counter()
        error = error or self.exchange("irecv", message, peer, rail)
        return (None, error) if error else (round(time.perf_counter() - started, 6), "")

    def exchange(self, how: str, data: Any, peer: int, rail: int) -> str:
        """Send or receive; what went wrong, empty for nothing. On a GPU it waits no longer than DEAD_S."""
        dist, group = self.dist, self.groups.get(rail)
        call = getattr(dist, how)
        if not self.is_gpu:
            try:
                call(data, peer, group=group).wait()
            except RuntimeError as error:
                return " ".join(str(error).split()) or "failed"
            return ""
        dist.batch_isend_irecv([dist.P2POp(call, data, peer)])[0].wait()
        done = self.torch.cuda.Event()
        done.record()
        until = time.perf_counter() + DEAD_S
        while not done.query():
            if time.perf_counter() > until:
                return LATE
        return ""

    # ---- agreeing ----------------------------------------------------------------------------------------------------

    def agreed(self, flags: Sequence[bool]) -> list[bool]:
        """What holds on every rank."""
        seen = self.torch.tensor([float(f) for f in flags], device=self.device)
        self.dist.all_reduce(seen, op=self.dist.ReduceOp.MIN)
        return [bool(v) for v in seen.tolist()]

    def in_step(self) -> float:
        """Wait for all ranks; how long the test has lasted."""
        return self.slowest(time.perf_counter() - self.began)

    def slowest(self, value: float) -> float:
        """The largest of all ranks' values."""
        seen = self.torch.tensor([value], device=self.device, dtype=self.torch.float64)
        self.dist.all_reduce(seen, op=self.dist.ReduceOp.MAX)
        return float(seen)

    def share(self, found: dict[int, list[tuple[int, int, float]]]) -> list[tuple[int, int, int, float]]:
        """(rail, from, to, bytes/s) of all ranks, on all ranks."""
        rows = [(rail, src, dst, rate) for rail, each in found.items() for src, dst, rate in each]
        most = int(self.slowest(len(rows)))
        flat = [v for row in rows for v in row] + [-1.0] * 4 * (most - len(rows))
        mine = self.torch.tensor(flat, device=self.device, dtype=self.torch.float64)
        everybody = [self.torch.empty_like(mine) for _ in range(self.me.world)]
        if most:
            self.dist.all_gather(everybody, mine)
        return [
            (int(rail), int(src), int(dst), rate)
            for each in everybody
            for rail, src, dst, rate in each.view(-1, 4).tolist()
            if rail >= 0
        ]


def interface_of(rail: dict[str, str]) -> str:
    """The interface of a rail on this node: the one of that name, or the one with an address in its network."""
    found = interfaces()
    if rail.get("name") in found and found[rail["name"]]["addresses"]:
        return str(rail["name"])
    if not rail.get("net"):
        return ""
    network = ipaddress.ip_network(rail["net"])
    for name, facts in found.items():
        if any(ipaddress.ip_address(a.split("%")[0]) in network for a in facts["addresses"]):
            return name
    return ""
