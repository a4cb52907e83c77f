"""What of a lab is still on the machine: processes, namespaces, cgroups, mounts, tables, files."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from fairlead.base.process import start_ticks
from fairlead.cluster import enter


def processes(name: str) -> list[str]:
    """Processes whose command line ends in the lab's name: its keeper, its anchors and whoever builds them."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                words = Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                if words[-1] == name and "keeper" in " ".join(words):
                    found.append(f"{entry}: {' '.join(words)}")
    return found


def namespaces_of(state) -> set[str]:
    """Network and mount namespaces that a standing lab is made of."""
    pids = [p.pid for p in (state.keeper, *(h.anchor for h in state.hosts)) if p]
    found = set()
    for pid in pids:
        for kind in ("net", "mnt", "pid", "uts", "ipc"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
    return found


def in_use(namespaces: set[str]) -> set[str]:
    """Those of the namespaces that some process is still in; one that has ended and waits to be collected does not count."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and start_ticks(int(entry)) is not None:
            for kind in ("net", "mnt", "pid", "uts", "ipc"):
                with contextlib.suppress(OSError):
                    if (name := os.readlink(f"/proc/{entry}/ns/{kind}")) in namespaces:
                        found.add(name)
    return found


def left_of(name: str, roots: tuple[str, ...] = ()) -> list[str]:
    """Everything that is left of a lab, in words; empty if nothing is."""
    left = processes(name)
    left += [root for root in roots if Path(root).exists()]
    left += [str(p) for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu")
             for p in [Path(base, "fairlead", name)] if p.exists()]  # fmt: skip
    left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    left += [str(enter.folder(name))] if enter.folder(name).exists() else []
    left += [
        x
        for x in subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout.split("\n")
        if "fairlead" in x
    ]
    left += [x for x in os.listdir("/run/netns") if name in x] if Path("/run/netns").is_dir() else []
    return left
