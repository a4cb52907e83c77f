"""A push that fans out from node to node: whole on every node, whatever becomes of the nodes between."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from fairlead.cluster import Cluster, State
from fairlead.cluster import engine as engine_module
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.relay import CHUNK_BYTES
from fairlead.cluster.spread import Source, Spread
from support.processes import until

pytestmark = pytest.mark.real
HERE = "127.0.0.1"


def said(result) -> list[dict]:
    """What a node reported."""
    return [json.loads(line) for line in result.stdout.text.splitlines()]


def sources(results) -> dict[str, list[str]]:
    """Node -> whom it took from, one after the other."""
    return {r.node: [s["name"] for s in said(r) if s["do"] == "source"] for r in results}


@pytest.fixture
def big(tmp_path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(40 * CHUNK_BYTES + 12_345))
    return path


def per_node(folder: Path) -> tuple[Engine, str]:
    """An engine whose nodes see one path each at its own place, by a mount namespace a node; and that path."""

    class Apart(LocalBackend):
        def wrap(self, node, argv):
            own = folder / node
            own.mkdir(exist_ok=True)
            target = folder / "at"
            target.mkdir(exist_ok=True)
            script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
            return ["unshare", "--mount", "sh", "-c", script, "sh", str(own), str(target), *argv]

    return Engine(Apart()), str(folder / "at")


def test_every_node_has_it_and_most_of_it_came_from_other_nodes(tmp_path, big):
    engine, at = per_node(tmp_path)
    nodes = [f"n{i}" for i in range(7)]
    with Cluster(engine) as cluster:
        results = cluster.push(
            "n[0-6]", big, f"{at}/deep/er/file", limit_s=60, mode=0o640, addresses=dict.fromkeys(nodes, HERE)
        )
    assert {r.state for r in results} == {State.DONE}, results
    want = hashlib.sha256(big.read_bytes()).hexdigest()
    for node in nodes:
        [file] = (tmp_path / node / "deep/er").iterdir()
        assert file.name == "file"
        assert hashlib.sha256(file.read_bytes()).hexdigest() == want
        assert file.stat().st_mode & 0o7777 == 0o640
    took = sources(results)
    fed = [node for node, names in took.items() if not names]
    assert len(fed) == 1, "one was sent the bytes, and all others had them from a node"
    children = [name for names in took.values() for name in names[-1:]]
    assert max(children.count(name) for name in children) == 2


def relay_on(node: str, folder: Path) -> int:
    """The process that takes the push there."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"fairlead-relay" in (entry / "cmdline").read_bytes():
                own = f"FAIRLEAD_NODE={node}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if own and str(folder) in (entry / "mountinfo").read_text():
                    return int(entry.name)
    raise AssertionError(f"nothing runs on {node}")


def test_a_node_that_dies_on_the_way_does_not_take_those_behind_it_along(tmp_path, big, monkeypatch):
    begun, slow = [], Source.chunk

    class Watched(Spread):
        async def run(self, nodes):
            begun.append(self)
            return await super().run(nodes)

    def chunk(self, number):
        time.sleep(0.1)
        return slow(self, number)

    monkeypatch.setattr(engine_module, "Spread", Watched)
    monkeypatch.setattr(Source, "chunk", chunk)
    engine, at = per_node(tmp_path)
    killed = []

    def kill_an_inner_node() -> None:
        """The second in the tree, which serves two others, once it has passed something on."""
        assert until(lambda: begun and len(begun[0].servers) == 9, 30)
        inner, below = begun[0].servers[1][0], begun[0].servers[3][0]

        def passed_on():
            return any(f.stat().st_size > 2 * CHUNK_BYTES for f in (tmp_path / below).glob(".file.fairlead-*"))

        assert until(passed_on, 30)
        os.kill(relay_on(inner, tmp_path), signal.SIGKILL)
        killed.extend((inner, below))

    thread = threading.Thread(target=kill_an_inner_node)
    with Cluster(engine) as cluster:
        thread.start()
        results = cluster.push("n[0-8]", big, f"{at}/file", limit_s=90, addresses={f"n{i}": HERE for i in range(9)})
    thread.join()
    by_node = {r.node: r for r in results}
    inner, below = killed
    dead = by_node.pop(inner)
    assert (dead.state, dead.error) == (State.FAILED, "killed by SIGKILL")
    assert {r.state for r in by_node.values()} == {State.DONE}, results
    for node in by_node:
        assert (tmp_path / node / "file").read_bytes() == big.read_bytes()
    names = sources(results)[below]
    assert names[0] == inner
    assert names[1:] == [begun[0].servers[0][0]], "it went on with the one above"
    again = [s["chunk"] for s in said(by_node[below]) if s["do"] == "source"]
    assert again[1] > 0, "and from where it was"


def test_nodes_that_do_not_reach_each_other_are_each_sent_their_own(tmp_path, big):
    engine, at = per_node(tmp_path)
    with Cluster(engine) as cluster:
        # nobody has the first address, so nobody serves there; nobody answers at the second
        results = cluster.push("n[0-2]", big, f"{at}/file", limit_s=90, addresses={"n0": "192.0.2.1"})
    assert {r.state for r in results} == {State.DONE}
    assert sources(results) == {"n0": [], "n1": [], "n2": []}
    assert all((tmp_path / n / "file").read_bytes() == big.read_bytes() for n in ("n0", "n1", "n2"))


def test_a_folder_arrives_as_it_is_and_replaces_an_older_one(tmp_path):
    source = tmp_path / "model"
    (source / "a/b").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "a/b/weights").write_bytes(os.urandom(3 * CHUNK_BYTES + 1))
    for number in range(100):
        (source / f"a/{number}.txt").write_text(f"file {number}\n" * number)
    (source / "a/run").write_text("#!/bin/sh\n")
    (source / "a/run").chmod(0o755)
    (source / "link").symlink_to("a/b/weights")
    engine, at = per_node(tmp_path)
    (tmp_path / "n1" / "model").mkdir(parents=True)
    (tmp_path / "n1" / "model" / "old").write_text("old")
    with Cluster(engine) as cluster:
        results = cluster.push("n[0-3]", source, f"{at}/model", limit_s=60, addresses={f"n{i}": HERE for i in range(4)})
    assert {r.state for r in results} == {State.DONE}, results

    def listing(root: Path):
        return {
            p.relative_to(root).as_posix(): (
                p.lstat().st_mode,
                str(p.readlink()) if p.is_symlink() else p.read_bytes() if p.is_file() else b"",
            )
            for p in root.rglob("*")
        }

    for node in ("n0", "n1", "n2", "n3"):
        assert listing(tmp_path / node / "model") == listing(source)
        assert [p.name for p in (tmp_path / node).iterdir()] == ["model"], "nothing else stays"


def test_what_cannot_be_written_is_that_nodes_failure(tmp_path, big):
    engine, at = per_node(tmp_path)
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "dir").write_text("a file where a folder should be")
    with Cluster(engine) as cluster:
        results = cluster.push("n[0-2]", big, f"{at}/dir/file", limit_s=60, addresses={f"n{i}": HERE for i in range(3)})
    assert [r.state for r in results] == [State.DONE, State.FAILED, State.DONE]
    assert results[1].error == f"{at}/dir/file: File exists"


def test_who_does_not_know_the_token_gets_nothing(tmp_path, big):
    engine, at = per_node(tmp_path)
    heard: list[bytes] = []
    alone = "127.93.0.1"  # where nothing else on this machine listens

    def knock() -> None:
        def listening():
            sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            own = socket.inet_aton(alone)[::-1].hex().upper()
            return {int(s[1].split(":")[1], 16) for s in sockets if s[3] == "0A" and s[1].startswith(own)}

        opened.set()
        assert until(listening, 30)
        for port in listening():
            with socket.create_connection((alone, port), 5) as link:
                link.settimeout(5)
                assert len(link.recv(16)) == 16
                link.sendall(bytes(40))
                heard.append(link.recv(1 << 16))

    opened = threading.Event()
    thread = threading.Thread(target=knock)
    thread.start()
    assert opened.wait(10)
    with Cluster(engine) as cluster:
        results = cluster.push("n0", big, f"{at}/file", limit_s=60, addresses={"n0": alone})
    thread.join()
    assert results[0].ok
    assert heard == [b""]


def test_every_way_to_reach_nodes_can_spread(world, tmp_path):
    """All nodes are this machine, so they share the target; what counts is that each has its turn and says so."""
    source = tmp_path / "source"
    source.write_bytes(os.urandom(5 * CHUNK_BYTES))
    target = Path("/tmp") / f"fl-spread-{os.getpid()}"
    try:
        with world.cluster() as cluster:
            results = cluster.push(
                "n[1-3]", source, f"{target}/file", limit_s=60, addresses={f"n{i}": HERE for i in (1, 2, 3)}
            )
        assert {r.state for r in results} == {State.DONE}, results
        assert sum(bool(names) for names in sources(results).values()) == 2
        assert (target / "file").read_bytes() == source.read_bytes()
        assert len(list(target.iterdir())) == 1
    finally:
        (target / "file").unlink(missing_ok=True)
        target.rmdir()
