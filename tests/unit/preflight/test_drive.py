"""Steps on nodes: who answered, who is lost, and that one slow or dead peer holds nobody up for long."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

from fairlead.cluster.protocol import Line, Result, State
from fairlead.preflight.pairs import drive
from fairlead.preflight.pairs.drive import Driver
from fairlead.preflight.pairs.phase import pair_phase
from fairlead.preflight.pairs.steps import Answers, Plan, Step

NODES = ("n0", "n1", "n2")


class Talk:
    """Agents in memory: for each order, what each of them writes."""

    def __init__(self, answers):
        self.answers, self.lines, self.ended, self.orders = answers, [], {}, []
        self.num_starting = 0

    @property
    def has_unread(self):
        return bool(self.lines)

    def send(self, text):
        order = json.loads(text)
        self.orders.append(order)
        for node, said in self.answers(order):
            if isinstance(said, Result):
                self.ended[node] = said
                self.lines.append(None)
            else:
                self.lines.append(Line(node, None, "stdout", said if isinstance(said, str) else json.dumps(said)))

    def read(self, timeout_s):
        if self.lines:
            return self.lines.pop(0)
        time.sleep(min(timeout_s, 0.02))
        return None


def perform(answers, *, collect=None, limit_s=1.0, lost_s=0.1):
    talk = Talk(answers)
    line = {"do": "burst", "step": 7, "pairs": [[0, 2, [1]]]}
    step = Step(line=line, expect=frozenset({0, 1, 2}), collect=collect, limit_s=limit_s)
    return talk, Driver(talk, NODES, lost_s=lost_s).perform(step)


def test_everybody_answers():
    talk, answers = perform(lambda _: [(n, {"step": 7, "ok": i}) for i, n in enumerate(NODES)])
    assert {n: r.ok for n, r in answers.reports.items()} == {0: 0, 1: 1, 2: 2}
    assert not answers.lost
    assert talk.orders == [{"do": "burst", "step": 7, "pairs": [[0, 2, [1]]]}]


def test_who_answers_and_ends_has_answered():
    """The reader of counters does: all answer in one moment, and their ends are known before their words are read."""
    ended = Result(node="n0", state=State.DONE, rc=0)
    _, answers = perform(lambda _: [(n, said) for said in ({"step": 7}, ended) for n in NODES])
    assert not answers.lost
    assert answers.reports.keys() == {0, 1, 2}


def test_a_node_that_is_later_than_the_others_is_lost():
    started = time.monotonic()
    _, answers = perform(lambda _: [("n0", {"step": 7}), ("n2", {"step": 7})], limit_s=30)
    assert set(answers.lost) == {1}
    assert "no answer to `burst`" in answers.lost[1]
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(("overslept_s", "lost"), [(0.0, {1}), (8.0, set())])
def test_while_this_side_slept_itself_nobody_was_late(monkeypatch, overslept_s, lost):
    """A control host that has no processor for seconds: the answer is there, and was only not read."""
    now = [100.0]
    monkeypatch.setattr(drive, "time", SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns))

    class Busy(Talk):
        def read(self, timeout_s):
            if self.lines:
                return self.lines.pop(0)
            now[0] += timeout_s + (overslept_s if len(self.orders) == 1 else 0.0)
            if overslept_s and len(self.orders) == 1:
                self.send('{"do": "late"}')
            return None

    def answers(order):
        late = order["do"] == "late"
        return [("n1", {"step": 7})] if late else [("n0", {"step": 7}), ("n2", {"step": 7})]

    step = Step(line={"do": "burst", "step": 7}, expect=frozenset({0, 1, 2}), limit_s=10.0)
    assert set(Driver(Busy(answers), NODES, lost_s=3.0).perform(step).lost) == lost


def test_while_nobody_has_answered_the_step_may_simply_take_long():
    _, answers = perform(lambda _: [], limit_s=0.4, lost_s=0.05)
    assert set(answers.lost) == {0, 1, 2}


def test_an_agent_that_ended_is_lost_at_once_with_its_reason():
    ended = Result(node="n1", state=State.FAILED, rc=1, error="exit status 1")
    _, answers = perform(lambda _: [("n0", {"step": 7}), ("n1", ended), ("n2", {"step": 7})], lost_s=30)
    assert answers.lost == {1: "exit status 1"}


def test_late_packets_are_collected_once_everybody_has_sent():
    def answers(order):
        if order["do"] == "burst":
            return [("n0", {"step": 7}), ("n1", {"step": 7, "sent": True}), ("n2", {"step": 7, "sent": True})]
        return [("n1", {"step": 7, "ok": 1}), ("n2", {"step": 7, "bad": [[0, 1, 9, 9, 9, 9, 9]]})]

    talk, found = perform(answers, collect={"do": "collect", "step": 7})
    assert [o["do"] for o in talk.orders] == ["burst", "collect"]
    assert found.reports[2].bad == [(0, 1, 9, 9, 9, 9, 9)]


def test_what_belongs_to_another_step_and_what_is_no_answer_count_for_nothing():
    noise = [("n0", {"step": 6, "ok": 9}), ("n0", "Traceback"), ("n9", {"step": 7}), ("n0", {"step": 7, "ok": 1})]
    _, answers = perform(lambda _: [*noise, ("n1", {"step": 7}), ("n2", {"step": 7})])
    assert answers.reports[0].ok == 1
    assert set(answers.reports) == {0, 1, 2}


class Babble(Talk):
    """A node that never stops talking."""

    def read(self, timeout_s):
        return super().read(timeout_s) if self.lines else Line("n1", None, "stderr", "bla")


def test_a_node_that_talks_without_end_does_not_stop_the_clock(monkeypatch):
    monkeypatch.setattr(drive, "BEHIND_S", 0.2)
    talk = Babble(lambda _: [("n0", {"step": 7}), ("n1", {"step": 7})])
    step = Step(line={"do": "train", "step": 7}, expect=frozenset({0, 1, 2}), limit_s=30.0)
    started = time.monotonic()
    answers = Driver(talk, NODES, lost_s=0.1).perform(step)
    assert set(answers.reports) == {0, 1}
    assert set(answers.lost) == {2}
    assert 0.3 <= time.monotonic() - started < 20


class Waves(Talk):
    """Nodes that are reached one after the other, as behind a fan-out, each 0.3 s after the one before."""

    def __init__(self):
        super().__init__(lambda _: [])
        self.started, self.num_starting = time.monotonic(), 3

    def read(self, timeout_s):
        num = min(3, int((time.monotonic() - self.started) / 0.3))
        if 3 - self.num_starting < num:
            self.num_starting -= 1
            return Line(NODES[2 - self.num_starting], None, "stdout", '{"step": 7}')
        time.sleep(min(timeout_s, 0.02))
        return None


def test_patience_follows_the_nodes_that_are_still_being_reached():
    step = Step(line={"do": "clock", "step": 7}, expect=frozenset({0, 1, 2}), limit_s=0.6)
    answers = Driver(Waves(), NODES, lost_s=0.45).perform(step)
    assert set(answers.reports) == {0, 1, 2}
    assert not answers.lost


LIES = {
    "broken JSON": '{"step":7,',
    "deep JSON": '{"step":7,"x":' + "[" * 100_000,
    "a list of counts": '{"step":7,"ok":[]}',
    "a negative count": '{"step":7,"ok":-1}',
    "NaN": '{"step":7,"clock_ns":NaN}',
    "a burst of another pair": '{"step":7,"bad":[[1,1,0,0,0,0,0]]}',
    "a burst of a node that is none": '{"step":7,"bad":[[9,1,0,0,0,0,0]]}',
    "a burst on a path that is none": '{"step":7,"bad":[[0,900,0,0,0,0,0]]}',
    "a burst told twice": '{"step":7,"bad":[[0,1,0,0,0,0,0],[0,1,0,0,0,0,0]]}',
    "a rate nobody asked for": '{"step":7,"rates":[[1,1,1,1]]}',
    "an error without a word": '{"step":7,"errors":[[0,1,2]]}',
    "counters of another's ports": '{"step":7,"counters":{"ib0":{"link_downed":9}}}',
    "a size on a path that is none": '{"step":7,"full":[[70,9000]]}',
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_is_the_loss_of_its_own_node_alone(lie):
    _, answers = perform(lambda _: [("n0", {"step": 7}), ("n2", lie), ("n1", {"step": 7, "ok": 1})], lost_s=30)
    assert set(answers.reports) == {0, 1}
    assert set(answers.lost) == set(answers.refused) == {2}
    assert answers.lost[2].startswith("it sent ")
    assert (answers.lost[2] + answers.refused[2]).isprintable()


@pytest.mark.parametrize("ports", [[70_000, 1], [-1, 1], [], [1], [1, 2, 3], "1", [None, 1], [[1], 2]])
def test_ports_that_are_none_never_reach_the_others(ports):
    plan = Plan(nodes=NODES, paths=("eth", "rail 1"), addresses=tuple((f"10.0.0.{i}", f"10.1.0.{i}") for i in range(3)))

    def answers(order):
        if order["do"] != "setup":
            return []
        own = {"n2": {"ports": ports}}
        return [(n, {"step": order["step"], "ports": [1000, 1001], "tcp": 5, **own.get(n, {})}) for n in NODES]

    talk = Talk(answers)
    driver, phase = Driver(talk, NODES, lost_s=5.0), pair_phase(plan)
    step = phase.send(driver.perform(next(phase)))
    assert step.line["peers"] == [[1000, 1001, 5], [1000, 1001, 5], [0, 0, 0]]
    phase.send(Answers({}))
    assert set(phase.gi_frame.f_locals["run"].facts.refused) == {2}


class Sending(Talk):
    """A node that says without end that it has sent."""

    def read(self, timeout_s):
        return super().read(timeout_s) if self.lines else Line("n1", None, "stdout", '{"step": 7, "sent": true}')


def test_saying_the_same_without_end_stops_no_clock(monkeypatch):
    monkeypatch.setattr(drive, "BEHIND_S", 0.2)
    talk = Sending(lambda _: [("n0", {"step": 7}), ("n2", {"step": 7})])
    step = Step(line={"do": "burst", "step": 7}, expect=frozenset({0, 1, 2}), limit_s=1.0)
    started = time.monotonic()
    answers = Driver(talk, NODES, lost_s=0.3).perform(step)
    assert (set(answers.reports), set(answers.lost)) == ({0, 2}, {1})
    assert time.monotonic() - started < 10


def test_words_without_end_are_a_lie(monkeypatch):
    monkeypatch.setattr(drive, "MAX_WORDS_BYTES", 1000)
    talk = Babble(lambda _: [("n0", {"step": 7}), ("n2", {"step": 7})])
    answers = Driver(talk, NODES, lost_s=30).perform(Step(line={"do": "burst", "step": 7}, expect=frozenset({0, 1, 2})))
    assert (set(answers.reports), set(answers.refused)) == ({0, 2}, {1})
    assert talk.lines == []
