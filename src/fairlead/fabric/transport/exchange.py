"""Two ends get to know each other, out of band: one TCP connection, on which each proves that it knows the token.

    caller                       answerer
    MAGIC nonce      ->
                     <-          MAGIC nonce
    frame(Offer)     ->                                  what the caller is: place, ports, queue pair, version
                     <-          frame(Offer)
    frame(Ready)     ->                                  from here on data may come

A frame is a length, JSON, and an HMAC-SHA256 of it under the token, both nonces and the sender's role: nothing recorded
can be used again. The connection then stays open: its end tells that the other process is gone, even where no packet is
under way. It carries no data.

Knows: these frames. Must not know: what a queue pair does with them.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from fairlead.errors import FabricError, LocalProtocolError, RemoteProtocolError
from fairlead.records.addressbook import Place

MAGIC = b"FL-MRC\x00\x01"
NONCE_BYTES = 16
MAC_BYTES = 32
MAX_FRAME = 1 << 18
MIN_TOKEN_BYTES = 16
HEAR_S = 30.0
"""In which a caller proves the token."""
MAX_HEARD = 64
"""Callers that have proved nothing yet; of more the oldest is sent away."""
VERSION = 1
MIN_MTU = 256
"""Payload of a packet, at least."""
_LENGTH = struct.Struct(">I")
_U32 = struct.Struct("=I")
_MIN_RTT_AT, _INFO_BYTES, _NO_RTT = 148, 152, 0xFFFFFFFF  # tcpi_min_rtt, us: struct tcp_info of linux/tcp.h, since 4.6
_UdpPort = Annotated[int, Meta(ge=1, le=0xFFFF)]
_Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]

T = TypeVar("T")


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One end, as it describes itself."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)] = VERSION
    context: _Id
    """Random number of the context, new with every process."""
    place: Place
    ports: Annotated[
        tuple[Annotated[tuple[_UdpPort, ...], Meta(min_length=1, max_length=64)], ...], Meta(max_length=256)
    ]
    """Source ports of each of the place's ports; the first is the one to send to."""
    qp_num: Annotated[int, Meta(ge=3, le=0xFFFFFF)]
    psn: Annotated[int, Meta(ge=0, le=0xFFFFFF)]
    mtu: Annotated[int, Meta(ge=MIN_MTU, le=15_000)]
    """Payload of a packet."""
    mpr: Annotated[int, Meta(ge=1, le=255)]
    """Packets that may be on their way at once, unit 128."""
    wimm: Annotated[int, Meta(ge=1, le=0xFFFF)]
    sealed: bool = False
    """Every packet carries an authentication tag."""
    icrc: bool = True
    """Every packet carries an iCRC, which the other end checks."""
    private: Annotated[str, Meta(max_length=1 << 16)] = ""
    """What the application wants the other to know: addresses and keys of memory."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The caller has what it needs."""

    is_ready: bool = True


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the other end that this one may write; goes there as `private`."""

    addr: Annotated[int, Meta(ge=0)]
    rkey: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    length: Annotated[int, Meta(ge=0, lt=1 << 48)]


class Talk:
    """One end of the TCP connection while the two ends meet."""

    def __init__(self, sock: socket.socket, token: bytes, *, is_caller: bool, limit_s: float) -> None:
        """MAGIC and nonces go out and in; the round trip of that is taken."""
        check_token(token)
        self.sock = sock
        self.rtt_ns = 0
        self._token = token
        self._end = time.monotonic() + limit_s
        self._role = is_caller
        mine = os.urandom(NONCE_BYTES)
        if is_caller:
            begin = time.monotonic_ns()
            self._write(MAGIC + mine)
            theirs = self._magic()
            self.note_rtt(begin)
            self._nonces = mine + theirs
        else:
            theirs = self._magic()
            self._write(MAGIC + mine)
            self._nonces = theirs + mine

    def last_until(self, end: float) -> None:
        """The meeting may take until then, by time.monotonic()."""
        self._end = end

    def note_rtt(self, begin_ns: int) -> None:
        """An answer came to what was sent then; the shortest round trip counts.

        The kernel's own has not waited for a program that had no core just then; a window reckoned from such a wait
        would be more than the queues on the way hold.
        """
        took = min(time.monotonic_ns() - begin_ns, _kernel_rtt_ns(self.sock))
        self.rtt_ns = min(self.rtt_ns or took, took)

    def send(self, message: Any) -> None:
        """Send a frame."""
        body = msgspec.json.encode(message)
        if len(body) > MAX_FRAME:
            raise LocalProtocolError("fabric/exchange", "what is to be told is too long", hint="shorten `private`")
        self._write(_LENGTH.pack(len(body)) + body + self._mac(body, is_caller=self._role))

    def receive(self, kind: type[T]) -> T:
        """The next frame. RemoteProtocolError if it is not by somebody who knows the token, or is no such frame."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MAX_FRAME:
            raise _strange(f"a frame of {length} bytes came")
        body = self._read(length)
        if not hmac.compare_digest(self._mac(body, is_caller=not self._role), self._read(MAC_BYTES)):
            raise RemoteProtocolError(
                "fabric/wrong-token",
                "the other end does not know the token of this exchange",
                hint="give both ends the same token",
            )
        return decode(body, kind)

    def _mac(self, body: bytes, *, is_caller: bool) -> bytes:
        role = b"caller" if is_caller else b"answerer"
        return hmac.digest(self._token, role + self._nonces + body, "sha256")

    def _magic(self) -> bytes:
        head = self._read(len(MAGIC) + NONCE_BYTES)
        if head[: len(MAGIC)] != MAGIC:
            raise _strange("the other end speaks another version of the exchange, or something else")
        return head[len(MAGIC) :]

    def _write(self, data: bytes) -> None:
        try:
            self.sock.settimeout(self._left())
            self.sock.sendall(data)
        except OSError as exc:
            raise _broken(exc) from exc

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                self.sock.settimeout(self._left())
                more = self.sock.recv(size - len(data))
            except OSError as exc:
                raise _broken(exc) from exc
            if not more:
                raise RemoteProtocolError(
                    "fabric/exchange",
                    "the other end closed the connection: another token or version, or it ended",
                    hint="look at what the other end says",
                )
            data += more
        return data

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("time is over")
        return left


def _kernel_rtt_ns(sock: socket.socket) -> int:
    """The shortest round trip that the kernel has seen on a TCP connection; a very long one where it says none."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        info = b""
    return 1000 * (_U32.unpack_from(info, _MIN_RTT_AT)[0] if len(info) == _INFO_BYTES else _NO_RTT)


class Door:
    """A listening socket. Each caller is heard beside the others: one that says nothing keeps nobody waiting."""

    def __init__(self, sock: socket.socket, token: bytes) -> None:
        check_token(token)
        self._sock = sock
        self._token = token
        self._lock = threading.Lock()
        self._heard: dict[socket.socket, None] = {}  # who has proved nothing yet, the oldest first
        self._proved: deque[tuple[Talk, Offer]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while somebody has proved it; -1 once closed."""
        sock.setblocking(False)

    def next(self, end: float) -> tuple[Talk, Offer] | None:
        """A caller that knows the token; None if there is none by then (time.monotonic()), or the door is closed."""
        while True:
            with self._lock:
                if self._bell < 0:
                    return None
                if self._proved:
                    if len(self._proved) == 1:
                        os.eventfd_read(self._bell)
                    return self._proved.popleft()
                poll = select.poll()
                for fd in (self._sock.fileno(), self._bell):
                    poll.register(fd, select.POLLIN)
            left = end - time.monotonic()
            if left <= 0:
                return None
            poll.poll(math.ceil(left * 1000))
            with self._lock, contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                if self._bell >= 0:
                    self._begin(self._sock.accept()[0])

    def _begin(self, caller: socket.socket) -> None:
        self._heard[caller] = None
        for stranger in list(self._heard)[:-MAX_HEARD]:
            _hang_up(stranger)
        threading.Thread(target=self._hear, args=(caller,), name="fairlead-door", daemon=True).start()

    def _hear(self, caller: socket.socket) -> None:
        proved = None
        with contextlib.suppress(FabricError):
            talk = Talk(caller, self._token, is_caller=False, limit_s=HEAR_S)
            proved = talk, talk.receive(Offer)
        with self._lock:
            self._heard.pop(caller, None)
            if proved is not None and self._bell >= 0:
                self._proved.append(proved)
                if len(self._proved) == 1:
                    os.eventfd_write(self._bell, 1)
                return
        caller.close()

    def close(self) -> None:
        """Hear nobody any more."""
        with self._lock:
            for caller in self._heard:
                _hang_up(caller)
            for talk, _ in self._proved:
                talk.sock.close()
            self._proved.clear()
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)  # wakes who waits
                os.close(self._bell)
            self._bell = -1
            self._sock.close()


def _hang_up(sock: socket.socket) -> None:
    """End a connection that another thread reads from."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def decode(body: bytes, kind: type[T]) -> T:
    """A frame's content; RemoteProtocolError for anything that is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise _strange("a frame came that is none of the exchange") from exc


def check_token(token: bytes) -> None:
    """Raise LocalProtocolError for a token that could be guessed by its length alone."""
    if len(token) < MIN_TOKEN_BYTES:
        raise LocalProtocolError(
            "fabric/exchange",
            f"a token of {len(token)} bytes is too short; it takes {MIN_TOKEN_BYTES}",
            hint="make one: secrets.token_bytes(32)",
        )


def _strange(message: str) -> FabricError:
    return RemoteProtocolError("fabric/exchange", message, hint="start the same version of fairlead at both ends")


def _broken(exc: OSError) -> FabricError:
    if isinstance(exc, TimeoutError):
        return RemoteProtocolError(
            "fabric/exchange", "the other end did not answer in time", hint="see whether it runs and is not stopped"
        )
    return RemoteProtocolError(
        "fabric/exchange", f"the connection to the other end broke: {exc.strerror or exc}", hint="see whether it runs"
    )
