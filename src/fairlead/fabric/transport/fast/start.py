"""The first start on a machine: one program compiles, others that start meanwhile wait and take what it has made.

Eight ranks of a node, or all nodes that share a home directory, would else compile the same thing at once. Where the
place is shared and locks are not, each compiles for itself: slower, never wrong.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fairlead.base.trust import own_folder
from fairlead.fabric.transport.fast import kernels
from fairlead.fabric.transport.fast.desk import Desk
from fairlead.records.log import tell

LIMIT_S = 300.0
"""The longest wait for another program; then everyone compiles for himself."""
_LOOK_S = 0.1
log = logging.getLogger("fairlead.fabric")


@functools.cache
def prepare() -> bool:
    """Have all that the compiled path runs. True if it had to be compiled now: half a minute of one core."""
    return once(kernels.folder(), str(Path(__file__).parent), _all, _say)


def once(folder: Path, what: str, work: Callable[[], object], say: Callable[[str], object]) -> bool:
    """Do work whose results are kept in a folder, unless it is done; one program at a time. True if it was not done.

    `what` tells one such work from others in that folder. A program that dies at it leaves it to the next.
    """
    try:
        own_folder(folder)
    except OSError as exc:
        say(f"compiling the transport, half a minute, at every start: no place of its own to keep it ({exc})")
        work()
        return True
    mark = folder / f"whole-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    with contextlib.nullcontext() if mark.exists() else _turn(folder, say):
        is_new = not mark.exists()
        if is_new:
            say("compiling the transport for this processor, once per machine: half a minute of one core")
        work()
        if is_new:
            with contextlib.suppress(OSError):  # a full disk, a quota: compiled all the same
                mark.touch(0o600)
        return is_new


@contextlib.contextmanager
def _turn(folder: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Alone in this folder, as far as its file system knows locks; the kernel ends the lock of a program that dies."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = stack.enter_context(os.fdopen(os.open(folder / "lock", flags, 0o600), "rb"))
            end, told = time.monotonic() + LIMIT_S, False
            while time.monotonic() < end:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        say("another program is compiling the transport: waiting for it")
                    told = True
                    time.sleep(_LOOK_S)
        yield


def _all() -> None:
    """Each kernel, compiled or taken from the disk."""
    Desk()
    for kernel in (kernels.fill, kernels.take, kernels.post, kernels.collect, kernels.sort, kernels.go):
        kernel()


def _say(text: str) -> None:
    """A minute of silence would look like a hang, also where nobody listens to the log."""
    tell(log, text)
    sys.stderr.write(f"fairlead: {text}\n")
    sys.stderr.flush()
