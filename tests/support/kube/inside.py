"""Namespaces in which a kubelet does as it likes: mounts, processes and network of its own, gone with one kill.

/run, /var and the kernel settings that a kubelet changes are private there; the file system is the machine's otherwise.
The network has a loopback and `ADDRESS`, and no way out. One port of the machine's loopback leads in.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.processes import DIES_WITH_US, is_gone, until

ADDRESS = "192.0.2.1"
TREES = Path("/sys/fs/cgroup")
_NAME = "fairlead-kube-"
_SETTINGS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
             "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000}  # fmt: skip
"""What a kubelet would write to the kernel (pkg/kubelet/cm, setupKernelTunables); here it finds it as it likes it."""
_BEGIN = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
cd "$ROOT"
for place in run var; do mkdir -p $place; mount --bind $place /$place; done
mkdir -p var/lib/kubelet var/log run/lock
while read -r name value; do
    echo $value >settings/${name##*/}; mount --bind settings/${name##*/} /proc/sys/$name; done <settings/all
ip link set lo up
ip address add $ADDRESS/32 dev lo
touch begun
trap : TERM
"$BUSYBOX" sleep 2147483647 & wait
"""
_RELAY = """
import asyncio, socket, sys
async def pass_on(reader, writer):
    try:
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
async def meet(reader, writer):
    try:
        far = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    except OSError:
        return writer.close()
    await asyncio.gather(pass_on(reader, far[1]), pass_on(far[0], writer))
async def main():
    server = await asyncio.start_server(meet, sock=socket.socket(fileno=int(sys.argv[1])))
    await server.serve_forever()
asyncio.run(main())
"""


class Inside:
    """Made by root; `words` enter it."""

    def __init__(self, root: Path, busybox: Path) -> None:
        self.root = root
        self.cgroup = f"{_NAME}{os.getpid()}"
        (root / "settings").mkdir()
        (root / "settings" / "all").write_text("".join(f"{name} {value}\n" for name, value in _SETTINGS.items()))
        remove_cgroups()
        for tree in _trees():
            (tree / self.cgroup).mkdir(exist_ok=True)
        with (root / "inside.log").open("wb") as log:
            self.holder = subprocess.Popen(
                [
                    *DIES_WITH_US,
                    "unshare",
                    "--fork",
                    "--kill-child",
                    "--pid",
                    "--mount",
                    "--net",
                    "--ipc",
                    "sh",
                    "-c",
                    _BEGIN,
                ],
                env={**os.environ, "ROOT": str(root), "ADDRESS": ADDRESS, "BUSYBOX": str(busybox)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.relays: list[subprocess.Popen[bytes]] = []
        until(lambda: (root / "begun").exists() or self.holder.poll() is not None, 30)
        if not (root / "begun").exists():
            raise RuntimeError(f"no namespaces: {(root / 'inside.log').read_text()}")
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        self.words = ("nsenter", "-t", children[0], "-p", "-m", "-n", "-i", "--")

    def let_in(self, port: int) -> None:
        """Connections to this port of the machine's loopback go to the same port inside."""
        with socket.create_server(("127.0.0.1", port), backlog=128) as door:
            # the socket stays in the network it was made in, the relay connects from the other one
            self.relays.append(
                subprocess.Popen(
                    [*DIES_WITH_US, "nsenter", "-t", self.words[2], "-n", "--",
                     sys.executable, "-I", "-S", "-c", _RELAY, str(door.fileno()), str(port)],
                    pass_fds=[door.fileno()], stdin=subprocess.DEVNULL,
                )
            )  # fmt: skip

    def stop(self) -> None:
        """End everything in it, and the cgroups."""
        begun = int(self.words[2])
        with contextlib.suppress(ProcessLookupError):
            os.kill(begun, signal.SIGKILL)
        assert is_gone(begun), "processes that cannot be killed"  # the kernel lets the first one go as the last
        for process in (*self.relays, self.holder):
            process.kill()
            process.wait()
        assert until(lambda: not remove_cgroups(self.cgroup), 30), "cgroups that cannot be removed"


def remove_cgroups(ours: str = "") -> list[Path]:
    """Take away cgroups of this name, or of runs that were killed; what could not be."""
    left = []
    for tree in _trees():
        for top in tree.glob(f"{_NAME}*"):
            is_dead = not Path("/proc", top.name.removeprefix(_NAME)).exists()
            if top.name == ours or (not ours and is_dead):
                for folder, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):
                        Path(folder).rmdir()
                if top.exists():
                    left.append(top)
    return left


def look() -> tuple[bool, str]:
    """Whether a kubelet of this version can run containers here, and why not."""
    if os.geteuid() != 0:
        return False, "not root"
    lacks = [name for name in ("memory", "cpu", "pids", "devices", "freezer") if not (TREES / name / "tasks").exists()]
    if lacks:
        return False, f"no cgroups of version 1: {', '.join(lacks)}"
    missing = [name for name in ("unshare", "nsenter", "ip", "mount") if not shutil.which(name)]
    return not missing, f"not installed: {', '.join(missing)}" if missing else "cgroups of version 1"


def _trees() -> Iterator[Path]:
    """Every hierarchy of cgroups, of both versions."""
    for tree in TREES.iterdir():
        if (tree / "cgroup.procs").exists() and not tree.is_symlink():
            yield tree
