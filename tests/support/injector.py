"""Faults put into a lab by somebody preflight knows nothing of, and a scorer that compares what it says with the truth.

The truth lies in a directory of its own; preflight runs in a mount namespace in which that directory is empty. Faults of
ranks are put in from outside: a thread looks for the rank's process and kills or stops it. Nothing in fairlead helps.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.cluster.enter import into_host, running

FAIRLEAD = [str(Path(sys.executable).with_name("fairlead"))]


@dataclass(frozen=True)
class Truth:
    """What was done, and what a report must say of it: any of `codes`, about these nodes, naming this part."""

    kind: str
    target: str
    codes: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    """Exactly these, in any order."""
    part: tuple[str, ...] = ()
    """Words of which the finding's subject must hold one."""
    way: str = ""
    """`out` or `in`, where the fault has a direction."""


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


Undo = Callable[[], None]


@dataclass(frozen=True)
class Kind:
    """A kind of fault: `draw` picks where, `inject` does it and returns how to undo it."""

    name: str
    draw: Callable[[World, random.Random], tuple[Truth, Callable[[], Undo]]]
    inside: bool = False
    """Preflight must be run inside a Slurm job of a wrong shape."""


# ---- faults of the lab -----------------------------------------------------------------------------------------------


def _lab(world: World, kind: str, *targets: str, **params: str) -> Callable[[], Undo]:
    def inject() -> Undo:
        for target in targets:
            words = [f"{k}={v}" for k, v in params.items()]
            done = subprocess.run(
                [*FAIRLEAD, "lab", "fault", "-n", world.name, kind, target, *words], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        return lambda: _heal(world)

    return inject


def _heal(world: World) -> None:
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", world.name, "--heal", "all"], capture_output=True, check=True)


def _port(world: World, rng: random.Random) -> tuple[str, int]:
    return rng.choice(world.nodes), rng.randrange(world.planes)


def _on_port(
    kind: str, codes: Sequence[str], **params: str
) -> Callable[[World, random.Random], tuple[Truth, Callable[[], Undo]]]:
    def draw(world: World, rng: random.Random):
        node, plane = _port(world, rng)
        target = f"p{plane}/{node}"
        truth = Truth(kind, target, tuple(codes), (node,), (f"plane {plane}", f"mlx5_{plane}"))
        return truth, _lab(world, kind, target, **params)

    return draw


def _rate(world: World, rng: random.Random):
    node, plane = _port(world, rng)
    target, mbps = f"p{plane}/{node}", f"{world.rate_mbps / 20:g}"
    truth = Truth("rate", target, ("preflight/slow-link",), (node,), (f"plane {plane}",))
    return truth, _lab(world, "rate", target, mbps=mbps)


def _loss(world: World, rng: random.Random):
    node, plane = _port(world, rng)
    side = rng.choice(["up", "down"])
    target = f"p{plane}/{node}"
    truth = Truth(
        f"loss {side}",
        target,
        ("preflight/packet-loss",),
        (node,),
        (f"plane {plane}",),
        {"up": "out", "down": "in"}[side],
    )
    return truth, _lab(world, "loss", target, percent="5", side=side)


def _plane(world: World, rng: random.Random):
    plane = rng.randrange(world.planes)
    truth = Truth("silent plane", f"p{plane}", ("preflight/unreachable",), (), (f"plane {plane}",))
    return truth, _lab(world, "silent-drop", *(f"p{plane}/{n}" for n in world.nodes))


def _pair(world: World, rng: random.Random):
    a, b = rng.sample(world.nodes, 2)
    truth = Truth("blocked pair", f"{a}:{b}", ("preflight/unreachable",), (a, b))
    return truth, _lab(world, "one-way-drop", f"{a}:{b}", f"{b}:{a}")


def _on_host(kind: str, codes: Sequence[str], **params: str):
    def draw(world: World, rng: random.Random):
        node = rng.choice(world.nodes)
        return Truth(kind, node, tuple(codes), (node,)), _lab(world, kind, node, **params)

    return draw


def _skew(world: World, rng: random.Random):
    node, seconds = rng.choice(world.nodes), rng.choice([-1, 1]) * round(10 ** rng.uniform(-0.5, 2.5), 2)
    truth = Truth(f"clock {seconds:+g} s", node, ("preflight/clock-skew", "host/clock-skew"), (node,))
    return truth, _lab(world, "clock-skew", node, seconds=f"{seconds:g}")


def _hca(world: World, rng: random.Random):
    node, plane = _port(world, rng)
    truth = Truth("missing-hca", f"{node} mlx5_{plane}", ("ib/count", "ib/registered", "skew/port-count"), (node,))
    return truth, _lab(world, "missing-hca", node, hca=f"mlx5_{plane}")


def _half_rate(world: World, rng: random.Random):
    node, plane = _port(world, rng)
    truth = Truth(
        "half-rate hca", f"{node} mlx5_{plane}", ("skew/port-rate", "ib/port-rate"), (node,), (f"mlx5_{plane}",)
    )
    path = f"/sys/class/infiniband/mlx5_{plane}/ports/1/rate"
    return truth, _lab(world, "file", node, path=path, content="50 Gb/sec (1X EDR)")


# ---- faults of ranks and of the launch -------------------------------------------------------------------------------


def _processes(world: World) -> Iterator[tuple[int, str, list[str], dict[str, str]]]:
    """(pid, name, words, environment) of every process of the lab's hosts that is a rank or becomes one."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "fairlead-rank" in words and any(w.endswith("python") or "python3" in w for w in words[:1]):
                env = dict(
                    w.partition("=")[::2] for w in (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                )
                yield int(entry.name), (entry / "comm").read_text().strip(), words, env


def _rank_fault(what: str, sig: signal.Signals, codes: Sequence[str], *, inside: bool):
    """Kill or stop one rank: as soon as it is there, or a moment after its body has begun the collectives."""

    def draw(world: World, rng: random.Random):
        rank = rng.randrange(len(world.nodes) * world.per_node)
        node = world.nodes[rank // world.per_node]
        delay_s = rng.uniform(0.2, 0.6) if inside else 0.0
        truth = Truth(what, f"rank {rank}", tuple(codes), (node,), (f"rank {rank}",) if inside else ())
        stop = threading.Event()

        def hunt() -> None:
            while not stop.is_set():
                for pid, name, _, env in _processes(world):
                    is_body = name == f"fl-rank-{rank}"
                    is_task = env.get("RANK", env.get("SLURM_PROCID", "")) == str(rank) and not name.startswith(
                        "fl-rank"
                    )
                    if is_body if inside else is_task:
                        time.sleep(delay_s)
                        with contextlib.suppress(OSError):
                            os.kill(pid, sig)
                        return
                time.sleep(0.02)

        def inject() -> Undo:
            thread = threading.Thread(target=hunt, daemon=True)
            thread.start()

            def undo() -> None:
                stop.set()
                thread.join()

            return undo

        return truth, inject

    return draw


def _shared_gpu(world: World, rng: random.Random):
    """A task prolog of the site that leaves one device visible to every task of a node."""
    node = rng.choice(world.nodes)
    truth = Truth("duplicate gpu", node, ("preflight/gpu-shared",), (node,))

    def sh(host: str, script: str) -> None:
        state = running(world.name)
        found = state.host(host)
        assert found is not None
        subprocess.run(into_host(state, found, ["sh", "-c", script]), check=True, capture_output=True)

    def inject() -> Undo:
        for host in [*world.nodes, "head"]:
            body = "echo export CUDA_VISIBLE_DEVICES=0" if host == node else "true"
            sh(host, f"printf '#!/bin/sh\\n{body}\\n' >/etc/slurm/prolog.sh; chmod +x /etc/slurm/prolog.sh; "
                     "echo TaskProlog=/etc/slurm/prolog.sh >>/etc/slurm/slurm.conf")  # fmt: skip
        sh("head", "scontrol reconfigure; sleep 0.5")

        def undo() -> None:
            for host in [*world.nodes, "head"]:
                sh(host, "sed -i /TaskProlog/d /etc/slurm/slurm.conf")
            sh("head", "scontrol reconfigure; sleep 0.5")

        return undo

    return truth, inject


def _wrong_count(world: World, rng: random.Random):
    """Preflight runs inside a job that has one task a node, or one too many."""
    tasks = rng.choice([len(world.nodes), len(world.nodes) * world.per_node - 1])
    truth = Truth(f"{tasks} tasks", "job", ("preflight/rank-count",))
    return truth, lambda: lambda: None


KINDS = {
    kind.name: kind
    for kind in (
        Kind("node dead", _on_host("node-dead", ["probe/no-answer"])),
        Kind("node hung", _on_host("node-hung", ["probe/no-answer"])),
        Kind("port down", _on_port("link-down", ["ib/port-state", "preflight/unreachable"])),
        Kind("silent plane drop", _plane),
        Kind("link at 1/20 rate", _rate),
        Kind("MTU black hole", _on_port("mtu-black-hole", ["preflight/mtu"])),
        Kind("one blocked pair", _pair),
        Kind("one-way 5 % loss", _loss),
        Kind("wrong rank count", _wrong_count, inside=True),
        Kind("version skew", _on_host("driver-version", ["skew/gpu-driver"], version="535.1.2")),
        Kind("duplicate GPU", _shared_gpu),
        Kind("clock skew", _skew),
        Kind("disk full", _on_host("disk-full", ["host/disk-space"])),
        Kind("slow node", _on_host("slow-node", ["preflight/slow-node"])),
        Kind("missing HCA", _hca),
        Kind("half-rate HCA", _half_rate),
        Kind("rank killed before", _rank_fault("killed before", signal.SIGKILL, ["preflight/rank-died", "preflight/rank-missing"], inside=False)),
        Kind("rank killed inside", _rank_fault("killed inside", signal.SIGKILL, ["preflight/rank-died"], inside=True)),
        Kind("rank hung inside", _rank_fault("stopped inside", signal.SIGSTOP, ["preflight/rank-stopped"], inside=True)),
    )
}  # fmt: skip


# ---- running and scoring ---------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """One run and how it compares."""

    truths: list[Truth]
    wall_s: float
    exit: int
    verdict: str
    first: str
    detected: list[bool]
    is_first: bool
    accused: list[str]
    """Fails that no truth explains."""
    run: str = ""
    stderr: str = ""
    took_s: dict[str, float] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Everything found, the first thing said is one of the faults, and nobody innocent is accused."""
        return all(self.detected) and (self.is_first or not self.truths) and not self.accused


def trial(world: World, injections: Sequence[tuple[Truth, Callable[[], Undo]]], *, tasks: str = "") -> Trial:
    """Inject, preflight, undo, score. `tasks`: run inside a Slurm job with that many tasks."""
    (world.truth_dir / "truth.json").write_text(json.dumps([t.__dict__ for t, _ in injections], default=str))
    undo = [inject() for _, inject in injections]
    try:
        command = [*FAIRLEAD, "preflight", "-f", str(world.file), "--json", "--runs", str(world.file.parent / "runs")]
        wall_s, status, out, err = _run(world, command, tasks)
    finally:
        for step in undo:
            step()
    return score([t for t, _ in injections], wall_s, status, out, err)


def _run(world: World, command: list[str], tasks: str) -> tuple[float, int, str, str]:
    """Preflight, in a mount namespace where the truth cannot be read."""
    if tasks:
        return _run_inside(world, command, tasks)
    hidden = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {world.truth_dir}; exec "$@"', "sh", *command]
    started = time.monotonic()
    done = subprocess.run(hidden, capture_output=True, text=True, timeout=300)
    return time.monotonic() - started, done.returncode, done.stdout, done.stderr


def _run_inside(world: World, command: list[str], tasks: str) -> tuple[float, int, str, str]:
    """`srun fairlead preflight --inside` as the first task of a job of a given shape, on the lab's own Slurm."""
    state = running(world.name)
    head = state.host("head")
    assert head is not None
    inside = [w for w in command if w != "-f" and w != str(world.file)]
    words = [
        "srun", f"--nodes={len(world.nodes)}", f"--ntasks={tasks}", f"--gres=gpu:{world.per_node}", "--overcommit",
        f"--partition={state.slurm.partition}", "--mpi=none", "--chdir=/tmp", "--", *inside, "--inside",
    ]  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(into_host(state, head, words), capture_output=True, text=True, timeout=300)
    return time.monotonic() - started, done.returncode, done.stdout, done.stderr


def score(truths: list[Truth], wall_s: float, status: int, out: str, err: str) -> Trial:
    """Compare the document preflight printed with the truth."""
    try:
        document = json.loads(out)
    except ValueError:
        return Trial(truths, wall_s, status, "none", err.strip()[-300:], [False] * len(truths), False, [], stderr=err)
    findings = document.get("findings", [])
    fails = [f for f in findings if f["verdict"] == "fail"]
    first = findings[0] if findings else {}
    hit = [[_fits(t, f) for f in fails] for t in truths]
    accused = [
        f"{f['code']} {_subject(f)}"
        for i, f in enumerate(fails)
        if not any(row[i] for row in hit) and not any(_follows(t, f) for t in truths)
    ]
    return Trial(
        truths=truths,
        wall_s=wall_s,
        exit=status,
        verdict=str(document.get("verdict")),
        first=f"{first.get('code', document.get('error', {}).get('message', ''))} {_subject(first)}".strip(),
        detected=[any(row) for row in hit],
        is_first=bool(fails) and any(row[0] for row in hit),
        accused=accused,
        run=str(document.get("run", "")),
        stderr=err,
        took_s=document.get("took_s", {}),
    )


def _subject(finding: dict) -> str:
    subject = finding.get("subject", {})
    return " ".join([",".join(subject.get("nodes", [])), subject.get("name", "")]).strip()


def _fits(truth: Truth, finding: dict) -> bool:
    """Whether a finding names the fault: the right code about the right nodes and part."""
    if finding["code"] not in truth.codes:
        return False
    if truth.nodes and sorted(finding["subject"].get("nodes", [])) != sorted(truth.nodes):
        return False
    if truth.part and not any(word in finding["subject"].get("name", "") for word in truth.part):
        return False
    return not truth.way or finding.get("data", {}).get("way") == truth.way


def _follows(truth: Truth, finding: dict) -> bool:
    """Whether a further fail about the same nodes may follow from the fault: it is not an accusation of somebody else."""
    nodes = finding["subject"].get("nodes", [])
    return bool(nodes) and set(nodes) <= set(truth.nodes)


@contextlib.contextmanager
def world(
    *, hosts: int = 4, gpus: int = 2, rate_mbps: int = 250, slurm: bool = True, planes: int = 4
) -> Iterator[World]:
    """A lab of that shape, up while the block runs, with its cluster file and a place for truths."""
    name = f"fm{os.getpid()}-{time.monotonic_ns() % 100000}"
    with tempfile.TemporaryDirectory(prefix="fairlead-matrix-") as folder, tempfile.TemporaryDirectory() as secret:
        file = Path(folder) / "cluster.toml"
        file.write_text(
            f'schema = 1\n[cluster]\nname = "{name}"\n[access]\nvia = "lab"\n'
            f'[[pool]]\nname = "lab"\nsize = "lab"\nnodes = "n[0-{hosts - 1}]"\ngpus = {gpus}\n'
            f'[fabric]\nlink = "ethernet"\nrdma = "mrc"\nplanes = {planes}\nt0 = 2\nt1 = 2\n[lab]\nrate_mbps = {rate_mbps}\n'
            f"[slurm]\nlab = {str(slurm).lower()}\n"
        )
        env = dict(os.environ)
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        done = subprocess.run([*FAIRLEAD, "lab", "up", "-f", str(file)], capture_output=True, text=True)
        try:
            assert done.returncode == 0, done.stderr
            yield World(name, file, [f"n{i}" for i in range(hosts)], planes, gpus, rate_mbps, Path(secret))
        finally:
            subprocess.run([*FAIRLEAD, "lab", "down", "-n", name], capture_output=True)
            os.environ.clear()
            os.environ.update(env)


__all__ = ["KINDS", "Kind", "Trial", "Truth", "World", "score", "trial", "world"]
