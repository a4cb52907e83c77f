"""`fairlead fabric ping` between network namespaces behind bridges: filters, MTUs, translation, NICs in one subnet.

The programs, the kernels and the switches' queues are real; each node's program runs in its namespace.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.base.program import Program
from fairlead.cli.fabric_ping import PARTS
from fairlead.cli.fabric_ping_run import Run
from fairlead.cluster.protocol import Line
from fairlead.errors import UsageError
from fairlead.preflight.pairs import pinged
from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.paths import Paths

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "nft")]
NUM, RAILS, COUNT = 3, (1, 2), 40
MTU = 9000


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (words, done.stderr)


class Nodes:
    """Three nodes with two NICs each, behind a bridge a rail or one for all; as `cluster.start` would run programs."""

    def __init__(self, name: str, *, one_subnet: bool) -> None:
        self.name, self.switch, self.ended = name, f"{name}-sw", {}
        self.names = [f"{name}-n{n}" for n in range(NUM)]
        self.lines: list[Line] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.addresses: dict[str, list[str]] = {node: [] for node in self.names}
        run("ip", "netns", "add", self.switch)
        for node in self.names:
            run("ip", "netns", "add", node)
        for rail in RAILS:
            if rail == 1 or not one_subnet:
                run("ip", "-n", self.switch, "link", "add", f"br{rail}", "mtu", str(MTU), "type", "bridge")
                run("ip", "-n", self.switch, "link", "set", f"br{rail}", "up")
            for n, node in enumerate(self.names):
                port, nic = ("name", f"s{n}_{rail}", "mtu", str(MTU)), ("name", f"eth{rail}", "mtu", str(MTU))
                run("ip", "link", "add", *nic, "netns", node, "type", "veth", "peer", *port, "netns", self.switch)
                bridge = f"br{1 if one_subnet else rail}"
                run("ip", "-n", self.switch, "link", "set", f"s{n}_{rail}", "master", bridge, "up")
                address = f"10.7.1.{50 * rail + n}" if one_subnet else f"10.7.{rail}.{n + 1}"
                self.addresses[node].append(address)
                run("ip", "-n", node, "addr", "add", f"{address}/24", "dev", f"eth{rail}")
                run("ip", "-n", node, "link", "set", f"eth{rail}", "up")
        for node in self.names:  # a kernel may be set up otherwise
            self.sysctl(node, "all.rp_filter=0", "eth1.rp_filter=0", "eth2.rp_filter=0")

    def sysctl(self, node: str, *settings: str) -> None:
        run("ip", "netns", "exec", node, "sysctl", "-qw", *(f"net.ipv4.conf.{s}" for s in settings))

    def nft(self, where: str, text: str) -> None:
        run("ip", "netns", "exec", where, "nft", text)

    def at_switch(self, rule: str) -> None:
        self.nft(self.switch, f"table bridge f {{ chain c {{ type filter hook forward priority 0; {rule}; }}; }}")

    def at_node(self, n: int, hook: str, rule: str) -> None:
        self.nft(self.names[n], f"table inet {hook} {{ chain c {{ type filter hook {hook} priority 0; {rule}; }}; }}")

    def start(self) -> None:
        program = Program.of("fairlead-ping", *PARTS, call="main()")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        for node in self.names:
            words = ["ip", "netns", "exec", node, *program.words(sys.executable)]
            self.processes[node] = one = subprocess.Popen(words, **pipes)
            assert one.stdin
            one.stdin.write(program.stdin)
        self.rest = dict.fromkeys(self.names, b"")

    def send(self, text: str, *, to: str) -> None:
        stdin = self.processes[to].stdin
        assert stdin
        stdin.write(text.encode() + b"\n")
        stdin.flush()

    def read(self, timeout_s: float) -> Line | None:
        if not self.lines:
            pipes = {one.stdout.fileno(): node for node, one in self.processes.items() if one.stdout}
            for fd in select.select([*pipes], [], [], timeout_s)[0]:
                node = pipes[fd]
                *whole, self.rest[node] = (self.rest[node] + os.read(fd, 1 << 16)).split(b"\n")
                self.lines += [Line(node, None, "stdout", line.decode()) for line in whole]
        return self.lines.pop(0) if self.lines else None

    def stop(self) -> None:
        for one in self.processes.values():
            with one:
                one.kill()
        self.processes = {}

    def pinged(self, size: int = 128) -> list[tuple[str, str, str]]:
        """What a run finds, without the name of the test in it."""
        paths = Paths(("address", "rail 1", "rail 2"), {n: ("", *own) for n, own in self.addresses.items()})
        made = Run(pinged.plan_of(self.names, paths), {"count": COUNT, "interval_s": 0.004, "size": size})
        self.start()
        try:
            made.run(self, COUNT * 0.004)  # type: ignore[arg-type]
        finally:
            self.stop()
        self.findings = made.judged(DEFAULT)
        self.rows = list(made.rows())
        return sorted(
            (str(f.verdict), f.code.partition("/")[2], str(f.subject).replace(f"{self.name}-", ""))
            for f in self.findings
        )


def nodes(*, one_subnet: bool) -> Iterator[Nodes]:
    name = f"fp{os.getpid()}"
    try:
        yield Nodes(name, one_subnet=one_subnet)
    finally:
        for one in [f"{name}-sw", *(f"{name}-n{n}" for n in range(NUM))]:
            subprocess.run(["ip", "netns", "del", one], capture_output=True, check=False)


@pytest.fixture
def rails() -> Iterator[Nodes]:
    yield from nodes(one_subnet=False)


@pytest.fixture
def flat() -> Iterator[Nodes]:
    yield from nodes(one_subnet=True)


def test_nothing_is_found_where_nothing_is_broken(rails: Nodes) -> None:
    assert rails.pinged() == []
    assert all((row["full_bytes"], row["full_sent"], row["full_lost"]) == (MTU - 28, 4, 0) for row in rails.rows)


# ---- filters ---------------------------------------------------------------------------------------------------------


def test_a_nodes_own_filter_for_what_it_sends_is_its_own(rails: Nodes) -> None:
    rails.at_node(1, "output", "meta l4proto udp drop")
    assert rails.pinged() == [("fail", "local-filter", "n1")]
    assert "EPERM" in rails.findings[0].message


def test_a_filter_for_half_of_the_source_ports_is_too(rails: Nodes) -> None:
    rails.at_node(1, "output", "udp sport & 1 == 1 drop")
    assert rails.pinged() == [("fail", "local-filter", "n1")]


def test_a_nodes_filter_for_what_it_hears_is_named_before_cables(rails: Nodes) -> None:
    rails.at_node(2, "input", "meta l4proto udp drop")
    assert rails.pinged() == [("fail", "unreachable", "n2")]
    assert "packet filter" in rails.findings[0].message
    assert rails.findings[0].remedy.startswith("look at packet filters first")


# ---- the MTU ---------------------------------------------------------------------------------------------------------


def test_a_switch_port_with_a_smaller_mtu_is_found_at_its_rail(rails: Nodes) -> None:
    run("ip", "-n", rails.switch, "link", "set", "s1_2", "mtu", "1500")
    assert rails.pinged() == [("fail", "mtu", "n1 rail 2")]
    assert "of 8972 bytes" in rails.findings[0].evidence[0].value


def test_packets_of_any_size_that_the_ports_carry_may_be_asked_for(rails: Nodes) -> None:
    assert rails.pinged(size=MTU - 28) == []
    with pytest.raises(UsageError, match=r"n0 rail 1 holds: 8972 bytes"):
        rails.pinged(size=MTU - 27)


# ---- addresses -------------------------------------------------------------------------------------------------------


def test_source_nat_is_told(rails: Nodes) -> None:
    run("ip", "-n", rails.names[2], "addr", "add", "10.7.2.44/24", "dev", "eth2")
    snat = "chain c { type nat hook postrouting priority 100; oifname eth2 snat to 10.7.2.44; }"
    rails.nft(rails.names[2], f"table ip nat {{ {snat}; }}")
    assert rails.pinged() == [("fail", "source-address", "n2 rail 2")]
    assert "arrive from 10.7.2.44" in rails.findings[0].message


# ---- NICs in one subnet ----------------------------------------------------------------------------------------------


def settled(flat: Nodes, rp_filter: int) -> None:
    """As hosts with several NICs in a subnet are usually set up."""
    for node in flat.names:
        flat.sysctl(node, f"all.rp_filter={rp_filter}", "all.arp_ignore=1", "all.arp_announce=2")


@pytest.mark.parametrize("rail", RAILS)
def test_each_of_several_nics_in_a_subnet_is_tested(flat: Nodes, rail: int) -> None:
    settled(flat, 0)
    assert flat.pinged() == []
    flat.at_switch(f"iifname s1_{rail} ether type ip drop; oifname s1_{rail} ether type ip drop")
    assert flat.pinged() == [("fail", "unreachable", f"n1 rail {rail}")]


def test_a_strict_filter_without_source_routes_blames_no_cable(flat: Nodes) -> None:
    settled(flat, 1)
    assert flat.pinged() == [("unknown", "shared-subnet", f"n{n} rail 2") for n in range(NUM)]
    assert "rp_filter=1" in flat.findings[0].message
    for node, own in flat.addresses.items():
        for rail, address in zip(RAILS, own, strict=True):
            run("ip", "-n", node, "rule", "add", "from", address, "table", str(rail))
            run("ip", "-n", node, "route", "add", "10.7.1.0/24", "dev", f"eth{rail}", "table", str(rail))
    assert flat.pinged() == []


def test_nics_that_answer_for_each_other_are_told(flat: Nodes) -> None:
    """Everybody believes that the address of the second NIC stands at the first."""
    settled(flat, 0)
    run("ip", "-n", flat.names[1], "link", "set", "eth1", "address", "02:00:00:00:07:01")
    for other in (flat.names[0], flat.names[2]):
        for rail in RAILS:
            words = ["neigh", "add", flat.addresses[flat.names[1]][1], "lladdr", "02:00:00:00:07:01"]
            run("ip", "-n", other, *words, "dev", f"eth{rail}")
    assert flat.pinged() == [("unknown", "shared-subnet", "n1 rail 2")]
    assert "some came in by eth1" in flat.findings[0].message


def test_a_port_without_a_route_of_its_own_is_not_blamed(rails: Nodes) -> None:
    """The second rail of a node lies in another subnet, and its only way there is by the first."""
    node = rails.names[1]
    run("ip", "-n", node, "addr", "del", "10.7.2.2/24", "dev", "eth2")
    run("ip", "-n", node, "addr", "add", "10.7.3.2/24", "dev", "eth2")
    run("ip", "-n", node, "route", "add", "10.7.2.0/24", "via", "10.7.1.1")
    rails.addresses[node][1] = "10.7.3.2"
    assert ("unknown", "shared-subnet", "n1 rail 2") in rails.pinged()
    assert not [f for f in rails.findings if "n1" in str(f.subject) and f.verdict == "fail"]
