"""A job that died, written as logs: lines in their documented forms, read by the parser that reads real ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.logs.diagnose.choose import diagnose
from fairlead.logs.diagnose.model import Diagnosis, Evidence, Job, Line, Progress, Rank, Told
from fairlead.logs.eventtime import Clock
from fairlead.logs.format import formats
from fairlead.logs.parse import Context, Raw, records

START = dt.datetime(2026, 3, 2, 10, 0, tzinfo=dt.UTC)
NS = 10**9
CONTROLLER = "ctl"


def ns(seconds: float) -> int:
    return int(START.timestamp()) * NS + int(seconds * NS)


@dataclass
class Wreck:
    """Times are seconds since the start of the job; `skew` is what a node's clock is ahead."""

    nodes: int = 4
    ranks: int = 16
    end: float = 3600.0
    state: str = "FAILED"
    exit_code: str = "1:0"
    skew: dict[str, float] = field(default_factory=dict)
    files: dict[tuple[str, str], list[tuple[float, str]]] = field(default_factory=dict)
    dumps: tuple[Rank, ...] = ()
    findings: tuple[Told, ...] = ()
    progress: dict[tuple[int, str], Progress] = field(default_factory=dict)

    @property
    def job(self) -> Job:
        names = tuple(f"gpu{n + 1:02d}" for n in range(self.nodes))
        return Job(4711, names, ns(0), ns(self.end), self.state, self.exit_code, self.ranks)

    def kernel(self, node: str, at: float, text: str) -> None:
        self.syslog(node, at, "kernel", f"[{86400 + at:.6f}] {text}")

    def networkd(self, node: str, at: float, text: str) -> None:
        self.syslog(node, at, "systemd-networkd[812]", text)

    def syslog(self, node: str, at: float, who: str, text: str) -> None:
        """A line of a program in a node's system log."""
        when = (START + dt.timedelta(seconds=at + self.skew.get(node, 0))).isoformat(timespec="microseconds")
        self.files.setdefault((node, "syslog"), []).append((at, f"{when} {node} {who}: {text}"))

    def slurmctld(self, at: float, text: str) -> None:
        self._slurm(CONTROLLER, "slurmctld", at, text)

    def slurmd(self, node: str, at: float, text: str) -> None:
        self._slurm(node, "slurmd", at, text)

    def _slurm(self, node: str, form: str, at: float, text: str) -> None:
        when = (START + dt.timedelta(seconds=at + self.skew.get(node, 0))).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        self.files.setdefault((node, form), []).append((at, f"[{when}] {text}"))

    def out(self, text: str, at: float = 0.0) -> None:
        """A line of the job's output. It has no time of its own; `at` is where it stands."""
        self.files.setdefault(("login", "job"), []).append((at, text))

    def watchdog(self, rank: int, at: float, seq: int = 812) -> None:
        stamp = (START + dt.timedelta(seconds=at)).strftime("%m%d %H:%M:%S.%f")
        self.out(
            f"[rank{rank}]:[E{stamp} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
            f"timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8652160, NumelOut=8652160, Timeout(ms)=600000) "
            f"ran for 600068 milliseconds before timing out.", at,
        )  # fmt: skip

    def lines(self) -> Iterator[Line]:
        for number, ((node, form), rows) in enumerate(sorted(self.files.items()), 1):
            at, raws = 0, []
            for _, text in sorted(rows, key=lambda row: row[0]):
                data = text.encode()
                raws.append(Raw(at, at + len(data) + 1, data))
                at += len(data) + 1
            clock = Clock(written_ns=ns(self.end))
            path = "/shared/slurm-logs/job_4711.out" if form == "job" else f"/var/log/{form}.log"
            for record in records(raws, formats()[form], Context(clock, node)):
                yield Line(
                    record.node, record.time_ns, record.raw, formats()[form].table, record.time_from, record.component,
                    record.fields.get("Rank", ""), path, number, record.offset, record.job,
                )  # fmt: skip

    def diagnosed(self) -> Diagnosis:
        evidence = Evidence(self.job, tuple(self.lines()), self.progress, self.findings, self.dumps)
        return diagnose(evidence, ns(self.end))


PLACES = {"syslog": "var/log/syslog", "slurmctld": "var/log/slurmctld.log", "job": "shared/job_4711.out"}


def spread(wreck: Wreck, folder: Path) -> Path:
    """The files of a wreck, as they lie on machines."""
    for (node, form), rows in wreck.files.items():
        path = folder / "logs" / node / PLACES[form]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(text + "\n" for _, text in sorted(rows, key=lambda row: row[0])))
    return folder / "logs"


def fallen_gpu() -> Wreck:
    """Job 4711 dies when a GPU of gpu02 leaves its bus; a stranger writes terminal escapes and SQL beside it."""
    made = Wreck()
    made.kernel(
        "gpu02", 3000, "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    made.kernel("gpu02", 3001, "acme_widget 0000:4e:00: flux \x1b[31mcapacitor failed'); DROP TABLE Logs; --")
    made.slurmctld(0, "sched: Allocate JobId=4711 NodeList=gpu[01-04] #CPUs=32 Partition=p")
    made.out("[rank5]: step 40 loss 2.31", 10)
    for rank in (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15):
        made.watchdog(rank, 3600)
    made.slurmctld(3600, "_job_complete: JobId=4711 WEXITSTATUS 1")
    made.slurmctld(3600, "_job_complete: JobId=4711 done")
    return made
