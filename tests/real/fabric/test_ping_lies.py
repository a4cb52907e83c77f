"""A node that lies to `fairlead fabric ping`: real programs at addresses of the loopback interface, and one liar.

What the liar says goes through the decoder and the judge of the verb; whom the honest nodes send to is seen by a socket
at the address that the liar calls its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.base.program import Program
from fairlead.cli import fabric_ping_run
from fairlead.cli.fabric_ping import PARTS
from fairlead.cli.fabric_ping_run import Run
from fairlead.cli.fabric_pinger import FEW, KNOCK, KNOCKS, PACKET, REQUEST, WINDOWS, full, opened
from fairlead.cluster.protocol import Line
from fairlead.preflight.pairs import pinged
from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.paths import Paths
from fairlead.records.verdict import Verdict

HONEST, LIAR = ("n0", "n1"), "liar"
ADDRESSES = {"n0": "127.0.0.2", "n1": "127.0.0.3", LIAR: "127.0.0.9"}
COUNT = 40
HUGE = (1 << 62) - 1


class Group:
    """Real programs for the honest nodes; the liar answers with what it is given for each word."""

    def __init__(self, says: dict[str, list[Any]]) -> None:
        self.ended: dict[Any, Any] = {}
        self.says = says
        self.heard: list[dict[str, Any]] = []
        self.lines: list[Line] = []
        program = Program.of("fairlead-ping", *PARTS, call="main()")
        self.processes = {}
        for node in HONEST:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            one = subprocess.Popen([*program.words(sys.executable)], **pipes)
            one.stdin.write(program.stdin)
            self.processes[node] = one
        self.rest = dict.fromkeys(self.processes, b"")

    def send(self, text: str, *, to: str) -> None:
        if to == LIAR:
            said = json.loads(text)
            self.heard.append(said)
            self.lines += [Line(LIAR, None, "stdout", _text(one)) for one in self.says.get(said.get("do", "up"), [])]
        else:
            self.processes[to].stdin.write(text.encode() + b"\n")
            self.processes[to].stdin.flush()

    def read(self, timeout_s: float) -> Line | None:
        if self.lines:
            return self.lines.pop(0)
        pipes = {one.stdout.fileno(): node for node, one in self.processes.items()}
        for fd in select.select([*pipes], [], [], timeout_s)[0]:
            node = pipes[fd]
            *whole, self.rest[node] = (self.rest[node] + os.read(fd, 1 << 16)).split(b"\n")
            self.lines += [Line(node, None, "stdout", line.decode()) for line in whole]
        return self.lines.pop(0) if self.lines else None


def _text(said: Any) -> str:
    return said if isinstance(said, str) else json.dumps(said)


@contextlib.contextmanager
def group(says: dict[str, list[Any]]) -> Iterator[Group]:
    made = Group(says)
    try:
        yield made
    finally:
        for one in made.processes.values():
            with one:
                one.kill()


def told(says: dict[str, list[Any]]) -> tuple[Run, Group, list[Any]]:
    """A whole run with the liar, and what is found."""
    nodes = (*HONEST, LIAR)
    paths = Paths(("address",), {node: (address,) for node, address in ADDRESSES.items()})
    plan = pinged.plan_of(nodes, paths)
    run = Run(plan, {"count": COUNT, "interval_s": 0.005, "size": 64})
    with group(says) as made:
        run.run(made, COUNT * 0.005)
    return run, made, run.judged(DEFAULT)


def accused(findings: list[Any]) -> set[tuple[str, ...]]:
    return {f.subject.nodes for f in findings if f.verdict is Verdict.FAIL}


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        sock.bind((ADDRESSES[LIAR], 0))
        sock.setblocking(False)
        yield sock


def received(sock: socket.socket) -> list[bytes]:
    got = []
    with contextlib.suppress(BlockingIOError):
        while True:
            got.append(sock.recv(1 << 16))
    return got


def up(port: int) -> dict[str, Any]:
    return {"say": "up", "ports": [[port] * pinged.FLOWS]}


def test_a_stranger_is_sent_a_few_packets_a_window_of_each_test(stranger) -> None:
    """The liar calls a stranger's address its own, says it is there, and that all arrived."""
    rows = [[i, [[10, 10, 1]] * WINDOWS, 1, 1] for i in range(48)]
    heard = [[i, [10] * WINDOWS] for i in range(48)]
    says = {
        "up": [up(stranger.getsockname()[1])],
        "go": [{"say": "sent"}],
        "stop": [{"say": "seen", "rows": rows, "heard": heard}, {"say": "end"}],
    }
    _, _, findings = told(says)
    kinds = [PACKET.unpack_from(data)[3] for data in received(stranger)]
    assert kinds.count(REQUEST) == len(HONEST) * pinged.FLOWS * WINDOWS * FEW
    assert kinds.count(KNOCK) == len(HONEST) * KNOCKS
    assert len(kinds) == kinds.count(REQUEST) + kinds.count(KNOCK)
    assert all(LIAR in nodes for nodes in accused(findings)), findings
    assert accused(findings)


pytestmark = pytest.mark.real

LIES = {
    "indices that nobody has": [[10**6, [[10, 10, 5]] * WINDOWS, 5, 5], [-1, [[10, 10, 5]] * WINDOWS, 5, 5]],
    "tests of others": [[i, [[10, 0, 0]] * WINDOWS, 0, 0] for i in range(2 * pinged.FLOWS)],
    "more than was sent": [[i, [[HUGE, HUGE, HUGE]] * WINDOWS, HUGE, HUGE] for i in range(48)],
    "less than nothing": [[0, [[-5, -5, -5]] * WINDOWS, 0, 0]],
    "too few windows": [[0, [[10, 10, 5]], 5, 5]],
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", LIES.values(), ids=LIES)
def test_a_lie_about_what_was_seen_accuses_no_honest_node(rows, stranger) -> None:
    heard = [[i, [HUGE] * WINDOWS] for i in range(48)]
    says = {
        "up": [up(stranger.getsockname()[1])],
        "go": [{"say": "sent"}],
        "stop": [
            {"say": "seen", "rows": rows, "heard": heard},
            {"say": "end", "errors": [[0, "x", 1]], "full": [[HUGE]]},
        ],
    }
    run, _, findings = told(says)
    assert all(LIAR in nodes for nodes in accused(findings)), findings
    for number, one in run.seen().items():
        assert all(b <= h <= s for s, h, b in zip(one.sent, one.heard, one.back, strict=True)), number
    between = [run.seen()[i] for i, p in enumerate(run.plan.pings) if {p.src, p.dst} == {0, 1}]
    assert len(between) == 2 * pinged.FLOWS
    assert all(sum(one.back) == COUNT for one in between)


@pytest.mark.slow
def test_a_node_whose_words_are_none_is_unknown_and_the_others_are_tested(monkeypatch) -> None:
    monkeypatch.setattr(fabric_ping_run, "START_S", 2.0)
    words = [
        {"say": "up", "ports": [[70000]]},
        {"say": "up", "ports": [[-1]]},
        {"say": "up", "ports": 7},
        "[" * 100_000,
        '{"say": "up"',
        {"say": "reset"},
    ]
    run, made, findings = told({"up": words})
    assert [(f.code, f.subject.nodes, f.verdict) for f in findings] == [("fabric/end-silent", (LIAR,), "unknown")]
    assert len(run.seen()) == 2 * pinged.FLOWS
    assert len(made.heard) == 1


@pytest.mark.slow
def test_a_node_that_opens_no_socket_or_keeps_what_it_saw_to_itself_is_told() -> None:
    _, _, findings = told(
        {"up": [{"say": "up", "ports": []}], "go": [{"say": "sent"}], "stop": [{"say": "end"}]},
    )
    assert [(f.code, f.subject.nodes) for f in findings] == [("preflight/no-address", (LIAR,))]
    _, _, findings = told({"up": [up(9)], "go": [{"say": "sent"}], "stop": [{"say": "end"}]})
    assert [(f.code, f.subject.nodes, f.verdict) for f in findings] == [("fabric/end-silent", (LIAR,), "unknown")]


def test_a_node_that_keeps_one_path_to_itself_makes_nobody_else_silent(stranger) -> None:
    """Who owes which word is known: of a path its sender says what it sent, its other end what came."""
    rows = [[i, [[10, 10, 1]] * WINDOWS, 1, 1] for i in range(47)]
    says = {
        "up": [up(stranger.getsockname()[1])],
        "go": [{"say": "sent"}],
        "stop": [{"say": "seen", "rows": rows, "heard": [[i, [10] * WINDOWS] for i in range(48)]}, {"say": "end"}],
    }
    _, _, findings = told(says)
    assert [f.subject.nodes for f in findings if f.code == "fabric/end-silent"] == [(LIAR,)]


def test_a_node_that_talks_without_end_is_lost(stranger) -> None:
    many = [{"say": "sent"}] * 2000
    _, _, findings = told({"up": [up(stranger.getsockname()[1])], "go": many, "stop": [{"say": "end"}]})
    assert [(f.code, f.subject.nodes) for f in findings] == [("fabric/end-silent", (LIAR,))]
    assert "more than" in findings[0].message


@pytest.mark.slow
def test_packets_of_a_stranger_who_repeats_what_he_was_sent_open_nothing(stranger) -> None:
    """An echo service at the address: it sends back what came, and that is no answer."""
    says = {"up": [up(stranger.getsockname()[1])], "go": [{"say": "sent"}], "stop": [{"say": "end"}]}
    script = (
        "import socket,sys\n"
        "s = socket.socket(fileno=int(sys.argv[1])); s.setblocking(True)\n"
        "while True:\n    data, who = s.recvfrom(1 << 16); s.sendto(data, who); print('x', end='', flush=True)\n"
    )
    os.set_inheritable(stranger.fileno(), True)
    echo = [sys.executable, "-c", script, str(stranger.fileno())]
    with subprocess.Popen(echo, close_fds=False, stdout=subprocess.PIPE) as process:
        try:
            run, _, _ = told(says)
        finally:
            process.kill()
        num = len(process.stdout.read())
    assert num == len(HONEST) * (pinged.FLOWS * WINDOWS * FEW + KNOCKS)
    to_liar = [i for i, ping in enumerate(run.plan.pings) if ping.dst == 2]
    assert all(not any(back for _, back, _ in run.timed[i][0]) for i in to_liar)


def test_packets_that_a_socket_had_no_room_for_are_counted_by_the_kernel() -> None:
    sock = opened("127.0.0.1", steered=False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    with sock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        assert full(sock) == 0
        for _ in range(300):
            sender.sendto(bytes(1000), sock.getsockname())
        came = 0
        with contextlib.suppress(BlockingIOError):
            while sock.recv(2000):
                came += 1
        assert came > 0
        assert came + full(sock) == 300
