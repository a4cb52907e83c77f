"""On a live lab: begun by the command on every host, it sees a link go down and come back, a port at half its rate, and
an HCA that is gone; its chain is followed and found broken where somebody changed it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from support.injector import FAIRLEAD, World
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm")]

FOLDER = "/var/log/fairlead-watch"
"""A place that each host of a lab has for itself."""


NO_RDMA = {("watch/blind", node, "qps") for node in ("n0", "n1")}
"""The machine's kernel has no RDMA, though a lab's hosts show HCAs: that nobody lists their objects is told."""


def fairlead(lab: World, *words: str) -> tuple[int, dict]:
    argv = [*FAIRLEAD, *words, "-f", str(lab.file), "--runs", str(lab.file.parent / "runs"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Two hosts on two planes, the watch on both."""
    with world(hosts=2, gpus=1, planes=2) as made:
        with made.file.open("a") as file:
            file.write(f'[watch]\nperiod_s = 1\nglance_s = 0.5\nfolder = "{FOLDER}"\n')
        status, said = fairlead(made, "watch", "start")
        assert status == 0, said
        try:
            yield made
        finally:
            status, ended = fairlead(made, "watch", "stop")
            assert (status, {s["did"] for s in ended["services"]}) == (0, {"stopped"})


def fault(lab: World, *words: str) -> None:
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, *words], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def well(lab: World) -> Iterator[None]:
    """Every test leaves a lab without faults."""
    yield
    lab.heal()


def told(lab: World, fits: Callable[[set[tuple[str, str, str]]], bool], limit_s: float = 60.0) -> set:
    """What nodes tell that is not well, once it fits: (code, node, part)."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        _, said = fairlead(lab, "watch")
        found = {
            (f["code"], f["subject"]["nodes"][0], f["subject"].get("name", ""))
            for f in said["findings"]
            if f["verdict"] != "pass"
        } - NO_RDMA
        if fits(found):
            return found
    raise AssertionError(f"it never came: {found}")


def test_a_healthy_lab_is_well_and_every_port_is_watched(lab):
    told(lab, lambda found: not found)
    status, said = fairlead(lab, "watch")
    blind = {f["code"] for f in said["findings"] if f["verdict"] == "unknown"}
    assert (status, blind) in ((0, set()), (4, {"watch/blind"}))
    for look in said["looks"].values():
        assert set(look["ports"]) == {"mlx5_0/1", "mlx5_1/1"}
        assert look["self"]["rss_bytes"] < 64 << 20


def test_a_link_that_goes_down_is_told_with_its_host_and_is_over_when_it_is_back(lab):
    told(lab, lambda found: not found)
    fault(lab, "link-down", "p1/n0")
    found = told(lab, bool)
    assert {node for _, node, _ in found} == {"n0"}
    assert {code for code, _, _ in found} <= {"watch/link-down", "watch/port-down"}
    lab.heal()
    told(lab, lambda found: not found)


def test_a_port_at_half_its_rate_is_told_until_it_is_whole(lab):
    told(lab, lambda found: not found)
    path = "/sys/class/infiniband/mlx5_0/ports/1/rate"
    was = float(lab.sh("n1", f"cat {path}").split()[0])
    fault(lab, "file", "n1", f"path={path}", f"content={was / 2:g} Gb/sec (1X HDR)")
    assert told(lab, bool) == {("watch/link-slower", "n1", "mlx5_0/1")}
    lab.heal()
    told(lab, lambda found: not found)


def test_an_hca_that_is_gone_is_told(lab):
    told(lab, lambda found: not found)
    fault(lab, "missing-hca", "n0", "hca=mlx5_1")
    assert ("watch/port-down", "n0", "mlx5_1/1") in told(lab, bool)


def test_the_live_view_draws_what_it_sees_and_ends_by_itself(lab):
    argv = [*FAIRLEAD, "watch", "--top", "--seconds", "4", "-f", str(lab.file), "--runs", str(lab.file.parent / "runs")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 4), done.stdout + done.stderr
    assert done.stdout.count("fairlead watch  ") >= 2, "it is drawn again"
    assert "2 nodes of 2" in done.stdout


def test_killed_outright_it_is_back_and_its_chain_is_whole(lab):
    before = {n: look["self"]["pid"] for n, look in fairlead(lab, "watch")[1]["looks"].items()}
    lab.sh("n1", f"kill -9 {before['n1']}")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(KeyError):
            look = fairlead(lab, "watch", "-w", "n1")[1]["looks"]["n1"]
            if look["self"]["pid"] != before["n1"] and look["age_s"] < 3:
                break
    assert look["self"]["pid"] != before["n1"]
    status, chains = fairlead(lab, "watch", "verify")
    assert status == 0
    assert {f["code"] for f in chains["findings"]} == {"watch/chain-whole"}


def test_a_record_that_somebody_changed_is_named(lab):
    lab.sh("n1", f'sed -i \'2s/"kind"/"kinb"/\' {FOLDER}/audit.jsonl')
    status, chains = fairlead(lab, "watch", "verify")
    assert status == 3
    broken = {f["subject"]["nodes"][0]: f["data"] for f in chains["findings"] if f["code"] == "watch/chain-broken"}
    assert broken == {"n1": {"n": 2, "file": "audit.jsonl", "line": 3}}
