"""Faults under a real Slurm, diagnosed from what collectors read while they happened.

slurmctld, slurmd, slurmstepd and srun are the real ones, and write what they write. Lines of parts that no test machine
has (an mlx5 port, an NCCL communicator) are written by the ranks, in forms whose sources stand beside them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import DIES_WITH_US
from support.slurm import PrivateSlurm

pytestmark = [
    pytest.mark.real, pytest.mark.timeout(300), pytest.mark.requires("chdb", "slurm", "munge", "root"),
]  # fmt: skip
FAIRLEAD = [sys.executable, "-m", "fairlead", "logs"]
LIMIT_S = 60.0
MORE_CONF = """
Prolog={root}/prolog
PrologFlags=Alloc
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""
PROLOG = '#!/bin/sh\ntest ! -e "{root}/bad-$SLURMD_NODENAME"\n'
RANK = """
import datetime, os, signal, sys, time
rank, node, root, what = int(os.environ["SLURM_PROCID"]), os.environ["SLURMD_NODENAME"], sys.argv[1], sys.argv[2]
now = lambda: datetime.datetime.now(datetime.timezone.utc)
say = lambda text: print(text, flush=True)
say("step 1 loss 2.5")
def passed_on(text, num=1):  # srun that kills on a bad exit may end before it has passed on what ranks wrote last
    while open(f"{root}/shared/slurm-{os.environ['SLURM_JOB_ID']}.out").read().count(text) < num:
        time.sleep(0.01)
def told(*what):
    sys.__excepthook__(*what)
    passed_on("Traceback")
sys.excepthook = told
def crash():
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(300)
def exception():
    if rank == 2:
        raise KeyError("no such shard")
    time.sleep(300)
def full():
    if rank == 1:
        with open(root + "/full/checkpoint", "wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
    time.sleep(300)
def memory():
    held = bytearray(os.urandom(200 << 20)) if rank == 1 else b""
    time.sleep(300)
def hang():  # NVIDIA/nccl src/init.cc; pytorch ProcessGroupNCCL.cpp
    say(f"{node}:{os.getpid()}:{os.getpid()} [0] NCCL INFO ncclCommInitRank comm 0x55d1 rank {rank} nranks 4 cudaDev 0 "
        "nvmlDev 0 busId a01c0 commId 0xab - Init START")
    time.sleep(1)
    if rank != 2:
        say(f"[rank{rank}]:[E{now():%m%d %H:%M:%S.%f} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=865, NumelOut=865, "
            "Timeout(ms)=600000) ran for 600068 milliseconds before timing out.")
        passed_on("Watchdog caught", 3)
        os.abort()
    time.sleep(300)
def port():  # systemd src/network/networkd-link.c, as rsyslog writes it; NVIDIA/nccl src/transport/net_ib.cc
    say(f"{node}:{os.getpid()}:{os.getpid()} [0] NCCL INFO ncclCommInitRank comm 0x55d1 rank {rank} nranks 4 cudaDev 0 "
        "nvmlDev 0 busId a01c0 commId 0xab - Init START")
    if rank == 1:
        with open(f"{root}/var-{node}/syslog", "a") as file:
            file.write(f"{now().isoformat(timespec='microseconds')} {node} systemd-networkd[812]: ib1: Lost carrier\\n")
    time.sleep(1)
    if rank != 1:
        say(f"{node}:{os.getpid()}:{os.getpid()} [0] transport/net_ib.cc:1279 NCCL WARN NET/IB : Got completion from "
            "peer n2<4420> with error 12, opcode 0, len 0, vendor err 129")
        passed_on("Got completion", 3)
        sys.exit(1)
    time.sleep(300)
def wait():
    time.sleep(300)
globals()[what]()
"""


class Site:
    """A Slurm of four nodes, the owner of a store, and a collector for each node and for the controller."""

    def __init__(self, place: Path, slurm: PrivateSlurm) -> None:
        self.slurm, self.root, self.store = slurm, slurm.root, place / "store"
        self.env = os.environ | {"FAIRLEAD_RUNS": str(place / "runs")}
        self.children: list[subprocess.Popen[bytes]] = []
        owner = self._begin("serve", "--store", self.store, "--listen", "127.0.0.1:0")
        self.url = owner.stderr.readline().decode().split()[0]
        assert self.url.startswith("http://"), self.url
        (self.root / "shared").mkdir()
        self._collect("login", self.root / "slurmctld.log", self.root / "shared" / "*.out")
        for name in slurm.names:
            (self.root / f"var-{name}").mkdir()
            self._collect(name, self.root / f"slurmd-{name}.log", self.root / f"var-{name}" / "*")

    def _begin(self, *words: object) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([*DIES_WITH_US, *FAIRLEAD, *map(str, words)], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, env=self.env)  # fmt: skip
        self.children.append(child)
        return child

    def _collect(self, node: str, *files: Path) -> None:
        self._begin("collect", "--server", self.url, "--token-file", self.store / "serve.token", "--node", node,
                    "--folder", self.store.parent / f"spool-{node}", *files)  # fmt: skip

    def close(self) -> None:
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            child.wait(LIMIT_S)
            child.stderr.close()

    def job(self, what: str, *words: str) -> int:
        """Have four ranks run, one a node; the number of their job."""
        (self.root / "rank.py").write_text(RANK)
        script = self.root / f"{what}.sh"
        script.write_text(
            f"#!/bin/sh\nsrun --kill-on-bad-exit=1 {sys.executable} {self.root}/rank.py {self.root} {what}\n"
        )
        said = self.slurm.ask("sbatch", "--parsable", "--nodes=4", "--ntasks-per-node=1", f"--chdir={self.root}",
                              f"--output={self.root}/shared/slurm-%j.out", *words, str(script))  # fmt: skip
        assert said.isdigit(), said
        return int(said)

    def until(self, is_so, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.2)

    def running(self, job: int) -> None:
        """Wait until all ranks of a job have written a step."""
        out = self.root / "shared" / f"slurm-{job}.out"
        self.until(lambda: out.exists() and out.read_text().count("step 1") == 4)

    def over(self, job: int, limit_s: float = LIMIT_S) -> None:
        """Wait until a job has left the queue."""
        self.until(lambda: not self.slurm.ask("squeue", "-h", "-j", str(job), "-o", "%T"), limit_s)

    def told(self) -> str:
        files = [*self.root.glob("slurm*.log"), *self.root.glob("shared/*.out")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2500:]}" for path in files)

    def diagnosed(self, job: int, what: str, *nodes: str) -> dict:
        """What the owner says of a job once all that was written has arrived, checked."""
        found: dict = {}

        def so() -> bool:
            done = subprocess.run([*FAIRLEAD, "diagnose", str(job), "--store", str(self.store), "--json"],
                                  capture_output=True, text=True, timeout=LIMIT_S, env=self.env)  # fmt: skip
            found.clear()
            found.update(json.loads(done.stdout).get("diagnosis") or {"says": done.stdout})
            return found.get("what") == what and tuple(found.get("nodes", ())) == nodes

        deadline = time.monotonic() + 20
        while not so():
            assert time.monotonic() < deadline, json.dumps(found, indent=1) + self.told()
            time.sleep(0.5)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    slurm = PrivateSlurm(4)
    made = None
    try:
        conf = slurm.root / "slurm.conf"
        text = "".join(line for line in conf.read_text().splitlines(True) if not line.startswith("JobAcctGatherType"))
        text = text.replace("CR_Core\n", "CR_Core_Memory\n")
        conf.write_text(text + MORE_CONF.format(root=slurm.root))
        (slurm.root / "prolog").write_text(PROLOG.format(root=slurm.root))
        (slurm.root / "prolog").chmod(0o755)
        slurm.start()
        made = Site(tmp_path, slurm)
        yield made
    finally:
        if made:
            made.close()
        slurm.stop()
    assert slurm.processes() == []


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of one MiB."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def lose_power(site: Site, node: str) -> None:
    """End slurmd, slurmstepd and tasks of a node at once, those first that would tell of the others."""
    slurmd = site.slurm.daemons[node].pid
    tasks = [pid for pid in site.slurm.processes() if f"\0SLURMD_NODENAME={node}\0".encode() in _file(pid, "environ")]
    parents = {int(_file(pid, "stat").rpartition(b")")[2].split()[1]) for pid in tasks}
    stepds = [pid for pid in parents if b"slurmstepd" in _file(pid, "cmdline")]
    assert stepds
    for pid in [slurmd, *stepds, *tasks]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _file(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def ended(site: Site, what: str, *words: str) -> int:
    job = site.job(what, *words)
    site.over(job)
    return job


def test_ranks_that_crash_raise_and_find_a_full_disk(site: Site) -> None:
    assert site.diagnosed(ended(site, "crash"), "program-error")["at"] == "n2"
    assert site.diagnosed(ended(site, "exception"), "program-error")["at"] == "n3"
    with small_disk(site.root / "full"):
        assert site.diagnosed(ended(site, "full"), "disk-full")["at"] == "n2"  # whose disk it is, no line says


@pytest.mark.slow
def test_a_rank_that_does_not_come_to_a_collective(site: Site) -> None:
    site.diagnosed(ended(site, "hang"), "collective-hang", "n3")


@pytest.mark.slow
def test_a_port_that_goes_down(site: Site) -> None:
    site.diagnosed(ended(site, "port"), "link", "n2")


@pytest.mark.slow
def test_a_rank_beyond_its_memory(site: Site) -> None:
    site.diagnosed(ended(site, "memory", "--mem=80M"), "memory-limit", "n2")


@pytest.mark.slow
def test_a_prolog_that_fails(site: Site) -> None:
    (site.root / "bad-n3").touch()
    job = site.job("wait")
    site.until(lambda: site.slurm.states()["n3"].startswith("drain"))
    site.diagnosed(job, "prolog", "n3")


@pytest.mark.slow
def test_a_node_that_is_killed(site: Site) -> None:
    job = site.job("wait", "--no-requeue")
    site.running(job)
    lose_power(site, "n2")
    site.over(job, 180)
    site.diagnosed(job, "node-lost", "n2")


@pytest.mark.slow
def test_a_time_limit(site: Site) -> None:
    job = site.job("wait", "--time=1")
    site.over(job, 180)
    site.diagnosed(job, "time-limit")
