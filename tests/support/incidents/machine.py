"""One job on one cluster, and the lines its machines write: each file in the framing that its machine happens to use.

Framings: rsyslog's traditional and RFC 3339 forms (rsyslog.conf(5), RFC 5424 6.2.3), `dmesg --decode --time-format iso`
(dmesg(1)), Slurm's `LogTimeFormat=iso8601_ms` (slurm.conf(5)), glog's `E1218 20:27:21.426` (PyTorch), `srun --label`.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

from support.incidents import noise

KERNEL, SYSLOG, SLURMD = "kernel", "syslog", "slurmd"


class Incident:
    """A job of a few nodes with eight GPUs each. Events are told with seconds since its start, in true time.

    `bad` is the node that the story is about, `others` the rest; `truth` says what is right.
    """

    def __init__(self, seed: int, *, nodes: int = 0) -> None:
        self.chance = random.Random(f"incident {seed}")
        num = nodes or self.chance.choice((2, 4, 4, 8, 16))
        first = self.chance.choice((1, 1, 17, 101))
        stem = self.chance.choice(("gpu", "ccw-1-3-gpu-", "node"))
        self.nodes = [f"{stem}{first + i:0{3 if first > 99 else 2}}" for i in range(num)]
        self.bad = self.chance.choice(self.nodes)
        self.others = [node for node in self.nodes if node != self.bad]
        self.idle = [f"{stem}{901 + i}" for i in range(2)]
        """Nodes of other jobs, whose lines lie in the same store."""
        self.job = str(self.chance.randrange(1000, 90000))
        self.start = dt.datetime(2026, 3, 2, 10, 0, tzinfo=dt.UTC) + dt.timedelta(minutes=self.chance.randrange(40000))
        self.at = float(self.chance.randrange(900, 9000))
        """When it happens, in seconds since the start."""
        self.skew = {node: self.chance.choice((0.0, 0.0, 0.01, -0.02)) for node in self.nodes}
        self.framing = {node: self.chance.choice(("traditional", "rfc3339")) for node in [*self.nodes, *self.idle]}
        self.kernel_file = {
            node: self.chance.choice(("syslog", "syslog", "dmesg")) for node in [*self.nodes, *self.idle]
        }
        self.labelled = self.chance.choice((True, False))
        self._lines: dict[tuple[str, str], list[tuple[float, int, str]]] = {}
        self._extra: dict[str, bytes] = {}
        self._count = 0
        self.state, self.exit, self.end = "FAILED", "1:0", self.at + 60
        self.limit = "2-00:00:00"
        self._label: dict[str, Any] = {}

    # --- who and when

    def rank(self, node: str, local: int = 0) -> int:
        """The rank on a node, by block."""
        return self.nodes.index(node) * 8 + local

    def stamp(self, node: str, seconds: float) -> dt.datetime:
        """What the clock of a node shows."""
        return self.start + dt.timedelta(seconds=seconds + self.skew.get(node, 0.0))

    def ip(self, node: str) -> str:
        """An address of the fabric."""
        return f"172.16.1.{10 + (self.nodes + self.idle).index(node)}"

    def pci(self, local: int) -> str:
        """A GPU's PCI address, as on an eight-GPU machine of Azure."""
        return f"000{local + 1}:00:00"

    # --- lines

    def kernel(self, node: str, seconds: float, *texts: str, level: str = "err") -> None:
        """A line of the kernel, where this machine keeps them."""
        for text in texts:
            when = self.stamp(node, seconds)
            if self.kernel_file[node] == "dmesg":
                line = f"kern  :{level:<6}: {when:%Y-%m-%dT%H:%M:%S},{when.microsecond:06}+00:00 {text}"
                self._add(node, "var/log/dmesg", seconds, line)
            else:
                up = 400000 + (when - self.start).total_seconds()
                self.syslog(node, seconds, "kernel", f"[{up:12.6f}] {text}")

    def syslog(self, node: str, seconds: float, program: str, text: str) -> None:
        """A line of a program."""
        when = self.stamp(node, seconds)
        if self.framing[node] == "rfc3339":
            head = f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond:06}+00:00"
        else:
            head = f"{when:%b} {when.day:2} {when:%H:%M:%S}"
        self._add(node, "var/log/syslog", seconds, f"{head} {node} {program}: {text}")

    def slurmd(self, node: str, seconds: float, text: str) -> None:
        """A line of slurmd."""
        self._add(node, "var/log/slurmd/slurmd.log", seconds, f"[{self._slurm(node, seconds)}] {text}")

    def slurmctld(self, seconds: float, text: str) -> None:
        """A line of the controller."""
        self._add("scheduler", "var/log/slurmctld/slurmctld.log", seconds, f"[{self._slurm('', seconds)}] {text}")

    def prolog(self, node: str, seconds: float, level: str, text: str) -> None:
        """A line of the prolog script, in the form of the published archiving script."""
        when = self.stamp(node, seconds)
        line = f"{when:%Y-%m-%dT%H:%M:%SZ} {level} prolog.sh:41 {text}"
        self._add(node, "var/log/slurmd/prolog.log", seconds, line)

    def healthagent(self, node: str, seconds: float, level: str, text: str) -> None:
        """A line of CycleCloud's health agent."""
        when = self.stamp(node, seconds)
        line = f"{when:%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03} - healthagent - {level} - {text}"
        self._add(node, "opt/healthagent/healthagent.log", seconds, line)

    def out(self, seconds: float, text: str, rank: int | None = None, *, err: bool = False) -> None:
        """A line of the job: raw, or behind its rank where srun labels."""
        label = f"{rank if rank is not None else 0}: " if self.labelled else ""
        self._add("login", f"shared/slurm-logs/job_{self.job}.{'err' if err else 'out'}", seconds, label + text)

    def err(self, seconds: float, text: str, rank: int | None = None) -> None:
        """A line of the job's standard error."""
        self.out(seconds, text, rank, err=True)

    def torch(self, seconds: float, rank: int, text: str, level: str = "E") -> None:
        """A line of PyTorch's own logging: its rank, glog's time without a year."""
        when = self.stamp(self.nodes[rank // 8], seconds)
        head = f"[rank{rank}]:[{level}{when:%m%d %H:%M:%S}.{when.microsecond:06}000 ProcessGroupNCCL.cpp:629]"
        self.err(seconds, f"{head} [Rank {rank}] {text}", rank)

    def nccl(self, seconds: float, node: str, local: int, text: str) -> None:
        """A warning of NCCL: host:pid:tid, as its debug log writes it."""
        self.out(seconds, f"{node}:{20100 + local}:{20400 + local} [{local}] {text}", self.rank(node, local))

    def keep(self, path: str, content: bytes) -> None:
        """A file as it is, below logs/."""
        self._extra[path] = content

    # --- what usually follows

    def watchdogs(
        self, seconds: float, *, missing: str = "", timeout: float = 600, operation: str = "ALLREDUCE"
    ) -> float:
        """All ranks but those of the missing node give up in NCCL's watchdog, at slightly different times; the end of it."""
        for node in self.nodes:
            if node == missing:
                continue
            for local in (0, 3, 7):
                late = seconds + timeout + self.chance.random() * 2
                waited = int(timeout * 1000) + self.chance.randrange(90)
                self.torch(
                    late,
                    self.rank(node, local),
                    f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=48211, OpType={operation}, "
                    f"NumelIn=131072000, NumelOut=131072000, Timeout(ms)={int(timeout * 1000)}) "
                    f"ran for {waited} milliseconds before timing out.",
                )
                self.torch(
                    late + 0.2,
                    self.rank(node, local),
                    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
                    "subsequent GPU operations might run on corrupted/incomplete data.",
                )
        return seconds + timeout + 3

    def aborted(self, seconds: float, node: str, code: int = 1, *, signal: str = "") -> None:
        """srun ends the step because a task of a node ended."""
        task = self.rank(node)
        how = signal or f"Exited with exit code {code}"
        self.err(seconds, f"srun: error: {node}: task {task}: {how}")
        self.err(seconds + 0.1, f"srun: Terminating StepId={self.job}.0")
        when = self.stamp("", seconds)
        for other in self.nodes:
            self.err(
                seconds + 0.2,
                f"slurmstepd: error: *** STEP {self.job}.0 ON {other} CANCELLED AT {when:%Y-%m-%dT%H:%M:%S} ***",
            )
        self.finished(seconds + 2, f"WEXITSTATUS {code}" if not signal else "WTERMSIG 9")

    def finished(self, seconds: float, how: str) -> None:
        """The controller's last words about the job."""
        self.slurmctld(seconds, f"_job_complete: JobId={self.job} {how}")
        self.slurmctld(seconds + 0.01, f"_job_complete: JobId={self.job} done")
        self.end = seconds

    def lost_by_slurm(self, seconds: float, node: str) -> None:
        """Slurm no longer hears a node, sets it down and ends the job."""
        self.slurmctld(seconds + 120, f"error: Nodes {node} not responding")
        self.slurmctld(seconds + 300, f"error: Nodes {node} not responding, setting DOWN")
        self.slurmctld(seconds + 300.1, f"Killing JobId={self.job} on failed node {node}")
        when = self.stamp("", seconds + 300)
        for other in [each for each in self.nodes if each != node][:3]:
            self.err(
                seconds + 300.5,
                f"slurmstepd: error: *** STEP {self.job}.0 ON {other} CANCELLED AT {when:%Y-%m-%dT%H:%M:%S} "
                "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            )
        self.err(seconds + 301, f"srun: error: Node failure on {node}")
        self.state, self.exit, self.end = "NODE_FAIL", "1:0", seconds + 302

    # --- the truth, and the files

    def truth(
        self, cause: str | list[str], node: str | list[str], root: str | list[str], note: str, **more: Any
    ) -> None:
        """What is right: accepted classes, accepted nodes, texts of which one is a root line."""
        nodes = [node] if isinstance(node, str) else node
        self._label = {
            "class": [cause] if isinstance(cause, str) else cause,
            "node": [each for each in nodes if each],
            "root": [root] if isinstance(root, str) else root,
            "victims": [each for each in self.nodes if each not in nodes],
            "note": note,
            "skew_s": {name: value for name, value in self.skew.items() if value},
            **more,
        }

    def write(self, folder: Path) -> None:
        """logs/NODE/..., job.json and label.json below a folder."""
        noise.chatter(self)
        for (node, path), lines in self._lines.items():
            place = folder / "logs" / node / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("".join(f"{line}\n" for _, _, line in sorted(lines)), encoding="utf-8")
        for path, content in self._extra.items():
            place = folder / "logs" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        (folder / "job.json").write_text(json.dumps(self._accounting(), indent=1))
        (folder / "label.json").write_text(json.dumps(self._label, indent=1))

    def _accounting(self) -> dict[str, Any]:
        stem = self.nodes[0].rstrip("0123456789")
        numbers = [node.removeprefix(stem) for node in self.nodes]
        running = self.state == "RUNNING"
        return {
            "JobID": self.job,
            "JobName": "pretrain",
            "State": self.state,
            "ExitCode": self.exit,
            "Start": f"{self.start:%Y-%m-%dT%H:%M:%S}",
            "End": "Unknown" if running else f"{self.start + dt.timedelta(seconds=self.end):%Y-%m-%dT%H:%M:%S}",
            "NodeList": f"{stem}[{numbers[0]}-{numbers[-1]}]",
            "NTasks": str(len(self.nodes) * 8),
            "Timelimit": self.limit,
            "User": "research",
            "Partition": "gpu",
        }

    def _slurm(self, node: str, seconds: float) -> str:
        when = self.stamp(node, seconds)
        return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}"

    def _add(self, node: str, path: str, seconds: float, line: str) -> None:
        self._count += 1
        self._lines.setdefault((node, path), []).append((seconds, self._count, line))
