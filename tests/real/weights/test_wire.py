"""Two ends of a connection between nodes, over real sockets: a slow link is not a broken one."""

from __future__ import annotations

import random
import socket
import threading
import time

import pytest

from fairlead.weights.onnode.wire import CHUNK, STILL, Broken, Link, greet, greeted, read_exactly

pytestmark = pytest.mark.real
KEY = bytes(range(32))


def pair(limit_s: float) -> tuple[Link, Link]:
    """(who gives, who takes), greeted by the run's key, with this limit for each wait."""
    server = socket.create_server(("127.0.0.1", 0))
    made = {}
    thread = threading.Thread(target=lambda: made.update(giver=greeted(server.accept()[0], KEY)[0]))
    thread.start()
    taker = greet(*server.getsockname(), KEY, {"me": 1})
    thread.join()
    server.close()
    for link in (made["giver"], taker):
        link.sock.settimeout(limit_s)
    return made["giver"], taker


def test_a_chunk_that_takes_longer_than_the_limit_arrives_while_some_of_it_comes():
    giver, taker = pair(4.0)
    giver.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    taker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    data = random.Random(1).randbytes(4 << 20)
    thread = threading.Thread(target=giver.send, args=(CHUNK, data))
    began = time.monotonic()
    thread.start()
    kind, *_, length, _ = taker.receive()
    got = bytearray(length)
    for at in range(0, length, length // 16):
        time.sleep(0.35)
        read_exactly(taker.sock, memoryview(got)[at : at + length // 16])
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
