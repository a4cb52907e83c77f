"""Cgroups of a lab's hosts: freeze, kill and slow down everything in a host at once.

Knows: the files of cgroup v2 and of the v1 `freezer` and `cpu` controllers, alone or side by side (hybrid), and what an
ordinary user may use of them. Must not know: hosts beyond their names, or why one is frozen.

A host gets one directory in each hierarchy that is usable: v2 freezes and kills (core files, no controller needed) and
holds the cpu quota where the cpu controller is delegated; otherwise v1 `cpu` and, without any v2, v1 `freezer` do it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead.errors import NotPermitted

PERIOD_US = 100_000
KEEPER = "_keeper"
"""Where the lab's own process lives; no host can have this name."""


def mounts(proc_mounts: str) -> dict[str, Path]:
    """Where the hierarchies are: `v2`, and the v1 controllers this file uses, from the text of /proc/mounts."""
    found: dict[str, Path] = {}
    for line in proc_mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found.setdefault("v2", Path(place))
        elif kind == "cgroup":
            for controller in {"freezer", "cpu"} & set(options.split(",")):
                found.setdefault(controller, Path(place))
    return found


def choose(lab: str, *, privileged: bool, found: dict[str, Path], own: str) -> list[Path]:
    """The directories a lab will make, one per hierarchy it can use; `own` is the text of /proc/self/cgroup."""
    if not privileged:
        place = _own_v2(found, own)
        return [place / f"fairlead-{lab}"] if place and os.access(place, os.W_OK) else []
    # inside a container they are often there to read only
    usable = {kind: place for kind, place in found.items() if os.access(place, os.W_OK)}
    wanted = ["v2"] if "v2" in usable else ["freezer"]
    if not _controls_cpu(usable.get("v2")):
        wanted.append("cpu")
    return [usable[kind] / "fairlead" / lab for kind in wanted if kind in usable]


def create(roots: Sequence[Path], names: Sequence[str]) -> None:
    """Make a directory for every name below every root."""
    for root in roots:
        while not root.exists():
            with contextlib.suppress(FileExistsError):
                root.parent.mkdir()
            # another lab, until now the last one here, may just have taken the parent away with it
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                root.mkdir()
        for path in (root.parent.parent, root.parent, root):
            _delegate_cpu(path)
        for name in (KEEPER, *names):
            (root / name).mkdir(exist_ok=True)


def dirs(roots: Sequence[Path], name: str) -> tuple[str, ...]:
    """The directories of one host."""
    return tuple(str(root / name) for root in roots)


def remove(roots: Sequence[Path], *, limit_s: float = 10.0) -> list[Path]:
    """Kill what is left in a lab's cgroups and remove them. Returns what could not be removed in time."""
    deadline = time.monotonic() + limit_s
    for root in roots:
        for path in _bottom_up(root):
            _set_frozen(path, frozen=False)
            kill([str(path)])
            while path.exists():
                with contextlib.suppress(OSError):
                    path.rmdir()
                    break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.005)
        with contextlib.suppress(OSError):
            root.parent.rmdir() if root.parent.name == "fairlead" else None
    return [root for root in roots if root.exists()]


def pids(paths: Sequence[str]) -> list[int]:
    """Every process in a host's cgroups, by the machine's numbers."""
    found: set[int] = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found |= {int(word) for word in Path(path, "cgroup.procs").read_text().split()}
    return sorted(found)


def kill(paths: Sequence[str], *, limit_s: float = 10.0) -> None:
    """SIGKILL everything in a host's cgroups, also what forks meanwhile, and wait until it is gone."""
    deadline = time.monotonic() + limit_s
    for path in map(Path, paths):
        while (alive := pids([str(path)])) and time.monotonic() < deadline:
            if (path / "cgroup.kill").exists():
                with contextlib.suppress(FileNotFoundError):
                    (path / "cgroup.kill").write_text("1")
            else:
                for pid in alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)


def freeze(paths: Sequence[str], *, frozen: bool) -> bool:
    """Stop or continue everything in a host's cgroups; False where no cgroup of the host can."""
    done = [_set_frozen(Path(path), frozen=frozen) for path in paths]
    return any(done)


def set_cpu_quota(paths: Sequence[str], percent: float | None) -> None:
    """Hold a host to so many percent of one processor (None: no limit). NotPermitted without a cpu controller."""
    for path in map(Path, paths):
        quota = None if percent is None else max(1000, round(PERIOD_US * percent / 100))
        if (path / "cpu.max").exists():
            (path / "cpu.max").write_text(f"{quota or 'max'} {PERIOD_US}")
            return
        if (path / "cpu.cfs_quota_us").exists():
            (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (path / "cpu.cfs_quota_us").write_text(str(quota or -1))
            return
    if percent is not None:
        raise NotPermitted(
            "lab/no-cpu-cgroup",
            "this lab's hosts have no cgroup that can limit processor time",
            hint="run the lab as root, or inside a scope that has it: systemd-run --user --scope -p Delegate=yes",
        )


def _set_frozen(path: Path, *, frozen: bool) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if (path / "cgroup.freeze").exists():
            (path / "cgroup.freeze").write_text("1" if frozen else "0")
            return True
        if (path / "freezer.state").exists():
            (path / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
            return True
    return False


def _own_v2(found: dict[str, Path], own: str) -> Path | None:
    """This process's own v2 cgroup."""
    name = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    return found["v2"] / name.lstrip("/") if name is not None and "v2" in found else None


def _controls_cpu(v2: Path | None) -> bool:
    return v2 is not None and "cpu" in _read(v2 / "cgroup.controllers").split()


def _delegate_cpu(path: Path) -> None:
    """Let children of a v2 cgroup have cpu quotas, where the controller is there and nobody forbids it."""
    if "cpu" in _read(path / "cgroup.controllers").split():
        with contextlib.suppress(OSError):
            (path / "cgroup.subtree_control").write_text("+cpu")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _bottom_up(root: Path) -> Iterator[Path]:
    if root.is_dir():
        for base, _, _ in os.walk(root, topdown=False):
            yield Path(base)
