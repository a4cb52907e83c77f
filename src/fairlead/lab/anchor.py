"""The first process of a lab host: it makes the host's own view of the machine, then reaps and waits.

Knows: the order of mounts that turn a shared machine into a host of its own. Must not know: the fabric (its network
namespace is there already), other hosts, faults.

A host shares the machine's programs and home directories and owns the rest:

    network, UTS, IPC, PID and mount namespaces of its own, and a cgroup where the lab has any
    one tmpfs of limited size behind /tmp, /run, /mnt (scratch), /var/tmp, /var/log and changes below /etc and /var/lib
    /dev with the usual devices, a /dev/shm of its own, and the GPUs and HCAs it shows
    /proc and /sys of its own namespaces, with the host's tree of facts laid over them (TREE_OVERLAYS)

Writable overlays carry the facts, so that a fault is an edit of a file and nothing in fairlead knows of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fairlead.base.process import start_ticks
from fairlead.base.trust import beneath
from fairlead.lab import hosttree
from fairlead.lab import syscalls as sc
from fairlead.lab.hosttree import TREE_BINDS, TREE_OVERLAYS

PRIVATE = (("tmp", 0o1777), ("run", 0o755), ("mnt", 0o1777), ("var/tmp", 0o1777), ("var/log", 0o755))
"""Directories backed by the host's own tmpfs."""

CHANGED = ("etc", "var/lib")
"""Directories of the machine that a host sees, and changes for itself alone."""

MOUNT_SOURCE = "fairlead"
"""What mounts that are a host's own show as their source; see faults/hostfiles.py."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)
_STAGE = Path("/tmp")  # noqa: S108 - the host's own tmpfs stands here while it is being furnished


def start(host: dict[str, Any], *, keep: int = -1) -> tuple[int, int]:
    """Fork a host's first process. Returns (a pipe that will say how it went, the pid of the process between).

    The file `keep` stays open in it: whoever waits for the lab's end waits for that to close.
    """
    ready, writer = os.pipe()
    between = os.fork()
    if between:
        os.close(writer)
        return ready, between
    os.close(ready)
    try:
        for path in host["cgroups"]:
            Path(path, "cgroup.procs").write_text("0")
        sc.enter(host["netns"], sc.CLONE_NEWNET)
        sc.unshare(sc.CLONE_NEWPID | sc.CLONE_NEWNS | sc.CLONE_NEWUTS | sc.CLONE_NEWIPC)
        if os.fork() == 0:
            _be_the_host(host, writer, keep)
    except OSError as error:
        _tell(writer, {"error": {"line": str(error.filename or "fork"), "detail": error.strerror or str(error)}})
    os._exit(0)


def await_ready(ready: int, between: int) -> dict[str, Any]:
    """What the host said: its pid on the machine and when it began, or an error."""
    with os.fdopen(ready, "rb") as pipe:
        raw = pipe.read()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(between, 0)
    silent = {"error": {"line": "start", "detail": "its first process ended without a word"}}
    return dict(json.loads(raw)) if raw else silent


def reap_forever() -> NoReturn:
    """The duty of a first process: collect every child that ends. SIGCHLD must be blocked."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait({signal.SIGCHLD})


def _be_the_host(host: dict[str, Any], writer: int, keep: int) -> NoReturn:
    try:
        pid = int(Path("/proc/self").readlink().name)
        started = start_ticks(pid)
        furnish(host)
    except OSError as error:
        _tell(writer, {"error": {"line": str(error.filename or "furnish"), "detail": error.strerror or str(error)}})
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _tell(writer, {"pid": pid, "start": started})
    for fd in range(3, 256):
        if fd != keep:
            with contextlib.suppress(OSError):
                os.close(fd)
    reap_forever()


def _tell(writer: int, answer: dict[str, Any]) -> None:
    os.write(writer, json.dumps(answer).encode())
    os.close(writer)


def furnish(host: dict[str, Any]) -> None:
    """Make the mounts of a host, in this process's mount namespace. Raises OSError naming the path."""
    sc.mount("none", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
    sc.sethostname(host["name"])
    # what the machine shows is opened and read before the host's own mounts hide it
    shares = [(path, os.open(path, os.O_PATH)) for path in host["shares"] if _is_hidden(path) and Path(path).is_dir()]
    files = hosttree.captured(host["facts"]) if host["facts"] else hosttree.generated(host["shows"])
    sc.mount(MOUNT_SOURCE, _STAGE, "tmpfs", flags=sc.MS_NOSUID, data=f"mode=755,size={host['scratch_mib']}m")
    tree = _write_tree({**files, **host["files"]}, host["private"])
    for name, mode in PRIVATE:
        (_STAGE / name).mkdir(parents=True, exist_ok=True)
        (_STAGE / name).chmod(mode)
    _devices(host["devices"])
    sc.mount("proc", "/proc", "proc", flags=sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
    _sysfs()
    for name in CHANGED:
        _overlay(name)
    for name in TREE_OVERLAYS:
        if (tree / name).is_dir():
            _overlay(name)
    for name in TREE_BINDS:
        if (tree / name).is_dir():
            sc.bind(tree / name, f"/{name}")
    _bind_files(tree)
    for name, _ in [*PRIVATE[1:], PRIVATE[0]]:  # /tmp last: it hides the stage
        sc.bind(_STAGE / name, f"/{name}")
    for path, fd in shares:
        # a directory of the machine stays in sight below a mount that would hide it
        Path(path).mkdir(parents=True, exist_ok=True)
        sc.bind(f"/proc/self/fd/{fd}", path, recursive=True)


def _is_hidden(path: str) -> bool:
    return any(Path(path).is_relative_to(f"/{name}") for name in ("var/lib", *dict(PRIVATE)))


def _write_tree(files: hosttree.Tree, private: Sequence[str]) -> Path:
    """Put the host's facts and its own files below the stage, which are the upper sides of the overlays.

    A path that ends in a slash is a directory. Nothing is written through a link of the tree. Raises OSError.
    """
    stage = os.open(_STAGE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for path, content in files.items():
        backed = any(path.startswith(f"{name}/") for name, _ in PRIVATE)
        place = path if backed else f"upper/{path}"
        with beneath(stage, f"{place}any" if path.endswith("/") else place, make=True) as (folder, name):
            if path.endswith("/"):
                continue
            if isinstance(content, str) and content.startswith(hosttree.LINK):
                os.symlink(content.removeprefix(hosttree.LINK), name, dir_fd=folder)
                continue
            mode = 0o600 if path in private else 0o755 if path.startswith(f"{hosttree.BIN}/") else 0o644
            fd = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder
            )
            with os.fdopen(fd, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                os.fchmod(fd, mode)
    os.close(stage)
    return _STAGE / "upper"


def _overlay(name: str) -> None:
    """Lay the host's part of a directory over the machine's; what is written lands in the host's tmpfs."""
    upper, work = _STAGE / "upper" / name, _STAGE / "work" / name
    upper.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True)
    # userxattr: the marks of an overlay in the name space an ordinary user may write
    sc.mount(MOUNT_SOURCE, f"/{name}", "overlay", data=f"lowerdir=/{name},upperdir={upper},workdir={work},userxattr")


def _bind_files(tree: Path) -> None:
    """Single files below /proc and /sys that exist on the machine and that the tree gives another content."""
    for top in ("proc", "sys"):
        for path in _files_below(tree / top):
            name = path.relative_to(tree).as_posix()
            target = Path("/", name)
            if not name.startswith((*TREE_OVERLAYS, *TREE_BINDS)) and target.is_file() and not path.is_symlink():
                sc.bind(path, target)


def _files_below(folder: Path) -> Iterable[Path]:
    for base, _, names in os.walk(folder):
        for name in names:
            yield Path(base, name)


def _devices(shown: Sequence[str]) -> None:
    """A /dev of the host's own. Its files are the machine's, bound: an ordinary user may not make device files."""
    dev = _STAGE / "dev"
    dev.mkdir()
    for name in _DEVICES:
        (dev / name).touch()
        sc.bind(f"/dev/{name}", dev / name)
    for name in shown:
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).touch()
        sc.bind("/dev/null", dev / name)
    for name, target in _DEVICE_LINKS:
        (dev / name).symlink_to(target)
    for name, mode in (("shm", 0o1777), ("pts", 0o755), ("mqueue", 0o1777)):
        (dev / name).mkdir()
        (dev / name).chmod(mode)
    sc.bind(dev, "/dev", recursive=True)
    sc.mount(
        "devpts", "/dev/pts", "devpts", flags=sc.MS_NOSUID | sc.MS_NOEXEC, data="newinstance,ptmxmode=0666,mode=0620"
    )


def _sysfs() -> None:
    """The /sys of this network namespace, keeping the machine's cgroup tree where it was."""
    kept = os.open("/sys/fs/cgroup", os.O_PATH) if Path("/sys/fs/cgroup").is_dir() else None
    sc.mount("sysfs", "/sys", "sysfs", flags=sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
    if kept is not None:
        sc.bind(f"/proc/self/fd/{kept}", "/sys/fs/cgroup", recursive=True)
        os.close(kept)
