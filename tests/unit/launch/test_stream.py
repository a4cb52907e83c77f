"""The stream of events: nothing that was said is lost, whatever is known when; and it costs the same for every line."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from fairlead.cluster import Line, Result, State
from fairlead.cluster.heard import Beat as Sign
from fairlead.launch import Beat, CannotStart, CutOff, Ended, Held, Over, Patience, Ranks, Said, Wrote
from fairlead.launch.watch import Watch

NODES = ("n0", "n1", "n2")


class Spoken:
    """A group whose processes have all spoken, and ended where `is_over`, before the first word is read."""

    knows_places = True

    def __init__(self, lines: list[Line], *, state: State = State.DONE, is_over: bool = True) -> None:
        self.unread: list[Line | None] = []
        self.sent: list[dict] = []
        self.beats: dict = {}
        self.keys = dict.fromkeys((line.node, line.rank) for line in lines if line.rank is not None)
        for line in lines:
            self.unread += [line, None]  # None: the mark of an end
        rc = 0 if state is State.DONE else 1
        ends = {k: Result(node=k[0], state=state, rc=rc, rank=k[1]) for k in self.keys}
        self.ended = ends if is_over else {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @property
    def has_unread(self) -> bool:
        return bool(self.unread)

    def read_all(self, timeout_s: float) -> list[Line]:
        line = self.unread.pop(0) if self.unread else None
        return [line] if line else []

    def send(self, text: str) -> None:
        self.sent.append(json.loads(text))

    def close(self, grace_s: float = 0.0) -> list[Result]:
        return [self.ended.get(k) or Result(node=k[0], state=State.CANCELLED, rank=k[1]) for k in self.keys]


def says(rank, what, **fields):
    return Line(f"n{rank}", rank, "stdout", json.dumps({"say": what, **fields}))


def stream(group, wanted=3, **more):
    return Ranks(group, Watch(Patience(ranks=wanted), 60.0), wanted, **more)


class Late(Spoken):
    """Two ranks beat; the third's next beat is read after 4 s, of which this side slept through the last `late_s`."""

    def __init__(self, clock: list[float], late_s: float) -> None:
        super().__init__([says(r, "phase", phase="card") for r in range(3)], is_over=False)
        awake_s = 4.0 - late_s
        self.clock, self.waits = clock, [0.1] * round(awake_s * 10) + [late_s or 0.1, *[0.1] * 5]

    def read_all(self, timeout_s: float) -> list[Line]:
        if self.has_unread:
            return super().read_all(timeout_s)
        self.clock[0] += self.waits.pop(0)
        for rank in range(3 if len(self.waits) < 3 else 2):
            self.beats[f"n{rank}", rank] = Sign(self.clock[0], "")
        if not self.waits:
            self.ended = {key: Result(node=key[0], state=State.DONE, rc=0, rank=key[1]) for key in self.keys}
        return []


@pytest.mark.parametrize(("late_s", "kind"), [(0.0, "silent"), (2.0, "")])
def test_silence_while_this_side_was_late_itself_is_nobodys(late_s, kind):
    clock = [0.0]
    *_, over = stream(Late(clock, late_s), clock=lambda: clock[0])
    assert (over.kind, over.ranks) == (kind, (2,) if kind else ())


def test_every_rank_that_came_through_is_heard():
    group = Spoken([says(i, "phase", phase="done") for i in range(3)])
    events = list(stream(group))
    assert [(e.rank, e.phase) for e in events if isinstance(e, Said)] == [(0, "done"), (1, "done"), (2, "done")]
    assert [e.rank for e in events if isinstance(e, Ended) and e.is_well] == [0, 1, 2]
    assert isinstance(events[-1], Over)
    assert events[-1].why == ""


def test_nobody_is_judged_before_the_last_words_are_read():
    """A listener that is behind knows of all the ends at once: who failed of itself, and who only says so."""
    clock = itertools.count(step=0.1)
    group = Spoken([says(i, "error", kind="x", text=n) for i, n in enumerate(NODES)], state=State.FAILED)
    events = list(stream(group, clock=lambda: next(clock)))
    assert [e.fields["text"] for e in events if isinstance(e, Said)] == list(NODES)


def test_a_line_that_came_in_pieces_is_one_message_and_two_processes_of_a_rank_do_not_mix():
    text = json.dumps({"say": "start", "env": {"A": "x" * 50}})
    cut = [text[:20], text[20:40], text[40:]]
    other = json.dumps({"say": "torch", "torch": "2.13"})
    lines = [
        Line("n0", 0, "stdout", f"~a.1 0 3 {cut[0]}"),
        Line("n0", 0, "stdout", f"~b.1 0 2 {other[:10]}"),
        Line("n0", 0, "stdout", f"~a.1 1 3 {cut[1]}"),
        Line("n0", 0, "stdout", f"~b.1 1 2 {other[10:]}"),
        Line("n0", 0, "stdout", f"~a.1 2 3 {cut[2]}"),
    ]
    found = [e for e in stream(Spoken(lines), wanted=1) if isinstance(e, Said)]
    assert [(e.what, dict(e.fields)) for e in found] == [
        ("torch", {"torch": "2.13"}),
        ("start", {"env": {"A": "x" * 50}}),
    ]


def test_where_rank_0_is_is_passed_on_to_all():
    group = Spoken([says(0, "store", host="fd00::1", port=4711)])
    list(stream(group, wanted=1))
    assert {"do": "store", "host": "fd00::1", "port": 4711} in group.sent


def test_what_is_no_message_is_passed_on_as_it_is():
    lines = [Line("n0", 0, "stderr", "NCCL INFO x"), Line("n0", 0, "stdout", "{no json"), Line("n0", 0, "stdout", "")]
    found = [e for e in stream(Spoken(lines), wanted=1) if isinstance(e, Wrote)]
    assert [(e.stream, e.text) for e in found] == [("stderr", "NCCL INFO x"), ("stdout", "{no json")]


def test_one_that_cannot_start_says_why_as_a_type():
    line = says(1, "failed", why="no-torch", kind="ModuleNotFoundError", text="No module named 'torch'")
    (found,) = [e for e in stream(Spoken([line]), wanted=1) if isinstance(e, CannotStart)]
    assert (found.rank, found.why, found.kind, found.text) == (
        1, "no-torch", "ModuleNotFoundError", "No module named 'torch'",
    )  # fmt: skip


def test_a_hang_stops_the_group_and_says_who_it_was():
    clock = itertools.count(step=0.2)
    lines = [says(0, "phase", phase="join"), says(1, "phase", phase="join")]
    group = Spoken(lines, is_over=False)

    def now():
        at = next(clock)
        group.beats["n0", 0] = Sign(at, "")
        return at

    events = list(stream(group, wanted=2, clock=now))
    over = events[-1]
    assert len({e.at_s for e in events if isinstance(e, Beat) and e.rank == 0}) > 3
    assert (over.kind, over.ranks) == ("silent", (1,))
    assert {"do": "stop"} in group.sent
    assert {e.state for e in events if isinstance(e, Ended)} == {"stopped"}


def test_a_step_that_the_scheduler_holds_back_is_asked_about():
    clock = itertools.count(step=1.0)
    said = "srun: job 12 queued and waiting for resources"
    group = Spoken([Line("", None, "stderr", said), *[Line("", None, "stderr", "srun: x")] * 100], is_over=False)
    events = list(stream(group, wanted=1, ask=lambda job: f"PENDING|Resources {job}", clock=lambda: next(clock)))
    held = [e for e in events if isinstance(e, Held)]
    assert (held[0].job, held[0].said, held[0].squeue) == ("12", said, "")
    assert held[-1].squeue == "PENDING|Resources 12"
    assert {h.at_s for h in held} == {held[0].at_s}
    assert events[-1].kind == "held"


def test_eight_thousand_ranks_cost_per_line_what_eight_do():
    """Also where every rank has ended, each at its own moment."""

    def per_line_s(ranks):
        lines = [says(i % ranks, "phase", phase="done") for i in range(max(ranks, 4000))]
        group = Spoken(lines)
        group.ended, ends = {}, dict(group.ended)
        read = group.read_all
        group.beats = {(f"n{i}", i): Sign(1.0, "") for i in range(ranks)}

        def read_and_end(timeout_s):
            lines = read(timeout_s)
            if lines and ends:
                key = next(iter(ends))
                group.ended[key] = ends.pop(key)
            return lines

        group.read_all = read_and_end
        began = time.process_time()
        num = sum(1 for _ in stream(group, wanted=ranks))
        return (time.process_time() - began) / num

    few, many = min(per_line_s(8) for _ in range(3)), min(per_line_s(8192) for _ in range(3))
    assert many < 4 * few + 20e-6, (few, many)


@pytest.mark.parametrize(
    ("line", "why", "nodes"),
    [
        (Line("", None, "stderr", "srun: error: Node failure on n[1-2]"), "node failure", "n[1-2]"),
        (
            Line("n0", 0, "stderr", "slurmstepd: error: *** STEP 7.2 ON n0 CANCELLED AT 2026-11-22T15:00:01 ***"),
            "cancelled",
            "",
        ),
        (
            Line("", None, "stderr", "slurmstepd: error: *** STEP 7.2 ON n0 CANCELLED AT 2026-11-22T15:00:01 "
                 "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
            "node failure",
            "",
        ),
    ],
)  # fmt: skip
def test_a_step_that_slurm_ends_says_so_and_is_over(line, why, nodes):
    clock = itertools.count(0.0, 0.5)
    events = list(stream(Spoken([says(0, "phase", phase="ddp"), line], is_over=False), clock=lambda: next(clock)))
    assert [(e.why, e.nodes) for e in events if isinstance(e, CutOff)] == [(why, nodes)]
    assert events[-1].kind == "ended"
