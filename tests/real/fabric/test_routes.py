"""A host with two NICs in one subnet: what the kernel says of addresses and routes, what sockets are bound to."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns")]

HOST = """
ip link set lo up
for i in 1 2; do
    ip link add nic$i type veth peer name p$i; ip link set p$i up; ip link set nic$i up
    ip addr add 192.168.7.1$i/24 dev nic$i; ip -6 addr add fd00:7::$i/64 dev nic$i nodad
done
ip addr add 192.168.7.99/24 dev nic2; ip -6 addr add fd00:7::99/64 dev nic2 nodad
ip addr add 10.0.0.1/32 dev lo; ip -6 addr add fd00:a::1/128 dev lo
ip addr add 10.9.9.1 peer 10.9.9.2 dev nic1
ip route add 10.1.0.0/16 via 192.168.7.200 dev nic1
ip -6 route add fd00:b::/64 via fd00:7::200 dev nic1; ip -6 route add fd00:b::/32 via fd00:7::200 dev nic2
"""


def on_a_host(code: str, *, fails: bool = False) -> str:
    """What a program says on a host with two NICs in one subnet."""
    done = subprocess.run(
        ["unshare", "-n", "sh", "-ec", HOST + 'exec "$0" -c "$1"', sys.executable, code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout + done.stderr


def test_the_kernel_says_whose_an_address_is_and_where_it_would_send() -> None:
    code = """
from fairlead.fabric.transport.interfaces import interface_of
from fairlead.fabric.transport.routes import leave_of
for address in "192.168.7.12 192.168.7.99 fd00:7::2 fd00:7::99 10.0.0.1 10.9.9.1 10.9.9.2 10.1.0.1 fd00:8::1".split():
    print(address, interface_of(address) or "-")
for here, there in (
    ("192.168.7.11", "192.168.7.50"), ("192.168.7.12", "192.168.7.50"), ("192.168.7.99", "192.168.7.50"),
    ("fd00:7::1", "fd00:7::50"), ("fd00:7::2", "fd00:7::50"), ("fd00:7::99", "fd00:7::50"),
    ("192.168.7.11", "10.1.0.1"), ("192.168.7.12", "10.1.0.1"), ("10.0.0.1", "10.1.0.1"),
    ("192.168.7.11", "192.168.7.12"), ("fd00:7::1", "fd00:7::2"), ("fd00:7::1", "fd00:a::1"),
    ("::1", "::1"), ("127.0.0.1", "127.0.0.2"), ("192.168.7.12", "203.0.113.1"),
    ("fd00:7::2", "fd00:b::1"),
):
    print(here, there, leave_of(there, here)[0].name)
"""
    assert on_a_host(code).splitlines() == [
        "192.168.7.12 nic2",
        "192.168.7.99 nic2",
        "fd00:7::2 nic2",
        "fd00:7::99 nic2",
        "10.0.0.1 lo",
        "10.9.9.1 nic1",
        "10.9.9.2 -",
        "10.1.0.1 -",
        "fd00:8::1 -",
        "192.168.7.11 192.168.7.50 BOUND",
        "192.168.7.12 192.168.7.50 BOUND",
        "192.168.7.99 192.168.7.50 BOUND",
        "fd00:7::1 fd00:7::50 BOUND",
        "fd00:7::2 fd00:7::50 BOUND",
        "fd00:7::99 fd00:7::50 BOUND",
        "192.168.7.11 10.1.0.1 BOUND",
        "192.168.7.12 10.1.0.1 ASTRAY",
        "10.0.0.1 10.1.0.1 AS_ROUTED",
        "192.168.7.11 192.168.7.12 ACROSS",
        "fd00:7::1 fd00:7::2 ACROSS",
        "fd00:7::1 fd00:a::1 ACROSS",
        "::1 ::1 AS_ROUTED",
        "127.0.0.1 127.0.0.2 AS_ROUTED",
        "192.168.7.12 203.0.113.1 AS_ROUTED",
        "fd00:7::2 fd00:b::1 BOUND",  # by a shorter prefix than that which leads astray
    ]


WRITE = """
import os, socket, sys, threading
from fairlead.errors import FabricError
from fairlead.fabric.transport.context import Context, remote_of
from fairlead.fabric.transport.ports import Sockets
def bound(sockets):
    names = [s.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16) for s in sockets.rails[0]]
    return [name.rstrip(b"\\0").decode() for name in names]
def unicast(sockets):
    return socket.ntohl(sockets.rails[0][0].getsockopt(socket.IPPROTO_IP, 50))
def write(a, b, address):
    mine, theirs, room = a.completion_queue(), b.completion_queue(), bytearray(100_000)
    with b.listen(address, b"t" * 32) as listener:
        def accept():
            global peer
            peer = listener.accept(theirs, theirs, private=remote_of(b.register(room)))
        thread = threading.Thread(target=accept)
        thread.start()
        qp = a.connect(address, listener.port, b"t" * 32, mine, mine)
        thread.join()
    qp.post_write(b"x" * 100_000, qp.remote, wr_id=1)
    return [c.status.name for c in mine.wait(30)], room == b"x" * 100_000
"""


@pytest.mark.parametrize("ends", [("192.168.7.11", "192.168.7.12"), ("fd00:7::2", "fd00:7::1")])
def test_two_programs_of_a_host_with_a_nic_each_reach_one_another(ends: tuple[str, str]) -> None:
    """Inside the host: bound to their NICs they would not."""
    code = f"""
{WRITE}
for turn in ("new", "bound before"):
    with Context(addresses=["{ends[0]}"], compiled=False) as a, Context(addresses=["{ends[1]}"], compiled=False) as b:
        if turn == "bound before":
            for context, to in ((a, "192.168.7.50"), (b, "192.168.7.51")):
                context._sockets.lead(0, to if "." in "{ends[0]}" else "fd00:7::50")
        print(write(a, b, "{ends[1]}"))
"""
    assert on_a_host(code) == "(['SUCCESS'], True)\n" * 2


def test_sockets_are_bound_for_a_peer_out_there_and_again_when_the_nic_is_back_but_no_steered_ones() -> None:
    code = f"""
{WRITE}
import subprocess
a = Sockets(["192.168.7.12"], steered=False, sources=3)
print(bound(a), unicast(a))
a.lead(0, "192.168.7.50")
print(bound(a), unicast(a) == socket.if_nametoindex("nic2"))
v6 = Sockets(["fd00:7::2"], steered=False, sources=2)
v6.lead(0, "fd00:7::50")
print(bound(v6))
steered = Sockets(["fd00:7::2"], steered=True)
steered.lead(0, "fd00:7::50")
print(bound(steered))
for address in ("127.0.0.1", "10.0.0.1"):
    lo = Sockets([address], steered=False, sources=2)
    lo.lead(0, "10.1.0.1")
    print(bound(lo), unicast(lo))
from fairlead.fabric.transport.interfaces import LinkWatch
watch = LinkWatch(["nic2"], came_back=a.bound.again)
before = socket.if_nametoindex("nic2")
subprocess.run("ip link del nic2; ip link add nic2 type veth peer name p2; ip link set nic2 up", shell=True, check=True)
while watch.read() is None or unicast(a) == before:
    pass
print(unicast(a) == socket.if_nametoindex("nic2") != before, bound(a))
"""
    assert on_a_host(code).splitlines() == [
        "['', '', ''] 0",
        "['', 'nic2', 'nic2'] True",
        "['nic2', 'nic2']",
        "['']",
        "['', ''] 0",
        "['', ''] 0",
        "True ['', 'nic2', 'nic2']",
    ]


def test_a_way_by_the_wrong_nic_is_told_once_with_what_to_do() -> None:
    code = f"""
{WRITE}
a = Sockets(["192.168.7.12"], steered=False, sources=2)
for peer in ("10.1.0.1", "10.1.0.2"):
    a.lead(0, peer)
"""
    assert on_a_host(code).splitlines() == [
        (
            "fairlead: packets from 192.168.7.12 to 10.1.0.1 leave by nic1, not by nic2, which has no route there; "
            "route by source: ip rule add from 192.168.7.12 table 1000; "
            "ip route add 10.1.0.1 via GATEWAY dev nic2 table 1000"
        )
    ]


def test_an_ordinary_user_binds_too_and_hears_of_it_where_the_kernel_does_not_let_him() -> None:
    """Since Linux 5.7 a socket may be bound once; what is bound already stands for an older kernel."""
    code = f"""
{WRITE}
import fairlead.fabric.transport.bound
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
a = Sockets(["192.168.7.12"], steered=False, sources=2)
a.lead(0, "192.168.7.50")
print(bound(a), flush=True)
try:
    a.lead(0, "192.168.7.11")
except FabricError as error:
    print(error.code, error.message, flush=True)
b = Sockets(["192.168.7.12"], steered=False, sources=2)
b.rails[0][1].setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"nic1")
b.lead(0, "192.168.7.50")
"""
    assert on_a_host(code).splitlines() == [
        "['', 'nic2']",
        "fabric/no-route 192.168.7.11 is on this host, at another interface than 192.168.7.12, which is bound to nic2",
        (
            "fairlead: packets from 192.168.7.12 to 192.168.7.50 leave by nic1, not by nic2, "
            "which the kernel does not let this program bind to; route by source: "
            "ip rule add from 192.168.7.12 table 1000; ip route add 192.168.7.50 dev nic2 table 1000"
        ),
    ]
