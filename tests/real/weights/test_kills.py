"""Kills at random in a lab: nodes, the control process, the origin, alone and together; each run goes on where the one
before was stopped. Nothing half ever has a name, and who has not everything is named.

Twenty kills; a hundred at FAIRLEAD_DEPTH=5. FAIRLEAD_SEED draws the kills of an earlier run again.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.base.nodeset import NodeSet
from support.depth import DEPTH, cases
from support.injector import World
from support.origins import Origin, Request
from support.spreads import NAME, Run, digest_of, digest_on, killed, programs_on, serving_hosts
from support.trials import world

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(600 * DEPTH),
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "obstore"),
]
SIZE = (24 << 20) + 99
VICTIMS = ("node", "node", "two nodes", "control", "node and control", "origin", "origin for good", "node and origin")
RUNS_A_PLACE = 4
"""Killed runs into one folder before one that nobody disturbs has to mend it."""


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts on two planes of 60 Mbit/s."""
    with world(hosts=4, gpus=1, planes=2, rate_mbps=60) as made:
        text = made.file.read_text().replace("gpus = 1\n", f'gpus = 1\npython = "{sys.executable}"\n')
        made.file.write_text(text + "[weights]\nsilent_s = 10\ngive_up_s = 5\n")
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / NAME).write_bytes(random.Random(23).randbytes(SIZE))
    return made


@pytest.fixture
def origin(lab, model) -> Iterator[Origin]:
    with serving_hosts(lab, model) as made:
        yield made


def drop(request: Request) -> bool:
    """The machine of the origin is gone: the connection breaks, and nothing was answered."""
    request.close_connection = True
    request.connection.shutdown(socket.SHUT_RDWR)
    return True


def holders(lab: World, dest: str, good: str, why: object) -> set[str]:
    """Hosts that have the file under its name; each of them has every bit of it."""
    found = {host for host in lab.nodes if NAME in lab.sh(host, f"ls {dest} 2>/dev/null || true").split()}
    for host in found:
        assert digest_on(lab, host, dest) == good, (host, why)
    return found


def all_ended(lab: World) -> bool:
    deadline = time.monotonic() + 30
    while any(programs_on(lab, host) for host in lab.nodes) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(programs_on(lab, host) for host in lab.nodes)


def test_kills_at_random_leave_nothing_half_and_nobody_unnamed(lab, origin, model):
    seed = int(os.environ.get("FAIRLEAD_SEED") or (7 if DEPTH == 1 else random.SystemRandom().randrange(1 << 32)))
    rng, good, dest, under_way, before = random.Random(seed), digest_of(model), "", 0, 0
    for number in range(cases(20)):
        if number % RUNS_A_PLACE == 0:
            dest, before, origin.rate = f"/tmp/w-k{number}", origin.given, rng.choice([4e6, 8e6, 0])
        victim, hosts = rng.choice(VICTIMS), rng.sample(lab.nodes, 2)
        why = (f"FAIRLEAD_SEED={seed}", number, victim, hosts)
        run = Run(lab, origin, dest)
        time.sleep(rng.uniform(0.3, 5.0))
        under_way += run.child.poll() is None
        if "origin" in victim:
            until = time.monotonic() + (60 if "good" in victim else 1.0)
            origin.fault = lambda request, until=until: time.monotonic() < until and drop(request)
        if "node" in victim:
            for host in hosts[: 2 if "two" in victim else 1]:
                killed(lab, host)
        if "control" in victim:
            run.child.kill()
            run.child.communicate()
            assert all_ended(lab), why
            holders(lab, dest, good, why)
        else:
            status, result = run.end()
            complete = set(NodeSet(result["complete"])) if result["complete"] else set()
            assert complete <= holders(lab, dest, good, why), why
            left = set(lab.nodes) - complete
            named = {n for f in result["findings"] if f["verdict"] == "fail" for n in f["subject"].get("nodes", [])}
            assert left <= named or NAME in result["missing"], (why, result["findings"])
            assert status == (3 if left else 0), (why, result["findings"])
            assert all_ended(lab), why
        origin.fault = None
        if number % RUNS_A_PLACE == RUNS_A_PLACE - 1:
            status, result = Run(lab, origin, dest).end()
            assert status == 0, (why, result["findings"])
            assert holders(lab, dest, good, why) == set(lab.nodes), why
            assert origin.given - before <= (1 + RUNS_A_PLACE) * SIZE
            for host in lab.nodes:
                lab.sh(host, f"rm -rf {dest}")
    assert under_way > cases(20) // 3, "kills that met a run"
