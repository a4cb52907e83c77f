"""Files from nodes: what a node may send is bounded on this side, whatever the node thinks. Files to them that go."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest

from fairlead.cluster.copies import fetch_one, push_one
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.protocol import State
from fairlead.cluster.spread import source_of
from fairlead.cluster.talk import Ending
from fairlead.errors import UsageError
from fairlead.records.border import Breach


class Sender:
    """A node that sends so many bytes, and says that all is well."""

    node = "n1"

    def __init__(self, num_bytes: int) -> None:
        self.data = b"x" * num_bytes
        self.num_taken = 0

    async def hold(self, job, body, on_frame):
        try:
            for start in range(0, len(self.data), 1000):
                on_frame(b"d", 0, self.data[start : start + 1000])
                self.num_taken += 1000
        except Breach as breach:  # as Talk does: it is heard no more
            return Ending(here=True, breach=breach)
        on_frame(b"x", 0, json.dumps({"rc": 0, "sha256": hashlib.sha256(self.data).hexdigest()}).encode())
        return Ending(here=True, whole=True)


async def test_a_file_within_the_bound_is_kept(tmp_path):
    result = await fetch_one(Sender(5000), "/a/file", tmp_path / "n1/file", 5000)
    assert result.state is State.DONE
    assert (tmp_path / "n1/file").stat().st_size == 5000


async def test_a_node_that_sends_more_than_was_asked_for_fills_no_disk(tmp_path):
    node = Sender(50_000)
    result = await fetch_one(node, "/a/file", tmp_path / "n1/file", 5000)
    assert (result.state, result.code) == (State.FAILED, "cluster/bad-answer")
    assert result.error == "it sent more of /a/file than the 5000 bytes allowed"
    assert node.num_taken == 5000
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_goes_away_while_it_is_copied_is_said_to(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "shard").write_bytes(b"x" * 1000)
    found = source_of(tmp_path / "model", 0o644)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(UsageError, match=r"model/shard: No such file") as why:
        found.chunk(0)
    assert why.value.code == "cluster/no-file"


async def test_a_file_that_goes_away_while_it_is_copied_is_said_to(tmp_path):
    class Slow:
        """A node that is reached when the file has gone."""

        node = "n1"

        async def hold(self, job, body, on_frame):
            (tmp_path / "file").unlink()
            return [data async for data in body]

    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"file: No such file"):
        await push_one(Slow(), tmp_path / "file", "/a/file", 0o644)


async def test_a_link_under_a_name_that_could_be_guessed_is_not_written_through(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    (tmp_path / "n1").mkdir()
    for name in (f".file.part-{os.getpid()}", "file"):
        (tmp_path / "n1" / name).symlink_to(kept)
    result = await fetch_one(Sender(5000), "/a/file", tmp_path / "n1/file", 5000)
    assert result.state is State.DONE
    assert kept.read_text() == "kept"
    assert not (tmp_path / "n1/file").is_symlink()


async def test_a_neighbours_pipe_beside_the_target_is_not_waited_for(tmp_path):
    """Names of temporary files begin alike, so that leftovers can be found."""
    os.mkfifo(tmp_path / ".file.fairlead-1")
    (tmp_path / "source").write_text("content")
    results = await Engine(LocalBackend()).push("n1", tmp_path / "source", str(tmp_path / "file"), limit_s=30)
    assert [(r.state, r.error) for r in results] == [(State.DONE, "")]
    assert (tmp_path / "file").read_text() == "content"
