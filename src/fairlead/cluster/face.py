"""The sync face: the same calls, each run to its end in the caller's thread. No event loop is left behind."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from fairlead.base.nodeset import NodeSet
from fairlead.base.program import Program
from fairlead.cluster.child import Captured
from fairlead.cluster.engine import Engine
from fairlead.cluster.live import Live
from fairlead.cluster.protocol import (
    AsyncCluster,
    Command,
    Interrupted,
    Message,
    interrupt_text,
)

P = ParamSpec("P")
T = TypeVar("T")

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Left alone where the program has no handler of its own for it."""
_MOST_SIGNALS = 2
"""The first stops what was started, the second waits for nobody; one more breaks off whatever runs here."""


def _waited(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Cluster, P], T]:
    """A call of AsyncCluster as one that waits for its end: the same words, the same promise."""
    name = call.__name__

    @functools.wraps(call)
    def waits(self: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> T:
        done: T = self._wait(getattr(self.aio, name)(*args, **kwargs))
        return done

    return waits


class Cluster:
    """Nodes to run things on. Use it in a `with`; see AsyncCluster for what each call promises.

    Ctrl-C during a call stops what it started, then raises Interrupted; a second one does not wait for the nodes.
    """

    def __init__(self, inner: AsyncCluster) -> None:
        self.aio = inner
        """The same cluster for callers that run an event loop of their own."""
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give back what the backend holds."""
        try:
            self._wait(self.aio.close())
        finally:
            self._runner.close()

    run = _waited(AsyncCluster.run)
    run_each = _waited(AsyncCluster.run_each)
    run_ranks = _waited(AsyncCluster.run_ranks)
    push = _waited(AsyncCluster.push)
    fetch = _waited(AsyncCluster.fetch)

    def live(
        self, nodes: NodeSet | str, command: Command | Sequence[str], *, limit_s: float, per_node: int | None = None
    ) -> Live:
        """A process on every node, or `per_node` ranks, to talk to while they run; see live.py."""
        group = self._wait(self._engine().live(nodes, command, limit_s=limit_s, per_node=per_node))
        return Live(group, self._wait)

    def live_tasks(
        self,
        nodes: NodeSet | str,
        command: Command | Sequence[str],
        *,
        limit_s: float,
        per_node: int,
        options: Sequence[str] = (),
    ) -> Live | None:
        """The same as real tasks of a scheduler; None where there is no scheduler."""
        call = self._engine().live_tasks(nodes, command, limit_s=limit_s, per_node=per_node, options=options)
        group = self._wait(call)
        return Live(group, self._wait) if group else None

    def start(
        self,
        program: Program,
        nodes: NodeSet | str,
        *,
        limit_s: float,
        args: Sequence[str] = (),
        first: Message | None = None,
        env: Mapping[str, str] | None = None,
        per_node: int | None = None,
        in_container: bool = False,
        as_tasks: bool = False,
        options: Sequence[str] = (),
    ) -> Live:
        """A program on every node, or ranks of it, to talk to while it runs; see Engine.start and live.py."""
        call = self._engine().start(
            program,
            nodes,
            limit_s=limit_s,
            args=args,
            first=first,
            env=env,
            per_node=per_node,
            in_container=in_container,
            as_tasks=as_tasks,
            options=options,
        )
        return Live(self._wait(call), self._wait)

    def control(self, argv: Sequence[str], *, limit_s: float) -> Captured | None:
        """A short command of the scheduler itself, such as `scontrol show node`; None where there is no scheduler."""
        return self._wait(self._engine().control(argv, limit_s=limit_s))

    def _engine(self) -> Engine:
        assert isinstance(self.aio, Engine), "only real nodes can be talked to"
        return self.aio

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        with _Signals() as signals:
            done = self._runner.run(signals.stopping(call))
        if signals.said is None:
            return done
        results = self.aio.last
        raise Interrupted(interrupt_text(results, signals.said or "interrupted"), results)


class _Signals:
    """Signals during a call cancel it, so that what it started is stopped; their own handlers are called after it.

    The loop's own way raises KeyboardInterrupt wherever the signal falls. Where that is between the end of a call and
    the end of its loop, the next call ends before it has begun. Here nothing is raised before a third signal.
    """

    def __init__(self) -> None:
        self.said: str | None = None
        """What is said of the signal that stopped the call; None where none did."""
        self._told: list[int] = []
        """The signals that came."""
        self._before: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._cancel: Callable[[], object] | None = None
        self._is_early = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # the loop's add_signal_handler takes five times as long, and this is done for every line
            for number in _STOPS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._tell)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if not self._told:
            return False
        if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
            self.said = ""
        try:
            self._before[self._told[0]](self._told[0], None)
        except KeyboardInterrupt as stop:
            self.said = str(stop)
        return self.said is not None

    async def stopping(self, call: Coroutine[Any, Any, T]) -> T:
        """The call, which ends early where a signal comes."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._is_early:
            task.cancel()
        return await call

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self._told.append(number)
        if len(self._told) > _MOST_SIGNALS:
            raise KeyboardInterrupt
        if self._cancel is None:
            self._is_early = True
        else:
            self._cancel()
