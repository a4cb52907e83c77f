"""A node whose program is not ours: what it sends is held to type, size and number, and spoils its own result alone."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from fairlead.base.program import Program
from fairlead.cluster.channel import A_LINE, EVERYONE, IS_BEAT, MARK, MAX_LINE_BYTES, SEGMENT, Incoming, segments
from fairlead.cluster.engine import Engine
from fairlead.cluster.local import LocalBackend
from fairlead.cluster.onnode.frames import END, FRAME, MAGIC
from fairlead.cluster.outputs import Stream
from fairlead.cluster.protocol import State
from fairlead.cluster.talk import Frames

TRUE = (sys.executable, "-c", "print('well')")


def frame(kind: bytes, payload: bytes = b"", rank: int = 0) -> bytes:
    return FRAME.pack(kind, rank, len(payload)) + payload + END


HERE = MAGIC + frame(b"H")
LIES = {
    "an end that is no object": HERE + frame(b"x", b"[]"),
    "an end without a status": HERE + frame(b"x", b"{}"),
    "an end of the wrong type": HERE + frame(b"x", b'{"rc":"0"}'),
    "a status beyond all": HERE + frame(b"x", b'{"rc":99999999999999999999}'),
    "broken JSON": HERE + frame(b"x", b'{"rc":'),
    "deep JSON": HERE + frame(b"x", b'{"rc":0,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a kind nobody knows": HERE + frame(b"q", b"?"),
    "a piece of a file nobody asked for": HERE + frame(b"d", b"x"),
    "another rank": HERE + frame(b"o", b"x", rank=7),
    "a rank that ends the others": HERE + frame(b"x", b'{"rc":0}', rank=65535),
}
"""Each ended the call for all nodes as a bug of fairlead."""


class Lying(LocalBackend):
    """This machine; on one node something else answers."""

    def __init__(self, liar: str, folder: Path, said: bytes) -> None:
        self.liar, self.path = liar, folder / "said"
        self.path.write_bytes(said)

    def wrap(self, node, argv):
        if node != self.liar:
            return super().wrap(node, argv)
        return ["sh", "-c", f"cat {self.path}; exec cat > /dev/null"]


@pytest.mark.parametrize("said", LIES.values(), ids=LIES)
async def test_a_lie_is_its_own_nodes_result_alone(said, tmp_path):
    engine = Engine(Lying("n2", tmp_path, said))
    results = {r.node: r for r in await engine.run("n[1-3]", TRUE, limit_s=20)}
    assert [results[n].stdout.text for n in ("n1", "n3")] == ["well\n", "well\n"]
    assert (results["n2"].state, results["n2"].code) == (State.FAILED, "cluster/bad-answer")
    assert results["n2"].error.startswith("it sent ")
    assert results["n2"].error.isprintable()
    assert len(results["n2"].error) < 500
    assert results["n2"].duration_s < 10


@pytest.mark.parametrize(
    "said",
    [*LIES.values(), HERE + frame(b"b", b'{"9":"x"}'), HERE + frame(b"b", b'{"-1":"x"}'), HERE + frame(b"b", b"[[]]")],
    ids=[*LIES, "a beat of another rank", "a beat of rank -1", "beats that are none"],
)
async def test_a_lie_in_a_group_that_lives_is_its_own_nodes_end_alone(said, tmp_path):
    echo = Program.of(
        "echo", "fairlead.cluster.channel", call="[Channel().say(str(Channel().read())), Channel().read(9)]"
    )
    engine = Engine(Lying("n2", tmp_path, said))
    group = await engine.start(echo, "n[1-3]", limit_s=20, first="hello")
    heard = []
    while len(heard) < 2 or not group.heard.ended:
        heard += await group.read_all(10.0)
    results = {r.node: r for r in await group.close()}
    assert {line.node: line.text for line in heard} == {"n1": "hello", "n3": "hello"}
    assert results["n2"].code == "cluster/bad-answer"
    assert {results[n].state for n in ("n1", "n3")} == {State.CANCELLED}


async def test_ends_without_end_fill_no_memory(tmp_path):
    backend = Lying("n1", tmp_path, HERE + frame(b"x", json.dumps({"rc": 0}).encode()) * 200_000)
    tracemalloc.start()
    group = await Engine(backend).start(Program.of("idle", "fairlead.cluster.channel"), "n1", limit_s=20)
    await asyncio.sleep(0.5)
    assert len(group.heard.take_ended()) == 1
    await group.close()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 << 20


async def test_a_node_that_talks_without_end_meets_the_limit(tmp_path):
    """Also one that goes on saying that it is there."""

    class Endless(Lying):
        def wrap(self, node, argv):
            if node != self.liar:
                return super().wrap(node, argv)
            write, more = "sys.stdout.buffer.write", frame(b"H") + frame(b"o", b"x" * 4096)
            return [sys.executable, "-c", f"import sys\n{write}({HERE!r})\nwhile 1: {write}({more!r})"]

    results = await Engine(Endless("n2", tmp_path, b"")).run("n[1-2]", TRUE, limit_s=1.0)
    assert [r.state for r in results] == [State.DONE, State.TIMEOUT]
    assert len(results[1].stdout.data) < 3 << 20
    assert results[1].duration_s < 15


# ---- byte by byte ----------------------------------------------------------------------------------------------------


def drip_segment(incoming):
    incoming.feed(SEGMENT.pack(MARK, 0, EVERYONE, 1 << 20))
    return incoming


@pytest.mark.parametrize(
    "feed",
    [
        pytest.param(lambda: Stream(1 << 20, lambda _: None).feed, id="a line"),
        pytest.param(lambda: Incoming().feed, id="a line of a program"),
        pytest.param(lambda: drip_segment(Incoming()).feed, id="a segment"),
        pytest.param(lambda: Frames().feed, id="noise"),
    ],
)
def test_what_comes_byte_by_byte_costs_what_it_is_long(feed):
    """Gone through anew with each byte, a line of a megabyte would keep all nodes waiting for minutes."""
    take, before = feed(), time.process_time()
    for _ in range(300_000):
        list(take(b"x") or ())
    assert time.process_time() - before < 20


def test_text_between_segments_is_cut_like_any_line():
    incoming, num = Incoming(), 0
    beat = b"x" * 1000 + b"".join(segments(b"alive", IS_BEAT))
    for _ in range(3000):
        num += sum(len(text) for kind, text in incoming.feed(beat) if kind == A_LINE)
        assert len(incoming.before) <= MAX_LINE_BYTES + 1000
    assert num >= 1_000_000
