"""The exchange: who does not know the token learns nothing and is told so; nothing that comes makes it fall over."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from fairlead.errors import FabricError, LocalProtocolError
from fairlead.fabric.transport import exchange
from fairlead.fabric.transport.exchange import MAGIC, Offer, Ready, Talk
from fairlead.records.addressbook import Place

TOKEN = b"k" * 32
OFFER = Offer(context="0" * 32, place=Place(), ports=((4791,),), qp_num=3, psn=9, mtu=1024, mpr=8, wimm=8)


def both(
    caller: Callable[[socket.socket], object], answerer: Callable[[socket.socket], object]
) -> tuple[object, object]:
    """Run both ends; what each returned, or the FabricError it ended with."""
    ends = socket.socketpair()

    def run(action: Callable[[socket.socket], object], sock: socket.socket) -> object:
        try:
            return action(sock)
        except FabricError as exc:
            return exc
        finally:
            sock.close()

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run, action, sock) for action, sock in zip((caller, answerer), ends, strict=True)]
        return jobs[0].result(30), jobs[1].result(30)


def call(sock: socket.socket, token: bytes = TOKEN) -> object:
    talk = Talk(sock, token, is_caller=True, limit_s=10)
    talk.send(OFFER)
    theirs = talk.receive(Offer)
    talk.send(Ready())
    return theirs


def answer(sock: socket.socket, token: bytes = TOKEN) -> object:
    talk = Talk(sock, token, is_caller=False, limit_s=10)
    theirs = talk.receive(Offer)
    talk.send(OFFER)
    talk.receive(Ready)
    return theirs


def test_two_that_know_the_token_meet() -> None:
    assert both(call, answer) == (OFFER, OFFER)


def test_who_does_not_know_it_is_refused_and_learns_nothing() -> None:
    heard: list[bytes] = []

    def spy(sock: socket.socket) -> object:
        try:
            return call(sock, b"x" * 32)
        finally:
            heard.append(sock.recv(1 << 16) if sock.fileno() >= 0 else b"")

    caller, answerer = both(spy, answer)
    assert isinstance(answerer, FabricError)
    assert answerer.code == "fabric/wrong-token"
    assert isinstance(caller, FabricError)
    assert heard == [b""]


def test_a_recorded_meeting_cannot_be_played_again() -> None:
    sent: list[bytes] = []

    class Recorder:
        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock

        def __getattr__(self, name: str) -> object:
            return getattr(self.sock, name)

        def sendall(self, data: bytes) -> None:
            sent.append(data)
            self.sock.sendall(data)

    assert both(lambda sock: call(Recorder(sock)), answer) == (OFFER, OFFER)

    def replay(sock: socket.socket) -> object:
        sock.sendall(b"".join(sent))
        sock.settimeout(10)
        heard = b""
        with contextlib.suppress(ConnectionResetError):  # closed with the rest unread
            while more := sock.recv(4096):
                heard += more
        return heard

    heard, answerer = both(replay, answer)
    assert isinstance(answerer, FabricError)
    assert answerer.code == "fabric/wrong-token"
    assert len(heard) == len(MAGIC) + exchange.NONCE_BYTES


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", MAGIC, MAGIC + bytes(16) + b"\xff" * 4, MAGIC + bytes(16) + bytes(4)],
    ids=["nothing", "http", "half", "huge", "empty"],
)
def test_strangers_are_sent_away(said: bytes) -> None:
    def stranger(sock: socket.socket) -> object:
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        return None

    _, answerer = both(stranger, answer)
    assert isinstance(answerer, FabricError)
    assert answerer.code in ("fabric/exchange", "fabric/wrong-token")


def test_silence_ends_with_the_time() -> None:
    quiet = threading.Event()
    caller, _ = both(lambda sock: Talk(sock, TOKEN, is_caller=True, limit_s=0.1), lambda _: quiet.wait(1))
    assert isinstance(caller, FabricError)
    assert "in time" in caller.message


def test_a_short_token_is_refused() -> None:
    with socket.socket() as sock, pytest.raises(LocalProtocolError, match="too short"):
        Talk(sock, b"short", is_caller=True, limit_s=1)


def test_an_offer_of_another_version_is_refused() -> None:
    body = msgspec.json.encode(msgspec.to_builtins(OFFER) | {"version": 2})
    with pytest.raises(FabricError, match="none of the exchange"):
        exchange.decode(body, Offer)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_the_round_trip_is_the_networks_and_no_program_that_has_no_core_is_part_of_it(kind: str) -> None:
    """Unless the kernel does not tell."""
    if kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as server:
            near = socket.create_connection(server.getsockname())
            far, _ = server.accept()
    else:
        near, far = socket.socketpair()

    def slow() -> None:
        heard = far.recv(4096)
        time.sleep(0.05)
        far.sendall(heard)

    with near, far, ThreadPoolExecutor(1) as pool:
        job = pool.submit(slow)
        talk = Talk(near, TOKEN, is_caller=True, limit_s=10)
        job.result(10)
    assert talk.rtt_ns < 20_000_000 if kind == "tcp" else talk.rtt_ns >= 50_000_000
