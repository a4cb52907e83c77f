"""Spreads in a lab with faults: slow, frozen and full hosts, one that changes bytes, a disk that is read-only, a link
that flaps, an origin that throttles or is gone for a while; and one started by the lab's own Slurm.

Faults are the kernel's (`fairlead lab fault`), or a Python on one host whose sockets change bytes; nothing in fairlead
helps.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.enter import into_host, running
from support.depth import DEPTH
from support.injector import FAIRLEAD, World
from support.origins import Origin, throttled
from support.spreads import NAME, Run, digest_of, digest_on, programs_on, serving_hosts, signalled, when_given
from support.trials import world

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(600 * DEPTH),
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "obstore"),
]
MIB = 1 << 20
SIZE = 64 * MIB + 99
ODD = "n5"
"""The host whose Python may be told to change bytes."""
PLACE = "/tmp/odd"
"""Where that Python lies, on that host."""
FLIPPING = """
import os, socket
_send, _count = socket.socket.send, [0]
def send(self, data, *flags):
    if len(data) > 32768 and os.path.exists("{flag}"):
        _count[0] += 1
        if _count[0] % 2:
            data = bytearray(data)
            data[len(data) // 2] ^= 16
    return _send(self, data, *flags)
socket.socket.send = send
"""


def put(lab: World, host: str, path: str, text: str) -> None:
    """A file on a host, in its own file space."""
    lab.sh(host, f"mkdir -p {Path(path).parent}; cat > {path} <<'END'\n{text}END")


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Six hosts on two planes of 100 Mbit/s; the Python of one can be told to change bytes that it sends."""
    with world(hosts=6, gpus=1, planes=2, rate_mbps=100) as made:
        text = made.file.read_text().replace("gpus = 1\n", f'gpus = 1\npython = "{sys.executable}"\n')
        made.file.write_text(text + "[weights]\nsilent_s = 10\ngive_up_s = 20\n")
        text = made.file.read_text().replace('nodes = "n[0-5]"', 'nodes = "n[0-4]"')
        pool = (
            f'[[pool]]\nname = "odd"\nsize = "lab"\nnodes = "{ODD}"\ngpus = 1\npython = "{PLACE}/python3"\n[fabric]\n'
        )
        made.odd_file = made.file.with_name("odd.toml")
        made.odd_file.write_text(text.replace("[fabric]\n", pool))
        wrapper = f'#!/bin/sh\nPYTHONPATH={PLACE} exec {sys.executable} "$@"\n'
        put(made, ODD, f"{PLACE}/sitecustomize.py", FLIPPING.format(flag=f"{PLACE}/flip"))
        put(made, ODD, f"{PLACE}/python3", wrapper)
        made.sh(ODD, f"chmod 755 {PLACE}/python3")
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / NAME).write_bytes(random.Random(19).randbytes(SIZE))
    return made


@pytest.fixture
def origin(lab, model) -> Iterator[Origin]:
    with serving_hosts(lab, model) as made:
        yield made


@pytest.fixture(autouse=True)
def _heal(lab) -> Iterator[None]:
    yield
    lab.sh(ODD, f"rm -f {PLACE}/flip")
    lab.heal()
    for host in lab.nodes:
        lab.sh(host, "rm -rf /tmp/w-*")


def fault(lab: World, *words: str) -> None:
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, *words], check=True, capture_output=True)


def has_it(lab: World, host: str, dest: str) -> bool:
    return lab.sh(host, f"ls {dest} 2>/dev/null || true").strip() == NAME


def failed(result: dict) -> list[tuple[str, str]]:
    return [(f["code"], f["subject"]["nodes"][0]) for f in result["findings"] if f["verdict"] == "fail"]


def test_a_slow_host_is_late_alone_and_named(lab, origin, model):
    began = time.monotonic()
    status, _ = Run(lab, origin, "/tmp/w-fast").end()
    usual_s = time.monotonic() - began
    assert status == 0
    fault(lab, "rate", "p*/n2", "mbps=5")
    began = time.monotonic()
    run = Run(lab, origin, "/tmp/w-slow")
    others = [host for host in lab.nodes if host != "n2"]
    try:
        while not all(has_it(lab, host, "/tmp/w-slow") for host in others) and time.monotonic() - began < 90:
            time.sleep(0.3)
        others_s = time.monotonic() - began
        assert others_s < usual_s + 20, "what it takes to notice, and not twenty times as long"
        assert not has_it(lab, "n2", "/tmp/w-slow")
    finally:
        lab.heal()
    status, result = run.end()
    assert status == 0
    assert (result["slow"], result["complete"]) == ("n2", "n[0-5]")
    assert "weights/slow-node" in {f["code"] for f in result["findings"] if f["verdict"] == "warn"}
    assert {digest_on(lab, host, "/tmp/w-slow") for host in lab.nodes} == {digest_of(model)}
    assert result["origin_bytes"] <= 1.02 * SIZE


def test_a_frozen_host_is_named_and_takes_nothing_from_the_origin_when_it_is_back(lab, origin, model):
    origin.rate = 12e6
    run = Run(lab, origin, "/tmp/w-frozen")
    when_given(origin, SIZE // 3, lambda: signalled(lab, "n3", signal.SIGSTOP)).join()
    status, result = run.end()
    assert (status, result["complete"]) == (3, "n[0-2,4-5]")
    assert failed(result) == [("weights/node-lost", "n3")]
    assert "said nothing for 10 s" in str(result["findings"])
    signalled(lab, "n3", signal.SIGCONT)
    deadline = time.monotonic() + 30
    while programs_on(lab, "n3") and time.monotonic() < deadline:
        time.sleep(0.2)
    before, began = origin.given, time.monotonic()
    status, result = Run(lab, origin, "/tmp/w-frozen").end()
    assert (status, origin.given - before) == (0, 0), "it goes on from its chunks; the others have the rest"
    assert time.monotonic() - began < 60
    assert {digest_on(lab, host, "/tmp/w-frozen") for host in lab.nodes} == {digest_of(model)}


def test_a_full_disk_is_known_before_the_first_byte(lab, origin, model):
    fault(lab, "disk-full", "n1")
    status, result = Run(lab, origin, "/tmp/w-full").end()
    assert (status, result["complete"]) == (3, "n[0,2-5]")
    assert failed(result) == [("weights/disk-full", "n1")]
    assert origin.given == SIZE
    assert {digest_on(lab, host, "/tmp/w-full") for host in ("n0", "n2", "n3", "n4", "n5")} == {digest_of(model)}


def test_a_read_only_disk_is_named_and_nobody_waits_for_it(lab, origin, model):
    lab.sh("n4", "mkdir -p /tmp/w-ro && mount -t tmpfs -o ro none /tmp/w-ro")
    try:
        status, result = Run(lab, origin, "/tmp/w-ro").end()
    finally:
        lab.sh("n4", "umount /tmp/w-ro")
    assert (status, result["complete"]) == (3, "n[0-3,5]")
    assert failed(result) == [("weights/read-only", "n4")]
    assert origin.given == SIZE
    assert {digest_on(lab, host, "/tmp/w-ro") for host in lab.nodes if host != "n4"} == {digest_of(model)}


def test_an_origin_that_throttles_is_asked_less_and_gives_each_byte_once(lab, origin, model):
    origin.fault = throttled(3, "1")
    status, result = Run(lab, origin, "/tmp/w-503").end()
    assert status == 0, result["findings"]
    assert result["retries"] > 0
    assert origin.given == result["origin_bytes"] == SIZE
    assert {digest_on(lab, host, "/tmp/w-503") for host in lab.nodes} == {digest_of(model)}


def test_a_host_that_changes_bytes_is_believed_by_nobody_and_named(lab, origin, model):
    lab.sh(ODD, f"touch {PLACE}/flip")
    status, result = Run(lab, origin, "/tmp/w-odd", file=lab.odd_file).end()
    assert (status, result["complete"]) == (3, "n[0-4]")
    assert failed(result) == [("weights/bad-node", ODD)], result["findings"]
    assert {digest_on(lab, host, "/tmp/w-odd") for host in ("n0", "n1", "n2", "n3", "n4")} == {digest_of(model)}
    assert origin.given <= 1.5 * SIZE, "what it alone had is fetched again"


def test_a_link_that_flaps_and_an_origin_that_is_gone_for_a_while(lab, origin, model):
    origin.rate = 15e6
    gone = []

    def away(request) -> bool:
        """The machine of the origin restarts: connections break, and nothing answers for two seconds."""
        if not gone and origin.given > SIZE // 3:
            gone.append(time.monotonic())
        if gone and time.monotonic() - gone[0] < 2:
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return True
        return False

    origin.fault = away
    fault(lab, "flap", "p0/n1", "down_s=0.5", "up_s=1.5")
    status, result = Run(lab, origin, "/tmp/w-flap").end()
    assert gone
    assert status == 0, result["findings"]
    assert result["retries"] > 0
    assert origin.given == SIZE
    assert {digest_on(lab, host, "/tmp/w-flap") for host in lab.nodes} == {digest_of(model)}


def test_a_batch_script_of_the_real_slurm(lab, origin, model, tmp_path):
    """`weights script`, `sbatch`, and the job behind it finds every file on every node."""
    site = tmp_path / "site.toml"
    state = running(lab.name)
    site.write_text(
        'schema = 1\n[access]\nvia = "slurm"\n[[pool]]\nname = "p"\nsize = "other"\nnodes = "n[0-5]"\n'
        f'python = "{sys.executable}"\n[fabric]\nlink = "ethernet"\nrdma = "none"\n'
        f'[slurm]\npartition = "{state.slurm.partition}"\noptions = []\n'
    )
    for host in lab.nodes:
        put(lab, host, str(site), site.read_text())
    words = ["weights", "script", f"{origin.url}/{NAME}", "/tmp/w-batch", "-f", str(site)]
    run = f"--chdir=/tmp sh -c 'sha256sum < /tmp/w-batch/{NAME}'"
    made = subprocess.run([*FAIRLEAD, *words, f"--run={run}"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    path = f"PATH={Path(FAIRLEAD[0]).parent}:{os.environ['PATH']}"
    sbatch = ["env", path, "sbatch", "--wait", "--output=/tmp/w-batch.out", "--chdir=/tmp"]
    head = state.host("head")
    submit = into_host(state, head, sbatch)
    done = subprocess.run(submit, input=made.stdout, text=True, capture_output=True, timeout=200)
    out = lab.sh("n0", "cat /tmp/w-batch.out")
    assert done.returncode == 0, (done.stderr, out)
    assert out.count(digest_of(model)) == 6
    assert "[total] nodes=6/6" in out
