"""The transport over the kernel's sockets on the loopback: two contexts or two processes, and what goes wrong there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairlead.errors import FabricError, LocalProtocolError
from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.transport.context import Context, remote_of
from fairlead.fabric.transport.driver import Driver
from fairlead.fabric.transport.engine import READ_BURST, Engine
from fairlead.fabric.transport.fast.engine import FastEngine
from fairlead.fabric.transport.fast.sheets import LetterSockets, Sheets
from fairlead.fabric.transport.ports import Arrival, Sockets
from fairlead.fabric.transport.queuepair import QueuePair
from fairlead.fabric.transport.queues import CompletionQueue

pytestmark = pytest.mark.real
TOKEN = secrets.token_bytes(32)
LIMIT_S = 60.0


class Ends:
    """Two contexts on ::1, b's buffer open to a."""

    def __init__(self, size: int, **options: Any) -> None:
        options = {"addresses": ["::1"], **options}
        self.contexts = [Context(**options) for _ in "ab"]
        self.a, self.b = self.contexts
        self.buffer = np.zeros(size, dtype=np.uint8)
        self.region = self.b.register(self.buffer)
        self.queues = [CompletionQueue(256), CompletionQueue(256)]
        self.qa, self.qb = self.join()

    def join(self, **options: Any) -> tuple[QueuePair, QueuePair]:
        with self.b.listen("::1", TOKEN) as listener, ThreadPoolExecutor(1) as pool:
            cq = self.queues
            job = pool.submit(listener.accept, cq[1], cq[1], private=remote_of(self.region), **options)
            mine = self.a.connect("::1", listener.port, TOKEN, cq[0], cq[0])
            return mine, job.result(LIMIT_S)

    def write(self, data: Any, *, wr_id: int = 1, imm: int | None = None, offset: int = 0) -> None:
        self.qa.post_write(data, self.qa.remote, wr_id=wr_id, imm=imm, offset=offset)

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        for queue in self.queues:
            queue.close()


@pytest.fixture
def ends() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(size: int = 1 << 16, **options: Any) -> Ends:
            made = Ends(size, **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.parametrize(
    "options",
    [{}, {"compiled": False}, {"sealed": True}, {"icrc": False}, {"addresses": ["127.0.0.1", "127.0.0.2"]}],
    ids=["v6", "plain", "sealed", "no icrc", "v4"],
)
def test_two_megabytes_arrive_and_both_ends_are_told(ends: Any, options: dict[str, Any]) -> None:
    pair = ends(2 << 20, **options)
    data = np.random.default_rng(1).integers(0, 256, 2 << 20, dtype=np.uint8)
    pair.qb.post_recv(wr_id=9)
    pair.write(data, imm=7)
    (sent,) = pair.queues[0].wait(LIMIT_S)
    (got,) = pair.queues[1].wait(LIMIT_S)
    assert (sent.wr_id, sent.status, sent.num_bytes) == (1, Status.SUCCESS, 2 << 20)
    assert (got.wr_id, got.status, got.imm, got.num_bytes) == (9, Status.SUCCESS, 7, 2 << 20)
    assert np.array_equal(pair.buffer, data)
    counts = pair.b.counters()
    assert counts["bad"] == counts["foreign"] == 0
    assert len(pair.qa.packets_sent()) == len(set(options.get("addresses", ["::1"])))


def test_sockets_that_only_send_keep_the_way_to_the_first_peer_and_others_are_reached_too(ends: Any) -> None:
    pair = ends()
    data = np.random.default_rng(2).integers(0, 256, 1 << 16, dtype=np.uint8)
    receiver, *senders = pair.a._sockets.rails[0]
    first = pair.b._sockets.numbers[0][0]
    assert {sock.getpeername()[1] for sock in senders} == {first}
    with pytest.raises(OSError, match="not connected"):
        receiver.getpeername()
    with Context(addresses=["::1"]) as other:
        room = np.zeros(1 << 16, dtype=np.uint8)
        with other.listen("::1", TOKEN) as listener, ThreadPoolExecutor(1) as pool:
            job = pool.submit(listener.accept, *pair.queues, private=remote_of(other.register(room)))
            second = pair.a.connect("::1", listener.port, TOKEN, *pair.queues)
            job.result(LIMIT_S)
        second.post_write(data, second.remote, wr_id=2)
        assert [c.wr_id for c in pair.queues[0].wait(LIMIT_S)] == [2]
        assert {sock.getpeername()[1] for sock in senders} == {first}
    pair.write(data)
    assert [c.wr_id for c in pair.queues[0].wait(LIMIT_S)] == [1]
    assert np.array_equal(pair.buffer, data)
    assert np.array_equal(room, data)
    assert set(second.packets_by_way()) == set(pair.qa.packets_by_way())


def test_messages_are_written_from_and_into_memory_of_the_application_and_awaited_by_asyncio(ends: Any) -> None:
    torch = pytest.importorskip("torch")
    pair = ends()
    weights = torch.arange(1000, dtype=torch.bfloat16)

    async def go() -> int:
        for i in range(8):
            pair.write(weights, wr_id=i, offset=2000 * i)
        done = []
        while len(done) < 8:
            done += await asyncio.wait_for(pair.queues[0].wait_async(), LIMIT_S)
        return sum(c.status is Status.SUCCESS for c in done)

    assert asyncio.run(go()) == 8
    there = torch.from_numpy(pair.buffer[:16_000]).view(torch.bfloat16)
    assert torch.equal(there, weights.repeat(8))


def test_a_region_that_is_closed_cannot_be_written_and_another_queue_pair_goes_on(ends: Any) -> None:
    pair = ends()
    other, _ = pair.join()
    pair.b.deregister(pair.region)
    pair.write(b"x" * 100)
    (done,) = pair.queues[0].wait(LIMIT_S)
    assert done.status is Status.REM_OP_ERR
    assert pair.qa.error.code == "fabric/qp-failed"
    assert not pair.buffer.any()
    pair.region = pair.b.register(pair.buffer)
    fresh = pair.join()[0].remote
    other.post_write(b"y" * 100, fresh, wr_id=2)
    (done,) = pair.queues[0].wait(LIMIT_S)
    assert (done.status, bytes(pair.buffer[:100])) == (Status.SUCCESS, b"y" * 100)


def test_a_region_closed_while_it_is_written_is_written_no_more_and_its_writer_is_told(ends: Any) -> None:
    pair = ends(64 << 20)
    pair.write(np.full(64 << 20, 7, dtype=np.uint8))
    deadline = time.monotonic() + LIMIT_S
    while not pair.buffer[0] and time.monotonic() < deadline:
        time.sleep(0.001)
    pair.b.deregister(pair.region)
    pair.buffer[:] = 0
    (done,) = pair.queues[0].wait(LIMIT_S)
    assert done.status is Status.REM_OP_ERR
    assert not pair.buffer.any()


def test_a_context_closed_with_traffic_in_flight_ends_and_the_peer_is_told(ends: Any) -> None:
    pair = ends(16 << 20)
    data = np.full(16 << 20, 7, dtype=np.uint8)
    for i in range(4):
        pair.write(data, wr_id=i)
    time.sleep(0.02)
    pair.b.close()
    done: list[Any] = []
    deadline = time.monotonic() + LIMIT_S
    while len(done) < 4 and time.monotonic() < deadline:
        done += pair.queues[0].wait(1.0)
    assert [c.wr_id for c in done] == [0, 1, 2, 3]
    assert done[-1].status is not Status.SUCCESS
    assert pair.qa.error.code == "fabric/peer-gone"


@pytest.mark.parametrize("where", [(0, 1), (65_530, 7)])
def test_a_write_outside_of_the_region_or_with_a_wrong_key_is_refused_by_the_peer(
    ends: Any, where: tuple[int, int]
) -> None:
    pair = ends()
    offset, add = where
    far = type(pair.qa.remote)(addr=pair.qa.remote.addr, rkey=pair.qa.remote.rkey ^ (offset == 0), length=1 << 20)
    pair.qa.post_write(b"z" * add, far, wr_id=1, offset=offset)
    (done,) = pair.queues[0].wait(LIMIT_S)
    assert done.status is Status.REM_OP_ERR
    assert not pair.buffer.any()
    with pytest.raises(LocalProtocolError, match="do not fit"):
        pair.qb.post_write(b"z" * 10, pair.qa.remote, wr_id=1, offset=1 << 16)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_datagrams_of_strangers_change_nothing_and_are_counted(ends: Any, compiled: bool) -> None:
    pair = ends(4096, compiled=compiled)
    heard: list[tuple[bytes, tuple[str, int]]] = []
    sockets: Sockets = pair.a._sockets
    send, engine = sockets.send, pair.a.engine

    def tap_letters(sheets: Sheets) -> list[int]:
        packets = [engine.packet(i) for i in range(sheets.desk.num_out)]
        heard.extend((b"".join(packet.parts), packet.to) for packet in packets)
        return LetterSockets.post(sockets, sheets)

    def tap(rail, source, to, label, dscp, parts) -> bool:  # noqa: PLR0917 - as Sockets has it
        heard.append((b"".join(parts), to))
        return send(rail, source, to, label, dscp, parts)

    sockets.send, sockets.post = tap, tap_letters
    sockets.goes_round = False  # letters that rounds send are seen by nobody
    pair.write(b"a" * 4000)
    pair.queues[0].wait(LIMIT_S)
    sockets.goes_round = compiled
    pair.buffer[:] = 0
    writes = [(data, to) for data, to in heard if len(data) > 4000]
    assert writes
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as stranger:
        for data, to in writes * 5:
            stranger.sendto(data, to)
        deadline = time.monotonic() + LIMIT_S
        while pair.b.counters()["foreign"] < 5 * len(writes) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert pair.b.counters()["foreign"] == 5 * len(writes)
    assert not pair.buffer.any()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_a_peer_cannot_write_through_the_queue_pair_of_another(ends: Any, compiled: bool) -> None:
    """It is known here, writes by itself, and has seen each byte that the other sent."""
    heard: list[bytes] = []
    pair = ends(4096, compiled=compiled)
    with Context(addresses=["::1"], compiled=False) as c:
        queue = CompletionQueue(16)
        qps = []
        for context, cq in ((c, queue), (pair.a, pair.queues[0])):
            with pair.b.listen("::1", TOKEN) as listener, ThreadPoolExecutor(1) as pool:
                theirs = pair.queues[1]
                job = pool.submit(listener.accept, theirs, theirs, private=remote_of(pair.region))
                qps.append(context.connect("::1", listener.port, TOKEN, cq, cq))
                job.result(LIMIT_S)
        send = c._sockets.send

        def tap(rail, source, to, label, dscp, parts) -> bool:  # noqa: PLR0917 - as Sockets has it
            heard.append(b"".join(parts))
            return send(rail, source, to, label, dscp, parts)

        c._sockets.send = tap
        qps[0].post_write(b"c" * 4000, qps[0].remote, wr_id=1)
        assert queue.wait(LIMIT_S)[0].status is Status.SUCCESS
        pair.buffer[:] = 0
        (data,) = [data for data in heard if len(data) > 4000]
        before = pair.b.counters()["foreign"]
        own, number = pair.a._sockets.rails[0][0], pair.b._sockets.numbers[0][0]
        with pair.a.lock:
            for _ in range(5):
                own.sendto(data, ("::1", number))
        deadline = time.monotonic() + LIMIT_S
        while pair.b.counters()["foreign"] < before + 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert pair.b.counters()["foreign"] == before + 5
        assert not pair.buffer.any()
        assert qps[0].error is None
        queue.close()


def test_a_peer_is_known_to_compiled_code_whatever_comes_while_it_is_met(ends: Any, monkeypatch: Any) -> None:
    """A datagram between the meeting and the first packet had all of the peer's taken by Python from then on."""
    left: list[int] = []
    add, take = Driver.add, Engine._take

    def late(driver: Driver, line: Any) -> None:
        with driver.lock:
            driver.engine._look_up()
        add(driver, line)

    def slow(engine: Engine, arrival: Arrival, now: int, *, is_open: bool = False) -> None:
        left.append(len(arrival.data))
        take(engine, arrival, now, is_open=is_open)

    monkeypatch.setattr(Driver, "add", late)
    monkeypatch.setattr(FastEngine, "_take", slow)
    pair = ends(1 << 20)
    pair.write(bytes(1 << 20))
    assert pair.queues[0].wait(LIMIT_S)[0].status is Status.SUCCESS
    assert pair.b.counters()["received"] >= 256
    assert len(left) < 30


class Asking(CompletionQueue):
    """Notes, whenever it wakes who waits, whether that one could have its context's lock."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.lock: Any = None
        self.was_free: list[bool] = []

    def tell(self) -> None:
        thread = threading.Thread(target=self.ask)
        thread.start()
        thread.join()
        super().tell()

    def ask(self) -> None:
        free = self.lock.acquire(blocking=False)
        self.was_free.append(free)
        if free:
            self.lock.release()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_who_waits_for_a_completion_is_woken_when_the_lock_is_free(ends: Any, compiled: bool) -> None:
    pair = ends(compiled=compiled)
    pair.queues[0] = Asking(64)
    pair.queues[0].lock = pair.a.lock
    pair.qa, _ = pair.join()
    for wr_id in range(20):
        pair.write(b"x" * 100, wr_id=wr_id)
        assert [c.wr_id for c in pair.queues[0].wait(LIMIT_S)] == [wr_id]
    assert set(pair.queues[0].was_free) == {True}  # the last one may be told after it was found


class Faulty(LetterSockets):
    """The kernel's sockets, whose datagrams are lost, doubled, delayed and damaged as they are received."""

    goes_round = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.random = random.Random(11)
        self.late: list[Arrival] = []

    def collect(self, sheets: Sheets, rail: int) -> int:
        num = 0
        while num < READ_BURST and (arrival := self.receive(rail)) is not None:
            sheets.put(num, arrival)
            num += 1
        return sheets.sort(num, rail, steered=False)

    def receive(self, rail: int) -> Arrival | None:
        chance = self.random.random
        if self.late and chance() < 0.3:
            return self.late.pop(self.random.randrange(len(self.late)))
        arrival = super().receive(rail)
        if arrival is None or chance() >= 0.12:
            return arrival
        copy = replace(arrival, data=memoryview(bytearray(arrival.data)))
        what = self.random.choice(("lose", "double", "late", "damage"))
        if what == "damage":
            copy.data[self.random.randrange(len(copy.data))] ^= 1 << self.random.randrange(8)
            return copy
        if what in ("double", "late"):
            self.late.append(copy)
        return arrival if what == "double" else self.receive(rail)


@pytest.mark.parametrize("engine", [FastEngine, Engine])
def test_through_sockets_that_lose_double_delay_and_damage_every_byte_is_right(
    ends: Any, monkeypatch: Any, engine: type[Engine]
) -> None:
    monkeypatch.setattr("fairlead.fabric.transport.context._engine_of", lambda **_: (engine, Faulty))
    pair = ends(1 << 20)
    data = np.random.default_rng(2).integers(0, 256, 1 << 20, dtype=np.uint8)
    pieces = [(i, data[i << 16 : i + 1 << 16]) for i in range(16)]
    for i, piece in pieces:
        pair.qb.post_recv(wr_id=100 + i)
        pair.write(piece, wr_id=i, imm=i, offset=i << 16)
    done: list[Any] = []
    got: list[Any] = []
    deadline = time.monotonic() + LIMIT_S
    while (len(done) < 16 or len(got) < 16) and time.monotonic() < deadline:
        done += pair.queues[0].wait(0.2)
        got += pair.queues[1].wait(0.2)
    assert [(c.wr_id, c.status) for c in done] == [(i, Status.SUCCESS) for i in range(16)]
    assert [c.imm for c in got] == list(range(16))
    assert np.array_equal(pair.buffer, data)
    assert pair.b.counters()["bad"] > 0


PEER = """
import sys
from fairlead.fabric.transport.context import Context, remote_of
with Context(addresses=["::1"]) as context:
    queue = context.completion_queue()
    with context.listen("::1", bytes.fromhex(sys.argv[1])) as listener:
        print(listener.port, flush=True)
        qp = listener.accept(queue, queue, private=remote_of(context.register(bytearray(1 << 26))), limit_s=60)
        print("met", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_killed_or_stopped_in_the_middle_is_an_error_in_bounded_time(how: signal.Signals) -> None:
    command = [sys.executable, "-c", PEER, TOKEN.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        try:
            port = int(peer.stdout.readline())
            with Context(addresses=["::1"]) as context:
                queue = context.completion_queue()
                qp = context.connect("::1", port, TOKEN, queue, queue)
                assert peer.stdout.readline() == "met\n"
                qp.post_write(bytes(1 << 26), qp.remote, wr_id=1)
                qp.post_write(bytes(8), qp.remote, wr_id=2)
                begin = time.monotonic()
                while qp.counters()["new"] < 100 and time.monotonic() - begin < LIMIT_S:
                    time.sleep(0.001)
                peer.send_signal(how)
                begin = time.monotonic()
                done = []
                while len(done) < 2 and time.monotonic() - begin < LIMIT_S:
                    done += queue.wait(1.0)
                assert time.monotonic() - begin < 20
                assert len(done) == 2
                assert Status.SUCCESS not in {c.status for c in done}
                assert qp.error.code == ("fabric/peer-gone" if how == signal.SIGKILL else "fabric/qp-failed")
                with pytest.raises(LocalProtocolError):
                    qp.post_write(b"x", qp.remote, wr_id=3)
                queue.close()
        finally:
            os.kill(peer.pid, signal.SIGKILL)


def test_ends_that_do_not_fit_are_told_why(ends: Any) -> None:
    with (
        Context(addresses=["::1"]) as a,
        Context(addresses=["::1"], sealed=True) as b,
        Context(addresses=["127.0.0.1"]) as c,
        Context(addresses=["::1"], icrc=False) as d,
    ):
        for here, there in ((a, b), (a, c), (a, d)):
            queue = CompletionQueue(8)
            with there.listen("::1", TOKEN) as listener:
                thread = threading.Thread(target=_refused, args=(listener, queue))
                thread.start()
                with pytest.raises(FabricError) as told:
                    here.connect("::1", listener.port, TOKEN, queue, queue, limit_s=20)
                assert told.value.code in ("fabric/exchange", "fabric/no-common-plane")
                thread.join()
            queue.close()
        queue = CompletionQueue(8)
        with b.listen("::1", TOKEN) as listener, pytest.raises(FabricError, match="in time"):
            listener.accept(queue, queue, limit_s=0.05)
        with pytest.raises(FabricError, match="nobody answers"):
            a.connect("::1", listener.port, TOKEN, queue, queue)
        queue.close()


def _refused(listener: Any, queue: CompletionQueue) -> None:
    with contextlib.suppress(FabricError):
        listener.accept(queue, queue, limit_s=2)


def test_a_closed_context_leaves_nothing_behind(ends: Any) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    pair = Ends(4096)
    pair.write(b"x" * 4096)
    assert pair.queues[0].wait(LIMIT_S)
    pair.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not [t for t in threading.enumerate() if t.name == "fairlead-mrc"]
    with pytest.raises(FabricError):
        pair.qa.post_write(b"x", pair.qa.remote, wr_id=1)
