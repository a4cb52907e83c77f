"""What a rank of preflight does once it is launched: its device, its rails, a DDP step, all-reduces with known answers,
and the straggler test.

    phase     card, rails, perftest, ddp, reduce, rounds; before and after them the launcher's own
    card, rail, ddp, reduced, left_out, rounds       results, with times and checks
    nccl      what the collective library said of the network it chose

NCCL (or RCCL) where ranks use GPUs, gloo where they use CPUs; the same code.
"""

from __future__ import annotations

import math
import time

from fairlead.launch.onnode.me import Me
from fairlead.launch.onnode.meet import RankGroup
from fairlead.preflight.ranks.onnode.device import CPU_NODE, GPU_NODE, Card, gpu_reach, node_reduce
from fairlead.preflight.ranks.onnode.nccllog import NcclLog
from fairlead.preflight.ranks.onnode.perftest import Perftest
from fairlead.preflight.ranks.onnode.rails import Rails

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PERIOD = 61
"""Of the test pattern: prime, so that shifted chunks never look right."""
FIRST_STEP, GROW = 1 << 16, 8
"""Below the first step latency rules, and time does not grow with size."""
WARMUPS, TURNS = 5, 20
"""Iterations before the timed ones, and timed ones, as nccl-tests does by default (its README: -w 5, -n 20). Fewer
where time is short."""
BATCHES = 4
"""The timed ones come in so many batches, each timed as a whole, as nccl-tests times all of them as a whole."""
BRIEF = 0.05
"""Share of the time for all sizes that each may have in any case; more is spent only until two times agree."""
SETTLED = 1.2
"""The larger of two times that agree, as a multiple of the smaller."""
UNEVEN, MAX_ROUNDS, ROUNDS_S = 1.5, 60, 2.0
"""When ranks differ, and how many rounds and how long are spent to find out whether they really do."""


def body(me: Me) -> int:
    """Join the group and do the work; returns the exit status."""
    group = RankGroup(me, gpu_reach)
    if me.settings["launch_only"]:
        return 0
    log = NcclLog() if group.cuda else None
    try:
        group.join()
        Collectives(me, group, log).run()
    finally:
        if log:
            log.tell(me)
    group.leave()
    return 0


class Collectives:
    """What a rank does with torch."""

    def __init__(self, me: Me, group: RankGroup, log: NcclLog | None) -> None:
        self.me, self.group, self.log = me, group, log
        self.torch, self.dist, self.device, self.cuda = group.torch, group.dist, group.device, group.cuda

    def run(self) -> None:
        """Everything, in order."""
        me, want = self.me, self.me.settings
        self.tell_nccl()
        me.enter("card")
        self.card()
        me.enter("rails")
        rails = Rails(me, self.torch, self.device, is_gpu=self.cuda)
        rails.run()
        if want.get("perftest") and rails.num_nodes > 1:
            me.enter("perftest")
            Perftest(me, rails, want["perftest"], want["addresses"]).run()
        self.tell_nccl()
        me.enter("ddp")
        self.ddp_step()
        me.enter("reduce")
        self.reduces(want["sizes"], want["reduce_s"])
        self.tell_nccl()
        me.enter("rounds")
        self.rounds(want["rounds"])

    def sync(self) -> None:
        """Wait for the GPU."""
        self.group.sync()

    def tell_nccl(self) -> None:
        """What the collective library has said since."""
        if self.log:
            self.log.tell(self.me)

    def card(self) -> None:
        """This rank's device by itself, all ranks at the same time; then one all-reduce within the node."""
        me, dist, per_node = self.me, self.dist, max(1, int(self.me.config.get("per_node", 1)))
        dist.all_reduce(self.torch.ones(1, device=self.device))  # all begin together
        self.sync()
        found = Card(self.torch, self.device, self.sync, is_gpu=self.cuda).measure()
        fits = me.world % per_node == 0 and me.rank % per_node == me.local
        flag = self.torch.tensor([float(fits)], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if per_node > 1 and float(flag):
            nodes = [list(range(first, first + per_node)) for first in range(0, me.world, per_node)]
            group = node_group(dist, nodes, me.rank // per_node)
            took_s = node_reduce(self.torch, dist, group, self.device, self.sync, is_gpu=self.cuda)
            num_bytes = GPU_NODE if self.cuda else CPU_NODE
            found.update(node_reduce_s=took_s, node_reduce_bytes=num_bytes, node_ranks=per_node)
        me.say("card", **found)

    def ddp_step(self) -> None:
        """One step of a small model under DistributedDataParallel; its gradient must be the mean of all ranks' own."""
        torch, started = self.torch, time.perf_counter()
        torch.manual_seed(1)
        model = torch.nn.Linear(10, 10).to(self.device)
        own = torch.nn.Linear(10, 10).to(self.device)
        own.load_state_dict(model.state_dict())
        wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[self.device] if self.cuda else None)
        torch.manual_seed(100 + self.me.rank)
        x = torch.randn(20, 10, device=self.device)
        loss = wrapped(x).square().mean()
        loss.backward()
        own(x).square().mean().backward()
        mean, total = own.weight.grad.clone(), loss.detach().clone()
        self.dist.all_reduce(mean)
        self.dist.all_reduce(total)
        self.sync()
        same = bool(torch.allclose(model.weight.grad, mean / self.me.world, rtol=1e-4, atol=1e-6))
        took_s = round(time.perf_counter() - started, 4)
        self.me.say("ddp", s=took_s, loss=float(total) / self.me.world, gradient_is_mean=same)

    def reduces(self, sizes: list[int], left_s: float) -> None:
        """All-reduce from a few bytes upwards: first checked element by element, then timed as nccl-tests does.

        Rank r contributes (i + 31 r) mod 61 at place i: whole numbers, different at every rank, whose sum over up to
        8,192 ranks is exact in 32-bit floats. What would take longer than is left, by the size before it, is left out.
        """
        me, largest, all_s, promised_s = self.me, max(sizes), left_s, 0.0
        steps = sorted({*sizes, *(min(FIRST_STEP * GROW**k, largest) for k in range(20))})
        for i, num_bytes in enumerate(steps):
            me.say("phase", phase="reduce", bytes=num_bytes)
            if not self.fits(num_bytes):
                me.say("left_out", bytes=[size for size in sizes if size >= num_bytes])
                break
            wrong, data, first_s = self.checked(num_bytes)
            # the largest message tells most: smaller ones may take a tenth of the time each
            is_last = i + 1 == len(steps)
            times, warmups, spent_s = self.times(data, promised_s, first_s, all_s, left_s if is_last else all_s / 10)
            last_s = min(first_s, *times)
            if last_s < all_s * BRIEF:  # work goes on between the two: what it may have spoiled shows now
                wrong = wrong or self.checked(num_bytes)[0]
                spent_s += last_s
            me.say("reduced", bytes=max(1, num_bytes // 4) * 4, s=times, warmups=warmups, **(wrong or {"wrong": 0}))
            left_s -= spent_s
            if not is_last:
                promised_s = last_s * max(1, steps[i + 1] / max(num_bytes, FIRST_STEP))
                # one to check it and one to time it
                if 2 * promised_s > left_s:
                    me.say("left_out", bytes=[size for size in sizes if size > num_bytes])
                    break

    def times(
        self, data: Any, promised_s: float, first_s: float, all_s: float, share_s: float
    ) -> tuple[list[float], int, float]:
        """([seconds of one all-reduce, batch by batch], how many were not counted, seconds for all of it).

        Where they are quick, as many as nccl-tests has; where they are slow, until two times in a row agree. The first
        counts only if it is all there is: it may have had connections to make.
        """
        brief_s = all_s * BRIEF
        seen, spent_s = [promised_s, first_s], first_s
        if is_enough(seen, spent_s, first_s, brief_s, share_s):
            return [first_s], 0, spent_s
        seen.append(self.timed(data, 1))
        brief_s, spent_s = brief_s + first_s, spent_s + seen[-1]
        num = max(1, min(WARMUPS + TURNS, int(all_s * BRIEF / max(seen[-1], 1e-6))))
        warmups, times = min(WARMUPS, num // 5), seen[-1:]
        each = max(1, (num - warmups) // BATCHES)
        if each > 1:
            spent_s += warmups * self.timed(data, warmups)
            times = []
        while len(times) * each < TURNS and not is_enough(seen, spent_s, each * seen[-1], brief_s, share_s):
            times.append(self.timed(data, each))
            seen.append(times[-1])
            spent_s += each * times[-1]
        return times or seen[-1:], (1 if each == 1 else 2 + warmups), spent_s

    def fits(self, num_bytes: int) -> bool:
        """Whether every rank has memory for a message of that size, its copy and what it must become."""
        if not self.cuda:
            return True
        free, _ = self.torch.cuda.mem_get_info()
        flag = self.torch.tensor([float(5 * num_bytes < free)], device=self.device)
        self.dist.all_reduce(flag, op=self.dist.ReduceOp.MIN)
        return bool(float(flag))

    def checked(self, num_bytes: int) -> tuple[dict[str, Any], Any, float]:
        """(what is wrong after one all-reduce of known numbers, its result, the slowest rank's seconds)."""
        num, me = max(1, num_bytes // 4), self.me
        sums = [sum((k + 31 * r) % PERIOD for r in range(me.world)) for k in range(PERIOD)]
        data = self.tiled([(k + 31 * me.rank) % PERIOD for k in range(PERIOD)], num)
        self.sync()
        started = time.perf_counter()
        self.dist.all_reduce(data)
        self.sync()
        took_s = time.perf_counter() - started
        return mistakes(data, self.tiled(sums, num)), data, self.slowest(took_s)

    def timed(self, data: Any, num: int) -> float:
        """Seconds of one of `num` all-reduces in a row, by the slowest rank: decided alike everywhere."""
        if num < 1:
            return 0.0
        self.sync()
        started = time.perf_counter()
        for _ in range(num):
            self.dist.all_reduce(data)
        self.sync()
        return self.slowest((time.perf_counter() - started) / num)

    def slowest(self, seconds: float) -> float:
        """The slowest rank's time."""
        seen = self.torch.tensor([seconds], device=self.device)
        self.dist.all_reduce(seen, op=self.dist.ReduceOp.MAX)
        return round(float(seen), 7)

    def tiled(self, pattern: list[int], num: int) -> Any:
        """The pattern again and again, `num` elements of it."""
        torch = self.torch
        short = torch.tensor(pattern, device=self.device, dtype=torch.float32)
        return short.repeat(-(-num // PERIOD))[:num].contiguous()

    def rounds(self, rounds: int) -> None:
        """The straggler test: rounds of the same arithmetic and a one-element all-reduce: who computes, who waits.

        Where ranks differ there are more rounds, so that one that was only held up by other programs has a good one.
        """
        torch, dist = self.torch, self.dist
        size = 2048 if self.cuda else 192
        a = torch.randn(size, size, device=self.device)
        compute: list[float] = []
        wait: list[float] = []
        began = time.perf_counter()
        while len(compute) < MAX_ROUNDS:
            for _ in range(rounds):
                self.sync()
                at = time.perf_counter()
                for _ in range(8):
                    a = (a @ a).clamp_(-1, 1)
                self.sync()
                computed = time.perf_counter()
                dist.all_reduce(torch.ones(1, device=self.device))
                self.sync()
                compute.append(round(computed - at, 6))
                wait.append(round(time.perf_counter() - computed, 6))
            # (slowest rank's best, minus the quickest's, longest time so far): decided alike everywhere
            seen = torch.tensor([min(compute), -min(compute), time.perf_counter() - began], device=self.device)
            dist.all_reduce(seen, op=dist.ReduceOp.MAX)
            slowest, quickest, took_s = seen.tolist()
            if slowest < UNEVEN * -quickest or took_s > ROUNDS_S:
                break
        self.me.say("rounds", compute_s=compute, wait_s=wait)


def is_enough(seen: Sequence[float], spent_s: float, next_s: float, brief_s: float, share_s: float) -> bool:
    """Whether a size has been timed well enough, or there is no time for more.

    `seen`: seconds of one all-reduce, the newest last; before the first, what the size before promised (0: nothing).
    """
    if spent_s + next_s > share_s:
        return True
    low, high = sorted(seen[-2:])
    return spent_s + next_s > brief_s and high <= SETTLED * low


def node_group(dist: Any, nodes: list[list[int]], mine: int) -> Any:
    """The group of a node's ranks, made by all ranks at the same time.

    One split of the job's communicator makes all of them at once; made one by one, each rank would take part in making
    every node's. Gloo, and torch before 2.5, cannot split: there each node makes its own.
    """
    if dist.get_backend() == "nccl" and hasattr(dist, "split_group"):
        return dist.split_group(split_ranks=nodes)
    return dist.new_group(nodes[mine], use_local_synchronization=True)


def mistakes(data: Any, want: Any) -> dict[str, Any]:
    """How many elements differ from the exact sum, and the first of them (`got` None: no number); empty for none."""
    wrong = (data != want).nonzero()
    if not len(wrong):
        return {}
    at = int(wrong[0])
    got = float(data[at])
    return {"wrong": len(wrong), "first": at, "got": got if math.isfinite(got) else None, "want": float(want[at])}
