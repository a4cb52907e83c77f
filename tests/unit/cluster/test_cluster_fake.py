"""The fake keeps the promises that callers' tests lean on."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from fairlead.cluster import AsyncCluster, Cluster, Command, State
from fairlead.cluster.engine import Engine
from fairlead.cluster.fake import Answer, FakeCluster


@pytest.mark.parametrize("name", ["run", "run_each", "run_ranks", "push", "fetch", "close"])
def test_the_fake_and_the_sync_face_are_called_like_the_real_one(name):
    promised = inspect.signature(getattr(AsyncCluster, name))
    for kind in (Engine, FakeCluster, Cluster):
        assert inspect.signature(getattr(kind, name)) == promised


def test_every_node_has_a_result_and_nobody_waits():
    fake = FakeCluster(
        lambda node, _: {
            "n1": Answer("hello\n"),
            "n2": Answer(rc=3),
            "n3": Answer(delay_s=1e6),
            "n4": Answer(state=State.UNREACHABLE, error="no route"),
        }[node]
    )
    results = asyncio.run(fake.run("n[1-4]", ["x"], limit_s=30))
    assert [(r.node, str(r.state), r.rc) for r in results] == [
        ("n1", "done", 0), ("n2", "failed", 3), ("n3", "timeout", None), ("n4", "unreachable", None),
    ]  # fmt: skip
    assert fake.clock_s == 30


def test_ranks_get_their_places_and_the_first_failure_stops_the_later_ones():
    fake = FakeCluster(
        lambda _, command: (
            Answer(rc=1, delay_s=2)
            if command.env["RANK"] == "2"
            else Answer(delay_s=1 + 4 * int(command.env["LOCAL_RANK"]))
        )
    )
    results = asyncio.run(fake.run_ranks("n[1-2]", ["x"], per_node=2, limit_s=30))
    assert [(r.rank, r.local_rank, str(r.state)) for r in results] == [
        (0, 0, "done"), (1, 1, "cancelled"), (2, 0, "failed"), (3, 1, "cancelled"),
    ]  # fmt: skip


def test_lines_come_in_the_order_of_time():
    fake = FakeCluster(lambda node, _: Answer(f"{node} a\n{node} b", delay_s=9 - int(node[1:])))
    heard = []
    asyncio.run(fake.run("n[1-2]", ["x"], limit_s=30, on_line=lambda line: heard.append(line.text)))
    assert heard == ["n2 a", "n2 b", "n1 a", "n1 b"]


def test_files_go_there_and_back(tmp_path):
    source = tmp_path / "model"
    source.write_bytes(b"weights")
    with Cluster(FakeCluster()) as cluster:
        assert all(r.ok for r in cluster.push("n[1-2]", source, "/m/model", limit_s=1))
        results = cluster.fetch("n[1-2]", "/m/model", tmp_path / "back", limit_s=1, max_bytes=100)
        assert all(r.ok for r in results)
        assert (tmp_path / "back/n2/model").read_bytes() == b"weights"
        missing = cluster.fetch("n1", "/m/other", tmp_path / "back", limit_s=1, max_bytes=100)
        assert [r.state for r in missing] == [State.FAILED]
        assert [
            r.ok for r in cluster.run_each({"n1": Command(argv=("a",)), "n2": Command(argv=("b",))}, limit_s=1)
        ] == [True, True]
