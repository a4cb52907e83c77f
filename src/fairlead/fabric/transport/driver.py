"""The one thread of a context: waits for sockets, timers and news, and lets the engine work.

Everything that changes the engine holds `lock`. The thread waits without it, so calls of the application get their turn
between any two bursts.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time

from fairlead.errors import FabricError, FairleadError, LocalProtocolError, RemoteProtocolError
from fairlead.fabric.transport.engine import Engine, Line
from fairlead.fabric.transport.interfaces import LinkWatch
from fairlead.fabric.transport.ports import Sockets
from fairlead.fabric.transport.queues import told_at_the_end

_PAUSE_S = 1.0
"""The longest wait, should a timer be missed."""
_MAX_PUT_OFF = 16
"""Turns in a row in which timers wait for what has already arrived: as many bursts as hold the answers to a window."""


class Driver:
    """A thread that drives an engine over sockets."""

    def __init__(self, engine: Engine, sockets: Sockets, links: LinkWatch) -> None:
        self.engine = engine
        self.lock = threading.RLock()
        self.crash: BaseException | None = None
        self._sockets = sockets
        self._links = links
        self._lifelines: dict[int, Line] = {}  # descriptor that is listened to -> whose end it tells
        self._connections: dict[Line, socket.socket] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._readers = {own[0].fileno(): rail for rail, own in enumerate(sockets.rails)}
        for fd in (*self._readers, self._wake, links.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
        self._waiting: dict[int, int] = {}  # descriptor of a socket without room -> rail
        self._is_closed = False
        self._waits = True
        self._num_put_off = 0
        self._unread: set[int] = set()  # ports whose last read ended early
        engine.set_ports(links.up, time.monotonic_ns())
        self._thread = threading.Thread(target=self._run, name="fairlead-mrc", daemon=True)
        self._thread.start()

    # --- from any thread ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise LocalProtocolError if the thread has ended."""
        if self._is_closed or self.crash is not None:
            raise LocalProtocolError("fabric/closed", "the context is closed", hint="make a new one") from self.crash

    def nudge(self) -> None:
        """Let the thread look, if it waits: one that works looks again by itself before it does."""
        if self._waits and not self._is_closed:
            os.eventfd_write(self._wake, 1)

    def add(self, line: Line) -> None:
        """Begin with a queue pair."""
        with self.lock:
            self.check()
            self.engine.add(line, time.monotonic_ns())
            self.nudge()

    def watch(self, line: Line, sock: socket.socket) -> None:
        """From now on the end of this TCP connection is the end of the peer."""
        with self.lock:
            self.check()
            sock.setblocking(False)
            self._lifelines[sock.fileno()] = line
            self._connections[line] = sock
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def drop(self, line: Line, sock: socket.socket) -> None:
        """Forget a queue pair, and tell the peer by closing the connection."""
        with self.lock:
            if sock.fileno() in self._lifelines:
                self._forget(sock.fileno())
            sock.close()
            self._connections.pop(line, None)
            if line in self.engine.lines:
                self.engine.remove(line)

    def close(self) -> None:
        """End the thread; queue pairs fail."""
        with self.lock:
            if self._is_closed:
                return
            self.nudge()
            self._is_closed = True
        self._thread.join()
        for line, sock in list(self._connections.items()):
            self.drop(line, sock)
        for line in list(self.engine.lines):
            self.engine.remove(line)
        self._epoll.close()
        os.close(self._wake)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            has_more = False
            while not self._is_closed:
                events = self._epoll.poll(self._pause(has_more=has_more))
                with told_at_the_end(), self.lock:
                    self._waits = False
                    has_more = self._turn(events)
                    self._waits = not has_more
        except BaseException as exc:  # noqa: BLE001 - a thread has nobody to raise to: every queue pair is told
            self.crash = exc
            with told_at_the_end(), self.lock:
                for line in self.engine.lines:
                    self.engine.fail(line, _crashed(exc))

    def _pause(self, *, has_more: bool) -> float:
        if has_more:
            return 0
        with self.lock:
            due = self.engine.next_timer()
        return _PAUSE_S if due is None else min(max((due - time.monotonic_ns()) / 1e9, 0), _PAUSE_S)

    def _turn(self, events: list[tuple[int, int]]) -> bool:
        """What has come, what is due, what is to go; True if there is more."""
        engine = self.engine
        now = time.monotonic_ns()
        rails = self._unread  # also where the kernel has nothing left: of a batch some packets may wait in the process
        for fd, what in events:
            rail = self._readers.get(fd)
            if fd in self._waiting and what & select.EPOLLOUT:
                engine.writable(self._waiting[fd])
            if rail is not None:
                if what & ~select.EPOLLOUT:
                    rails.add(rail)
            elif fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif fd == self._links.fileno():
                engine.set_ports(self._links.read(), now)
            elif fd in self._lifelines:
                self._hear_end(fd)
        has_more, now = engine.read_all(sorted(rails), now)
        self._unread = rails if has_more else set()
        self._num_put_off += 1
        if not has_more or self._num_put_off > _MAX_PUT_OFF:  # the answer may wait in a socket: no timeout before it
            self._num_put_off = 0
            engine.on_timers(now)
        has_more |= engine.send(time.monotonic_ns())
        if self._waiting or engine.blocked:
            self._await_room()
        return has_more

    def _hear_end(self, fd: int) -> None:
        """The peer closed the connection; if it talks instead, it is none of ours either."""
        line = self._lifelines[fd]
        with contextlib.suppress(OSError):
            try:
                self._connections[line].recv(1)
            except BlockingIOError:
                return
        self._forget(fd)
        self.engine.fail(
            line,
            RemoteProtocolError(
                "fabric/peer-gone",
                "the other end has closed its queue pair, or its process has ended",
                hint="look at what it said last",
            ),
        )

    def _forget(self, fd: int) -> None:
        del self._lifelines[fd]
        self._epoll.unregister(fd)

    def _await_room(self) -> None:
        """Listen for room at the sockets that have none."""
        wanted = {self._sockets.rails[rail][source].fileno(): rail for rail, source in self.engine.blocked.items()}
        if wanted == self._waiting:
            return
        for fd in self._waiting.keys() - wanted.keys():
            if fd in self._readers:
                self._epoll.modify(fd, select.EPOLLIN)
            else:
                self._epoll.unregister(fd)
        for fd in wanted.keys() - self._waiting.keys():
            if fd in self._readers:
                self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            else:
                self._epoll.register(fd, select.EPOLLOUT)
        self._waiting = wanted


def _crashed(exc: BaseException) -> FabricError:
    if isinstance(exc, FabricError):
        return exc
    said = exc.message if isinstance(exc, FairleadError) else f"{type(exc).__name__}: {exc}"
    return LocalProtocolError("fabric/closed", f"the context has stopped: {said}", hint="report it, with this message")
