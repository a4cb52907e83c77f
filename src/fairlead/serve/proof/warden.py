"""The process that holds a proof: makes the namespaces, starts the server in them, hears of its calls, asks it
questions.

    warden              network and mount namespace of its own (a user namespace too, for an ordinary user)
    └─ holder           makes the PID namespace, and waits
       └─ first         process 1 of it: takes the filter on, starts the server, reaps; its end is the end of all
          └─ server     the command, and whatever it starts

If any of the first three dies, however, the kernel ends what is below. Run as `python -m`, with a Setup on standard
input; a Record, or a Trouble, on standard output.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TextIO

import msgspec

from fairlead.base.trust import PRIVATE_FILE
from fairlead.lab import syscalls as sc
from fairlead.serve.proof import seccomp
from fairlead.serve.proof.asking import questions, wait_up
from fairlead.serve.proof.names import NameServer
from fairlead.serve.proof.record import Record, Setup, Trouble
from fairlead.serve.proof.witness import Witness

_UP, _GET_FLAGS, _SET_FLAGS = 0x1, 0x8913, 0x8914
_ANSWER_S = 120.0
_MAX_SETUP = 1 << 20


def main() -> None:
    """The warden's life."""
    sc.die_with_parent()
    setup = msgspec.json.decode(sys.stdin.buffer.readline(_MAX_SETUP), type=Setup)
    if os.getppid() != setup.parent:
        return  # whoever asked was killed before the wish above could take effect
    step = ""
    try:
        step = "namespaces"
        if not sc.has_sys_admin():
            _user_namespace()
        sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWNET)
        step = "mounts"
        _mounts(Path(setup.scratch))
        step = "loopback"
        _loopback_up()
        step = "server"
        said: Record | Trouble = _watched(setup, *_held(setup))
    except OSError as error:
        said = Trouble(step=step, why=f"{error.filename or ''} {error.strerror or error}".strip())
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")


def _watched(setup: Setup, first: int, to_first: int, from_first: TextIO) -> Record | Trouble:
    witness, began = Witness(setup.allowed), time.monotonic()
    NameServer(witness.query)
    kind, _, value = from_first.readline().partition(" ")
    if kind != "listener":
        return Trouble(step="filter", why=value.strip() or "it ended")
    listener = seccomp.taken(first, int(value))
    witness.begin(began)
    threading.Thread(target=seccomp.listen, args=(listener, witness.call), daemon=True).start()
    os.write(to_first, b"go\n")
    ended = threading.Event()
    status = list[int]()
    failed = list[str]()

    def hear() -> None:
        for line in from_first:
            what, _, rest = line.partition(" ")
            status.extend([int(rest)] if what == "ended" else [])
            failed.extend([rest.strip()] if what == "failed" else [])
        ended.set()

    threading.Thread(target=hear, daemon=True).start()
    is_over: Callable[[], bool] = lambda: bool(status) or ended.is_set()  # noqa: E731
    model = wait_up(setup.url, setup.patience_s, is_over)
    ready_s = time.monotonic() - began
    asked = questions(setup.url, model, _ANSWER_S) if model else []
    watch_from = time.monotonic()
    while model and time.monotonic() - watch_from < setup.watch_s and not is_over():
        time.sleep(0.1)
    watched_s = time.monotonic() - watch_from
    own = status[0] if status else None
    with contextlib.suppress(OSError):
        os.write(to_first, b"end\n")
    ended.wait(setup.grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)
    ended.wait(5)
    if failed:
        return Trouble(step="start", why=failed[0])
    attempts, left_out = witness.attempts()
    return Record(
        attempts=attempts, left_out=left_out, model=model, ready_s=round(ready_s, 3), asked=tuple(asked),
        watched_s=round(watched_s, 3), status=own, no_route=no_route(),
    )  # fmt: skip


# ---- below the warden ------------------------------------------------------------------------------------------------


def _held(setup: Setup) -> tuple[int, int, TextIO]:
    """Start the holder and the first process: (its number as we know it, a pipe to it, what it says)."""
    go_read, go_write = os.pipe()
    say_read, say_write = os.pipe()
    holder = os.fork()
    if holder == 0:
        os.close(go_write)
        os.close(say_read)
        _hold(setup, go_read, say_write)
    os.close(go_read)
    os.close(say_write)
    said = os.fdopen(say_read, "r", encoding="utf-8", errors="backslashreplace")
    kind, _, value = said.readline().partition(" ")
    if kind != "first":
        raise OSError(0, value.strip() or "the holder ended")
    return int(value), go_write, said


def _hold(setup: Setup, go: int, say: int) -> NoReturn:
    sc.die_with_parent()
    try:
        sc.unshare(sc.CLONE_NEWPID)
        ready, known = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(known)
            sc.die_with_parent()
            os.read(ready, 1)
            os.close(ready)
            _first(setup, go, say)
        os.close(ready)
        _say(say, f"first {first}")
        os.close(known)
        os.close(say)
        os.waitpid(first, 0)
    except OSError as error:
        _say(say, f"failed {error.strerror}")
    os._exit(0)


def _first(setup: Setup, go: int, say: int) -> NoReturn:
    """Process 1. The server starts when the warden hears of calls; it ends when asked, and all with it."""
    try:
        sc.unshare(sc.CLONE_NEWNS)
        sc.mount("proc", "/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
        listener = seccomp.install()
        _say(say, f"listener {listener}")
        if os.read(go, 64) != b"go\n":
            os._exit(1)
        os.close(listener)
        server = os.fork()
    except OSError as error:
        _say(say, f"failed {error.filename or ''} {error.strerror}")
        os._exit(1)
    if server == 0:
        _become(setup, say)
    _reap(server, go, say)


def _become(setup: Setup, say: int) -> NoReturn:
    try:
        os.setsid()
        log = os.open(setup.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE_FILE)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.set_inheritable(say, False)
        os.closerange(3, say)
        os.closerange(say + 1, 1 << 16)
        os.execvp(setup.command[0], setup.command)  # noqa: S606
    except OSError as error:
        _say(say, f"failed {setup.command[0]}: {error.strerror}")
    os._exit(127)


def _reap(server: int, go: int, say: int) -> NoReturn:
    """Wait for the server and for orphans; a word on `go`, or its end, asks the server to end."""
    is_asked = False
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == server:
            _say(say, f"ended {os.waitstatus_to_exitcode(status)}")
            os._exit(0)  # its children end with process 1
        if pid:
            continue
        if not is_asked and select.select([go], [], [], 0.05)[0]:
            is_asked = True
            os.kill(server, signal.SIGTERM)
        elif is_asked:
            time.sleep(0.05)


def _say(say: int, line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(say, line.encode("utf-8", "backslashreplace") + b"\n")


# ---- the namespaces --------------------------------------------------------------------------------------------------


def _user_namespace() -> None:
    """A user namespace in which this user keeps its number: what it starts is as unprivileged as it was."""
    uid, gid = os.geteuid(), os.getegid()
    sc.unshare(sc.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _mounts(scratch: Path) -> None:
    """Names are asked of our own name server; this host's name is the loopback."""
    sc.mount("none", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
    name = socket.gethostname()
    texts = {
        "/etc/resolv.conf": "nameserver 127.0.0.1\noptions attempts:1 timeout:2\n",
        "/etc/hosts": f"127.0.0.1 localhost\n::1 localhost\n127.0.0.1 {name}\n",
    }
    for path, text in texts.items():
        if Path(path).is_file():
            own = scratch / Path(path).name
            own.write_text(text)
            sc.bind(own, Path(path).resolve())


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = bytearray(struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(sock, _GET_FLAGS, asked)
        (flags,) = struct.unpack_from("h", asked, 16)
        fcntl.ioctl(sock, _SET_FLAGS, bytearray(struct.pack("16sh22x", b"lo", flags | _UP)))


def no_route(folder: Path = Path("/proc/self/net")) -> int:
    """Packets without a route, as this namespace counts them (RFC 4293, ipSystemStatsOutNoRoutes)."""
    found = 0
    with contextlib.suppress(OSError, ValueError):
        names, values = [line.split() for line in (folder / "snmp").read_text().splitlines() if line.startswith("Ip:")]
        found += int(values[names.index("OutNoRoutes")])
    with contextlib.suppress(OSError, ValueError):
        rows = dict(line.split() for line in (folder / "snmp6").read_text().splitlines())
        found += int(rows["Ip6OutNoRoutes"])
    return found


if __name__ == "__main__":
    main()
