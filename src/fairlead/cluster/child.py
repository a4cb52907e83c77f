"""A local process with its pipes on the event loop: read as fast as asked, written as fast as taken, ended for certain.

Knows nothing of nodes. asyncio's own subprocess waits for its pipes, which a stray grandchild may hold open for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairlead.base.units import size
from fairlead.cluster.onnode.processes import descendants, signal_all
from fairlead.errors import ClusterError

CHUNK = 1 << 16
"""What a pipe holds, unless somebody made it larger (pipe(7))."""
MAX_CAPTURED = 64 << 20
"""Bytes of one answer: `scontrol show node` says less than 2 KiB of a node, so that tens of thousands fit."""
_REAP_S = 0.1
_unreaped: list[subprocess.Popen[bytes]] = []
"""Killed, or about to end, and not ended yet: the kernel holds some (a frozen cgroup, a device), a busy machine others.
They are looked at again with each child."""


class Child:
    """One process in a session of its own, so that a terminal's Ctrl-C does not reach it. Close it, always."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start it. Raises OSError where it cannot be started."""
        _unreaped[:] = [process for process in _unreaped if process.poll() is None]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
            bufsize=0,
        )
        self._loop = asyncio.get_running_loop()
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._open = {pipe.fileno(): pipe for pipe in pipes if pipe}
        self.stdin, self.stdout, self.stderr = self._open
        self._readers: dict[int, asyncio.Future[None]] = {}
        """Who waits for which pipe; it stays watched between two reads, which counts with a thousand children."""
        self._watched: set[int] = set()
        self._came: dict[int, bytes] = {}
        for fd in self._open:
            os.set_blocking(fd, False)

    async def read(self, fd: int) -> bytes:
        """The next piece of `stdout` or `stderr`; empty at its end. Nothing is lost if cancelled."""
        while fd not in self._came:
            if fd not in self._open:
                raise BrokenPipeError
            self._readers[fd] = ready = self._loop.create_future()
            if fd not in self._watched:
                self._loop.add_reader(fd, self._readable, fd)
                self._watched.add(fd)
            await ready
        return self._came.pop(fd)

    def _readable(self, fd: int) -> None:
        waiting = self._readers.pop(fd, None)
        if waiting is None or waiting.done():  # nobody wants more now
            self._loop.remove_reader(fd)
            self._watched.discard(fd)
            return
        with contextlib.suppress(BlockingIOError):
            self._came[fd] = os.read(fd, CHUNK)
        waiting.set_result(None)

    async def write(self, data: bytes) -> None:
        """All of it to standard input. Raises BrokenPipeError where nobody reads."""
        view = memoryview(data)
        while view:
            if self.stdin not in self._open:
                raise BrokenPipeError
            try:
                view = view[os.write(self.stdin, view) :]
            except BlockingIOError:
                await self._until_writable()

    def end_input(self) -> None:
        """Close standard input, also under a write that waits."""
        self._close(self.stdin)

    async def wait(self, limit_s: float) -> int | None:
        """The exit status, None if it still runs at the limit."""
        deadline = self._loop.time() + limit_s
        delay = 0.001
        while (rc := self._process.poll()) is None and self._loop.time() < deadline:
            await asyncio.sleep(delay)
            delay = min(2 * delay, 0.05)
        return rc

    def close(self) -> None:
        """Let go of the pipes; a process that still runs is killed with everything below it. Never awaits."""
        for fd in list(self._open):
            self._close(fd)
        if self._process.poll() is None:
            kill_tree(self._process.pid)
            deadline = time.monotonic() + _REAP_S
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            let_go(self._process)

    def _close(self, fd: int) -> None:
        pipe = self._open.pop(fd, None)
        if pipe:
            # the number may be another child's in a moment: nobody may still watch it
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._watched.discard(fd)
            pipe.close()

    async def _until_writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self.stdin, _settle, ready)
        try:
            await ready
        finally:
            if self.stdin in self._open:
                self._loop.remove_writer(self.stdin)


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process no longer; once it has ended, it is no zombie of ours."""
    if process.poll() is None:
        _unreaped.append(process)


class Captured(NamedTuple):
    """What a short local command said; `rc` is None where it ran into its limit or could not be started."""

    rc: int | None
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The last thing it complained of; empty where it did not."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else ""


async def capture(argv: Sequence[str], *, limit_s: float, env: Mapping[str, str] | None = None) -> Captured:
    """Run a short local command to its end. Raises ClusterError (`cluster/endless`) where it says too much."""
    try:
        child = Child(argv, env)
    except OSError as exc:
        return Captured(None, "", f"cannot start `{argv[0]}`: {exc.strerror}")
    heard: dict[int, bytearray] = {child.stdout: bytearray(), child.stderr: bytearray()}

    async def hear(fd: int) -> None:
        while data := await child.read(fd):
            heard[fd] += data
            if len(heard[fd]) > MAX_CAPTURED:
                said = f"`{argv[0]}` said more than {size(MAX_CAPTURED)} and was ended"
                raise ClusterError("cluster/endless", said, hint=shlex.join(argv))

    rc = None
    try:
        child.end_input()
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*(hear(fd) for fd in heard))
            rc = await child.wait(limit_s)
    except TimeoutError:
        heard[child.stderr] += f"no answer from `{argv[0]}` within {limit_s:g} s".encode()
    finally:
        child.close()
    out, err = (bytes(said).decode("utf-8", "backslashreplace").strip() for said in heard.values())
    return Captured(rc, out, err)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _below(pid: int) -> list[int]:
    """Every process below one; many are asked for at once, so the kernel's own list of children is asked first."""
    found, queue = list[int](), [pid]
    while queue:
        place = Path(f"/proc/{queue.pop()}/task")
        for task in _names(place):
            try:
                children = [int(word) for word in (place / task / "children").read_text().split()]
            except FileNotFoundError:
                if not (place / task).exists():
                    continue  # it has ended
                return descendants(pid)  # a kernel without CONFIG_PROC_CHILDREN
            except OSError:
                continue
            found += children
            queue += children
    return found


def _names(place: Path) -> list[str]:
    """What a directory of /proc lists; nothing of a process that ends meanwhile, where Path.glob raises before 3.13."""
    try:
        return os.listdir(place)  # noqa: PTH208
    except OSError:
        return []


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and everything below it; all are frozen first, so that none forks on the way."""
    frozen: set[int] = set()
    while found := {pid, *_below(pid)} - frozen:
        signal_all(list(found), signal.SIGSTOP)
        frozen |= found
    signal_all(list(frozen), signal.SIGKILL)
