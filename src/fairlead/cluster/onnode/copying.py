"""One file received or sent by the program on a node, checked, within the time limit."""

# pathlib would cost 8 ms a node
# ruff: noqa: PTH103, PTH104, PTH108, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import signal
import time

from fairlead.cluster.onnode.frames import MAX_LIMIT_S, Out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO


def receive(job: dict[str, Any], stdin: BinaryIO) -> None:
    """Write the file that follows: beside its place, checked, flushed, renamed. Leaves all of it or nothing."""
    import fcntl
    import hashlib

    folder, name = os.path.split(job["target"])
    os.makedirs(folder, exist_ok=True)
    prefix = f".{name}.fairlead-"
    for leftover in os.listdir(folder):  # of a copy that was killed; one that lives holds its lock
        if leftover.startswith(prefix):
            with contextlib.suppress(OSError):  # a neighbour's pipe or link of that name is not waited for
                path = os.path.join(folder, leftover)
                with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as old:
                    fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
    while True:
        temporary = os.path.join(folder, f"{prefix}{os.getpid()}-{time.time_ns()}")
        file = open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            break
        file.close()  # another copy took it for a leftover before it was locked
    with file:
        try:
            digest = hashlib.sha256()
            left = job["size"]
            while left:
                data = stdin.read(min(left, 1 << 20))
                if not data:
                    break
                digest.update(data)
                file.write(data)
                left -= len(data)
            if stdin.read(64).decode() != digest.hexdigest():
                raise EOFError("It did not arrive whole")  # noqa: TRY301
            file.flush()
            os.fchmod(file.fileno(), job["mode"])
            os.fsync(file.fileno())
            os.rename(temporary, job["target"])
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def send(job: dict[str, Any], out: Out) -> str:
    """Send one regular file; returns its digest."""
    import hashlib
    import stat

    # O_NONBLOCK: a FIFO without a writer would hold open() up
    with open(os.open(job["source"], os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("Not a regular file")
        digest = hashlib.sha256()
        num_bytes = 0
        while True:
            data = file.read(1 << 18)
            if not data:
                return digest.hexdigest()
            num_bytes += len(data)
            if num_bytes > job["max_bytes"]:
                raise ValueError(f"Larger than the {job['max_bytes']} bytes allowed")
            digest.update(data)
            out.send(b"d", data)


def copy(job: dict[str, Any], stdin: BinaryIO, out: Out) -> None:
    """Receive or send within the time limit; a fault becomes a sentence."""
    out.lost = lambda: os._exit(1)

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, min(job["limit_s"], MAX_LIMIT_S))
    try:
        if job["do"] == "receive":
            receive(job, stdin)
            out.end(rc=0)
        else:
            out.end(rc=0, sha256=send(job, out))
    except TimeoutError:
        out.end(rc=1, stopped="limit")
    except (OSError, EOFError, ValueError) as exc:
        path = job.get("target") or job.get("source")
        out.end(rc=1, error=f"{path}: {getattr(exc, 'strerror', None) or exc}")
