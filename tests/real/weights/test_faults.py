"""Spreads in a lab with faults: slow, frozen and full hosts, a link that flaps, an origin that is gone for a while.

Faults are the kernel's (`fairlead lab fault`) and signals; nothing in fairlead helps.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.enter import running
from support.depth import DEPTH
from support.injector import FAIRLEAD, World
from support.origins import Origin, serving
from support.spreads import NAME, Run, digest_of, digest_on, programs_on, signalled, when_given
from support.trials import world

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(600 * DEPTH),
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "obstore"),
]
MIB = 1 << 20
SIZE = 64 * MIB + 99


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Six hosts on two planes of 100 Mbit/s."""
    with world(hosts=6, gpus=1, planes=2, rate_mbps=100) as made:
        text = made.file.read_text().replace("gpus = 1\n", f'gpus = 1\npython = "{sys.executable}"\n')
        made.file.write_text(text + "[weights]\nsilent_s = 10\ngive_up_s = 20\n")
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / NAME).write_bytes(random.Random(19).randbytes(SIZE))
    return made


@pytest.fixture
def origin(lab, model) -> Iterator[Origin]:
    with serving(model) as made:
        state = running(lab.name)
        for host in lab.nodes:
            made.also_in(state.host(host).anchor.pid)
        yield made


@pytest.fixture(autouse=True)
def _heal(lab) -> Iterator[None]:
    yield
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
