"""Segmentation offload over the kernel's sockets: packets that go and come as one are the same packets."""

from __future__ import annotations

import errno
import random
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import packets
from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.transport import batches, ports
from fairlead.fabric.transport.context import Context, remote_of
from fairlead.fabric.transport.engine import Engine, _together
from fairlead.fabric.transport.fast import layout as at
from fairlead.fabric.transport.fast.desk import MAX_OUT, Desk, address_of, address_of_bytes
from fairlead.fabric.transport.fast.engine import FastEngine
from fairlead.fabric.transport.fast.sheets import LetterSockets, Sheets, name_of
from fairlead.fabric.transport.lanes import Route
from fairlead.fabric.transport.ports import Arrival, Outgoing, Sockets
from fairlead.fabric.transport.tape import Tape
from fairlead.records.addressbook import Place, Port, Seat, Steering
from support.depth import cases

pytestmark = pytest.mark.real
TOKEN = secrets.token_bytes(32)
LIMIT_S = 60.0
SIZE = (1 << 20) + 12_345  # the last packet is short


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def arrivals(sockets: Sockets, num: int) -> list[tuple[bytes, int, int]]:
    """Bytes, DSCP and source port of so many datagrams; the loopback has them there as soon as they are sent."""
    out = []
    while len(out) < num and (arrival := sockets.receive(0)) is not None:
        out.append((bytes(arrival.data), arrival.path.dscp, arrival.path.source_port))
    assert sockets.receive(0) is None
    return out


# --- sockets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
@pytest.mark.parametrize("merges", [True, False], ids=["merged", "apart"])
@pytest.mark.parametrize("sizes", [[1000] * 5 + [37], [4140] * 15, [52] * 64, [9, 1]])
def test_a_batch_comes_as_the_datagrams_it_was_made_of(
    stack: Any, address: str, merges: bool, sizes: list[int]
) -> None:
    here = Sockets([address], steered=False, gso=True)
    there = Sockets([address], steered=False, gso=merges)
    for sockets in (here, there):
        stack.callback(sockets.close)
    route, to = Route(0, 0, address, 0), (address, there.numbers[0][0])
    bodies = [secrets.token_bytes(size) for size in sizes]
    made = [Outgoing(route, to, 21, (body[:5], body[5:])) for body in bodies]
    assert _together(made) == made
    assert here.send_batch(made, sizes[0])
    assert arrivals(there, len(sizes)) == [(body, 21, here.numbers[0][0]) for body in bodies]
    assert here.num_batches == 1


LETTER = st.tuples(st.integers(0, 2), st.sampled_from([0, 5]), st.sampled_from([60, 100, 100, 100, 8]))


@settings(max_examples=cases(40), deadline=None)
@given(letters=st.lists(LETTER, min_size=1, max_size=MAX_OUT))
def test_letters_go_in_the_batches_that_plain_python_would_make(letters: list[tuple[int, int, int]]) -> None:
    """Ways, classes and sizes mixed: the same datagrams, in as many batches."""
    with ExitStack() as stack:
        here, there, apart = (Sockets(["::1"], steered=False, gso=gso) for gso in (False, True, False))
        fast = LetterSockets(["::1"], steered=False, sources=2, gso=True)
        for sockets in (here, there, apart, fast):
            stack.callback(sockets.close)
        desk = Desk()
        sheets = Sheets(desk, gso=True)
        ways = [(0, there), (1, there), (1, apart)]
        names = [name_of("::1", target.numbers[0][0]) for _, target in ways]
        routes = np.zeros((3, at.ROUTE_ROW), dtype=np.int64)
        for slot, (source, _) in enumerate(ways):
            number = sheets.socket(0, source, fast.fd(0, source))
            routes[slot] = number, address_of_bytes(memoryview(names[slot])), len(names[slot]), 10
        made: list[Outgoing] = []
        for i, (slot, dscp, size) in enumerate(letters):
            source, target = ways[slot]
            head, tail = i.to_bytes(4, "big") * (size // 4), b"tail"
            desk.heads[i, :size] = np.frombuffer(head.ljust(size, b"-"), np.uint8)
            desk.heads[i, at.TAIL_AT : at.TAIL_AT + 4] = np.frombuffer(tail, np.uint8)
            desk.out[i] = 1, address_of(routes), slot, dscp, int(routes[slot, 0]), size, 0, 0, 4
            parts = (bytes(desk.heads[i, :size]), tail)
            made.append(Outgoing(Route(0, source, "::1", 0), ("::1", target.numbers[0][0]), dscp, parts))
        desk.words[at.K_NUM_OUT] = len(letters)
        assert fast.post(sheets) == []
        made.sort(key=lambda packet: packet.route.source)
        for target in (there, apart):
            own = [packet for packet in made if packet.to[1] == target.numbers[0][0]]
            wanted = [(b"".join(p.parts), p.dscp, fast.numbers[0][p.route.source]) for p in own]
            assert arrivals(target, len(own)) == wanted
        num = 0
        for _, group in groupby(made, key=lambda packet: packet.route.source):
            queue = list(group)
            while queue:
                run = _together(queue)
                num += len(run) > 1
                del queue[: len(run)]
        assert fast.num_batches == num


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
@pytest.mark.parametrize("dscp", [0, 46])
def test_a_letter_has_its_class_and_can_be_marked_whether_the_socket_says_so_or_the_letter(
    stack: ExitStack, address: str, dscp: int
) -> None:
    there, fast = Sockets([address], steered=False), LetterSockets([address], steered=False)
    for sockets in (there, fast):
        stack.callback(sockets.close)
    sheets = Sheets(Desk())
    name = name_of(address, there.numbers[0][0])
    routes = np.zeros((1, at.ROUTE_ROW), dtype=np.int64)
    family = int.from_bytes(name[:2], "little")
    routes[0] = sheets.socket(0, 0, fast.fd(0, 0)), address_of_bytes(memoryview(name)), len(name), family
    sheets.desk.out[0] = 1, address_of(routes), 0, dscp, 0, 8, 0, 0, 4
    sheets.desk.words[at.K_NUM_OUT] = 1
    assert fast.post(sheets) == []
    _, control, _, _ = there.rails[0][0].recvmsg(100, 128)
    kinds = (socket.IPV6_TCLASS, socket.IP_TOS)
    assert [value[0] for _, kind, value in control if kind in kinds] == [dscp << 2 | ports.ECN_ECT0]


# --- whole contexts ----------------------------------------------------------------------------------------------


def write(stack: ExitStack, here: dict[str, Any], there: dict[str, Any], num: int = 3) -> tuple[Context, Context]:
    """Messages one after the other from one context to another, compared."""
    a, b = (
        stack.enter_context(Context(**({"addresses": ["::1"], "gso": True} | options))) for options in (here, there)
    )
    data = np.random.default_rng(5).integers(0, 256, SIZE, dtype=np.uint8)
    buffer = np.zeros((num, SIZE), dtype=np.uint8)
    private = remote_of(b.register(buffer))
    mine, theirs = a.completion_queue(), b.completion_queue()
    with b.listen("::1", TOKEN) as listener, ThreadPoolExecutor(1) as pool:
        job = pool.submit(listener.accept, theirs, theirs, private=private)
        qp = a.connect("::1", listener.port, TOKEN, mine, mine)
        job.result(LIMIT_S)
    for i in range(num):
        qp.post_write(data, qp.remote, wr_id=i, offset=i * SIZE)
    done: list[Any] = []
    while len(done) < num and (some := mine.wait(LIMIT_S)):
        done += some
    assert [(c.wr_id, c.status) for c in done] == [(i, Status.SUCCESS) for i in range(num)], (qp.error, a.driver.crash)
    assert all(np.array_equal(row, data) for row in buffer)
    return a, b


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({}, {}),
        ({"compiled": False}, {"compiled": False}),
        ({}, {"compiled": False}),
        ({"compiled": False}, {}),
        ({}, {"gso": False}),
        ({"sealed": True}, {"sealed": True}),
        ({"addresses": ["127.0.0.1", "127.0.0.2"]}, {"addresses": ["127.0.0.1", "127.0.0.2"]}),
    ],
    ids=["compiled", "plain", "to-plain", "to-compiled", "to-unmerged", "sealed", "v4"],
)
def test_bytes_arrive_whole_by_batches(stack: ExitStack, here: dict[str, Any], there: dict[str, Any]) -> None:
    a, b = write(stack, here, there)
    sent, heard = a.counters(), b.counters()
    assert sent["batches"] * 2 <= sent["sent"]
    assert heard["bad"] == heard["foreign"] == heard["cut_short"] == 0


@pytest.mark.parametrize("compiled", [True, False])
def test_the_rest_of_a_batch_waits_for_no_other_datagram(stack: ExitStack, compiled: bool) -> None:
    """A turn ends in the middle of a batch, and the kernel has nothing more: what is left is in the process."""
    context = stack.enter_context(Context(addresses=["::1"], gso=True, compiled=compiled))
    stranger = Sockets(["::1"], steered=False, gso=True)
    stack.callback(stranger.close)
    to = ("::1", context._sockets.numbers[0][0])
    batch = [Outgoing(Route(0, 0, "::1", 0), to, 0, (bytes(1000),))] * 15
    with context.lock:
        for _ in range(5):
            assert stranger.send_batch(batch, 1000)
    deadline = time.monotonic() + LIMIT_S
    while context.counters()["foreign"] < 75 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert context.counters()["foreign"] == 75


class Lossy(LetterSockets):
    """The kernel's sockets, that lose, double and damage single packets of the batches that come."""

    goes_round = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.random = random.Random(3)

    def collect(self, sheets: Sheets, rail: int) -> int:
        num = super().collect(sheets, rail)
        letters, kept = sheets.desk.letters, []
        for i in range(num):
            what = self.random.random()
            if what < 0.03 and letters[i, at.I_LENGTH] > 20:
                letters[i, at.I_LENGTH] -= 8
            kept += [] if 0.03 <= what < 0.1 else [i]
        letters[: len(kept)] = letters[kept]
        return len(kept)

    def receive(self, rail: int) -> Arrival | None:
        arrival = super().receive(rail)
        what = self.random.random()
        if arrival is None or what >= 0.1:
            return arrival
        return replace(arrival, data=arrival.data[:-8]) if what < 0.03 else self.receive(rail)


@pytest.mark.parametrize("engine", [FastEngine, Engine])
def test_what_is_lost_or_damaged_within_batches_is_sent_again(stack: Any, monkeypatch: Any, engine: Any) -> None:
    monkeypatch.setattr("fairlead.fabric.transport.context._engine_of", lambda **_: (engine, Lossy))
    _, b = write(stack, {}, {})
    assert b.counters()["bad"] > 0


def test_a_tape_has_each_packet_of_a_batch(stack: ExitStack) -> None:
    tape = Tape()
    a, _ = write(stack, {"tape": tape}, {}, num=1)
    with a.lock:  # a last SACK may be on its way
        taped = [one for one in tape.taped if one.is_sent]
        assert len(taped) == a.counters()["sent"]
    writes = [p for one in taped if one.size > 90 and (p := packets.decode(one.head, is_trimmed=True))]
    assert len({p.bth.psn for p in writes}) == -(-SIZE // 4096)


# --- over a link that cuts batches -------------------------------------------------------------------------------

END = """
import array, fcntl, socket, struct, sys
from fairlead.fabric.transport.context import Context, remote_of
size, data = 1 << 20, bytes(range(256)) * (1 << 12)
print("here", flush=True)
is_target = sys.stdin.readline() == "target\\n"
if is_target:
    value = array.array("I", [0x2C, 1])  # linux/ethtool.h: ETHTOOL_SGRO
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8946, struct.pack("16sP16x", b"v1", value.buffer_info()[0]))  # SIOCETHTOOL
        value[:] = array.array("I", [0x2B, 0])  # ETHTOOL_GGRO
        fcntl.ioctl(sock, 0x8946, struct.pack("16sP16x", b"v1", value.buffer_info()[0]))
    assert value[1] == 1
with Context(addresses=["fd77::2" if is_target else "fd77::1"], gso=True) as context:
    queue = context.completion_queue()
    if is_target:
        memory = bytearray(8 * size)
        with context.listen("fd77::2", b"t" * 32, 7777) as listener:
            print("listens", flush=True)
            listener.accept(queue, queue, private=remote_of(context.register(memory)), limit_s=60)
        sys.stdin.readline()
        print(memory == 8 * data, flush=True)
    else:
        qp = context.connect("fd77::2", 7777, b"t" * 32, queue, queue)
        for i in range(8):
            qp.post_write(data, qp.remote, wr_id=i, offset=i * size)
        done = []
        while len(done) < 8 and (some := queue.wait(60)):
            done += some
        counts = qp.counters()
        print(len(done), {c.status.name for c in done}, counts["new"], counts["resent"] > 0, flush=True)
"""
DROP = """
table netdev t {
  chain c {
    type filter hook ingress device v1 priority 0; policy accept;
    meta length > 3000 numgen random mod 100 < 2 counter drop
  }
}
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.mark.requires("root", "netns", "nft")
def test_packets_of_batches_that_a_link_cuts_and_loses_arrive_all_the_same(stack: ExitStack) -> None:
    """Two namespaces: one interface cuts batches, the other loses packets of them and merges the rest (GRO)."""
    command = ["unshare", "-n", sys.executable, "-c", END]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    here, there = (stack.enter_context(subprocess.Popen(command, **pipes)) for _ in "ab")
    for end in (here, there):
        stack.callback(end.kill)
        assert end.stdout.readline() == "here\n"
    names = ["link", "add", "v0", "mtu", "9000", "netns", str(here.pid), "type", "veth", "peer", "name", "v1"]
    ip(*names, "mtu", "9000", "netns", str(there.pid))
    for number, end in enumerate((here, there)):
        inside = ["nsenter", "-t", str(end.pid), "-n"]
        port = f"v{number}"
        wanted = ["link set lo up", f"addr add fd77::{number + 1}/64 dev {port} nodad", f"link set {port} up"]
        for words in wanted if number else [*wanted, "link set v0 gso_max_segs 1"]:
            subprocess.run([*inside, "ip", *words.split()], check=True, capture_output=True)
        if number:
            subprocess.run([*inside, "nft", "-f", "-"], check=True, input=DROP.encode())
    there.stdin.write("target\n")
    there.stdin.flush()
    assert there.stdout.readline() == "listens\n"
    here.stdin.write("source\n")
    here.stdin.flush()
    assert here.stdout.readline() == "8 {'SUCCESS'} 2048 True\n"
    there.stdin.write("end\n")
    there.stdin.flush()
    assert there.stdout.readline() == "True\n"


# --- where it cannot be ------------------------------------------------------------------------------------------


def test_steered_paths_have_no_checksums_so_they_have_no_batches() -> None:
    place = Place(
        ports=(Port(rail="plane 0", plane=0, address="::1"),),
        seat=Seat(t0=0, port=0),
        steering=Steering(by="usid", t1=2),
    )
    with pytest.raises(LocalProtocolError, match="no UDP checksum") as told:
        Context(place, gso=True)
    assert told.value.code == "fabric/no-offload"


def test_steered_paths_have_no_checksums_so_their_packets_need_another() -> None:
    place = Place(
        ports=(Port(rail="plane 0", plane=0, address="::1"),),
        seat=Seat(t0=0, port=0),
        steering=Steering(by="usid", t1=2),
    )
    with pytest.raises(LocalProtocolError, match="notice damage") as told:
        Context(place, icrc=False)
    assert told.value.code == "fabric/no-check"
    Context(place, icrc=False, sealed=True).close()


def test_the_kernel_takes_no_batch_from_a_socket_without_checksums(stack: ExitStack) -> None:
    """What the refusal above stands on."""
    sockets = Sockets(["::1"], steered=True)
    stack.callback(sockets.close)
    route, to = Route(0, 0, "::1", 0), ("::1", sockets.numbers[0][0])
    assert sockets.send_batch([Outgoing(route, to, 0, (b"x" * 100,))] * 3, 100)
    assert sockets.num_lost_locally == 3  # EINVAL


def test_a_kernel_without_segmentation_offload_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "UDP_GRO", 250)  # an option that this kernel does not know, as older ones this one
    with pytest.raises(LocalProtocolError, match="the kernel refuses segmentation offload: Protocol not available"):
        Context(addresses=["::1"], gso=True)


def test_a_port_that_cannot_cut_batches_ends_the_context_with_the_reason() -> None:
    ports.raise_if_refused(errno.EIO, gso=False)
    with pytest.raises(LocalProtocolError, match="reckons no UDP checksums"):
        ports.raise_if_refused(errno.EIO, gso=True)


def test_batches_are_as_long_as_the_length_fields_allow() -> None:
    for size in (1, 52, 1016, 1017, 4140, 40_000):
        num = batches.run_of(size)
        assert num == 1 or batches.fits(size, size, num - 1, size)
        assert not batches.fits(size, size, num, size)
