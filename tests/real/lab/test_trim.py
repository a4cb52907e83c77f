"""Switch ports that trim: what the program does to packets on a real link, and a transfer over switches that trim."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from contextlib import ExitStack

import pytest

from fairlead.cluster.enter import into_host
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down
from support.labs import Lab, fresh_name

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf")]

LINK = """
import json, socket, subprocess, sys
from fairlead.lab import bpf, syscalls as sc

DSCP = {dscp}
sc.unshare(sc.CLONE_NEWNET)
for line in ("link add v0 type veth peer name v1", "link set v0 up", "link set v1 up",
             "addr add fd00::1/64 dev v0 nodad", "neigh add fd00::2 lladdr 02:00:00:00:00:02 dev v0 nud permanent"):
    subprocess.run(["ip", *line.split()], check=True)
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
tap.bind(("v1", 0))
tap.settimeout(20)
bpf.trim("v0", rate_mbps=1, limit=4000, full=8000, last_hop={last_hop})
sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, DSCP << 2 | 2)
for number in range(6):
    sock.sendto(bytes([number]) * 1000, ("fd00::2", 4793))
found = []
while len(found) < 6:
    frame = tap.recv(4096)
    if frame[20] == 17:
        found.append((frame[14], len(frame) - 62, int.from_bytes(frame[18:20], "big") - 8,
                      int.from_bytes(frame[58:60], "big") - 8, frame[62]))
print(json.dumps(found))
"""


def sent(dscp: int, *, last_hop: bool = False) -> list[list[int]]:
    """Six datagrams of 1000 bytes on a link of 1 Mb/s: first byte, payload, what IPv6 says, what UDP says, number."""
    code = LINK.format(dscp=dscp, last_hop=last_hop)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("dscp", "last_hop", "mark"), [(4, False, 0x63), (8, False, 0x63), (4, True, 0x64)])
def test_what_would_make_the_queue_too_long_is_cut_and_marked(dscp, last_hop, mark) -> None:
    found = sent(dscp, last_hop=last_hop)
    first = 0x60 | dscp >> 2
    assert found[:3] == [[first, 1000, 1000, 1000, i] for i in range(3)]
    assert found[4:] == [[mark, 64, 64, 64, i] for i in (4, 5)]


def test_what_may_not_be_trimmed_never_is() -> None:
    assert sent(0) == [[0x60, 1000, 1000, 1000, i] for i in range(6)]


END = """
import json, sys
from pathlib import Path

from fairlead.fabric.transport.context import Context, remote_of
from fairlead.records.addressbook import PLACE, Place
from fairlead.records.codec import from_json

role, address, token, size = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]), int(sys.argv[4])
data = bytes(range(256)) * (size // 256)
with Context(from_json(Path(PLACE).read_bytes(), Place), compiled=False, trim=True) as context:
    queue, memory = context.completion_queue(), bytearray(size)
    if role == "serve":
        private = remote_of(context.register(memory))
        with context.listen(address, token) as listener:
            print(listener.port, flush=True)
            qp = listener.accept(queue, queue, private=private, limit_s=60)
        sys.stdin.readline()
        print(json.dumps({"right": memory == data, **qp.counters()}), flush=True)
    else:
        qp = context.connect(address, int(sys.argv[5]), token, queue, queue, limit_s=60)
        qp.post_write(data, qp.remote, wr_id=1)
        (done,) = queue.wait(timeout_s=60)
        print(json.dumps({"status": done.status.name, **qp.counters()}), flush=True)
"""


def test_what_switches_trim_is_sent_again_and_every_byte_is_right() -> None:
    size = 2 << 20
    shape = LabShape(
        name=fresh_name(), planes=2, t1=1, nodes=("n0", "n1"), rate_mbps=100, uplink_rate_mbps=10, trim_kib=16
    )
    token = secrets.token_hex(32)
    with ExitStack() as stack:
        stack.callback(down, shape.name)
        state = Lab(shape).state
        address = state.host("n1").management

        def end(host: str, *words: str) -> subprocess.Popen[str]:
            inside = into_host(state, state.host(host), [sys.executable, "-c", END, *words])
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            one = stack.enter_context(subprocess.Popen(inside, text=True, **pipes))
            stack.callback(one.kill)
            return one

        there = end("n1", "serve", address, token, str(size))
        port = there.stdout.readline().strip()
        here = end("n0", "write", address, token, str(size), port)
        wrote = json.loads(here.stdout.readline())
        there.stdin.write("\n")
        there.stdin.flush()
        took = json.loads(there.stdout.readline())
    assert wrote["status"] == "SUCCESS"
    assert took["right"] is True
    assert wrote["nacks"] > 0
    assert wrote["resent"] >= wrote["nacks"] > wrote["timeouts"]
    assert wrote["inferred_lost"] <= wrote["nacks"] // 10  # what was cut arrives ahead of data
