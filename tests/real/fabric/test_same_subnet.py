"""Hosts with two NICs in one subnet, where Linux would send all by the first: each plane leaves by its own NIC.

Two hosts, one switch: namespaces, veth and a bridge. What the NICs carried is asked of the kernel, not of the program.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from support.labs import fresh_name

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns")]
ARP = (
    "net.ipv4.conf.all.arp_ignore=1",  # a NIC answers for its own addresses alone
    "net.ipv4.conf.all.arp_announce=2",  # and asks in its own name
    "net.ipv4.conf.all.rp_filter=2",  # what comes by a NIC may come from whom the kernel would answer by another
)
"""What the README says each node needs."""
LIMIT_S = 60
SIZE = 1 << 18
COUNT = 40

LISTEN = """
import hashlib, sys
from fairlead.fabric.transport.context import Context, remote_of
addresses, compiled, size = sys.argv[1].split(","), sys.argv[2] == "True", int(sys.argv[3])
room = bytearray(size)
with Context(addresses=addresses, compiled=compiled) as context:
    queue = context.completion_queue()
    with context.listen(addresses[0], b"t" * 32, 7777) as listener:
        print("listens", flush=True)
        qp = listener.accept(queue, queue, private=remote_of(context.register(room)), limit_s=60)
    qp.post_recv(wr_id=1)
    (done,) = queue.wait(60)
    print(done.status.name, hashlib.sha256(room).hexdigest(), flush=True)
    sys.stdin.read()
"""
SEND = """
import hashlib, json, random, sys
from fairlead.fabric.transport.context import Context
addresses, compiled = sys.argv[1].split(","), sys.argv[2] == "True"
size, count, peer = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
data = random.Random(1).randbytes(size)
with Context(addresses=addresses, compiled=compiled) as context:
    queue = context.completion_queue()
    qp = context.connect(peer, 7777, b"t" * 32, queue, queue, limit_s=60)
    for i in range(count):
        if i == count // 2:
            print("half", flush=True)
            sys.stdin.readline()
        qp.post_write(data, qp.remote, wr_id=i, imm=i if i == count - 1 else None)
        (done,) = queue.wait(60)
        if done.status.name != "SUCCESS":
            break
    said = {"status": done.status.name, "error": str(qp.error), "digest": hashlib.sha256(data).hexdigest()}
    print(json.dumps(said), flush=True)
"""


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout


@dataclass
class Net:
    """Hosts 0 and 1 with NICs 1 and 2 at one switch."""

    name: str

    def host(self, number: int) -> str:
        return f"{self.name}-{number}"

    def addresses(self, number: int, family: int) -> list[str]:
        return [f"192.168.7.{10 * nic + number}" if family == 4 else f"fd00:7::{nic}:{number}" for nic in (1, 2)]

    def build(self) -> None:
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "add", "br0", "type", "bridge")
        ip("-n", self.name, "link", "set", "br0", "up")
        for number in (0, 1):
            host = self.host(number)
            ip("netns", "add", host)
            ip("-n", host, "link", "set", "lo", "up")
            for nic, (v4, v6) in enumerate(zip(self.addresses(number, 4), self.addresses(number, 6), strict=True), 1):
                port = f"s{number}-{nic}"
                ip("link", "add", f"nic{nic}", "netns", host, "type", "veth", "peer", "name", port, "netns", self.name)
                ip("-n", self.name, "link", "set", port, "master", "br0", "up")
                ip("-n", host, "addr", "add", f"{v4}/24", "dev", f"nic{nic}")
                ip("-n", host, "addr", "add", f"{v6}/64", "dev", f"nic{nic}", "nodad")
                ip("-n", host, "link", "set", f"nic{nic}", "up")

    def set_arp(self) -> None:
        for number in (0, 1):
            self.run(number, "sysctl", "-qw", *ARP)

    def run(self, number: int, *argv: str) -> None:
        subprocess.run(["ip", "netns", "exec", self.host(number), *argv], check=True, timeout=LIMIT_S)

    def carried(self, number: int, way: str) -> list[int]:
        """Bytes that each NIC of a host has sent ("tx") or received ("rx")."""
        links = json.loads(ip("-n", self.host(number), "-j", "-s", "link"))
        by_name = {link["ifname"]: link["stats64"][way]["bytes"] for link in links}
        return [by_name["nic1"], by_name["nic2"]]

    def cut(self, number: int, nic: int) -> None:
        """Lose all that a NIC sends and gets, with its carrier up."""
        ip("-n", self.name, "link", "set", f"s{number}-{nic}", "nomaster")

    def start(self, number: int, script: str, *argv: str) -> subprocess.Popen[str]:
        command = ["nsenter", f"--net=/run/netns/{self.host(number)}", sys.executable, "-c", script, *argv]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def remove(self) -> None:
        for name in (self.host(0), self.host(1), self.name):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=LIMIT_S)


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net(fresh_name())
    try:
        made.build()
        yield made
    finally:
        made.remove()


def sent(net: Net, family: int, *, compiled: bool, cut: int = 0) -> dict[str, Any]:
    """What the sender said of a transfer from host 0 to host 1; at half of it a NIC is cut off, if one is named."""
    mine, theirs = (",".join(net.addresses(number, family)) for number in (0, 1))
    to = [mine, str(compiled), str(SIZE), str(COUNT), theirs.split(",")[0]]
    with (
        net.start(1, LISTEN, theirs, str(compiled), str(SIZE)) as there,
        net.start(0, "import sys; sys.stdin.readline()\n" + SEND, *to) as here,
    ):
        try:
            assert there.stdout is not None
            assert here.stdout is not None
            assert here.stdin is not None
            assert there.stdout.readline() == "listens\n"
            print(file=here.stdin, flush=True)
            assert here.stdout.readline() == "half\n"
            if cut:
                net.cut(0, cut)
            print(file=here.stdin, flush=True)
            said: dict[str, Any] = json.loads(here.stdout.readline())
            if said["status"] == "SUCCESS":
                assert there.stdout.readline() == f"SUCCESS {said['digest']}\n"
            return said
        finally:
            here.kill()
            there.kill()


def shares(numbers: list[int]) -> list[float]:
    return [number / sum(numbers) for number in numbers]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("family", [4, 6])
def test_each_nic_of_a_subnet_carries_its_half_and_the_other_end_gets_it_there(
    net: Net, family: int, compiled: bool
) -> None:
    net.set_arp()
    assert sent(net, family, compiled=compiled)["status"] == "SUCCESS"
    went, came = net.carried(0, "tx"), net.carried(1, "rx")
    assert sum(went) > SIZE * COUNT
    assert all(0.4 < share < 0.6 for share in shares(went)), went
    assert all(0.4 < share < 0.6 for share in shares(came)), came


def test_where_arp_is_left_at_its_defaults_packets_leave_by_their_nic_and_are_taken_by_whichever_they_come(
    net: Net,
) -> None:
    """A peer then sends to the NIC that was first to answer."""
    assert sent(net, 4, compiled=False)["status"] == "SUCCESS"
    went = net.carried(0, "tx")
    assert all(0.4 < share < 0.6 for share in shares(went)), went


@pytest.mark.parametrize("nic", [1, 2])
@pytest.mark.parametrize("family", [4, 6])
def test_a_nic_that_is_cut_off_in_silence_leaves_the_job_alive(net: Net, family: int, nic: int) -> None:
    net.set_arp()
    said = sent(net, family, compiled=True, cut=nic)
    assert said["status"] == "SUCCESS", said
    went = net.carried(0, "tx")
    assert went[2 - nic] > 0.6 * sum(went), went  # the other one has carried what came after
