"""A real systemd as the first process of namespaces of its own, with no unit but those a test starts.

It shares the machine's files, so what a distribution would start at boot is hidden from it: its directories of units
hold a few empty targets. Its processes are in a cgroup of their own, and all of it goes when `stop` is called. Cgroup
controllers that it has no cgroup of its own in are hidden as well: it removes every empty cgroup it sees.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

SYSTEMD = Path("/usr/lib/systemd/systemd")
TREES = [
    p for p in (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if p.is_dir()
]
_BEGIN = """
set -e
for tree in $TREES; do mkdir -p $tree/$NAME; echo $$ >$tree/$NAME/cgroup.procs; done
exec unshare --fork --kill-child --pid --mount --uts --ipc --cgroup sh -c '
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
for tree in /sys/fs/cgroup/*; do
    case " $TREES " in *" $tree "*) continue ;; esac
    if [ ! -L $tree ] && mountpoint -q $tree; then umount $tree; fi; done
for place in /usr/lib/systemd/system /etc/systemd/system /var/lib/fairlead-test; do
    mkdir -p $place; mount -t tmpfs tmpfs $place; done
for unit in sysinit basic multi-user shutdown; do
    printf "[Unit]\\nDescription=%s\\nDefaultDependencies=no\\n" $unit >/usr/lib/systemd/system/$unit.target; done
printf "[Unit]\\nDescription=exit\\nDefaultDependencies=no\\n" >/usr/lib/systemd/system/exit.target
export container=fairlead-test
exec /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=null --show-status=no
'
"""


class PrivateSystemd:
    """Start it, enter it, end it."""

    def __init__(self) -> None:
        self.name = f"fairlead-test-{os.getpid()}"
        self.trees = [t for t in TREES if (t / "cgroup.procs").exists()]
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self) -> None:
        env = dict(os.environ, NAME=self.name, TREES=" ".join(map(str, self.trees)))
        self.process = subprocess.Popen(["sh", "-c", _BEGIN], env=env, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "systemd did not come up"
            self.pid = next((p for p in _below(self.process.pid) if _name(p) == "systemd"), 0)
            if self.pid and self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"):
                return
            time.sleep(0.1)
        raise TimeoutError("systemd did not come up")

    def enter(self) -> list[str]:
        """What stands before a command that runs inside."""
        return ["nsenter", "-t", str(self.pid), "-p", "-m", "-u", "-i", "-C", "--"]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.enter(), *argv], capture_output=True, text=True, timeout=30)

    def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self.process.pid, 9)
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + 10
        for tree in self.trees:
            top = tree / self.name
            while top.exists() and time.monotonic() < deadline:
                for folder, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):
                        Path(folder).rmdir()
                time.sleep(0.05)


def _below(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *_below(int(child))]
    return found


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
