"""From frames to results: what is kept, what is cut into lines, how an ending is judged."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.outputs import Exit, Gathered, Stream, exit_text, judge, record
from fairlead.cluster.protocol import Output, Refusal, Result, State, interrupt_text, nodes_in
from fairlead.cluster.talk import Ending


def told(**how):
    return Exit(**{"rc": 0, **how})


@pytest.mark.parametrize(
    ("exit_frame", "ending", "state", "error"),
    [
        (told(), Ending(here=True, whole=True), State.DONE, ""),
        (told(rc=3), Ending(here=True, whole=True), State.FAILED, "exit status 3"),
        (told(rc=-11), Ending(here=True, whole=True), State.FAILED, "killed by SIGSEGV"),
        (told(rc=127, error="there is no program `x`"), Ending(here=True), State.FAILED, "there is no program `x`"),
        # a command that catches SIGTERM and ends with 0 was still stopped by the limit
        (told(rc=0, stopped="disconnected"), Ending(here=True, cut="limit", limit_s=5), State.TIMEOUT, "of 5 s"),
        (told(rc=-9, stopped="limit"), Ending(here=True, limit_s=5), State.TIMEOUT, "limit of 5 s"),
        (told(rc=-15, stopped="disconnected"), Ending(here=True, cut="cancelled"), State.CANCELLED, "stopped"),
        (told(rc=-15, stopped="signal"), Ending(here=True), State.FAILED, "from outside"),
        # ended by itself just before this side cut the conversation: that is how it ended
        (told(rc=0), Ending(here=True, cut="cancelled"), State.DONE, ""),
        (None, Ending(here=True, cut="limit", limit_s=5), State.TIMEOUT, "did not answer"),
        (None, Ending(here=True, cut="cancelled"), State.CANCELLED, "without an answer"),
        (None, Ending(cut="cancelled"), State.CANCELLED, "stopped"),
        (None, Ending(here=True, said="client_loop: Broken pipe"), State.UNREACHABLE, "lost: client_loop: Broken pipe"),
    ],
)
def test_how_an_ending_is_judged(exit_frame, ending, state, error):
    refusal = judge(exit_frame, ending)
    assert refusal.state is state
    assert error in refusal.error
    assert (state is State.DONE) == (refusal.error == "")


def test_a_refusal_is_told_where_the_program_never_spoke():
    refusal = Refusal(State.UNREACHABLE, "it refuses connections", "nc -vz NODE 22")
    assert judge(None, Ending(rc=255, refusal=refusal)) == refusal


def test_lines_come_as_soon_as_they_are_whole():
    lines: list[str] = []
    stream = Stream(100, lines.append)
    for piece in (b"one\ntw", b"o\r\n", b"\xff\xfe", b"three"):
        stream.feed(piece)
    assert lines == ["one", "two"]
    stream.flush()
    stream.flush()
    assert lines == ["one", "two", r"\xff\xfethree"]


def test_a_line_without_end_does_not_fill_memory():
    lines: list[str] = []
    stream = Stream(100, lines.append)
    for _ in range(40):
        stream.feed(b"x" * 100_000)
    assert len(lines) >= 3
    assert sum(map(len, lines)) <= 4_000_000
    assert len(stream.output().data) < 300


def test_output_says_what_it_left_out():
    gathered = Gathered("n1", keep_bytes=10)
    gathered.on_frame(b"o", 0, b"abcde")
    gathered.on_frame(b"O", 0, b"vwxyz")
    gathered.on_frame(b"x", 0, msgspec.json.encode(told(out=1000, err=0)))
    output = gathered.result(Ending(here=True, whole=True)).stdout
    assert output.is_truncated
    assert output.num_left_out == 990
    assert output.text == "abcde\n[... 990 bytes left out ...]\nvwxyz"


def test_output_that_fits_is_whole():
    gathered = Gathered("n1", keep_bytes=10)
    gathered.on_frame(b"o", 0, b"abcde")
    gathered.on_frame(b"O", 0, b"fgh")
    gathered.on_frame(b"x", 0, msgspec.json.encode(told(out=8, err=0)))
    output = gathered.result(Ending(here=True, whole=True)).stdout
    assert output == Output(b"abcde", b"fgh", 8)
    assert not output.is_truncated
    assert output.data == b"abcdefgh"


def test_output_cut_by_a_lost_connection_is_what_arrived():
    gathered = Gathered("n1", keep_bytes=100)
    gathered.on_frame(b"o", 0, b"half a li")
    result = gathered.result(Ending(here=True))
    assert result.state is State.UNREACHABLE
    assert result.stdout.text == "half a li"


@pytest.mark.parametrize(
    ("rc", "text"), [(1, "exit status 1"), (-15, "killed by SIGTERM"), (-99, "killed by signal 99")]
)
def test_exit_text(rc, text):
    assert exit_text(rc) == text


def test_a_record_folds_nodes():
    results = [Result(node=f"n{i}", state=State.DONE, rc=0, stdout=Output(b"x", b"", 7)) for i in range(1, 4)]
    results.append(Result(node="n4", state=State.FAILED, rc=3, error="exit status 3"))
    results.append(Result(node="n5", state=State.UNREACHABLE, error="no answer within 5 s"))
    made = record(
        "ssh", ("true",), NodeSet("n[1-5]"), results, at="2026-01-01T00:00:00Z", ms=5, limit_s=5.0, bytes_in=2
    )
    assert made.states == {"done": "n[1-3]", "failed": "n4", "unreachable": "n5"}
    assert made.rc == {"0": "n[1-3]", "3": "n4"}
    assert made.errors == {"exit status 3": "n4", "no answer within 5 s": "n5"}
    assert made.bytes_out == 21
    assert nodes_in(results, State.FAILED, State.UNREACHABLE) == NodeSet("n[4-5]")


def test_an_interrupt_says_how_many_and_where():
    results = [Result(node=f"n{i}", state=State.CANCELLED, error="stopped") for i in range(1, 13)]
    results += [Result(node=f"n{i}", state=State.CANCELLED, error="not started") for i in range(13, 65)]
    results += [Result(node="n65", state=State.DONE)]
    assert (
        interrupt_text(results, "interrupted") == "interrupted; stopped on n[1-12] (12); not started on n[13-64] (52)"
    )


@pytest.mark.parametrize(
    ("frame", "has_failed"),
    [(told(rc=1), True), (told(rc=-9), True), (told(), False), (told(rc=-15, stopped="disconnected"), False)],
)
def test_a_rank_that_was_stopped_did_not_fail_by_itself(frame, has_failed):
    rank = Gathered("n1")
    assert not rank.has_failed
    rank.on_frame(b"x", 0, msgspec.json.encode(frame))
    assert rank.has_failed is has_failed
