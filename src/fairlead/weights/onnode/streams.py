"""How bytes get from one node to another: what `wire.py` asks of a transport, and TCP. Python 3.9.

A transport moves bytes, in order, or says that it cannot any more. Who may speak, what a message is, whether a byte is
right: that is decided above it, alike for all (`wire.py`, `taking.py`).
"""

from __future__ import annotations

import contextlib
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

GREET_S = 10.0
QUIET_S = 20.0
"""A connection on which nothing at all comes for so long is given up; STILL goes every QUIET_S / 4."""
SENT_BYTES = 256 << 10
NOTSENT_LOWAT = 25
"""TCP_NOTSENT_LOWAT of linux/tcp.h."""
BACKLOG = 128


class Broken(Exception):
    """A connection that cannot go on, and why."""


class Stream:
    """One connection: bytes both ways. One thread sends at a time, and one reads; any may close."""

    limit_s = GREET_S
    """How long any piece may take; not all of them together: a slow link is not a broken one."""

    def send(self, data: Any) -> None:
        """All of it; afterwards the memory is the caller's again. Raises Broken or OSError."""
        raise NotImplementedError

    def read(self, into: memoryview) -> None:
        """Fill it. Raises Broken at the end of the connection, OSError where it fails or is quiet for too long."""
        raise NotImplementedError

    def has_news(self, wait_s: float) -> bool:
        """Whether there is something to read, or the end; waits so long."""
        raise NotImplementedError

    def close(self) -> None:
        """End it; whoever waits on it is woken."""
        raise NotImplementedError


class Transport:
    """All that a node needs to be reached by others, and to reach them."""

    port = 0
    """Where others find this node, beside its address."""

    def connect(self, address: str, port: int, here: str = "") -> Stream:
        """To a node that has, from an address of this one where that is a choice. Raises Broken or OSError."""
        raise NotImplementedError

    def accept(self) -> Any:
        """The next one that knocks, to be answered by a thread of its own: it may be slow."""
        raise NotImplementedError

    def answer(self, knock: Any) -> Stream:
        """A connection with it. Raises Broken or OSError, and is done with it then."""
        raise NotImplementedError


def server_at(address: str, port: int = 0) -> socket.socket:
    """A listening socket; at any free port, if none is named."""
    server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        server.bind((address, port))
        server.listen(BACKLOG)
    except OSError:
        server.close()
        raise
    return server


class TcpStream(Stream):
    """A TCP connection whose other end is found out when it has vanished."""

    def __init__(self, sock: socket.socket, ahead_bytes: int = 0) -> None:
        """`ahead_bytes` may wait in the socket before any of it is on its way; 0: as many as the kernel likes."""
        self.sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ahead_bytes:
            with contextlib.suppress(OSError):  # Linux before 3.12
                sock.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, ahead_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(QUIET_S * 1000))
        self.limit()

    def limit(self) -> None:
        """For what comes next."""
        if self.sock.gettimeout() != self.limit_s:
            self.sock.settimeout(self.limit_s)

    def send(self, data: Any) -> None:
        """See Stream."""
        self.limit()
        view = memoryview(data)
        while view:
            view = view[self.sock.send(view[:SENT_BYTES]) :]

    def read(self, into: memoryview) -> None:
        """See Stream."""
        self.limit()
        while into:
            num = self.sock.recv_into(into)
            if not num:
                raise Broken("the other end is gone")
            into = into[num:]

    def has_news(self, wait_s: float) -> bool:
        """See Stream."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def close(self) -> None:
        """See Stream."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Tcp(Transport):
    """Streams of TCP: what is there everywhere. One port number, at the node's address and those of its other ports.

    A socket would take megabytes before the first has left, so of several connections the one on the slower way would
    be given as much as the others: with `ahead_bytes`, a chunk goes where it leaves first.
    """

    def __init__(self, address: str, also: Sequence[str] = (), *, ahead_bytes: int = 0) -> None:
        self.ahead_bytes = ahead_bytes
        self.servers = [server_at(address)]
        self.port = self.servers[0].getsockname()[1]
        for other in also:
            with contextlib.suppress(OSError):  # gone meanwhile, or the number is taken there: others go elsewhere
                self.servers.append(server_at(other, self.port))

    def connect(self, address: str, port: int, here: str = "") -> Stream:
        """See Transport."""
        source = (here, 0) if here else None
        sock = socket.create_connection((address, port), timeout=GREET_S, source_address=source)
        return TcpStream(sock, self.ahead_bytes)

    def accept(self) -> Any:
        """See Transport."""
        poll = select.poll()
        by_fd = {server.fileno(): server for server in self.servers}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        return by_fd[poll.poll()[0][0]].accept()[0]

    def answer(self, knock: Any) -> Stream:
        """See Transport."""
        return TcpStream(knock, self.ahead_bytes)
