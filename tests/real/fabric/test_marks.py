"""Marks of congestion on the transport's own sockets: what a queue on the way marks, the receiver hears."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "nft")]
RULES = """
table inet t {
  chain c {
    type filter hook input priority 0; policy accept;
    meta l4proto udp ip6 ecn ect0 ip6 ecn set ce
    meta l4proto udp ip ecn ect0 ip ecn set ce
  }
}
"""
ENDS = """
import json, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from fairlead.fabric.transport.context import Context, remote_of
options, rules = json.loads(sys.argv[1]), sys.argv[2]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
if rules:
    subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True)
data = bytes(range(256)) * 4096
token, address = b"t" * 32, options["addresses"][0]
with Context(**options) as a, Context(**options) as b:
    mine, theirs, memory = a.completion_queue(), b.completion_queue(), bytearray(len(data))
    with b.listen(address, token) as listener, ThreadPoolExecutor(1) as pool:
        job = pool.submit(listener.accept, theirs, theirs, private=remote_of(b.register(memory)))
        qp = a.connect(address, listener.port, token, mine, mine)
        job.result(60)
    qp.post_write(data, qp.remote, wr_id=1)
    assert mine.wait(60)[0].status.name == "SUCCESS" and memory == data
    heard = [end.counters() for end in (a, b)]
print(json.dumps([[one["received"], one["marked"]] for one in heard]))
"""


def heard(options: dict[str, Any], rules: str) -> list[list[int]]:
    """Datagrams that each end received, and how many of them were marked."""
    command = ["unshare", "-n", sys.executable, "-c", ENDS, json.dumps(options), rules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
@pytest.mark.parametrize("gso", [False, True], ids=["single", "batches"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_every_packet_may_be_marked_and_every_mark_is_heard(address: str, gso: bool, compiled: bool) -> None:
    options = {"addresses": [address], "compiled": compiled, "gso": gso}
    for received, marked in heard(options, RULES):
        assert received == marked > 0


def test_what_nobody_marked_is_not_marked() -> None:
    for received, marked in heard({"addresses": ["::1"]}, ""):
        assert received > marked == 0
