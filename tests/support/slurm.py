"""A private Slurm on the loopback: its own munge key and socket, ports and folders; gone without a trace at the end.

All nodes are this machine under several names, so they share one network; what needs a network of its own is the lab's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from support.ports import BLOCK, Ports
from support.processes import DIES_WITH_US, until

_CONF = """
ClusterName=fairlead-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=2
InactiveLimit=0
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PlugStackConfig={root}/plugstack.conf
SchedulerParameters=sched_min_interval=50000,batch_sched_delay=0
GresTypes=gpu
NodeName={nodes} NodeAddr=127.0.0.1 NodeHostname={host} Port=[{first_port}-{last_port}] CPUs=4 RealMemory=500{gres}
PartitionName=main Nodes={nodes} Default=YES MaxTime=60 State=UP OverSubscribe=NO
PartitionName=closed Nodes={nodes} MaxTime=60 State=DOWN
"""


class PrivateSlurm:
    """A controller and `number` nodes n1, n2, ..., each with `gpus` device files that are its GPUs."""

    def __init__(self, number: int = 4, gpus: int = 0) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="fl-slurm-", dir="/tmp"))
        self.names = [f"n{i}" for i in range(1, number + 1)]
        self.env = {**os.environ, "SLURM_CONF": str(self.root / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        assert number < BLOCK
        self.ports = Ports()
        first = self.ports.first
        for folder in ("munge", "state"):
            (self.root / folder).mkdir(mode=0o700)
        self.root.chmod(0o755)
        (self.root / "munge").chmod(0o755)
        key = self.root / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.root / "plugstack.conf").write_text("")
        for gpu in range(gpus):  # Slurm wants character devices
            os.mknod(self.root / f"gpu{gpu}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        devices = f"{self.root}/gpu[0-{gpus - 1}]" if gpus > 1 else f"{self.root}/gpu0"
        gres = f"NodeName=n[1-{number}] Name=gpu Type=test File={devices}\n" if gpus else ""
        (self.root / "gres.conf").write_text(f"AutoDetect=off\n{gres}")
        (self.root / "slurm.conf").write_text(
            _CONF.format(
                root=self.root,
                host=socket.gethostname().partition(".")[0],
                control_port=first,
                first_port=first + 1,
                last_port=first + number,
                nodes=f"n[1-{number}]",
                gres=f" Gres=gpu:test:{gpus}" if gpus else "",
            )
        )

    def start(self) -> None:
        """Until every node is idle."""
        munge = self.root / "munge"
        self._start(
            "munged",
            "munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid",
            f"--log-file={munge}/log", f"--seed-file={munge}/seed",
        )  # fmt: skip
        self._until((munge / "socket").exists, "munged")
        self._start("slurmctld", "slurmctld", "-D", "-c", "-f", self.env["SLURM_CONF"])
        for name in self.names:
            self.start_node(name)
        self._until(lambda: self.states() == dict.fromkeys(self.names, "idle"), "the nodes")

    def start_node(self, name: str) -> None:
        """One slurmd."""
        self._start(name, "slurmd", "-D", "-N", name, "-f", self.env["SLURM_CONF"])

    def states(self) -> dict[str, str]:
        """Node to state, as sinfo says."""
        said = self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T")
        return dict(line.split() for line in said.splitlines())

    def ask(self, *argv: str) -> str:
        """What a Slurm command prints."""
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=30).stdout.strip()

    def jobs(self) -> str:
        """What squeue lists."""
        return self.ask("squeue", "-h", "-o", "%i %j %T %N")

    def until_no_jobs(self, limit_s: float = 60) -> None:
        """Wait until the queue is empty."""
        self._until(lambda: not self.jobs() and set(self.states().values()) == {"idle"}, "an empty queue", limit_s)

    def stop(self) -> None:
        """End everything that runs below the folder, remove the folder."""
        self.ask("scancel", "--state=RUNNING,PENDING", "--user=root")
        deadline = time.monotonic() + 20
        while self.jobs() and time.monotonic() < deadline:
            time.sleep(0.1)
        for daemon in self.daemons.values():
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons.values():
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.processes(), 20)
        shutil.rmtree(self.root)
        self.ports.close()

    def processes(self) -> list[int]:
        """Every process that knows this Slurm: by its command line or its environment."""
        found = []
        needle = str(self.root).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if needle in (entry / "cmdline").read_bytes() or needle in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def _start(self, name: str, *argv: str) -> None:
        path = os.pathsep.join([self.env.get("PATH", ""), "/usr/sbin", "/sbin"])
        log = (self.root / f"{name}.out").open("wb")
        self.daemons[name] = subprocess.Popen(
            [*DIES_WITH_US, *argv],
            env={**self.env, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()

    def _until(self, is_so, what: str, limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not is_so():
            if time.monotonic() > deadline:
                logs = "\n".join(f"== {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in self.root.glob("*.*"))
                raise TimeoutError(f"{what} not there after {limit_s} s: {self.states()} {self.jobs()}\n{logs}")
            time.sleep(0.05)
