"""Faults put into a lab by somebody preflight knows nothing of.

The truth lies in a directory of its own; preflight runs in a mount namespace in which that directory is empty and the
lab's record lists no fault. Faults of ranks are put in from outside: a thread looks for the rank's process and kills or
stops it. Nothing in fairlead helps.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.cluster.enter import into_host, running
from support.scorer import LIMIT_S, Truth

FAIRLEAD = [str(Path(sys.executable).with_name("fairlead"))]
CALM_S = 90.0
"""How long Slurm may take to see a mended node again."""


@dataclass
class World:
    """A lab to put faults into: its name, its cluster file, its shape."""

    name: str
    file: Path
    nodes: list[str]
    planes: int
    per_node: int
    rate_mbps: float
    truth_dir: Path
    t0: int = 2
    t1: int = 2

    def sh(self, host: str, script: str) -> str:
        """What a shell script says on a host."""
        state = running(self.name)
        found = state.host(host)
        assert found is not None
        words = into_host(state, found, ["sh", "-c", script])
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def heal(self) -> None:
        """No fault of the lab any more."""
        subprocess.run([*FAIRLEAD, "lab", "fault", "-n", self.name, "--heal", "all"], capture_output=True, check=True)

    def calm(self) -> None:
        """Wait until every node is idle again for Slurm, and no rank is left."""
        deadline = time.monotonic() + CALM_S
        while time.monotonic() < deadline:
            states = self.sh("head", "sinfo -h -N -o %T").split()
            if set(states) == {"idle"} and not any(True for _ in ranks_of(self)):
                return
            if any(word in "".join(states) for word in ("down", "drain")):
                names = ",".join(self.nodes)
                self.sh("head", f"scontrol update nodename={names} state=resume 2>/dev/null || true")
            time.sleep(0.3)
        raise TimeoutError(f"{self.name} does not calm down: {states}")


Undo = Callable[[], object]
Inject = Callable[[], Undo]
Drawn = tuple[Truth, Inject]


@dataclass(frozen=True)
class Kind:
    """A kind of fault: `draw` picks where; what it returns beside the truth does it, and returns how to undo it."""

    name: str
    draw: Callable[[World, random.Random], Drawn]
    needs_collective: bool = False
    is_job: bool = False
    """About the job as a whole: it goes with no other fault."""
    is_setting: bool = False
    """Done by the cluster file, which other tools do not read."""


# ---- faults of the lab -----------------------------------------------------------------------------------------------


def _lab(world: World, kind: str, *targets: str, **settings: str) -> Inject:
    def inject() -> Undo:
        words = [f"{k}={v}" for k, v in settings.items()]
        for target in targets:
            command = [*FAIRLEAD, "lab", "fault", "-n", world.name, kind, target, *words]
            subprocess.run(command, check=True, capture_output=True)
        return world.heal

    return inject


def _port(world: World, rng: random.Random) -> tuple[str, int, str]:
    node, plane = rng.choice(world.nodes), rng.randrange(world.planes)
    return node, plane, f"p{plane}/{node}"


def _on_port(kind: str, *codes: str, **settings: str) -> Callable[[World, random.Random], Drawn]:
    def draw(world: World, rng: random.Random) -> Drawn:
        node, plane, target = _port(world, rng)
        part = (f"plane {plane}", f"mlx5_{plane}")
        truth = Truth(kind=kind, target=target, codes=codes, nodes=(node,), part=part)
        return truth, _lab(world, kind, target, **settings)

    return draw


def _rate(world: World, rng: random.Random) -> Drawn:
    node, plane, target = _port(world, rng)
    codes, part = ("preflight/slow-link",), (f"plane {plane}",)
    truth = Truth(kind="rate", target=target, codes=codes, nodes=(node,), part=part)
    return truth, _lab(world, "rate", target, mbps=f"{world.rate_mbps / 20:g}")


def _loss(world: World, rng: random.Random) -> Drawn:
    node, plane, target = _port(world, rng)
    side, way = rng.choice([("up", "out"), ("down", "in")])
    codes, part = ("preflight/packet-loss",), (f"plane {plane}",)
    truth = Truth(kind="loss", target=f"{target} {way}", codes=codes, nodes=(node,), part=part, way=way)
    return truth, _lab(world, "loss", target, percent="5", side=side)


def _trunk(kind: str, *codes: str, num: int = 1, **settings: str) -> Callable[[World, random.Random], Drawn]:
    """Links between switches of one plane; no two to the same T1, which would be a fault of that switch."""

    def draw(world: World, rng: random.Random) -> Drawn:
        plane, t1s = rng.randrange(world.planes), rng.sample(range(world.t1), num)
        targets = [f"p{plane}/t0-{rng.randrange(world.t0)}/t1-{t1}" for t1 in t1s]
        truth = Truth(kind="trunk", target=" ".join(targets), codes=codes, part=tuple(targets), all_parts=True)
        mbps = {"mbps": f"{world.rate_mbps / 20:g}"} if kind == "rate" else {}
        return truth, _lab(world, kind, *targets, **settings, **mbps)

    return draw


def _plane(world: World, rng: random.Random) -> Drawn:
    plane = rng.randrange(world.planes)
    truth = Truth(kind="plane", target=f"p{plane}", codes=("preflight/unreachable",), part=(f"plane {plane}",))
    return truth, _lab(world, "silent-drop", *(f"p{plane}/{n}" for n in world.nodes))


def _pair(world: World, rng: random.Random) -> Drawn:
    a, b = rng.sample(world.nodes, 2)
    truth = Truth(kind="pair", target=f"{a}:{b}", codes=("preflight/unreachable",), nodes=(a, b))
    return truth, _lab(world, "one-way-drop", f"{a}:{b}", f"{b}:{a}")


def _on_host(kind: str, *codes: str, **settings: str) -> Callable[[World, random.Random], Drawn]:
    def draw(world: World, rng: random.Random) -> Drawn:
        node = rng.choice(world.nodes)
        return Truth(kind=kind, target=node, codes=codes, nodes=(node,)), _lab(world, kind, node, **settings)

    return draw


def _clock(world: World, rng: random.Random) -> Drawn:
    node = rng.choice(world.nodes)
    seconds = rng.choice([-1, 1]) * round(10 ** rng.uniform(-0.5, 2.5), 2)
    codes = ("preflight/clock-skew", "host/clock-skew")
    truth = Truth(kind="clock", target=f"{node} {seconds:+g} s", codes=codes, nodes=(node,))
    return truth, _lab(world, "clock-skew", node, seconds=f"{seconds:g}")


def _hca(world: World, rng: random.Random) -> Drawn:
    node, plane, _ = _port(world, rng)
    codes = ("ib/count", "ib/registered", "skew/port-count")
    hca = f"mlx5_{plane}"
    truth = Truth(kind="hca", target=f"{node} {hca}", codes=codes, nodes=(node,), part=(hca,))
    return truth, _lab(world, "missing-hca", node, hca=hca)


def _half_rate(world: World, rng: random.Random) -> Drawn:
    node, plane, _ = _port(world, rng)
    hca, codes = f"mlx5_{plane}", ("skew/port-rate", "ib/port-rate")
    truth = Truth(kind="half-rate", target=f"{node} {hca}", codes=codes, nodes=(node,), part=(hca,))
    path = f"/sys/class/infiniband/{hca}/ports/1/rate"
    return truth, _lab(world, "file", node, path=path, content="50 Gb/sec (1X EDR)")


# ---- faults of ranks and of the launch -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Process:
    """A process on a lab host that is a rank, or the task that becomes one."""

    pid: int
    node: str
    rank: int
    local: int
    is_task: bool
    """Whether its environment is its own: a body is forked by the task that imported torch, and keeps that one's."""
    is_body: bool


def ranks_of(world: World) -> Iterator[_Process]:
    """Every process of the lab's ranks, found from outside by its words, its namespace and its environment."""
    hosts = {_link(f"/proc/{h.anchor.pid}/ns/pid") for h in running(world.name).hosts if h.anchor} - {""}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, KeyError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"fairlead-rank" not in words or b"python" not in words[0] or _link(f"{entry}/ns/pid") not in hosts:
                continue
            raw = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            env = dict(word.partition("=")[::2] for word in raw)
            node = env.get("FAIRLEAD_NODE") or env.get("SLURMD_NODENAME", "")
            rank = int(env.get("RANK") or env["SLURM_PROCID"])
            local = int(env.get("LOCAL_RANK") or env["SLURM_LOCALID"])
            name = (entry / "comm").read_text().strip()
            is_body = name.startswith("fl-rank-")
            body = int(name[8:]) if is_body else rank
            yield _Process(int(entry.name), node, body, local, body == rank, is_body)


def _link(path: str) -> str:
    """What a link of /proc points at; empty where the process is gone."""
    with contextlib.suppress(OSError):
        return str(Path(path).readlink())
    return ""


def _is_in_collective(pid: int) -> bool:
    """Whether a rank has joined its group and begun a collective: gloo then runs a thread for it."""
    return any((t / "comm").read_text().strip() == "pt_gloo_runloop" for t in Path(f"/proc/{pid}/task").iterdir())


def _rank_fault(sig: signal.Signals, *codes: str, inside: bool) -> Callable[[World, random.Random], Drawn]:
    """Kill or stop one rank: as soon as its task is there, or a moment after it began a collective."""

    def draw(world: World, rng: random.Random) -> Drawn:
        node, local, delay_s = rng.choice(world.nodes), rng.randrange(world.per_node), rng.uniform(0.0, 0.5)
        target = f"{node} local rank {local}"
        truth = Truth(kind="rank", target=target, codes=codes, nodes=(node,), was_done=False)
        stop = threading.Event()

        def victim() -> _Process | None:
            """The task, or its body once that is inside."""
            found = list(ranks_of(world))
            task = next((p for p in found if p.is_task and (p.node, p.local) == (node, local)), None)
            if task is None or not inside:
                return task
            return next((p for p in found if p.is_body and p.rank == task.rank and _is_in_collective(p.pid)), None)

        def hunt() -> None:
            while not stop.wait(0.03):
                with contextlib.suppress(OSError):
                    if (found := victim()) is not None:
                        time.sleep(delay_s if inside else 0.0)
                        os.kill(found.pid, sig)
                        truth.target, truth.was_done = f"rank {found.rank} on {node}", True
                        truth.part = (f"rank {found.rank}",) if inside else (f"rank {found.rank}", "")
                        return

        def inject() -> Undo:
            thread = threading.Thread(target=hunt, daemon=True)
            thread.start()

            def undo() -> None:
                stop.set()
                thread.join()

            return undo

        return truth, inject

    return draw


def _shared_gpu(world: World, rng: random.Random) -> Drawn:
    """A task prolog of the site that leaves one device visible to every task of a node."""
    node = rng.choice(world.nodes)
    truth = Truth(kind="gpu", target=node, codes=("preflight/gpu-shared",), nodes=(node,))

    def inject() -> Undo:
        for host in [*world.nodes, "head"]:
            body = "echo export CUDA_VISIBLE_DEVICES=0" if host == node else "true"
            script = f"printf '#!/bin/sh\\n{body}\\n' >/etc/slurm/prolog.sh; chmod +x /etc/slurm/prolog.sh"
            world.sh(host, f"{script}; echo TaskProlog=/etc/slurm/prolog.sh >>/etc/slurm/slurm.conf")
        world.sh("head", "scontrol reconfigure; sleep 0.5")

        def undo() -> None:
            for host in [*world.nodes, "head"]:
                world.sh(host, "sed -i /TaskProlog/d /etc/slurm/slurm.conf")
            world.sh("head", "scontrol reconfigure; sleep 0.5")

        return undo

    return truth, inject


def _python(
    name: str, script: str, *codes: str, verdict: str = "fail", limit_s: float = LIMIT_S
) -> Callable[[World, random.Random], Drawn]:
    """A Python of the pool that does something first, on all nodes or on `$VICTIM` alone; `$REAL` is the usual one."""

    def draw(world: World, rng: random.Random) -> Drawn:
        node, path = rng.choice(world.nodes), f"/usr/local/bin/python-{world.name}"
        is_ones = "$VICTIM" in script
        truth = Truth(
            kind=name,
            target=node if is_ones else "all",
            codes=codes,
            nodes=(node,) if is_ones and codes else (),
            verdict=verdict,
            limit_s=limit_s,
        )

        def inject() -> Undo:
            text = f'#!/bin/sh\nVICTIM={node} REAL={sys.executable}\n{script}\nexec "$REAL" "$@"\n'
            for host in [*world.nodes, "head"]:
                world.sh(host, f"cat >{path} <<'END'\n{text}END\nchmod +x {path}")
            before = world.file.read_text()
            world.file.write_text(before.replace('size = "lab"\n', f'size = "lab"\npython = "{path}"\n'))

            def undo() -> None:
                world.file.write_text(before)

            return undo

        return truth, inject

    return draw


def _wrong_count(world: World, rng: random.Random) -> Drawn:
    """A job that has one task too few, or one node's second task alone. One task a node is a launcher's, and right."""
    tasks = rng.choice([len(world.nodes) + 1, len(world.nodes) * world.per_node - 1])
    truth = Truth(kind="count", target=f"{tasks} tasks", codes=("preflight/rank-count",))
    return truth, lambda: lambda: None


_ON_ONE = '[ "$(hostname)" = "$VICTIM" ]'
_SLEEPS = """
mkdir -p /tmp/late && cat >/tmp/late/sitecustomize.py <<'SITE'
import builtins, sys, time
usual = builtins.__import__
def slow(*args, **more):
    found, dist = usual(*args, **more), sys.modules.get("torch.distributed")
    if not hasattr(dist, "late") and hasattr(dist, "init_process_group"):
        dist.late = dist.init_process_group
        dist.init_process_group = lambda *a, **m: (time.sleep(60), dist.late(*a, **m))[1]
    return found
builtins.__import__ = slow
SITE
export PYTHONPATH=/tmp/late\
"""
"""As NCCL does with many GPUs, the group takes its time to form."""
_ENVIRONMENT = ("ib/count", "skew/environment", "preflight/env-drift")
_TASK_KILLED = ("preflight/rank-died", "preflight/rank-missing")
KINDS = {
    kind.name: kind
    for kind in (
        Kind("node dead", _on_host("node-dead", "probe/no-answer")),
        Kind("node hung", _on_host("node-hung", "probe/no-answer")),
        Kind("port down", _on_port("link-down", "ib/port-state", "preflight/unreachable")),
        Kind("silent plane drop", _plane),
        Kind("link at 1/20 rate", _rate),
        Kind("MTU black hole", _on_port("mtu-black-hole", "preflight/mtu")),
        Kind("one blocked pair", _pair),
        Kind("one-way 5 % loss", _loss),
        Kind("link flap", _on_port("flap", "preflight/port-flap", down_s="1", up_s="1")),
        Kind("slow trunk", _trunk("rate", "preflight/slow-link")),
        Kind("lossy trunk", _trunk("loss", "preflight/packet-loss", percent="5")),
        Kind("silent trunk", _trunk("silent-drop", "preflight/unreachable")),
        Kind("two silent trunks", _trunk("silent-drop", "preflight/unreachable", num=2)),
        Kind("wrong rank count", _wrong_count, is_job=True),
        Kind(
            "no torch anywhere",
            _python("no torch", "REAL=/usr/bin/python3", "preflight/no-torch", verdict="unknown"),
            is_job=True,
            is_setting=True,
        ),
        Kind(
            "no torch on one node",
            _python("no torch", f"{_ON_ONE} && REAL=/usr/bin/python3", "skew/torch", "preflight/no-torch"),
            is_setting=True,
        ),
        Kind(
            "wrong HCA named",
            _python("wrong HCA", f"{_ON_ONE} && export NCCL_IB_HCA=mlx5_9", *_ENVIRONMENT),
            is_setting=True,
        ),
        Kind(
            "slow start of 60 s",
            _python("slow start", _SLEEPS, verdict="pass", limit_s=150.0),
            is_job=True,
            is_setting=True,
        ),
        Kind("version skew", _on_host("driver-version", "skew/gpu-driver", version="535.1.2")),
        Kind("duplicate GPU", _shared_gpu),
        Kind("clock skew", _clock),
        Kind("disk full", _on_host("disk-full", "host/disk-space")),
        Kind("slow node", _on_host("slow-node", "preflight/slow-node")),
        Kind("missing HCA", _hca),
        Kind("half-rate HCA", _half_rate),
        Kind("rank killed before", _rank_fault(signal.SIGKILL, *_TASK_KILLED, inside=False)),
        Kind("rank killed inside", _rank_fault(signal.SIGKILL, "preflight/rank-died", inside=True), True),
        Kind("rank hung inside", _rank_fault(signal.SIGSTOP, "preflight/rank-stopped", inside=True), True),
    )
}


def _planes(truth: Truth) -> set[str]:
    """The planes a fault is in: `p1` of `plane 1` and of `p1/t0-0/t1-1`."""
    return {word.split("/")[0].replace("plane ", "p") for word in truth.part}


def are_independent(a: Kind, x: Truth, b: Kind, y: Truth) -> bool:
    """Whether both of two faults can be seen at all.

    On one node the larger hides the smaller, and so does a dead plane what ails a port of it. With a plane dead no
    collective begins, so nothing can happen inside one; of two ranks the first to fail ends the other's group.
    """
    if a.is_job or b.is_job or set(x.nodes) & set(y.nodes):
        return False
    if "trunk" in (x.kind, y.kind) and _planes(x) & _planes(y):
        return False  # in one plane the larger may hide the smaller
    if "plane" in (x.kind, y.kind):
        return not set(x.part) & set(y.part) and not a.needs_collective and not b.needs_collective
    return not (x.kind == y.kind == "rank")


def in_order(drawn: Sequence[Drawn]) -> list[Drawn]:
    """What needs a command on a live node is done first."""
    return sorted(drawn, key=lambda d: d[0].kind != "gpu")
