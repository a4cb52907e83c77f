"""One conversation with one node: start the wrapped program, send it a job, hear it out, and end it whatever happens.

Knows the frames and the clock. What a job means, and how many go on at once, is the engine's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.base.program import Program
from fairlead.base.units import duration
from fairlead.cluster.backend import Backend
from fairlead.cluster.child import Child
from fairlead.cluster.onnode.frames import CHUNK, END, FRAME, MAGIC
from fairlead.cluster.onnode.guard import GRACE_S, WINDOW_BYTES
from fairlead.cluster.protocol import Command, Refusal, State
from fairlead.errors import ClusterError, MissingTool
from fairlead.records.border import Breach

STOP_S = GRACE_S + 2.6
"""From asking a node to stop, at its limit or after an interrupt, until the connection itself is cut: a far or busy one
is heard out, so that what was stopped is known to be, and how it ended. A second interrupt waits for nobody."""
_LAST_WORDS_S = 0.5
_NOISE_BYTES = 1 << 14
_MAX_FRAME = 1 << 20
UNBOUNDED = 1 << 62
"""For `keep_bytes`: the node sends everything."""
_PARTS = (
    "fairlead.cluster.channel",
    *(f"fairlead.cluster.onnode.{n}" for n in ("frames", "processes", "copying", "guard")),
)
OnFrame = Callable[[bytes, int, bytes], None]


@functools.cache
def guard() -> Program:
    """The program that every conversation begins with."""
    return Program.of("fairlead", *_PARTS)


class Garbled(Exception):
    """What arrives cannot be what the program sent."""


class Frames:
    """Bytes in, frames out. What a login script prints before the first frame is kept as noise."""

    def __init__(self) -> None:
        self.noise = b""
        self._buffer = bytearray()
        self._synced = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """The frames that `data` completes: (kind, rank, payload). Raises Garbled."""
        self._buffer += data
        if not self._synced:
            before, magic, after = bytes(self._buffer).partition(MAGIC)
            if not magic:
                self.noise = before[-_NOISE_BYTES:]
                del self._buffer[:-_NOISE_BYTES]
                return
            self.noise, self._buffer, self._synced = before[-_NOISE_BYTES:], bytearray(after), True
        start = 0
        while len(self._buffer) - start >= FRAME.size:
            kind, rank, length = FRAME.unpack_from(self._buffer, start)
            end = start + FRAME.size + length
            if length > _MAX_FRAME or not kind.isalpha() or self._buffer[end : end + 1] not in (b"", END):
                raise Garbled
            if len(self._buffer) <= end:
                break
            yield kind, rank, bytes(self._buffer[start + FRAME.size : end])
            start = end + 1
        del self._buffer[:start]


@dataclass
class Ending:
    """How a conversation went."""

    limit_s: float = 0.0
    here: bool = False
    """The program spoke: the node was reached."""
    whole: bool = False
    """It said that all has ended."""
    cut: str = ""
    """`limit` or `cancelled` where this side ended it."""
    rc: int | None = None
    """Exit status of the wrapped command."""
    said: str = ""
    """What the way itself printed: ssh's complaints, a login script's noise."""
    refusal: Refusal | None = None
    """Why the program never spoke, where it did not."""
    breach: Breach | None = None
    """What it sent that no program of ours sends; then it was heard no more."""
    duration_s: float = 0.0


@dataclass
class Talk:
    """One conversation with a node: reached within its patience from `since_s` on, then `limit_s` for what it does.

    Times are the loop's clock. Whoever asks for a command's two seconds means the command: a login that is slow, or a
    busy machine at this end, is no fault of it.
    """

    backend: Backend
    node: str
    python: str
    limit_s: float
    since_s: float
    is_given_up: bool = False
    """When cancelled, it is not heard out."""
    ending: Ending = field(default_factory=Ending)
    """How it goes so far."""

    async def hold(
        self,
        job: Mapping[str, Any],
        body: AsyncIterable[bytes] | None,
        on_frame: OnFrame,
        *,
        on_here: Callable[[], None] = lambda: None,
        when_wanted: Callable[[], Awaitable[object]] | None = None,
        in_container: bool = False,
    ) -> Ending:
        """Have the job done. Returns at the end, also when cancelled: the ending then says so.

        No more is read from the node before `when_wanted` returns, if it is given.

        Raises MissingTool or ClusterError where the way itself cannot be started, and what `body` or `on_frame` raise,
        but for a Breach: it ends the conversation, and the ending holds it.
        """
        loop = asyncio.get_running_loop()
        ending = self.ending = Ending(self.limit_s)
        child = self._start(self.backend.wrap_contained if in_container else self.backend.wrap)
        said = bytearray()
        # the node's own limit is for the case that nobody is left to enforce this one
        window = _Window() if job.get("live") else None
        sending = asyncio.create_task(_send(child, {**job, "limit_s": self.limit_s + STOP_S}, body, window))
        hearing = asyncio.create_task(_hear(child, said))
        clock = asyncio.timeout_at(self.since_s + self.reach_s)

        def reached() -> None:
            clock.reschedule(loop.time() + self.limit_s)
            on_here()

        listener = _Listener(child, ending, on_frame, reached, when_wanted, window, len(job.get("env", (None,))))
        try:
            try:
                async with clock:
                    await listener.listen()
                    if not ending.here:
                        await asyncio.wait([hearing], timeout=_LAST_WORDS_S)
                    ending.rc = await child.wait(_LAST_WORDS_S)
            except Breach as breach:
                ending.breach = breach
            except Garbled:
                said += b"\nsomething on the way changes the bytes that pass"
            except TimeoutError:
                ending.cut = "" if ending.whole else "limit"
            except asyncio.CancelledError:
                _stay()
                ending.cut = "cancelled"
            if ending.cut:
                await listener.stop(0.0 if self.is_given_up else STOP_S)
        except asyncio.CancelledError:
            _stay()
        finally:
            sending.cancel()
            hearing.cancel()
            child.close()
        if sending.done() and not sending.cancelled() and (fault := sending.exception()):
            raise fault
        ending.said = (listener.frames.noise + b"\n" + said).decode("utf-8", "backslashreplace").strip()
        ending.refusal = None if ending.here else self._refusal(ending)
        ending.duration_s = loop.time() - self.since_s
        return ending

    @property
    def reach_s(self) -> float:
        """How long reaching the node may take."""
        return max(self.limit_s, self.backend.reach_s)

    def _refusal(self, ending: Ending) -> Refusal:
        refusal = self.backend.explain(self.node, ending.rc, ending.said)
        if ending.cut == "limit" and not ending.said:
            return Refusal(State.UNREACHABLE, f"no answer within {duration(self.reach_s)}", refusal.hint)
        return refusal

    def _start(self, wrap: Callable[[str, Sequence[str]], list[str]]) -> Child:
        argv = wrap(self.node, guard().words(self.python))
        try:
            return Child(argv, self.backend.environ())
        except FileNotFoundError as exc:
            raise MissingTool(
                "cluster/no-tool",
                f"there is no program `{argv[0]}` on this machine, and {self.backend.name} needs it",
                hint="fairlead doctor",
            ) from exc
        except OSError as exc:
            raise ClusterError(
                "cluster/no-process",
                f"cannot start `{argv[0]}` on this machine: {exc.strerror}",
                hint="ulimit -u -n, or a smaller fan-out",
            ) from exc


@dataclass
class _Listener:
    """Hears a node out; can be interrupted at any point and go on."""

    child: Child
    ending: Ending
    on_frame: OnFrame
    on_here: Callable[[], None]
    when_wanted: Callable[[], Awaitable[object]] | None
    window: _Window | None
    num_ranks: int = 1
    frames: Frames = field(default_factory=Frames)

    async def listen(self) -> None:
        """Until the program says that all has ended, or nothing comes any more. Raises Garbled or Breach."""
        while not self.ending.whole:
            if self.when_wanted:
                await self.when_wanted()
            data = await self.child.read(self.child.stdout)
            if not data:
                return
            for kind, rank, payload in self.frames.feed(data):
                if rank >= self.num_ranks:
                    raise Breach(f"a frame of rank {rank}, where there are {self.num_ranks}", kind + payload)
                if kind == b"H":
                    if not self.ending.here:  # said again, it is no reason to wait longer
                        self.ending.here = True
                        self.on_here()
                elif kind == b"z":
                    self.ending.whole = True
                elif kind == b"a" and self.window:
                    self.window.taken(int.from_bytes(payload[:8], "big"))
                else:
                    self.on_frame(kind, rank, payload)

    async def stop(self, within_s: float) -> None:
        """End the program's input, which tells it to stop everything, and hear what it has to say about it."""
        self.child.end_input()
        self.when_wanted = None
        if self.ending.here:
            with contextlib.suppress(TimeoutError, Garbled, Breach):
                async with asyncio.timeout(within_s):
                    await self.listen()


class _Window:
    """How much of a live job's input is on its way: never more than the node shall have to hold."""

    def __init__(self) -> None:
        self._sent = self._taken = 0
        self._moved = asyncio.Event()

    def taken(self, num_bytes: int) -> None:
        """All commands there have taken so much."""
        self._taken = max(self._taken, num_bytes)
        self._moved.set()

    async def sends(self, num_bytes: int) -> None:
        """Wait until so much more may be sent."""
        while self._sent > self._taken and self._sent + num_bytes - self._taken > WINDOW_BYTES:
            self._moved.clear()
            await self._moved.wait()
        self._sent += num_bytes


async def _send(
    child: Child, job: Mapping[str, Any], body: AsyncIterable[bytes] | None, window: _Window | None
) -> None:
    """The program, the job, what the job announces; then the pipe stays open, which says that we are here."""
    spare = job.get("stdin_bytes", 0)  # what is announced is read at once
    try:
        await child.write(guard().stdin + json.dumps(job).encode() + b"\n")
        if body is not None:
            async for data in body:
                for piece in _cut(data) if window and not spare else (data,):
                    if window and not spare:
                        await window.sends(len(piece))
                    await child.write(piece)
                spare = max(0, spare - len(data))
    except BrokenPipeError:
        pass  # the other end is gone, and what it said tells why
    except Exception:
        child.end_input()  # half a file: the node must not wait for the rest
        raise


async def _hear(child: Child, complaints: bytearray) -> None:
    while data := await child.read(child.stderr):
        complaints += data
        del complaints[:-_NOISE_BYTES]


def _stay() -> None:
    """This task swallowed its cancellation, as its result is wanted: undo the count, or later timeouts misread it."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def run_job(
    command: Command, node: str, envs: list[dict[str, str]], keep_bytes: int, *, is_live: bool = False
) -> dict[str, Any]:
    """A command as the node-side program reads it, as one rank for each environment."""
    base = {**command.env, **({"FAIRLEAD_NODE": node} if node else {})}
    return {
        "do": "run",
        "argv": command.argv,
        "cwd": command.cwd,
        "env": [{**base, **env} for env in envs],
        "stdin_bytes": len(command.stdin),
        "keep_bytes": keep_bytes,
        "live": is_live,
        "may_leave": command.may_leave,
    }


async def pieces(data: bytes) -> AsyncIterable[bytes]:
    """Bytes in memory as a body."""
    for piece in _cut(data):
        yield piece


def _cut(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]
