"""The program of one rank, piped to a node or to a Slurm task: it joins a group and does the collectives.

    start     who and where this rank is: see place.py
    phase     what it is about to do: import, rendezvous, join, ddp, reduce, split, done
    beat      it is alive, several times a second
    torch, joined, ddp, reduced, split       results, with times and checks
    error     the exception that ended it

NCCL where there are GPUs, gloo elsewhere; the same code.
"""

# ruff: noqa: PTH123, BLE001

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from datetime import timedelta

from fairlead.preflight.onnode.place import Me, config, tell_start
from fairlead.preflight.onnode.share import has_device, import_torch, run_shared, watch_input

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PERIOD = 61
"""Of the test pattern: prime, so that shifted chunks never look right."""
FIRST_STEP, GROW, TURNS, SETTLED = 1 << 16, 8, 3, 0.2
"""Below the first step latency rules, and time does not grow with size. A size is tried again, up to so many turns,
until a time differs from the one before it, or from what the size before promises, by no more than this share."""
UNEVEN, MAX_SPLITS, SPLIT_S = 1.5, 60, 2.0
"""When ranks differ, and how many rounds and how long are spent to find out whether they really do."""


def body(me: Me) -> int:
    """Join the group and do the collectives; returns the exit status."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(f"fl-rank-{me.rank}")
    me.beat()
    try:
        Collectives(me).run()
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:500]
        me.say("error", phase=me.phase, kind=type(error).__name__, text=text, at=f"{last.name}:{last.lineno}")
        return 1
    me.enter("done")
    return 0


class Collectives:
    """What a rank does with torch."""

    def __init__(self, me: Me) -> None:
        self.me = me
        self.torch = import_torch()
        self.dist = self.torch.distributed
        self.cuda = bool(self.torch.cuda.is_available())
        if self.cuda:  # before the group is made, which uses it
            self.torch.cuda.set_device(me.local % self.torch.cuda.device_count())
        else:
            self.torch.set_num_threads(1)
        self.device = (
            self.torch.device("cuda", self.torch.cuda.current_device()) if self.cuda else self.torch.device("cpu")
        )

    def run(self) -> None:
        """Everything, in order."""
        me, dist = self.me, self.dist
        me.say("torch", **self.versions())
        if config().get("launch_only"):
            return
        me.enter("rendezvous")
        want, limit = config(), timedelta(seconds=config()["limit_s"])
        store = dist.TCPStore(want["host"], want["port"], me.world, me.rank == 0, timeout=limit)
        me.enter("join")
        started = time.perf_counter()
        dist.init_process_group(
            "nccl" if self.cuda else "gloo",
            store=store,
            rank=me.rank,
            world_size=me.world,
            timeout=limit,
            device_id=self.device if self.cuda else None,
        )
        dist.all_reduce(self.torch.ones(1, device=self.device))
        self.sync()
        me.say("joined", s=round(time.perf_counter() - started, 4))
        me.enter("ddp")
        self.ddp_step()
        me.enter("reduce")
        self.reduces(want["sizes"], want["reduce_s"])
        me.enter("split")
        self.split(want["split_rounds"])
        dist.barrier()
        dist.destroy_process_group()

    def sync(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def versions(self) -> dict[str, Any]:
        """Versions, and the device as CUDA itself names it."""
        torch = self.torch
        out: dict[str, Any] = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "",
            "hip": getattr(torch.version, "hip", None) or "",
        }
        if not self.cuda:
            return out
        mine, num = torch.cuda.current_device(), torch.cuda.device_count()
        props = torch.cuda.get_device_properties(mine)
        out["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        out["device"] = {
            "name": props.name,
            "memory_bytes": props.total_memory,
            "uuid": str(getattr(props, "uuid", "")),
            "pci": f"{props.pci_domain_id:04x}:{props.pci_bus_id:02x}:{props.pci_device_id:02x}.0",
        }
        if num > 1:
            out["peer_access"] = bool(torch.cuda.can_device_access_peer(mine, (mine + 1) % num))
        return out

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
        """All-reduce from a few bytes upwards, each checked element by element and timed.

        Rank r contributes (i + 31 r) mod 61 at place i: whole numbers, different at every rank, whose sum over up to
        8,192 ranks is exact in 32-bit floats. What would take longer than is left, by the size before it, is left out.
        """
        torch, me = self.torch, self.me
        largest = max(sizes)
        steps = sorted({*sizes, *(min(FIRST_STEP * GROW**k, largest) for k in range(16))})
        sums = [sum((k + 31 * r) % PERIOD for r in range(me.world)) for k in range(PERIOD)]
        last_s = 0.0
        for i, num_bytes in enumerate(steps):
            num = max(1, num_bytes // 4)
            mine = self.tiled([(k + 31 * me.rank) % PERIOD for k in range(PERIOD)], num)
            want, times = self.tiled(sums, num), []
            wrong: dict[str, Any] = {}
            for turn in range(TURNS):
                data = mine.clone()
                self.sync()
                me.say("phase", phase="reduce", bytes=num_bytes, turn=turn)
                started = time.perf_counter()
                self.dist.all_reduce(data)
                self.sync()
                times.append(round(time.perf_counter() - started, 6))
                wrong = wrong or mistakes(data, want)
                # what is decided here must be decided alike everywhere: by the slowest rank's time
                slowest = torch.tensor([times[-1]], device=self.device)
                self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MAX)
                before_s, last_s = last_s, float(slowest)
                left_s -= last_s
                if last_s > left_s or abs(last_s - before_s) <= SETTLED * before_s:
                    break
            me.say("reduced", bytes=num * 4, s=times, **(wrong or {"wrong": 0}))
            if i + 1 < len(steps):
                last_s *= max(1, steps[i + 1] / max(num_bytes, FIRST_STEP))
                if last_s > left_s:
                    me.say("left_out", bytes=[size for size in sizes if size > num_bytes])
                    break

    def tiled(self, pattern: list[int], num: int) -> Any:
        """The pattern again and again, `num` elements of it."""
        torch = self.torch
        return torch.tensor(pattern, device=self.device, dtype=torch.float32).repeat(-(-num // PERIOD))[:num]

    def split(self, rounds: int) -> None:
        """Rounds of the same arithmetic and a one-element all-reduce: who computes longest, and who waits.

        Where ranks differ there are more rounds, so that one that was only held up by other programs has a good one.
        """
        torch, dist = self.torch, self.dist
        size = 2048 if self.cuda else 192
        a = torch.randn(size, size, device=self.device)
        compute: list[float] = []
        wait: list[float] = []
        began = time.perf_counter()
        while len(compute) < MAX_SPLITS:
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
            if slowest < UNEVEN * -quickest or took_s > SPLIT_S:
                break
        self.me.say("split", compute_s=compute, wait_s=wait)


def mistakes(data: Any, want: Any) -> dict[str, Any]:
    """How many elements differ from the exact sum, and the first of them; empty where none does."""
    wrong = (data != want).nonzero()
    if not len(wrong):
        return {}
    at = int(wrong[0])
    return {"wrong": len(wrong), "first": at, "got": float(data[at]), "want": float(want[at])}


def main() -> int:
    """Tell, then do; returns the exit status."""
    me = Me()
    interface = tell_start(me)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    # NCCL says on standard error which network it chose: the proof that it was RDMA
    for name, value in (
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
        ("NCCL_DEBUG_FILE", "/dev/stderr"),
        ("OMP_NUM_THREADS", "1"),
    ):
        os.environ.setdefault(name, value)
    if me.rank < 0 or me.world < 1:
        me.say("error", phase="start", kind="NoRank", text="neither RANK nor SLURM_PROCID is set", at="main")
        return 1
    me.enter("import")
    if has_device():
        watch_input()
        return body(me)
    rc = run_shared(me, body)
    if rc < 0:  # end as the body did
        signal.signal(-rc, signal.SIG_DFL) if -rc not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -rc)
        time.sleep(1)
    return rc


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())
