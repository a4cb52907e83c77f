"""In a virtual machine whose kernel has RDMA (soft RoCE): the whole program beside real queue pairs and connections.

This is no RDMA hardware: rdma_rxe has no data counters, so bytes and owners are reconciled by series elsewhere.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fairlead.watch.onnode.chain import check
from fairlead.watch.program import watch_source
from support import rdmavm
from support.watching import settings

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]
SUPPORT = Path(rdmavm.__file__).parent


@pytest.fixture(scope="module")
def guest(tmp_path_factory) -> Path:
    """What the guest left: what kernel, tool and watch said of the same objects."""
    if rdmavm.kernel() is None:
        pytest.skip("no kernel with RDMA, QEMU or rdma-core here: python tests/support/rdmavm.py says what it takes")
    if not shutil.which("rping"):
        pytest.skip("no rping here: apt install rdmacm-utils")
    place, out = tmp_path_factory.mktemp("guest"), tmp_path_factory.mktemp("out")
    # the guest's own /tmp hides this machine's
    shared = Path("/var/tmp") / f"fairlead-guest-{place.name}-{out.stat().st_ino}"
    shared.mkdir(mode=0o700)
    try:
        (shared / "watch.py").write_text(watch_source())
        told = settings(folder="/tmp/watch", node="guest", period_s=1.5, glance_s=0.5)
        (shared / "settings.json").write_text(json.dumps(told))
        (shared / "settings.json").chmod(0o600)
        for name in ("rdma_guest.sh", "rdma_asks.py"):
            shutil.copy(SUPPORT / name, shared)
        files = " ".join(str(shared / n) for n in ("watch.py", "settings.json", "rdma_asks.py"))
        rdmavm.run(f"sh {shared}/rdma_guest.sh /usr/bin/python3 {files}", out, limit_s=800)
    finally:
        shutil.rmtree(shared)
    return out


def records(guest: Path) -> list[dict]:
    return [json.loads(line) for line in (guest / "audit.jsonl").read_text().splitlines()]


def test_every_process_with_a_queue_pair_is_an_owner_with_its_name(guest):
    pids = [int(pid) for pid in (guest / "pids").read_text().split()]
    owners = {r["owner"]["pid"]: r["owner"] for r in records(guest) if r["kind"] == "owner" and "pid" in r["owner"]}
    assert set(pids) <= set(owners)
    assert [owners[pid]["comm"] for pid in pids] == ["ibv_rc_pingpong", "ibv_rc_pingpong", "rping", "rping"]
    assert {owners[pid]["user"] for pid in pids} == {"root"}


def test_queue_pairs_are_recorded_with_their_remote_ends_as_rdma_shows_them(guest):
    pairs = json.loads((guest / "rdma-qp.json").read_text())
    shown = {(q["lqpn"], q.get("rqpn", 0), q["type"], q["state"]) for q in pairs}
    told = {tuple(qp) for r in records(guest) if r["kind"] == "qps" for qp in r["new"]}
    assert shown <= told


def test_the_peer_of_a_connection_is_recorded(guest):
    peers = {peer for r in records(guest) if r["kind"] in ("owner", "peers") for peer in r.get("peers", r.get("new"))}
    shown = {c["dst-addr"] for c in json.loads((guest / "rdma-cm_id.json").read_text())} - {"0.0.0.0:0"}
    assert shown
    assert shown <= peers


def test_it_shows_what_is_there_and_that_this_driver_has_no_data_counters(guest):
    busy = json.loads((guest / "now-busy.json").read_text())
    assert busy["num_qps"] == 5
    assert busy["ports"]["rxe0/1"]["owners"] == ["root ibv_rc_pingpong", "root rping"]
    assert busy["ports"]["rxe0/1"]["rx_bps"] is None
    assert {(f["code"], f["verdict"]) for f in busy["findings"]} == {("watch/blind", "unknown")}
    assert "e0" in busy["links"], "the link of an RDMA device is watched, whatever kind it is"


def test_who_ends_and_a_device_that_goes_are_recorded_and_the_chain_holds(guest):
    ends = {r["pid"] for r in records(guest) if r["kind"] == "owner-end"}
    assert {int(pid) for pid in (guest / "pids").read_text().split()} <= ends
    after = json.loads((guest / "now-after.json").read_text())
    assert [(f["code"], f["part"]) for f in after["findings"]] == [("watch/port-down", "rxe0/1")]
    assert "broken" not in check(str(guest))
