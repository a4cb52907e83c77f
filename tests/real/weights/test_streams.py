"""What every transport of a spread promises, over real sockets: bytes both ways in order, news, a limit, an end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from fairlead.weights.onnode import taking
from fairlead.weights.onnode.mrc import Mrc
from fairlead.weights.onnode.pieces import SLOT_BYTES, SLOTS
from fairlead.weights.onnode.streams import SENT_BYTES, Broken, Stream, Tcp, Transport
from fairlead.weights.onnode.taking import Taking
from fairlead.weights.onnode.wire import CHUNK, greet, greeted

pytestmark = pytest.mark.real
KEY = bytes(range(32))
MIB = 1 << 20


@pytest.fixture(params=["tcp", "mrc"])
def ends(request) -> Iterator[tuple[Transport, Transport]]:
    """Two nodes."""
    if request.param == "tcp":
        made = Tcp("127.0.0.1"), Tcp("127.0.0.1")
        yield made
    else:
        context = pytest.importorskip("fairlead.fabric.transport.context")
        contexts = [context.Context(addresses=["::1"], compiled=False) for _ in range(2)]
        made = tuple(Mrc("::1", one, context.remote_of, KEY) for one in contexts)
        yield made
        for one in contexts:
            one.close()
    for transport in made:
        for server in transport.servers if isinstance(transport, Tcp) else (transport.server,):
            server.close()


def connected(ends: tuple[Transport, Transport]) -> tuple[Stream, Stream]:
    """(who connected, who answered)"""
    got = []
    thread = threading.Thread(target=lambda: got.append(ends[1].answer(ends[1].accept())))
    thread.start()
    address = "::1" if isinstance(ends[1], Mrc) else "127.0.0.1"
    mine = ends[0].connect(address, ends[1].port)
    thread.join()
    return mine, got[0]


def test_a_node_is_there_by_each_of_its_addresses_at_one_port():
    other = Tcp("127.0.0.1")
    node = Tcp("127.0.0.1", ["127.0.0.2", "203.0.113.1"])  # the last is not this machine's: others go elsewhere
    try:
        for there, here in (("127.0.0.2", "127.0.0.3"), ("127.0.0.1", "")):
            mine = other.connect(there, node.port, here)
            theirs = node.answer(node.accept())
            assert theirs.sock.getsockname()[0] == there
            assert theirs.sock.getpeername()[0] == (here or "127.0.0.1")
            mine.send(b"here")
            came = bytearray(4)
            theirs.read(memoryview(came))
            assert came == b"here"
            mine.close()
            theirs.close()
        assert len(node.servers) == 2
    finally:
        for server in (*node.servers, *other.servers):
            server.close()


def test_all_bytes_arrive_in_order_both_ways_at_once(ends):
    one, other = connected(ends)
    there, back = random.Random(1).randbytes(3 * SLOT_BYTES * SLOTS // 2 + 77), random.Random(2).randbytes(500_001)
    assert not other.has_news(0)

    def answer() -> None:
        for at in range(0, len(back), 1 << 16):
            other.send(back[at : at + (1 << 16)])

    threads = [threading.Thread(target=work) for work in (lambda: one.send(there), answer)]
    for thread in threads:
        thread.start()
    came, from_there, rng = bytearray(len(there)), bytearray(len(back)), random.Random(3)
    at = 0
    while at < len(came):  # pieces that are none of the sender's
        size = min(rng.choice([1, 112, 5_000, 300_000]), len(came) - at)
        other.read(memoryview(came)[at : at + size])
        at += size
    one.read(memoryview(from_there))
    for thread in threads:
        thread.join()
    assert came == there
    assert from_there == back
    one.close()
    other.close()


def test_who_does_not_read_stops_the_sender_and_a_wait_has_its_limit(ends):
    one, other = connected(ends)
    one.limit_s = 0.3
    with pytest.raises(OSError):
        one.send(bytes(64 << 20))
    other.limit_s = 0.3
    two, another = connected(ends)
    two.limit_s = 0.3
    with pytest.raises(OSError):
        two.read(memoryview(bytearray(1)))
    for stream in (one, other, two, another):
        stream.close()


def test_an_end_is_news_and_wakes_who_waits(ends):
    one, other = connected(ends)
    thread = threading.Thread(target=one.close)
    thread.start()
    with pytest.raises((Broken, OSError)):
        other.read(memoryview(bytearray(1)))
    thread.join()
    assert other.has_news(10)
    with pytest.raises((Broken, OSError)):
        other.send(bytes(64 << 20))
    other.close()


def test_the_runs_messages_go_over_it_as_they_are(ends):
    got = []

    def serve() -> None:
        link, hello = greeted(ends[1].answer(ends[1].accept()), KEY)
        got.extend((hello, link))
        link.send(CHUNK, b"weights" * 100_000, chunk=3)

    thread = threading.Thread(target=serve)
    thread.start()
    address = "::1" if isinstance(ends[1], Mrc) else "127.0.0.1"
    link = greet(ends[0].connect(address, ends[1].port), KEY, {"me": 1})
    kind, chunk, *_, length, _ = link.receive()
    data = bytearray(length)
    link.read(memoryview(data))
    thread.join()
    assert (kind, chunk, bytes(data), got[0]) == (CHUNK, 3, b"weights" * 100_000, {"me": 1})
    got[1].close()
    link.close()


def test_transports_do_not_understand_each_other_and_say_so(monkeypatch):
    monkeypatch.setattr(Stream, "limit_s", 1.0)
    monkeypatch.setattr("fairlead.weights.onnode.mrc.GREET_S", 1.0)
    context = pytest.importorskip("fairlead.fabric.transport.context")
    with context.Context(addresses=["::1"], compiled=False) as made:
        mrc, tcp = Mrc("::1", made, context.remote_of, KEY), Tcp("::1")
        for asks, gives in ((mrc, tcp), (tcp, mrc)):
            said = []

            def serve(gives: Transport = gives, said: list[str] = said) -> None:
                knock = gives.accept()
                with knock, pytest.raises((Broken, OSError)) as why:
                    greeted(gives.answer(knock), KEY)
                said.append(str(why.value))

            thread = threading.Thread(target=serve)
            thread.start()
            with pytest.raises((Broken, OSError)):
                greet(asks.connect("::1", gives.port), KEY, {"me": 1})
            thread.join()
            assert len(said[0].splitlines()) == 1
        mrc.server.close()
        tcp.servers[0].close()


def test_no_more_waits_in_a_socket_than_was_said():
    """Else a slow way is given as much as a fast one beside it: the kernel takes megabytes at once."""
    import fcntl
    import struct

    waiting = {}
    for ahead in (0, 128 << 10):
        node, other = Tcp("127.0.0.1", ahead_bytes=ahead), Tcp("127.0.0.1", ahead_bytes=ahead)
        mine = other.connect("127.0.0.1", node.port)
        theirs = node.answer(node.accept())
        mine.limit_s = 0.2
        with pytest.raises(OSError, match="timed out"):
            mine.send(bytes(64 * MIB))  # nobody reads
        (waiting[ahead],) = struct.unpack("i", fcntl.ioctl(mine.sock.fileno(), 0x894B, bytes(4)))  # SIOCOUTQNSD
        for one in (mine, theirs, *node.servers, *other.servers):
            one.close()
    assert waiting[128 << 10] <= (128 << 10) + SENT_BYTES < waiting[0]


def started(work, *args) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


def test_a_rail_that_does_not_carry_is_passed_over_for_the_first_connection():
    """The first rail's address is not this machine's, as where its port is down."""
    giver, said = Tcp("127.0.0.2"), []
    rails = [("203.0.113.1", "127.0.0.2"), ("127.0.0.3", "127.0.0.2")]
    node = SimpleNamespace(
        over=False, lock=threading.Condition(), has=bytearray(1), chunks=[[(0, 0, 1)]], me=0, key=KEY, streams=1,
        transport=Tcp("127.0.0.1"), tell=lambda do, **_: said.append(do), start=started,
    )  # fmt: skip
    taking = Taking(node, {"node": 1, "kind": "all", "address": "127.0.0.2", "port": giver.port, "lanes": rails}, 1)
    thread = started(taking.hold)
    stream = giver.answer(giver.accept())
    greeted(stream, KEY)
    assert stream.sock.getpeername()[0] == "127.0.0.3"
    assert said == ["lost"], "the control side knows of the rail that failed"
    taking.stopped = node.over = True
    stream.close()
    thread.join(5)
    assert not thread.is_alive()
    for server in (*giver.servers, *node.transport.servers):
        server.close()


def test_where_no_rail_carries_the_kernels_own_way_does(monkeypatch):
    """As with several ports in one subnet, and a kernel that takes packets by one of them alone (rp_filter)."""
    monkeypatch.setattr(taking, "AGAIN_S", 0.01)
    giver, said = Tcp("127.0.0.2"), []
    rails = [("203.0.113.1", "127.0.0.2"), ("203.0.113.2", "127.0.0.2")]
    node = SimpleNamespace(
        over=False, lock=threading.Condition(), has=bytearray(1), chunks=[[(0, 0, 1)]], me=0, key=KEY, streams=1,
        transport=Tcp("127.0.0.1"), tell=lambda do, **_: said.append(do), start=started,
    )  # fmt: skip
    one = Taking(node, {"node": 1, "kind": "all", "address": "127.0.0.2", "port": giver.port, "lanes": rails}, 1)
    thread = started(one.hold)
    links = [greeted(giver.answer(giver.accept()), KEY) for _ in range(2)]
    assert [hello["joins"] for _, hello in links] == [0, 1]
    assert said == ["lost", "lost"]
    one.stopped = node.over = True
    one.stop()
    for link, _ in links:
        link.close()
    thread.join(5)
    assert not thread.is_alive()
    for server in (*giver.servers, *node.transport.servers):
        server.close()
