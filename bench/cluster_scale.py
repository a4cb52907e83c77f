"""1,024 nodes with 8 ranks each: what launching them, hearing them and asking them costs this side.

    python bench/cluster_scale.py [NODES] [RANKS_PER_NODE] [SECONDS]

The nodes are scripted: another process says, over named pipes, the bytes that the node-side program, srun and the ranks
would say. Everything on this side is real: the processes that reach the nodes, the fan-out, the frames, the launcher's
watch and preflight's facts. Counted is the processor time and the memory of this process alone. Aims: 15 s, 1 GB.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import selectors
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import Cluster, Program
from fairlead.cluster.channel import IS_BEAT, LAST, PIECE
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.onnode.frames import END, FRAME, MAGIC
from fairlead.cluster.onnode.guard import TICK_S
from fairlead.launch import Patience, RankJob, launch
from fairlead.preflight.pairs.drive import AGENT, Driver
from fairlead.preflight.pairs.steps import Step
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.run import PARTS, keep

BEAT_S = 0.5
BEAT_LINE = PIECE + b"%d " % (IS_BEAT | LAST)
"""Of a task of srun."""
PHASES = ("start", "import", "rendezvous", "join", "ddp", "reduce", "split", "done")
ROUNDS = 50
START = {
    "say": "start", "local_rank": 0, "world": 8192, "host": "n", "pid": 4711, "python": "3.11.7", "cpus": "0-95",
    "executable": "/opt/venv/bin/python", "kernel": "5.15.0-1110-azure",
    "env": {f"NCCL_{i}": "x" * 20 for i in range(20)},
    "slurm": {f"SLURM_{i}": "y" * 30 for i in range(40)}, "interface": "fab0", "gpus": 8,
    "rdma": {f"mlx5_{i}": {"numa": str(i // 4), "cpus": "0-47"} for i in range(8)},
}  # fmt: skip
"""What a rank says first: 3 KB."""


# ---- the other process: nodes ----------------------------------------------------------------------------------------


class Node:
    """One scripted node, or one step of a scheduler over all of them."""

    def __init__(self, folder: Path, name: str, ranks: range, *, is_step: bool) -> None:
        self.ranks, self.is_step = ranks, is_step
        self.fd_in = os.open(folder / f"{name}.in", os.O_RDONLY | os.O_NONBLOCK)
        self.fd_out = os.open(folder / f"{name}.out", os.O_RDWR | os.O_NONBLOCK)
        self.heard, self.said, self.is_here, self.is_agent = b"", bytearray(), is_step, False
        self.phase, self.is_done = -1, False

    def read(self) -> None:
        """The program and the job are passed over; what follows are orders."""
        data = os.read(self.fd_in, 1 << 20)
        self.heard += data
        if not self.is_here and b"\n" in self.heard[12:]:
            length = int(self.heard[:12])
            line, found, rest = self.heard[12 + length :].partition(b"\n")
            if found:
                job = json.loads(line)
                if len(rest) >= job["stdin_bytes"]:
                    self.is_agent = "fairlead-agent" in job["argv"]
                    self.heard, self.is_here = rest[job["stdin_bytes"] :], True
                    self.said += MAGIC + frame(b"H")
        if self.is_agent:
            *orders, self.heard = self.heard.split(b"\n")
            for order in orders:
                self.say(0, b'{"step":%d,"clock_ns":1,"wall_ns":5,"cpu_ns":5}' % json.loads(order)["step"])

    def say(self, local: int, line: bytes, kind: bytes = b"o") -> None:
        """One line of a rank."""
        self.said += b"%4d: %s\n" % (local, line) if self.is_step else frame(kind, line + b"\n", local)

    def enter(self, phase: int) -> None:
        """All ranks together."""
        for local, rank in enumerate(self.ranks):
            if phase == 0:
                start = json.dumps({**START, "rank": rank}, separators=(",", ":"))
                cuts = range(0, len(start), 900) if self.is_step else ()  # as srun passes them on whole
                for i, at in enumerate(cuts):
                    self.say(local, f"~1.1 {i} {len(cuts)} {start[at : at + 900]}".encode())
                if not self.is_step:
                    self.say(local, start.encode())
            self.say(local, json.dumps({"say": "phase", "rank": rank, "node": "", "phase": PHASES[phase]}).encode())

    def beat(self) -> None:
        """As the node-side program passes them on, all of a node at once; a task's is a line of its own."""
        if not self.is_step:
            self.said += frame(b"b", json.dumps({str(i): "" for i in range(len(self.ranks))}).encode())
            return
        for local in range(len(self.ranks)):
            self.say(local, BEAT_LINE)

    def end(self) -> None:
        """All is over."""
        if not self.is_step:
            for local in range(len(self.ranks)):
                how = {"rc": 0, "stopped": "", "took_s": 1.0, "out": 0, "err": 0}
                self.said += frame(b"x", json.dumps(how).encode(), local)
            self.said += frame(b"z")
        self.is_done = True

    def write(self) -> None:
        """As much as is taken."""
        while self.said:
            try:
                del self.said[: os.write(self.fd_out, self.said[: 1 << 16])]
            except BlockingIOError:
                return
        if self.is_done and self.fd_out >= 0:
            os.close(self.fd_out)
            self.fd_out = -1


def frame(kind: bytes, payload: bytes = b"", rank: int = 0) -> bytes:
    return FRAME.pack(kind, rank, len(payload)) + payload + END


def farm(folder: Path, num_nodes: int, per_node: int, seconds: float, kind: str) -> None:
    """Be all nodes until they are done."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if kind == "tasks":
        nodes = [Node(folder, "step", range(num_nodes * per_node), is_step=True)]
    else:
        nodes = [
            Node(folder, f"n{i}", range(i * per_node, (i + 1) * per_node), is_step=False) for i in range(num_nodes)
        ]
    select = selectors.DefaultSelector()
    for node in nodes:
        select.register(node.fd_in, selectors.EVENT_READ, node)
    print("ready", flush=True)
    began, next_beat, phase, seen = 0.0, 0.0, -1, set()
    while any(node.fd_out >= 0 for node in nodes):
        for key, _ in select.select(0.02):
            key.data.read()
            if key.data.is_here and key.fd not in seen:
                seen.add(key.fd)
                began = began or (time.monotonic() if len(seen) == len(nodes) else 0.0)
        now = time.monotonic()
        if began and not nodes[0].is_agent:
            want = min(len(PHASES) - 1, int((now - began) / seconds * (len(PHASES) - 1)))
            while phase < want:
                phase += 1
                for node in nodes:
                    node.enter(phase)
            if phase == len(PHASES) - 1:
                for node in nodes:
                    node.end()
                began = 0.0
            elif now > next_beat:
                next_beat = now + (BEAT_S if kind == "tasks" else TICK_S)
                for node in nodes:
                    node.beat()
        for node in nodes:
            if node.fd_out >= 0:
                node.write()


# ---- this process: the control side ----------------------------------------------------------------------------------


class Farm(LocalBackend):
    """Nodes that are named pipes."""

    def __init__(self, folder: Path, *, has_steps: bool) -> None:
        self.folder, self.has_steps = folder, has_steps

    def pipes(self, name: str) -> list[str]:
        """A process that passes bytes both ways, as ssh and srun do."""
        script = 'exec 3<&0; cat <&3 >"$1.in" & cat "$1.out"; kill $!'
        return ["sh", "-c", script, "sh", str(self.folder / name)]

    def wrap(self, node, argv):
        return self.pipes(node)

    def wrap_tasks(self, nodes, per_node, command, options):
        return self.pipes("step") if self.has_steps else None


def measured(kind: str, num_nodes: int, per_node: int, seconds: float) -> None:
    """One row, in a process of its own."""
    names = NodeSet(f"n[0-{num_nodes - 1}]")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for node in ("step",) if kind == "tasks" else names:
            os.mkfifo(folder / f"{node}.in")
            os.mkfifo(folder / f"{node}.out")
        words = [sys.executable, __file__, "farm", name, str(num_nodes), str(per_node), str(seconds), kind]
        other = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert other.stdout
        other.stdout.readline()
        began, cpu = time.monotonic(), time.process_time()
        try:
            with Cluster(Engine(Farm(folder, has_steps=kind == "tasks"))) as cluster:
                said = agents(cluster, names) if kind == "agents" else ranks(cluster, names, per_node)
            cpu_s, took_s = time.process_time() - cpu, time.monotonic() - began
        finally:
            other.terminate()
            other.wait()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"{cpu_s:.1f} s | {took_s:.0f} s | {peak_mb:.0f} MB | {said}")


def ranks(cluster: Cluster, nodes: NodeSet, per_node: int) -> str:
    """Launch, hear all, keep all."""
    wanted = len(nodes) * per_node
    job = RankJob(
        nodes=nodes, per_node=per_node, parts=PARTS, host="10.0.0.1", limit_s=500, patience=Patience(ranks=wanted)
    )
    facts = RankFacts(nodes=tuple(nodes), per_node=per_node, wanted=wanted, limit_s=500, backend="")
    with launch(cluster, job) as group:
        keep(facts, group)
    phases = Counter(line["phase"] for line in facts.lines if line["say"] == "phase")
    assert not facts.broken, f"{facts.broken}: {phases}"
    assert phases == dict.fromkeys(PHASES, wanted), phases
    assert len(facts.ends) == wanted
    return f"{len(facts.lines)} lines kept, {facts.took_s:.0f} s of listening"


def agents(cluster: Cluster, nodes: NodeSet) -> str:
    """Start agents, then rounds in which every node answers."""
    names = tuple(nodes)
    with cluster.start(Program.of(*AGENT), nodes, limit_s=500) as group:
        from fairlead.preflight.gate import _OnePerNode

        driver = Driver(_OnePerNode(group), names, lost_s=3.0)
        expect = frozenset(range(len(names)))
        started = time.monotonic()
        answers = driver.perform(Step(line={"do": "clock", "step": 1}, expect=expect, limit_s=15.0))
        start_s = time.monotonic() - started
        assert set(answers.reports) == expect, f"{len(answers.lost)} lost"
        started, cpu = time.monotonic(), time.process_time()
        for step in range(2, ROUNDS + 2):
            answers = driver.perform(Step(line={"do": "clock", "step": step}, expect=expect, limit_s=15.0))
            assert set(answers.reports) == expect
        each_ms = (time.process_time() - cpu) / ROUNDS * 1e3
        return f"all there after {start_s:.1f} s; {each_ms:.0f} ms of CPU a round of all"


def main() -> None:
    if sys.argv[1:2] == ["farm"]:
        folder, num, per, seconds, kind = sys.argv[2:]
        farm(Path(folder), int(num), int(per), float(seconds), kind)
        return
    if sys.argv[1:2] == ["row"]:
        kind, num, per, seconds = sys.argv[2:]
        measured(kind, int(num), int(per), float(seconds))
        return
    num, per, seconds = [*sys.argv[1:], *["1024", "8", "30"][len(sys.argv) - 1 :]][:3]
    assert struct.calcsize(FRAME.format) == FRAME.size
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, Linux {platform.release()}, "
          f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}; {num} nodes\n")  # fmt: skip
    print("| what | CPU here | wall | memory | |\n|---|---:|---:|---:|---|")
    what = {
        "agents": ("an agent on each, 50 rounds", "1"),
        "ranks": (f"{per} ranks on each, launched for {seconds} s, a beat a second from each", per),
        "tasks": (f"the same as tasks of one srun, {1 / BEAT_S:g} beats a second from each", per),
    }
    for kind, (text, each) in what.items():
        row = subprocess.run(
            [sys.executable, __file__, "row", kind, num, each, seconds], stdout=-1, text=True, check=True
        )
        print(f"| {text} | {row.stdout.strip()} |", flush=True)


if __name__ == "__main__":
    main()
