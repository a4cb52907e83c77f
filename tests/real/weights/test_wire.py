"""Two ends of a connection between nodes, over real sockets: a slow link is not a broken one, and whoever does not know
the run's key puts nothing in, takes nothing out, and changes and repeats nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fairlead.weights.onnode import giving
from fairlead.weights.onnode.edges import ALL
from fairlead.weights.onnode.streams import Broken, Tcp, TcpStream
from fairlead.weights.onnode.wire import CHUNK, MAGIC, MESSAGE, NONCE_BYTES, STILL, Link, greet, greeted

pytestmark = pytest.mark.real
KEY = bytes(range(32))


def pair(limit_s: float) -> tuple[Link, Link]:
    """(who gives, who takes), greeted by the run's key, with this limit for each wait."""
    server = socket.create_server(("127.0.0.1", 0))
    made = {}
    thread = threading.Thread(target=lambda: made.update(giver=greeted(TcpStream(server.accept()[0]), KEY)[0]))
    thread.start()
    taker = greet(TcpStream(socket.create_connection(server.getsockname())), KEY, {"me": 1})
    thread.join()
    server.close()
    for link in (made["giver"], taker):
        link.stream.limit_s = limit_s
    return made["giver"], taker


def test_a_chunk_that_takes_longer_than_the_limit_arrives_while_some_of_it_comes():
    giver, taker = pair(4.0)
    giver.stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    taker.stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    data = random.Random(1).randbytes(4 << 20)
    thread = threading.Thread(target=giver.send, args=(CHUNK, data))
    began = time.monotonic()
    thread.start()
    kind, *_, length, _ = taker.receive()
    got = bytearray(length)
    for at in range(0, length, length // 16):
        time.sleep(0.35)
        taker.read(memoryview(got)[at : at + length // 16])
    thread.join()
    assert (kind, bytes(got)) == (CHUNK, data)
    assert time.monotonic() - began > 4.0, "longer than the limit"
    giver.close()
    taker.close()


def test_who_takes_may_say_nothing_for_longer_than_the_limit():
    giver, taker = pair(0.2)
    assert not giver.has_news(0.5)
    taker.send(STILL)
    assert giver.has_news(5)
    assert giver.receive()[0] == STILL
    taker.close()
    assert giver.has_news(5), "its end is news"
    with pytest.raises(Broken):
        giver.receive()
    giver.close()


def stranger(words: Callable[[socket.socket], None]) -> str:
    """What the giving side says of a connection that it did not take: somebody has its address, and not the key."""
    server, said = socket.create_server(("127.0.0.1", 0)), []

    def serve() -> None:
        with server.accept()[0] as sock, pytest.raises((Broken, OSError, ValueError)) as why:
            greeted(TcpStream(sock), KEY)
        said.append(str(why.value))

    thread = threading.Thread(target=serve)
    thread.start()
    with socket.create_connection(server.getsockname(), timeout=5) as sock:
        words(sock)
    thread.join(10)
    server.close()
    return said[0]


def recorded() -> list[bytes]:
    """What goes both ways on a connection whose ends know the key, as somebody on the wire between them sees it: what
    the taker says, then what the giver says.
    """
    outside, inside = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    heard = [b"", b""]

    def copy(number: int, one: socket.socket, other: socket.socket) -> None:
        while data := one.recv(1 << 16):
            heard[number] += data
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)

    def between() -> None:
        one = outside.accept()[0]
        other = socket.create_connection(inside.getsockname())
        back = threading.Thread(target=copy, args=(1, other, one))
        back.start()
        copy(0, one, other)
        back.join()
        one.close()
        other.close()

    def serve() -> None:
        link, _ = greeted(TcpStream(inside.accept()[0]), KEY)
        link.send(CHUNK, b"weights", chunk=3)
        link.send(CHUNK, b"more of", chunk=4)
        link.close()

    threads = [threading.Thread(target=work) for work in (between, serve)]
    for thread in threads:
        thread.start()
    taker = greet(TcpStream(socket.create_connection(outside.getsockname())), KEY, {"me": 1})
    for _ in range(2):
        *_, length, _ = taker.receive()
        taker.read(memoryview(bytearray(length)))
    taker.close()
    for thread in threads:
        thread.join()
    outside.close()
    inside.close()
    return heard


def test_a_stranger_is_not_served_whatever_he_says():
    taker, _ = recorded()
    # a whole greeting, heard on another connection: the giver's own random words are others now
    assert stranger(lambda sock: sock.sendall(taker)) == "somebody who does not know this run's key"
    assert stranger(lambda sock: sock.sendall(b"GET / HTTP/1.1\r\nHost: somewhere-else.example\r\n\r\n" * 4)) == (
        "somebody who speaks otherwise"
    )
    endless = taker[: len(MAGIC) + NONCE_BYTES] + b"\xff" * 4
    assert stranger(lambda sock: sock.sendall(endless)) == "a greeting that is too long"


def test_another_runs_key_is_refused_at_both_ends():
    server = socket.create_server(("127.0.0.1", 0))
    said = []

    def serve() -> None:
        with server.accept()[0] as sock, pytest.raises(Broken) as why:
            greeted(TcpStream(sock), KEY)
        said.append(str(why.value))

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises((Broken, OSError)):
        greet(TcpStream(socket.create_connection(server.getsockname())), bytes(32), {"me": 1})
    thread.join()
    server.close()
    assert said == ["somebody who does not know this run's key"]


def test_an_end_that_does_not_know_the_key_is_not_taken_from():
    """It repeats what a real one said: the proof is over the taker's own random words, too."""
    _, giver = recorded()
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server.accept()[0] as sock, contextlib.suppress(ConnectionError):
            sock.sendall(giver)
            while sock.recv(1 << 16):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(Broken, match="does not know this run's key"):
        greet(TcpStream(socket.create_connection(server.getsockname())), KEY, {"me": 1})
    thread.join()
    server.close()


@pytest.mark.parametrize("attack", ["changed", "repeated", "left out", "put in"])
def test_no_message_is_changed_repeated_left_out_or_put_in(attack):
    """Frames as a giver made them, given to the taker by somebody on the wire."""
    giver, taker = pair(5.0)
    near, far = socket.socketpair()
    wire, giver.stream.sock = giver.stream.sock, near
    for chunk in range(3):
        giver.send(CHUNK, b"weights", chunk=chunk)
    size = MESSAGE.size + len(b"weights")
    frames = [read(far, size) for _ in range(3)]
    played = {
        "changed": [frames[0], frames[1][:4] + bytes([frames[1][4] ^ 1]) + frames[1][5:]],
        "repeated": [frames[0], frames[0]],
        "left out": [frames[0], frames[2]],
        "put in": [frames[0], frames[1][: MESSAGE.size - 16] + bytes(16) + b"weights"],
    }[attack]
    wire.sendall(b"".join(played))
    kind, chunk, _, _, length, digest = taker.receive()
    data = bytearray(length)
    taker.read(memoryview(data))
    assert (kind, chunk, bytes(data), digest) == (CHUNK, 0, b"weights", hashlib.blake2s(b"weights").digest())
    with pytest.raises(Broken, match="not made with this run's key" if attack in ("changed", "put in") else "order"):
        taker.receive()
    for sock in (wire, near, far):
        sock.close()
    taker.close()


def read(sock: socket.socket, size: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


@pytest.fixture
def gives(monkeypatch):
    """A node that has nothing to give, and a way to greet it."""
    monkeypatch.setattr(giving, "JOIN_S", 0.5)
    node = SimpleNamespace(
        over=False, lock=threading.Condition(), key=KEY, me=0, subs={}, edges={}, sent={}, hops={},
        chunks=[[(0, 0, 1)]], shared=bytearray(1), transport=Tcp("127.0.0.1"),
    )  # fmt: skip
    threading.Thread(target=giving.Giving(node).serve, daemon=True).start()
    links = []

    def hello(joins: int) -> Link:
        said = {"me": 1, "sub": "s", "kind": ALL, "width": 2, "has": "00", "joins": joins}
        links.append(greet(node.transport.connect("127.0.0.1", node.transport.port), KEY, said))
        return links[-1]

    yield node, hello
    node.over = True
    for link in links:
        link.close()


def test_a_further_connection_that_comes_before_the_first_one_waits_for_it(gives):
    node, hello = gives
    early = hello(joins=1)
    assert not early.has_news(0.1)
    first = hello(joins=0)
    with node.lock:
        assert node.lock.wait_for(lambda: node.subs == {1: "s"}, 5.0)
    assert not early.has_news(0.6), "it is not closed"
    assert not first.has_news(0.0)


def test_a_further_connection_of_what_has_ended_is_closed_and_ends_nothing_else(gives):
    node, hello = gives
    late = hello(joins=1)
    assert late.has_news(5.0)
    with pytest.raises(Broken):
        late.receive()
    first = hello(joins=0)
    assert not first.has_news(0.2)
    assert node.subs == {1: "s"}
