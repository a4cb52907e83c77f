"""Bytes and owners, series by series: who is accused, and above all who is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.watch.onnode.judge import Judge
from fairlead.watch.onnode.reconcile import is_allowed
from support.watching import port, qp, sample, settings

GB = 1 << 30
JOB = {700: {"pid": 700, "comm": "python", "uid": "1001", "user": "ann", "job": "7", "job_by": "cgroup"}}
ROOT = {700: {"pid": 700, "comm": "ib_write_bw", "uid": "0", "user": "root"}}


def findings(judge: Judge, code: str) -> list[dict]:
    return [f for f in judge.now["findings"] if f["code"] == "watch/" + code]


def run(samples, **more) -> Judge:
    judge = Judge(settings(**more))
    for one in samples:
        judge.step(one)
    return judge


def moving(times, per_look=10 * GB, start=0, **parts):
    """A port that moves so many bytes each ten seconds."""
    return [sample(10 * (start + i), {"mlx5_0/1": port(data=per_look * (start + i))}, **parts) for i in range(times)]


def test_bytes_that_nobody_holds_a_queue_pair_for_are_a_fault_at_the_second_look_and_not_at_the_first():
    judge = run(moving(2))
    assert findings(judge, "bytes-without-owner") == []
    for one in moving(1, start=2):
        judge.step(one)
    (found,) = findings(judge, "bytes-without-owner")
    assert (found["part"], found["verdict"]) == ("mlx5_0/1", "fail")
    assert found["data"]["bytes"] == 10 * GB
    assert found["evidence"]


def test_the_same_bytes_with_an_owner_are_nothing():
    judge = run(moving(6, qps=[qp()], owners=JOB))
    assert judge.now["findings"] == []
    assert judge.now["ports"]["mlx5_0/1"]["owners"] == ["job 7"]
    assert judge.now["talkers"][0] | {"alone_bps": 0} == {
        "who": "job 7", "ports": ["mlx5_0/1"], "alone_bps": 0, "shared_bps": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("also", ["ctxs", "openers", "glanced"])
def test_an_open_context_an_open_file_and_a_glance_between_looks_are_owners_too(also):
    shows = {
        "ctxs": [{"dev": "mlx5_0", "pid": 700}],
        "openers": {700: "mlx5_0"},
        "glanced": {"mlx5_0": {700}},
    }[also]
    judge = run(moving(6, owners=JOB, **{also: shows}))
    assert findings(judge, "bytes-without-owner") == []


def test_an_owner_who_just_ended_is_an_owner_and_one_who_ended_long_ago_is_none():
    judge = run([*moving(3, qps=[qp()], owners=JOB), *moving(3, start=3)])
    assert findings(judge, "bytes-without-owner") == [], "within its grace"
    for one in moving(5, start=6):
        judge.step(one)
    assert findings(judge, "bytes-without-owner")


def test_the_kernels_own_management_is_no_owner_and_its_traffic_is_no_fault():
    gsi = qp(num=1, type="GSI")
    del gsi["pid"]
    management = {"qps": [gsi | {"kern": "ib_core"}]}
    assert run(moving(6, per_look=256 * 4000, **management)).now["findings"] == []
    assert findings(run(moving(6, **management)), "bytes-without-owner")


def test_ipoib_and_lustre_in_the_kernel_are_owners():
    for part in ("ib_ipoib", "ko2iblnd", "nvme_rdma"):
        one = qp(type="UD", kern=part)
        del one["pid"]
        judge = run(moving(6, qps=[one]))
        assert judge.now["findings"] == []
        assert judge.now["ports"]["mlx5_0/1"]["owners"] == ["kernel " + part]


def test_a_queue_pair_whose_process_ended_and_left_it_to_another_is_owned():
    orphan = qp()
    del orphan["pid"]
    assert run(moving(6, qps=[orphan])).now["findings"] == []


def test_where_the_kernel_does_not_list_objects_nobody_is_accused_and_it_is_told():
    judge = run(moving(6, qps={"unread": "operation not permitted", "source": "netlink: rdma"}))
    assert [(f["code"], f["verdict"], f["part"]) for f in judge.now["findings"]] == [("watch/blind", "unknown", "qps")]


def test_a_counter_that_runs_backwards_or_is_junk_accuses_nobody():
    series = [0, 10 * GB, 5 * GB, 0, 3 * GB, 1]
    judge = run([sample(10 * i, {"mlx5_0/1": port(data=data)}) for i, data in enumerate(series)])
    assert findings(judge, "bytes-without-owner") == []
    holes = port()
    holes["counters"] = {"port_rcv_data": {"unread": "holds bytes that are not text"}, "port_xmit_data": "x"}
    judge = run([sample(10 * i, {"mlx5_0/1": holes}) for i in range(6)])
    assert findings(judge, "bytes-without-owner") == []


def test_a_clock_that_jumps_changes_no_rate_and_is_recorded():
    judge = Judge(settings())
    first, second = moving(2, qps=[qp()], owners=JOB)
    judge.step(first)
    records = judge.step({**second, "wall_ns": second["wall_ns"] - 3600 * 10**9})
    assert judge.now["ports"]["mlx5_0/1"]["rx_bps"] == pytest.approx(5 * GB / 10, rel=1e-6)
    assert [r["jump_s"] for r in records if r["kind"] == "clock"] == [-3600.0]


def test_only_who_may_moves_bytes():
    allowed = ["slurm", "user:admin", "kernel:ib_ipoib"]
    assert run(moving(6, qps=[qp()], owners=JOB), allowed=allowed).now["findings"] == []
    judge = run(moving(6, qps=[qp()], owners=ROOT), allowed=allowed)
    (found,) = findings(judge, "owner-not-allowed")
    assert "root ib_write_bw" in found["message"]
    says_so = {700: {**ROOT[700], "job": "7", "job_by": "environment"}}
    assert not is_allowed(says_so[700], allowed), "a process's own word makes it no job"


def test_ports_are_told_apart():
    """Eight ports carry a job's bytes, a ninth carries somebody's: it alone is accused."""
    names = [f"mlx5_{i}" for i in range(9)]
    held = [qp(dev=name, num=10 + i) for i, name in enumerate(names[:8])]
    judge = Judge(settings())
    for i in range(6):
        ports = {f"{name}/1": port(data=i * GB) for name in names}
        judge.step(sample(10 * i, ports, qps=held, owners=JOB))
    assert [(f["code"], f["part"]) for f in judge.now["findings"]] == [("watch/bytes-without-owner", "mlx5_8/1")]


@given(st.integers(0, 10**6))
def test_jobs_that_come_and_go_as_jobs_do_accuse_nobody(seed):
    """A job starts, talks, ends; bytes flow only while it lives, and some arrive late. Never an accusation."""
    draw = random.Random(seed)
    judge, total, at, last_end = Judge(settings()), 0, 0.0, -1000.0
    held = False
    for _ in range(80):
        at += draw.uniform(8, 13)
        if held and draw.random() < 0.2:
            held, last_end = False, at
        elif not held and draw.random() < 0.3:
            held = True
        if held or at - last_end < 15:
            total += draw.randrange(0, 20 * GB)
        total += draw.randrange(0, 9_000_000)  # management, below a megabyte a second
        parts = {"qps": [qp()], "owners": JOB} if held else {}
        judge.step(sample(at, {"mlx5_0/1": port(data=total)}, **parts))
        assert judge.now["findings"] == []


def test_two_owners_of_one_port_share_it_and_none_is_given_the_bytes():
    both = {700: JOB[700], 800: {"pid": 800, "comm": "x", "user": "bob"}}
    judge = run(moving(3, qps=[qp(), qp(pid=800, num=40)], owners=both))
    rows = {row["who"]: row for row in judge.now["talkers"]}
    assert rows["job 7"]["alone_bps"] == rows["bob x"]["alone_bps"] == 0
    assert rows["job 7"]["shared_bps"] == rows["bob x"]["shared_bps"] == pytest.approx(GB)


def test_who_came_and_went_is_recorded_with_queue_pairs_and_peers():
    judge = Judge(settings())
    first, second, third = moving(3)
    judge.step(first)
    held = {"qps": [qp(), qp(num=30)], "owners": JOB, "mrs": {"mlx5_0 700": [3, 4096]},
            "cm_ids": [{"dev": "mlx5_0", "pid": 700, "dst": "192.0.2.7:7471"}]}  # fmt: skip
    came = judge.step({**second, **held})
    owner = next(r for r in came if r["kind"] == "owner")
    assert (owner["owner"]["job"], owner["mrs"], owner["mr_bytes"], owner["peers"]) == (
        "7",
        3,
        4096,
        ["192.0.2.7:7471"],
    )
    pairs = next(r for r in came if r["kind"] == "qps")
    assert pairs["new"] == [[17, 18, "RC", "RTS"], [30, 31, "RC", "RTS"]]
    gone = judge.step(third)
    assert [(r["kind"], r["pid"]) for r in gone if r["kind"] == "owner-end"] == [("owner-end", 700)]
    assert judge.step({**third, "boot_s": third["boot_s"] + 10, "wall_ns": third["wall_ns"] + 10**10}) == []
