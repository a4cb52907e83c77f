"""What of a lab is still on the machine: processes, namespaces, cgroups, mounts, tables, files."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fairlead.base.process import start_ticks
from fairlead.cluster import enter

_KINDS = ("net", "mnt", "pid", "uts", "ipc")
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/freezer")


def processes(name: str) -> list[str]:
    """Processes whose command line ends in the lab's name: its keeper, its anchors and whoever builds them."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            if words[-1] == name and "keeper" in " ".join(words):
                found.append(f"{pid}: {' '.join(words)}")
    return found


def namespaces_of(state) -> set[str]:
    """Namespaces that a standing lab is made of."""
    firsts = [p.pid for p in (state.keeper, *(h.anchor for h in state.hosts)) if p]
    return {name for pid in firsts for name in _namespaces(pid)}


def in_use(namespaces: set[str]) -> set[str]:
    """Those of the namespaces that a process is still in; one that ended and waits to be collected does not count."""
    return {name for pid in _pids() if start_ticks(pid) is not None for name in _namespaces(pid) if name in namespaces}


def left_of(name: str, roots: tuple[str, ...] = ()) -> list[str]:
    """Everything that is left of a lab, in words; empty if nothing is."""
    cgroups = [path for top in _CGROUPS for end in ("", ".*") for path in Path(top).glob(f"fairlead/{name}{end}")]
    places = [*roots, enter.folder(name), *cgroups]
    left = [str(place) for place in map(Path, places) if place.exists()]
    # a whole word: `t12-1` is no part of `t12-10`
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if word.search(line)]
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout
    left += [line for line in tables.splitlines() if "fairlead" in line]
    return left + processes(name)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _namespaces(pid: int) -> Iterator[str]:
    for kind in _KINDS:
        with contextlib.suppress(OSError):
            yield str(Path(f"/proc/{pid}/ns/{kind}").readlink())
