"""What does not fit, or dies, is an error by its code within its limit, and other queue pairs of the context go on.

| what | error | limit | test |
|---|---|---|---|
| no common plane | fabric/no-common-plane | that of connect | here |
| MTU that does not fit the way | fabric/mtu-mismatch | that of connect | here |
| a peer of another version | fabric/exchange | that of connect | here |
| another token | fabric/exchange, fabric/wrong-token | that of connect | here, unit/fabric/transport/test_exchange.py |
| a wrong key, out of bounds | fabric/qp-failed at the writer | a second | here, test_transport.py |
| no receive for an immediate | fabric/qp-failed, RNR_RETRY_EXC_ERR | all retries | here |
| a region freed while in use | fabric/qp-failed at the writer | a second | here, test_transport.py |
| a peer killed in mid-message | fabric/peer-gone | a second | here, test_transport.py |
| all planes dead | fabric/qp-failed | all retries | here |
| a caller that says nothing | none: others are heard beside it | | here |
| what no context can be made of | fabric/no-port, fabric/bad-profile | at once | here, test_given.py |
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from fairlead.errors import FabricError
from fairlead.fabric.mrc.completion import Status
from fairlead.fabric.mrc.memory import MemoryRegion
from fairlead.fabric.transport.context import Context, remote_of
from fairlead.fabric.transport.engine import READ_BURST
from fairlead.fabric.transport.exchange import MAGIC, MAX_HEARD, NONCE_BYTES
from fairlead.fabric.transport.fast.engine import FastEngine
from fairlead.fabric.transport.fast.sheets import LetterSockets
from fairlead.fabric.transport.queuepair import QueuePair
from fairlead.records.addressbook import Place, Port

pytestmark = pytest.mark.real
TOKEN = secrets.token_bytes(32)
CONNECT_S = 2.0
"""The limit given to `connect`; what is found earlier is told earlier."""
BUSY_S = 3.0
"""What a busy machine may add."""
KEY_S = 1.0
"""From a packet that may not be written where it says to the error: a round trip."""
GONE_S = 1.0
"""From a SIGKILL to the error: the kernel there closes its sockets."""
RETRIES_S = 8.0
"""All retries: `Profile.software` doubles its timeout, which a busy machine may have made longer."""


@contextmanager
def listening(
    context: Context, token: bytes = TOKEN, limit_s: float = 20, region: MemoryRegion | None = None
) -> Iterator[int]:
    """The port of a listener that accepts one peer, and keeps what that does to itself."""
    queue = context.completion_queue(64)
    region = region or context.register(bytearray(1 << 20))

    def accept() -> None:
        with suppress(FabricError):
            listener.accept(queue, queue, private=remote_of(region), limit_s=limit_s)

    with context.listen("::1", token) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.port
        thread.join()


def accepted(here: Context, there: Context, memory: bytearray) -> tuple[QueuePair, QueuePair, Any]:
    """Both ends of a queue pair, and the queue of the one that writes."""
    mine, theirs = here.completion_queue(), there.completion_queue()
    with there.listen("::1", TOKEN) as listener, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(listener.accept, theirs, theirs, private=remote_of(there.register(memory)))
        return here.connect("::1", listener.port, TOKEN, mine, mine), answer.result(), mine


class Other:
    """A queue pair beside the one that something is wrong with, in the same context."""

    def __init__(self, context: Context) -> None:
        self.peer = Context(addresses=["::1"])
        self.queue = context.completion_queue(64)
        with listening(self.peer) as port:
            self.qp = context.connect("::1", port, TOKEN, self.queue, self.queue)

    def goes_on(self) -> bool:
        self.qp.post_write(secrets.token_bytes(100_000), self.qp.remote, wr_id=5)
        return [(c.wr_id, c.status) for c in self.queue.wait(20)] == [(5, Status.SUCCESS)]


@pytest.fixture
def here() -> Iterator[Context]:
    with Context(addresses=["::1"]) as context:
        yield context


@pytest.fixture
def other(here: Context) -> Iterator[Other]:
    made = Other(here)
    yield made
    assert made.goes_on()
    made.peer.close()


def refused(here: Context, port: int, token: bytes = TOKEN) -> tuple[str, float]:
    """(code, seconds) of a connect that fails."""
    begin = time.monotonic()
    queue = here.completion_queue(8)
    with pytest.raises(FabricError) as told:
        here.connect("::1", port, token, queue, queue, limit_s=CONNECT_S)
    return told.value.code, time.monotonic() - begin


def test_no_common_plane(here: Context, other: Other) -> None:
    with Context(addresses=["127.0.0.1"]) as there, listening(there) as port:
        code, took_s = refused(here, port)
    assert code == "fabric/no-common-plane"
    assert took_s < CONNECT_S + BUSY_S


@pytest.mark.parametrize(
    "said", [b"fairlead-mrc/999", b"HTTP/1.1 400 Bad Request\r\n", b""], ids=["newer", "web", "mute"]
)
def test_a_peer_of_another_version(here: Context, other: Other, said: bytes) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.settimeout(CONNECT_S + BUSY_S)
                if said:
                    sock.sendall(said[: len(MAGIC)].ljust(len(MAGIC), b" ") + bytes(NONCE_BYTES))
                while sock.recv(1 << 16):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        code, took_s = refused(here, server.getsockname()[1])
        thread.join()
    assert code == "fabric/exchange"
    assert took_s < CONNECT_S + BUSY_S


def test_another_token(here: Context, other: Other) -> None:
    with Context(addresses=["::1"]) as there, listening(there, limit_s=0.5) as port:
        code, took_s = refused(here, port, secrets.token_bytes(32))
    assert code in ("fabric/exchange", "fabric/wrong-token")
    assert took_s < CONNECT_S + BUSY_S


def test_callers_that_say_nothing_keep_nobody_waiting(here: Context) -> None:
    """Scanners, or a peer that stands still: more of them than are heard at once."""
    queue = here.completion_queue()
    with Context(addresses=["::1"], compiled=False) as there, ExitStack() as stack, listening(there) as port:
        strangers = [stack.enter_context(socket.create_connection(("::1", port))) for _ in range(MAX_HEARD + 8)]
        begin = time.monotonic()
        here.connect("::1", port, TOKEN, queue, queue, limit_s=10)
        assert time.monotonic() - begin < CONNECT_S + BUSY_S
        for stranger in strangers[:8]:
            stranger.settimeout(20)
            assert stranger.recv(1) == b""  # the oldest were sent away


def test_a_listener_that_is_closed_ends_the_wait_at_it(here: Context) -> None:
    queue = here.completion_queue()
    listener = here.listen("::1", TOKEN)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(listener.accept, queue, queue, limit_s=60)
        time.sleep(0.1)
        listener.close()
        with pytest.raises(FabricError, match="nobody connected"):
            job.result(BUSY_S)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"place": Place(ports=(Port(rail="rail 0", address="::1", interface="no-such"),))}, "fabric/no-port"),
        ({"addresses": ["::1"], "trim": True, "sealed": True}, "fabric/sealed-trim"),
        ({"addresses": ["::1", "2001:db8::1"]}, "fabric/no-port"),
        ({"addresses": ["here"]}, "fabric/no-port"),
    ],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_context_that_cannot_be_made_says_why_and_leaves_nothing_open(
    options: dict[str, Any], code: str, compiled: bool
) -> None:
    Context(addresses=["::1"], compiled=compiled).close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FabricError) as told:
        Context(**options, compiled=compiled)
    assert told.value.code == code
    assert len(list(Path("/proc/self/fd").iterdir())) == before


AGAIN = """
import subprocess, time
from fairlead.fabric.transport.interfaces import LinkWatch
def ip(words):
    subprocess.run(["ip", *words.split()], check=True)
def read(wanted):
    end = time.monotonic() + 10
    while watch.read() != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return watch.read()
def add(name):
    ip(f"link add {name} type veth peer name p{name}")
    ip(f"link set p{name} up")
    ip(f"link set {name} up")
add("d0")
add("d1")
watch = LinkWatch(["d0", "d1"])
said = [read(3)]
ip("link del d0")
said.append(read(2))
add("other")
add("d0")
said.append(read(3))
ip("link set pd0 down")
said.append(read(2))
print(said)
"""


@pytest.mark.requires("root", "netns")
def test_an_interface_that_is_removed_and_comes_back_is_up_again() -> None:
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[3, 2, 3, 2]\n", done.stderr


NARROW = """
import secrets, sys, threading, time
from fairlead.errors import FabricError
from fairlead.fabric.transport.context import Context, remote_of
token = secrets.token_bytes(32)
a, b, c = (Context(addresses=[f"fd00::{i}"], compiled=False) for i in (1, 2, 3))
with a, b, c:
    mine, theirs, others = (context.completion_queue() for context in (a, b, c))
    with c.listen("fd00::3", token) as listener:
        private = remote_of(c.register(bytearray(100_000)))
        thread = threading.Thread(target=listener.accept, args=(others, others), kwargs={"private": private})
        thread.start()
        other = a.connect("fd00::3", listener.port, token, mine, mine)
        thread.join()
    with b.listen("fd00::2", token) as listener:
        def accept():
            try:
                listener.accept(theirs, theirs, limit_s=1)
            except FabricError:
                pass
        thread = threading.Thread(target=accept)
        thread.start()
        begin = time.monotonic()
        try:
            a.connect("fd00::2", listener.port, token, mine, mine, limit_s=5)
        except FabricError as error:
            print(error.code, time.monotonic() - begin)
        thread.join()
    other.post_write(bytes(100_000), other.remote, wr_id=5)
    print([(c.wr_id, c.status.name) for c in mine.wait(20)])
"""


@pytest.mark.slow
@pytest.mark.requires("root", "netns")
def test_packets_that_do_not_fit_the_way() -> None:
    """Both interfaces take 64 KB, and the route between them 1,400 bytes."""
    script = (
        "ip link set lo up; for i in 1 2 3; do ip -6 addr add fd00::$i/128 dev lo; done;"
        "ip -6 route del local fd00::2 dev lo table local;"
        'ip -6 route add local fd00::2 dev lo table local mtu 1400; exec "$0" -c "$1"'
    )
    done = subprocess.run(
        ["unshare", "-n", "sh", "-ec", script, sys.executable, NARROW], capture_output=True, text=True, timeout=60
    )
    assert done.stdout, done.stderr
    refused, went_on = done.stdout.splitlines()
    code, took_s = refused.split()
    assert code == "fabric/mtu-mismatch"
    assert went_on == "[(5, 'SUCCESS')]"
    assert float(took_s) < CONNECT_S + BUSY_S


@pytest.mark.parametrize("compiled", [True, False])
def test_a_peer_that_posts_no_receive_is_not_called_silent_and_one_that_is_late_is_waited_for(compiled: bool) -> None:
    memory = bytearray(4096)
    with Context(addresses=["::1"], compiled=compiled) as a, Context(addresses=["::1"], compiled=compiled) as b:
        qp, peer, queue = accepted(a, b, memory)
        qp.post_write(b"y" * 1000, qp.remote, wr_id=1, imm=7)
        assert queue.wait(0.6) == []
        assert qp.error is None
        peer.post_recv(wr_id=9)
        assert [c.status for c in queue.wait(BUSY_S)] == [Status.SUCCESS]
        assert memory[:1000] == b"y" * 1000
        begin = time.monotonic()
        qp.post_write(b"z" * 1000, qp.remote, wr_id=2, imm=7)
        assert [c.status for c in queue.wait(RETRIES_S + BUSY_S)] == [Status.RNR_RETRY_EXC_ERR]
        assert 1 < time.monotonic() - begin < RETRIES_S + BUSY_S
        assert qp.error is not None
        assert qp.error.code == "fabric/qp-failed"
        assert "has posted no receive" in qp.error.message
        assert peer.error is None or peer.error.code == "fabric/peer-gone"
        assert memory[:1000] == b"y" * 1000


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("options", "room"), [({}, 64), ({"max_messages": 256}, 256)])
def test_a_queue_pair_holds_as_many_messages_as_it_was_made_for(
    compiled: bool, options: dict[str, Any], room: int
) -> None:
    """None completes meanwhile: each is refused for want of a receive."""
    memory = bytearray(8 * room)
    with (
        Context(addresses=["::1"], compiled=compiled, **options) as a,
        Context(addresses=["::1"], compiled=compiled, **options) as b,
    ):
        qp, peer, queue = accepted(a, b, memory)
        for number in range(room):
            qp.post_write(b"%08d" % number, qp.remote, wr_id=number, offset=8 * number, imm=number)
        with pytest.raises(FabricError, match=f"{room} messages are posted") as told:
            qp.post_write(b"", qp.remote, wr_id=room)
        assert told.value.code == "fabric/queue-full"
        assert "max_messages" in told.value.hint
        for number in range(room):
            peer.post_recv(wr_id=number)
        done: list[Any] = []
        while len(done) < room and (some := queue.wait(RETRIES_S)):
            done += some
        assert [(c.wr_id, c.status) for c in done] == [(number, Status.SUCCESS) for number in range(room)]
        assert memory == b"".join(b"%08d" % number for number in range(room))


PEER = """
import sys
from fairlead.fabric.transport.context import Context, remote_of
with Context(addresses=["::1"], compiled=False) as context:
    queue = context.completion_queue()
    with context.listen("::1", bytes.fromhex(sys.argv[1])) as listener:
        print(listener.port, flush=True)
        listener.accept(queue, queue, private=remote_of(context.register(bytearray(1 << 26))), limit_s=60)
        sys.stdin.read()
"""


def failed(qp: QueuePair, queue: Any, limit_s: float) -> tuple[str, float]:
    """(code, seconds) until both requests of a queue pair have ended, neither well."""
    begin = time.monotonic()
    done: list[Any] = []
    while len(done) < 2 and time.monotonic() < begin + 2 * limit_s:
        done += queue.wait(0.1)
    took_s = time.monotonic() - begin
    assert [c.wr_id for c in done] == [1, 2]
    assert Status.SUCCESS not in {c.status for c in done}
    assert qp.error is not None
    return qp.error.code, took_s


@pytest.mark.parametrize("wrong", ["key", "place", "freed", "freed while it is written"])
def test_what_may_not_be_written(here: Context, other: Other, wrong: str) -> None:
    size = 32 << 20
    with Context(addresses=["::1"]) as there:
        queue, memory = here.completion_queue(), bytearray(size)
        region = there.register(memory)
        with listening(there, region=region) as port:
            qp = here.connect("::1", port, TOKEN, queue, queue)
        where = qp.remote
        if wrong == "key":
            where = msgspec.structs.replace(where, rkey=where.rkey ^ 1 << 31)  # looked for at the same place of a table
        elif wrong == "place":
            where = msgspec.structs.replace(where, addr=where.addr + 1)
        elif wrong == "freed":
            there.deregister(region)
        with here.lock:  # both, before the first is refused
            for wr_id in (1, 2):
                qp.post_write(b"x" * size, where, wr_id=wr_id)
        if wrong == "freed while it is written":
            end = time.monotonic() + 20
            while not memory[0] and time.monotonic() < end:
                time.sleep(0.001)
            assert memory[0]
            there.deregister(region)
        code, took_s = failed(qp, queue, KEY_S + BUSY_S)
        with there.lock:
            last = bytes(memory)
        assert not last[-1]
    assert code == "fabric/qp-failed"
    assert took_s < KEY_S + BUSY_S


def test_a_peer_killed_in_mid_message(here: Context, other: Other) -> None:
    queue = here.completion_queue()
    command = [sys.executable, "-c", PEER, TOKEN.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        try:
            qp = here.connect("::1", int(peer.stdout.readline()), TOKEN, queue, queue)
            for wr_id in (1, 2):
                qp.post_write(bytes(1 << 26), qp.remote, wr_id=wr_id)
            time.sleep(0.05)
            peer.send_signal(signal.SIGKILL)
            code, took_s = failed(qp, queue, GONE_S + BUSY_S)
        finally:
            peer.kill()
    assert code == "fabric/peer-gone"
    assert took_s < GONE_S + BUSY_S
    assert other.goes_on()


class Cut(LetterSockets):
    """The kernel's sockets, without anything that comes from hosts that are cut off."""

    dead: ClassVar[set[str]] = set()
    goes_round = False

    def receive(self, rail: int) -> Any:
        while (arrival := super().receive(rail)) is not None and arrival.host in self.dead:
            pass
        return arrival

    def collect(self, sheets: Any, rail: int) -> int:
        num = 0
        while num < READ_BURST and (arrival := self.receive(rail)) is not None:
            sheets.put(num, arrival)
            num += 1
        return sheets.sort(num, rail, steered=False)


def test_all_planes_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of one peer arrives any more, on either plane; its TCP connection lives, and so does another peer."""
    monkeypatch.setattr("fairlead.fabric.transport.context._engine_of", lambda **_: (FastEngine, Cut))
    monkeypatch.setattr(Cut, "dead", set())
    planes = ("127.0.0.3", "127.0.0.4")
    with (
        Context(addresses=["127.0.0.1", "127.0.0.2"]) as here,
        Context(addresses=planes) as there,
        Context(addresses=["127.0.0.5", "127.0.0.6"]) as beside,
    ):
        queues = [here.completion_queue(), here.completion_queue()]
        pairs = []
        for peer, queue in zip((there, beside), queues, strict=True):
            with listening(peer) as port:
                pairs.append(here.connect("::1", port, TOKEN, queue, queue))
        Cut.dead.update(planes)
        for wr_id in (1, 2):
            pairs[0].post_write(bytes(1 << 20), pairs[0].remote, wr_id=wr_id)
        code, took_s = failed(pairs[0], queues[0], RETRIES_S + BUSY_S)
        pairs[1].post_write(bytes(1 << 20), pairs[1].remote, wr_id=3)
        assert [(c.wr_id, c.status) for c in queues[1].wait(20)] == [(3, Status.SUCCESS)]
    assert code == "fabric/qp-failed"
    assert took_s < RETRIES_S + BUSY_S
