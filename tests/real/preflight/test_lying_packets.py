"""Agents of the pair phase as they run on nodes, beside a node that sends what it likes to their sockets.

Each node is an address of the loopback interface; the lying one is this test.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.base.program import Program
from fairlead.preflight.pairs.drive import AGENT
from fairlead.preflight.pairs.onnode.wire import FULL, HEAD, PING, SMALL, SPEED

RUN, SMALLS = 7, 40
NODES = ["n0", "n1", "liar"]
ADDRESSES = [["127.0.0.2"], ["127.0.0.3"], ["127.0.0.4"]]
LIAR = 2
BURST = {"do": "burst", "small": SMALLS, "full": 0, "batch": 8, "gap_us": 100, "window": 16}
MOST_MS = 600


class Agent:
    """One agent, and its control lines."""

    def __init__(self, me: int) -> None:
        program = Program.of(*AGENT)
        words = [*program.words(sys.executable)]
        env = {**os.environ, "FAIRLEAD_NODE": NODES[me]}
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(program.stdin)
        self.said = b""
        self.order(do="setup", step=1, run=RUN, nodes=NODES, addresses=ADDRESSES)
        self.ports = self.answer()

    def order(self, **fields: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(fields).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, within_s: float = 20.0) -> dict[str, Any]:
        """The next answer that is not `sent`."""
        assert self.process.stdout
        until = time.monotonic() + within_s
        while True:
            while b"\n" not in self.said:
                assert select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0], "no answer"
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                assert data, "the agent ended"
                self.said += data
            line, _, self.said = self.said.partition(b"\n")
            found = json.loads(line)
            if not found.get("sent"):
                return found

    def memory_kib(self) -> int:
        return self.status("VmRSS")

    def status(self, name: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


@pytest.fixture
def honest() -> Iterator[list[Agent]]:
    with contextlib.ExitStack() as stack:
        agents = []
        for me in (0, 1):
            agents.append(Agent(me))
            stack.enter_context(agents[-1].process)
            stack.callback(agents[-1].process.kill)
        peers = [[*a.ports["ports"], a.ports["tcp"]] for a in agents] + [[4, 4]]
        for agent in agents:
            agent.order(do="peers", peers=peers)
        yield agents


@pytest.fixture
def wire() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((ADDRESSES[LIAR][0], 0))
        yield sock


def packet(step: int, src: int, number: int, *, dst: int = 1, on: int = 0, kind: int = SMALL, run: int = RUN) -> bytes:
    return HEAD.pack(run, step, src, dst, number, on, 0, kind).ljust(64, b"\0")


def endless(wire: socket.socket, target: tuple[str, int], make: Any) -> contextlib.ExitStack:
    """Packets without end from a thread, until the stack is closed."""
    over, stack = threading.Event(), contextlib.ExitStack()

    def send() -> None:
        number = 0
        while not over.is_set():
            with contextlib.suppress(OSError):
                wire.sendto(make(number), target)
            number += 1
            if number % 50 == 0:
                time.sleep(0.001)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(over.set)
    return stack


def place(agent: Agent, me: int) -> tuple[str, int]:
    return ADDRESSES[me][0], agent.ports["ports"][0]


def test_packets_in_the_name_of_another_count_for_nothing(honest, wire):
    """n0 sends nothing; the liar sends all of its burst, and its acknowledgements, for it."""
    _, n1 = honest
    n1.order(**BURST, step=5, pairs=[[0, 1, [0]]])
    for number in range(SMALLS):
        wire.sendto(packet(5, 0, number), place(n1, 1))
    n1.order(do="collect", step=5, quiet_ms=100, most_ms=MOST_MS)
    assert n1.answer()["bad"][0][:4] == [0, 0, 0, 0]
    n1.order(**BURST, step=6, pairs=[[0, 1, [0]]])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:  # the same from where n0 is
        own.bind((ADDRESSES[0][0], 0))
        for number in range(SMALLS):
            own.sendto(packet(6, 0, number), place(n1, 1))
    assert n1.answer()["ok"] == 1


def test_a_burst_for_another_node_counts_for_nothing(honest):
    """Where a liar gives the address of n1 as its own, n1 also gets what n0 sends to the liar."""
    _, n1 = honest
    n1.order(**BURST, step=5, pairs=[[0, 1, [0]]])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind((ADDRESSES[0][0], 0))
        for number in range(SMALLS):
            own.sendto(packet(5, 0, number, dst=LIAR), place(n1, 1))
    n1.order(do="collect", step=5, quiet_ms=100, most_ms=MOST_MS)
    assert n1.answer()["bad"][0][:4] == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", [SMALL, FULL, SPEED, PING, 77])
def test_packets_without_end_do_not_keep_a_node_from_its_answer(honest, wire, kind):
    n0, n1 = honest
    pairs = [[0, 1, [0]], [LIAR, 1, [0]]]
    with endless(wire, place(n1, 1), lambda i: packet(5, LIAR, i % 30, kind=kind)):
        for agent in honest:
            agent.order(**BURST, step=5, pairs=pairs)
        assert "ok" in n0.answer()
        started = time.monotonic()
        n1.order(do="collect", step=5, quiet_ms=100, most_ms=MOST_MS)
        said = n1.answer()
        assert time.monotonic() - started < MOST_MS / 1000 + 5
    assert [row[0] for row in said["bad"]] == [LIAR]


def test_streams_without_end_do_not_either(honest, wire):
    n0, n1 = honest
    order = {"do": "speed", "bytes": 200_000, "budget_ms": 500, "skip": 1000, "window": 1000, "pings": 1}
    pairs = [[0, 1, [0]], [LIAR, 1, [0]], [1, LIAR, [0]]]
    with endless(wire, place(n1, 1), lambda i: packet(5, LIAR, i % 65536, kind=SPEED)):
        for agent in honest:
            agent.order(**order, step=5, pairs=pairs)
        n0.answer()
        n1.order(do="collect", step=5, quiet_ms=100, most_ms=MOST_MS)
        said = n1.answer()
    assert {(row[0], row[3] >= 200_000) for row in said["rates"]} >= {(0, True)}


def test_packets_of_any_step_and_sender_fill_no_memory(honest, wire):
    """Those of a step to come are kept, as a quick sender may be heard before its order: once for each path."""
    _, n1 = honest
    draw = random.Random(1)
    before = n1.memory_kib()
    for i in range(150_000):
        step, src, on = draw.randrange(1 << 32), draw.choice((LIAR, LIAR, draw.randrange(1 << 16))), draw.randrange(4)
        with contextlib.suppress(OSError):
            wire.sendto(packet(step, src, i % 65536, on=on, kind=draw.choice((SMALL, FULL, SPEED))), place(n1, 1))
        if i % 100 == 0:
            time.sleep(0.001)
    n1.order(do="clock", step=9)
    assert n1.answer(60)["clock_ns"]
    assert n1.memory_kib() - before < 30_000


BAD_PEERS = [
    pytest.param([[70000, 70000], [-1, -1], []], id="numbers"),
    pytest.param([], id="none"),
    pytest.param([None, "x", {}], id="no lists"),
    pytest.param([[[], {}], [1.5, "4"], [True, None]], id="no numbers"),
    pytest.param({"a": 1}, id="no table"),
    pytest.param([[1 << 70] * 9] * 9, id="too much"),
]


@pytest.mark.parametrize("peers", BAD_PEERS)
def test_a_table_of_ports_that_cannot_be_ends_no_agent(honest, peers):
    n0, _ = honest
    n0.order(do="peers", peers=peers)
    n0.order(**BURST, step=5, pairs=[[0, 1, [0]], [0, LIAR, [0]]])
    n0.order(do="collect", step=5, quiet_ms=50, most_ms=MOST_MS)
    n0.answer()
    n0.order(do="tcp", step=6, wait_s=1.0, pairs=[[0, 1, [0]]])
    assert n0.answer()["errors"] == [[1, "ECONNREFUSED"]]
    n0.order(do="clock", step=7)
    assert n0.answer()["clock_ns"]


def test_connections_of_one_node_leave_room_for_the_others(honest, wire):
    """The liar holds as many as it gets, and writes without end; strangers hold theirs, too."""
    n0, n1 = honest
    with contextlib.ExitStack() as stack:
        for address, num in ((ADDRESSES[LIAR][0], 300), ("127.0.0.9", 300)):
            for _ in range(num):
                link = stack.enter_context(socket.socket())
                link.bind((address, 0))
                link.connect((ADDRESSES[1][0], n1.ports["tcp"]))
                link.setblocking(False)
                with contextlib.suppress(OSError):
                    link.send(b"x" * 100)
        n0.order(do="tcp", step=5, wait_s=10.0, pairs=[[0, 1, [0]]])
        assert n0.answer() == {"step": 5, "errors": [], "ok": 1}
        assert n1.status("Threads") < 100


def test_where_nobody_has_shown_that_it_is_there_nothing_is_connected_to(honest):
    """The port of a TCP service is a node's word, too."""
    n0, _ = honest
    with socket.create_server((ADDRESSES[LIAR][0], 0)) as stranger:
        stranger.setblocking(False)
        n0.order(do="peers", peers=[[1, 1], [1, 1], [1, stranger.getsockname()[1]]])
        n0.order(do="tcp", step=5, wait_s=5.0, pairs=[[0, LIAR, [0]]], closed=[[LIAR, 0]])
        assert n0.answer()["errors"] == [[LIAR, "EADDRNOTAVAIL"]]
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_a_way_to_a_node_that_has_not_shown_that_it_is_there_takes_one_packet(honest):
    """A steered path ends at a node's own address: what holds for that holds for it."""
    n0, _ = honest
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind((ADDRESSES[LIAR][0], 0))
        stranger.setblocking(False)
        n0.order(do="peers", peers=[[1, 1], [1, 1], [stranger.getsockname()[1], 1]], steered=[[1, 0]])
        burst = {"small": 64, "full": 8, "batch": 32, "gap_us": 10, "window": 64, "closed": [[LIAR, 0]]}
        n0.order(do="burst", step=5, pairs=[[0, LIAR, [1]]], to=[[0, LIAR, 1, ADDRESSES[LIAR][0]]], **burst)
        n0.answer()
        assert len(received(stranger)) == 1


def received(sock: socket.socket) -> list[bytes]:
    got = []
    with contextlib.suppress(BlockingIOError):
        while True:
            got.append(sock.recv(1 << 16))
    return got


def test_a_connection_that_carries_without_end_is_closed(honest):
    _, n1 = honest
    with socket.create_connection((ADDRESSES[1][0], n1.ports["tcp"]), timeout=10) as link:
        num = 0
        with contextlib.suppress(ConnectionError):
            while num < 1000:
                link.sendall(bytes(1 << 20))
                num += 1
    assert num < 1000
