"""The edge to the kernel: sockets that are full or connected, ways that end, packets that do not fit. Real sockets."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.transport.context import Context, remote_of
from fairlead.fabric.transport.fast import layout as at
from fairlead.fabric.transport.fast.desk import Desk, address_of, address_of_bytes
from fairlead.fabric.transport.fast.sheets import LetterSockets, Sheets, name_of
from fairlead.fabric.transport.ports import Sockets

pytestmark = pytest.mark.real
TOKEN = secrets.token_bytes(32)
LIMIT_S = 60.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Letters:
    """Letters of eight bytes and four, by one socket of a compiled sender."""

    def __init__(self, stack: ExitStack, address: str, to: tuple[str, int], source: int = 0, size: int = 0) -> None:
        self.sockets = LetterSockets([address], steered=False, sources=2)
        stack.callback(self.sockets.close)
        self.sheets = Sheets(Desk())
        self.name = name_of(*to)
        self.routes = np.zeros((1, at.ROUTE_ROW), dtype=np.int64)
        self.body = np.zeros(max(size, 1), dtype=np.uint8)
        number = self.sheets.socket(0, source, self.sockets.fd(0, source))
        where = address_of_bytes(memoryview(self.name)), len(self.name)
        if self.sockets.aim(0, source, *to):
            where = 0, 0
        self.routes[0] = number, *where, int.from_bytes(self.name[:2], "little")
        self.sheets.desk.out[0] = 1, address_of(self.routes), 0, 0, number, 8, address_of(self.body), size, 4

    def post(self, num: int = 1) -> list[int]:
        self.sheets.desk.words[at.K_NUM_OUT] = num
        return self.sockets.post(self.sheets)


# --- a socket that is full ---------------------------------------------------------------------------------------

FULL = """
import json, secrets, socket, threading
from fairlead.fabric.transport.context import Context, remote_of
SIZE = 8 << 20
token = secrets.token_bytes(32)
options = {"addresses": ["::1"], "compiled": True, "rate_mbps": 400}
with Context(**options) as a, Context(**options) as b:
    for own in a._sockets.rails[0]:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    mine, theirs, room = a.completion_queue(), b.completion_queue(), bytearray(SIZE)
    with b.listen("::1", token) as listener:
        private = remote_of(b.register(room))
        thread = threading.Thread(target=listener.accept, args=(theirs, theirs), kwargs={"private": private})
        thread.start()
        qp = a.connect("::1", listener.port, token, mine, mine)
        thread.join()
    data = secrets.token_bytes(SIZE)
    qp.post_write(data, qp.remote, wr_id=1)
    done = mine.wait(60)
    counts = a.counters() | qp.counters() | {"right": room == data, "ended": [c.status.name for c in done]}
    print(json.dumps(counts))
"""


@pytest.mark.requires("root", "netns", "tbf")
def test_what_a_full_socket_refuses_waits_and_is_not_lost() -> None:
    """The interface sends slowly and has room, so sockets fill up: what is sent again was thrown away here."""
    script = (
        'ip link set lo mtu 9000 up; tc qdisc add dev lo root tbf rate 200mbit burst 32k limit 8mb;exec "$0" -c "$1"'
    )
    command = ["unshare", "-n", "sh", "-ec", script, sys.executable, FULL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert said["ended"] == ["SUCCESS"]
    assert said["right"]
    assert said["held"] > 100
    assert said["resent"] < said["held"] // 20


ALONE = """
import json, select, sys, time
from fairlead.fabric.transport.context import Context
from real.fabric.test_edges import met
compiled, up, num = json.loads(sys.argv[1])
options = {"compiled": compiled, "rate_mbps": 4000}
ends = [Context(addresses=[f"fd00::{i}", f"fd00::{i + 1}"], **options) for i in (1, 3)]
for sock in sum(ends[0]._sockets.rails, []):
    sock.setsockopt(1, 7, 4608)  # SO_SNDBUF: room for two packets
queue, engine = ends[0].completion_queue(), ends[0].engine
qp = met(*ends, queue, ends[1].completion_queue(), "fd00::3")
with ends[0].lock, ends[1].lock:  # no answer is read, no timer runs, no thread does anything meanwhile
    now = time.monotonic_ns()
    engine.set_ports(up, now)
    qp.post_write(bytes(4096 * num), qp.remote, wr_id=1)
    while engine.send(now) or engine.blocked:
        for rail, source in engine.blocked.items():
            assert select.select([], [ends[0]._sockets.rails[rail][source]], [], 10)[1]
            engine.writable(rail)
    print(json.dumps([qp.counters()["new"], qp.counters()["resent"], engine.counts["held"]]))
    assert not queue.poll()
for end in ends:
    end.close()
"""


@pytest.mark.requires("root", "netns", "tbf")
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("up", [0b11, 0b01], ids=["both ports", "one port"])
def test_that_a_full_socket_has_room_again_is_enough_to_go_on(
    request: pytest.FixtureRequest, compiled: bool, up: int
) -> None:
    """A message, which the window holds, leaves some packets at a time while nothing comes back and no time passes.

    By the port that is down nothing can be sent, so with the other one full the queue pair has no turn any more.
    """
    num = 240 if compiled else 64  # packets: compiled, more than go in one burst
    script = (
        "ip link set lo mtu 9000 up; for i in 1 2 3 4; do ip -6 addr add fd00::$i/128 dev lo; done;"
        'tc qdisc add dev lo root tbf rate 10mbit burst 16k limit 8mb; exec "$0" -c "$1" "$2"'
    )
    done = subprocess.run(
        ["unshare", "-n", "sh", "-ec", script, sys.executable, ALONE, json.dumps([compiled, up, num])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=request.config.rootpath / "tests",
    )
    assert done.stdout, done.stderr
    new, resent, held = json.loads(done.stdout)
    assert (new, resent) == (num, 0)
    assert held > 0


# --- a socket that is connected ----------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_that_nobody_had_the_port_is_told_of_the_packet_before_and_loses_none(
    stack: ExitStack, address: str, compiled: bool
) -> None:
    """A connected socket answers the next call with ECONNREFUSED, and sends nothing then."""
    probe = Sockets([address], steered=False)
    port = probe.numbers[0][0]
    probe.close()
    letters = Letters(stack, address, (address, port), source=1)
    sockets = letters.sockets

    def goes() -> bool:
        return letters.post() == [] if compiled else sockets.send(0, 1, (address, port), 0, 0, [bytes(8), bytes(4)])

    assert sockets.rails[0][1].getpeername()[1] == port
    assert goes()
    there = Sockets([address], steered=False, port=port)
    stack.callback(there.close)
    assert goes()
    arrival = there.receive(0)
    assert arrival is not None
    assert len(arrival.data) == 12
    assert sockets.num_lost_locally == 0


def test_when_the_first_peer_has_gone_sockets_are_connected_to_the_next(stack: ExitStack) -> None:
    here = stack.enter_context(Context(addresses=["::1"]))
    mine = here.completion_queue()
    port = 0
    for _ in range(2):  # the second is another process at the place of the first
        with Context(addresses=["::1"], port=port) as there:
            theirs = there.completion_queue()
            if not port:
                beside = met(here, stack.enter_context(Context(addresses=["::1"])), mine, theirs)
            port = there._sockets.numbers[0][0]
            qp = met(here, there, mine, theirs)
            aimed = {sock.getpeername()[1] for sock in here._sockets.rails[0][1:]}
            qp.post_write(bytes(100_000), qp.remote, wr_id=1)
            assert [c.status for c in mine.wait(LIMIT_S)] == [Status.SUCCESS]
            qp.close()
    first = beside._line.ports[0]
    assert aimed == {first}
    beside.close()
    with Context(addresses=["::1"], port=port) as there:
        met(here, there, mine, there.completion_queue())
        assert {sock.getpeername()[1] for sock in here._sockets.rails[0][1:]} == {port}


def met(here: Context, there: Context, mine: Any, theirs: Any, address: str = "::1") -> Any:
    private = remote_of(there.register(bytearray(1 << 20)))
    with there.listen(address, TOKEN) as listener, ThreadPoolExecutor(1) as pool:
        job = pool.submit(listener.accept, theirs, theirs, private=private)
        qp = here.connect(address, listener.port, TOKEN, mine, mine)
        job.result(LIMIT_S)
    return qp


# --- ways that end, packets that do not fit ----------------------------------------------------------------------


def test_what_follows_a_packet_that_is_lost_here_goes_all_the_same(stack: ExitStack) -> None:
    there = Sockets(["::1"], steered=False)
    stack.callback(there.close)
    letters = Letters(stack, "::1", ("::1", there.numbers[0][0]), size=70_000)  # more than a datagram holds
    out = letters.sheets.desk.out
    out[1:3] = out[0]
    out[1:3, at.O_DATA_LENGTH] = 0
    assert letters.post(3) == []
    assert letters.sockets.num_lost_locally == 1
    come = [there.receive(0), there.receive(0)]
    assert [arrival and len(arrival.data) for arrival in come] == [12, 12]


FITS = """
import json
from contextlib import ExitStack
from fairlead.fabric.transport.ports import Sockets
from real.fabric.test_edges import Letters
said = []
with ExitStack() as stack:
    for address, nowhere in (("::1", "2001:db8:{}::1"), ("127.0.0.1", "203.0.113.{}")):
        sockets = Sockets([address], steered=False)
        stack.callback(sockets.close)
        to = address, sockets.numbers[0][0]
        most = sockets.path_mtu(0, address)
        for size in (most, most + 1):
            assert sockets.send(0, 0, to, 0, 0, [bytes(size)])
            letters = Letters(stack, address, to, size=size - 12)
            assert letters.post() == []
            come = 0
            while sockets.receive(0) is not None:
                come += 1
            said.append((size, come, sockets.num_lost_locally, letters.sockets.num_lost_locally))
        lost = []
        for to in (*((nowhere.format(i), 9) for i in range(1, 5)), (address, 9)):
            before = sockets.num_lost_locally
            assert sockets.send(0, 0, to, 0, 0, [b"x"])
            letters = Letters(stack, address, to)
            assert letters.post() == []
            lost.append((sockets.num_lost_locally - before, letters.sockets.num_lost_locally))
        said.append(lost)
print(json.dumps(said))
"""
NO_WAY = """
ip link set lo mtu 1500 up
for kind in 1/unreachable 2/prohibit 3/blackhole; do
    ip -6 route add ${kind#*/} 2001:db8:${kind%/*}::1
    ip route add ${kind#*/} 203.0.113.${kind%/*}
done
nft -f - <<EOF
table inet t {
  chain c {
    type filter hook output priority 0;
    udp dport 9 ip6 daddr ::1 drop
    udp dport 9 ip daddr 127.0.0.1 drop
  }
}
EOF
exec "$0" -c "$1"
"""


@pytest.mark.requires("root", "netns", "nft")
def test_what_fits_a_way_goes_and_what_does_not_or_has_no_way_is_lost_and_counted(
    request: pytest.FixtureRequest,
) -> None:
    """No way by EHOSTUNREACH, EACCES, EINVAL and ENETUNREACH (no route at all), or EPERM (a filter)."""
    done = subprocess.run(
        ["unshare", "-n", "sh", "-ec", NO_WAY, sys.executable, FITS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=request.config.rootpath / "tests",
    )
    assert done.stdout, done.stderr
    v6, v4 = 1500 - 48, 1500 - 28
    assert json.loads(done.stdout) == [
        [v6, 2, 0, 0],
        [v6 + 1, 0, 1, 1],
        [[1, 1]] * 5,
        [v4, 2, 0, 0],
        [v4 + 1, 0, 1, 1],
        [[1, 1]] * 5,
    ]
