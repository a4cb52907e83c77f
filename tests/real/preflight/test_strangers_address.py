"""A node that says that a stranger's address is its own: real agents, at addresses of the loopback interface."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from fairlead.base.program import Program
from fairlead.cluster.protocol import Line
from fairlead.preflight.pairs.drive import AGENT, Driver
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.onnode.wire import FULL, HEAD, KNOCK, SMALL, SPEED
from fairlead.preflight.pairs.phase import pair_phase
from fairlead.preflight.pairs.steps import Plan
from fairlead.records.verdict import Verdict
from support.hostile import Agents

NODES = ("n0", "n1", "n2", "liar")
LIMITS = dataclasses.replace(DEFAULT, sample=64, work_blocks=20, clock_exchanges=2, lost_s=10.0)


class Mixed:
    """Real agents, but for the liar: it answers as an honest one would, whose ports are those of a stranger."""

    num_starting = 0

    def __init__(self, liar_port: int) -> None:
        self.ended: dict[str, Any] = {}
        self.liar = Agents(NODES, 1, {}) if liar_port else None
        self.port = liar_port
        program = Program.of(*AGENT)
        self.processes = {}
        for node in NODES[: -1 if liar_port else None]:
            env = {**os.environ, "FAIRLEAD_NODE": node}
            words = [*program.words(sys.executable)]
            one = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
            assert one.stdin
            one.stdin.write(program.stdin)
            self.processes[node] = one
        self.rest = dict.fromkeys(self.processes, b"")
        self.lines: list[Line] = []

    @property
    def has_unread(self) -> bool:
        return bool(self.lines)

    def send(self, text: str) -> None:
        for one in self.processes.values():
            one.stdin.write(text.encode() + b"\n")
            one.stdin.flush()
        if self.liar:
            self.liar.send(text)
            for line in self.liar.lines:
                if line.node == NODES[-1]:
                    said = json.loads(line.text)
                    said |= {"ports": [self.port], "tcp": 1} if "ports" in said else {}
                    self.lines.append(line._replace(text=json.dumps(said)))
            self.liar.lines.clear()

    def read(self, timeout_s: float) -> Line | None:
        if self.lines:
            return self.lines.pop(0)
        pipes = {one.stdout.fileno(): node for node, one in self.processes.items()}
        for fd in select.select([*pipes], [], [], timeout_s)[0]:
            node = pipes[fd]
            *whole, self.rest[node] = (self.rest[node] + os.read(fd, 1 << 16)).split(b"\n")
            self.lines += [Line(node, None, "stdout", line.decode()) for line in whole]
        return self.lines.pop(0) if self.lines else None

    def close(self) -> None:
        for one in self.processes.values():
            with one:
                one.kill()


@contextlib.contextmanager
def agents(liar_port: int) -> Iterator[Mixed]:
    made = Mixed(liar_port)
    try:
        yield made
    finally:
        made.close()


def accused(facts: Any) -> set[tuple[str, ...]]:
    return {f.subject.nodes for f in judge_pairs(facts, LIMITS) if f.verdict is Verdict.FAIL and f.subject.nodes}


def plan(*addresses: str) -> Plan:
    rows = tuple((a,) for a in addresses)
    return Plan(nodes=NODES, paths=("eth",), addresses=rows, limits=LIMITS)


def test_a_stranger_is_sent_no_burst_and_the_others_are_judged_as_ever():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        stranger.bind(("127.0.0.9", 0))
        stranger.setblocking(False)
        with agents(stranger.getsockname()[1]) as group:
            facts = Driver(group, NODES, lost_s=LIMITS.lost_s).run(
                pair_phase(plan("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.9"))
            )
        got = []
        with contextlib.suppress(BlockingIOError):
            while True:
                got.append(stranger.recv(1 << 16))
    assert facts.members == (0, 1, 2, 3)
    assert all("liar" in nodes for nodes in accused(facts)), accused(facts)
    kinds = [HEAD.unpack_from(data)[-1] for data in got]
    assert 3 * 8 <= kinds.count(KNOCK) <= 3 * 8 * 4  # once, twice more, and before anything is repeated
    tests = facts.rounds["burst"] + facts.rounds["speed"] + 2 * facts.rounds.get("adaptive", 0)
    assert len([kind for kind in kinds if kind in (SMALL, FULL, SPEED)]) <= 3 * tests
    assert len(got) < 300


def test_who_is_where_it_says_is_tested_as_ever():
    started = time.monotonic()
    with agents(0) as group:
        facts = Driver(group, NODES, lost_s=LIMITS.lost_s).run(
            pair_phase(plan("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"))
        )
    assert time.monotonic() - started < 60
    assert accused(facts) == set()
    assert facts.bursts == []


def test_knocks_that_are_made_up_open_nothing():
    """All answer, and say that they were knocked at with what nobody sent."""
    group = Agents(NODES, 1, {}, hear=False)
    facts = Driver(group, NODES, lost_s=0.0).run(pair_phase(plan("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.9")))
    asked = [order for order in group.orders if order["do"] in ("burst", "speed", "tcp")]
    assert facts.lost == {}
    assert {order["do"] for order in asked} == {"burst", "speed", "tcp"}
    assert all(order["closed"] == [[i, 0] for i in range(4)] for order in asked)
