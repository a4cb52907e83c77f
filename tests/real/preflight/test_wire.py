"""The agent's sockets on loopback: what a full socket drops is counted, and what waits for a peer's word."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from fairlead.preflight.pairs.onnode.wire import SMALL, SMALL_BYTES, Outgoing, Route, now_ns

pytestmark = [pytest.mark.real]


@pytest.fixture
def route() -> Iterator[Callable[[str], Route]]:
    """Sockets on an address, closed in the end."""
    made: list[Route] = []

    def make(address: str) -> Route:
        made.append(Route(address))
        return made[-1]

    yield make
    for each in made:
        for sock in (each.listener, *each.flows):
            sock.close()


def arrived(route: Route) -> int:
    """Packets that are there by now."""
    return len(list(route.arrivals(route.listener, 1 << 16)))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_what_a_full_socket_drops_is_known_without_another_packet(route, address):
    here, there = route(address), route(address)
    there.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(200):
        here.flows[0].sendto(bytes(SMALL_BYTES), (address, there.port))
    num = arrived(there)
    assert 0 < num < 200
    assert there.dropped() == 200 - num
    assert here.dropped() == 0


def sender(route: Callable[[str], Route], window: int, gap_ns: int) -> tuple[Outgoing, Route]:
    here, there = route("127.0.0.1"), route("127.0.0.1")
    out = Outgoing(here, ("127.0.0.1", there.port), (1, 1, 0, 1), 0, batch=8, gap_ns=gap_ns, window=window)
    out.packets = [(SMALL, i) for i in range(800)]
    return out, there


def push_while_due(out: Outgoing) -> None:
    while not out.is_done and out.due <= now_ns():
        out.push(now_ns())


def test_without_a_word_of_the_peer_only_a_window_goes_at_once(route):
    out, there = sender(route, window=64, gap_ns=3_600_000_000_000)
    push_while_due(out)
    assert (out.sent, arrived(there)) == (64, 64)
    out.on_ack(15)
    push_while_due(out)
    assert (out.sent, arrived(there)) == (80, 16)
    out.on_ack(7)
    push_while_due(out)
    assert out.sent == 80, "an old word is none"


def test_a_peer_that_never_answers_gets_all_of_it_at_the_old_pace(route):
    out, there = sender(route, window=64, gap_ns=200_000)
    started = time.monotonic()
    num = 0
    while not out.is_done:
        push_while_due(out)
        num += arrived(there)
    assert num + arrived(there) == 800
    assert time.monotonic() - started >= (800 - 64) / 8 * 200e-6
