"""Several ports in one subnet, as IPoIB often has them: what the README says of routes and of firewalls, done.

Three network namespaces: two hosts with two ports each, and a switch that all four hang on.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairlead.fabric import transport

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns")]
README = Path(transport.__file__).with_name("README.md")
HERE, THERE = ("10.9.0.1", "10.9.0.2"), ("10.9.0.3", "10.9.0.4")
TOKEN, PORT, UDP_PORT, SIZE = "a token of this test", 7777, 7000, 4 << 20
FIREWALL = f"""
nft -f - <<EOF
table inet f {{
  chain c {{
    type filter hook input priority 0; policy drop;
    tcp dport {PORT} accept
    tcp sport {PORT} ct state established accept
    udp dport {UDP_PORT} accept
  }}
}}
EOF
"""
END = f"""
import sys
from fairlead.fabric.transport.context import Context, remote_of
role, *addresses = sys.argv[1:]
size, token = {SIZE}, {TOKEN!r}.encode()
with Context(addresses=addresses, port={UDP_PORT}, compiled=False) as context:
    queue, memory = context.completion_queue(), bytearray(size)
    if role == "serve":
        with context.listen(addresses[0], token, {PORT}) as listener:
            print("listens", flush=True)
            qp = listener.accept(queue, queue, private=remote_of(context.register(memory)), limit_s=60)
        sys.stdin.readline()
        print(memory == b"x" * size, flush=True)
    else:
        qp = context.connect({THERE[0]!r}, {PORT}, token, queue, queue, limit_s=30)
        qp.post_write(b"x" * size, qp.remote, wr_id=1)
        print([c.status.name for c in queue.wait(60)], qp.profile.planes, flush=True)
"""


def inside(pid: int, *words: str) -> list[str]:
    return ["nsenter", "-t", str(pid), "-n", *words]


def told(pid: int, script: str, **env: str) -> None:
    subprocess.run(inside(pid, "sh", "-ec", script), check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env})


@pytest.fixture
def hosts() -> Iterator[tuple[int, int]]:
    """Two namespaces, each with ports p0 and p1; by the process that holds it."""
    with ExitStack() as stack:
        pids = []
        for _ in range(3):
            held = ["unshare", "-n", "sh", "-c", "echo here; exec cat"]
            one = stack.enter_context(subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            stack.callback(one.kill)
            assert one.stdout.readline() == "here\n"
            pids.append(one.pid)
        *both, switch = pids
        told(switch, "ip link add br0 type bridge; ip link set br0 up")
        for i, (pid, addresses) in enumerate(zip(both, (HERE, THERE), strict=True)):
            told(pid, "ip link set lo up")
            for j, address in enumerate(addresses):
                link = f"ip link add p{j} mtu 9000 type veth peer name h{i}p{j} mtu 9000 netns {switch}"
                told(pid, f"{link}; ip link set p{j} up; ip addr add {address}/24 dev p{j}")
                told(switch, f"ip link set h{i}p{j} master br0 up")
        yield both[0], both[1]


def sent(pid: int) -> list[int]:
    """Bytes that each port has sent."""
    words = inside(pid, "ip", "-j", "-s", "link")
    links = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    by_name = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in links}
    return [by_name["p0"], by_name["p1"]]


def shares(hosts: tuple[int, int]) -> tuple[float, float]:
    """What part of a transfer left by the busier port, here and, of answers, there."""
    here, there = hosts
    before = [sent(pid) for pid in hosts]
    words = (sys.executable, "-c", END)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(inside(there, *words, "serve", *THERE), **pipes) as peer:
        try:
            assert peer.stdout.readline() == "listens\n"
            done = subprocess.run(inside(here, *words, "drive", *HERE), capture_output=True, text=True, timeout=120)
            assert done.stdout == "['SUCCESS'] 2\n", done.stderr
            peer.stdin.write("end\n")
            peer.stdin.flush()
            assert peer.stdout.readline() == "True\n"
        finally:
            peer.kill()
    moved = [[a - b for a, b in zip(sent(pid), old, strict=True)] for pid, old in zip(hosts, before, strict=True)]
    return max(moved[0]) / sum(moved[0]), max(moved[1]) / sum(moved[1])


def way(pid: int, source: str) -> str:
    """The port by which a connection from an address would leave."""
    words = inside(pid, "ip", "-j", "route", "get", THERE[0], "from", source)
    (found,) = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return str(found["dev"])


def test_the_lines_of_the_readme_route_by_source_and_each_port_keeps_its_share(hosts: tuple[int, int]) -> None:
    assert {way(hosts[0], address) for address in HERE} == {"p0"}
    (lines,) = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    lines = re.sub(r"^(NICS|SUBNET)=.*\n", "", lines, flags=re.MULTILINE)
    for pid in hosts:
        told(pid, lines, NICS="p0 p1", SUBNET="10.9.0.0/24")
    assert [way(hosts[0], address) for address in HERE] == ["p0", "p1"]
    assert max(shares(hosts)) < 0.7


@pytest.mark.requires("nft")
def test_a_firewall_that_lets_in_one_udp_port_and_the_listeners_lets_all_through(hosts: tuple[int, int]) -> None:
    for pid in hosts:
        told(pid, FIREWALL)
    shares(hosts)  # a transfer: it fails where anything that has to come in does not
