"""Prologs that drain at the same time, in any order of their steps: never more than the share stay drained."""

from __future__ import annotations

import datetime as dt
import threading

from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.cluster.child import Captured
from fairlead.preflight.slurm.drain import DrainPlan, DrainRules, plan_drain
from fairlead.preflight.slurm.scheduler import SlurmNode, parse
from fairlead.preflight.slurm.scontrol import execute
from fairlead.preflight.slurm.share import allowed_of, held, who_yields
from fairlead.records.finding import Finding, node
from fairlead.records.verdict import Verdict

OURS = "fairlead node: 2026-11-21 gpu/count: 7 of 8 (run r-1)"


class Controller:
    """A slurmctld that takes one step of anybody at a time, in the order drawn; a second lasts some steps."""

    def __init__(self, names, order, steps_a_second):
        self.nodes = dict.fromkeys(names, ("IDLE", ""))
        self.order, self.steps_a_second = order, steps_a_second
        self.num_steps = 0
        self.turn = threading.Condition()
        self.waiting, self.alive, self.chosen = set(), set(names), None
        self.most = 0

    def step(self, who, deed):
        """Do something when it is one's turn."""
        with self.turn:
            self.waiting.add(who)
            self._choose()
            self.turn.wait_for(lambda: self.chosen == who)
            done = deed()
            self.num_steps += 1
            self.waiting.discard(who)
            self.chosen = None
            self.most = max(self.most, len(held(self.states())))
        return done

    def leave(self, who):
        with self.turn:
            self.alive.discard(who)
            self._choose()

    def _choose(self):
        """Once everybody who lives wants something, the drawn one goes on."""
        if self.chosen is None and self.alive and self.waiting >= self.alive:
            able = sorted(self.alive)
            self.chosen = able[self.order[self.num_steps % len(self.order)] % len(able)]
            self.turn.notify_all()

    def text(self):
        return "\n".join(f"NodeName={n} State={state}{why}" for n, (state, why) in self.nodes.items())

    def states(self):
        return parse(self.text())

    def control(self, who):
        def deed(argv):
            if argv[1] == "show":
                return Captured(0, self.text(), "")
            name, is_drain = argv[2].partition("=")[2], argv[3] == "State=DRAIN"
            stamp = f"[root@2026-11-21T00:{self.num_steps // self.steps_a_second:05}]"
            self.nodes[name] = ("IDLE+DRAIN", f" {argv[4]} {stamp}") if is_drain else ("IDLE", "")
            return Captured(0, "", "")

        return lambda argv: self.step(who, lambda: deed(argv))


def fail(name):
    return Finding(code="gpu/count", verdict=Verdict.FAIL, subject=node(name), message="7 of 8")


def prologs(names, share, order, steps_a_second=50):
    """All prologs plan from the same picture, as they do when a job begins; what is left drained."""
    slurm = Controller(names, order, steps_a_second)
    before = slurm.states()

    def run(name):
        made = plan_drain([fail(name)], before, "r-1", WHEN, DrainRules(max_share=share, only=name))
        passed = [0.0]

        def sleep(seconds):
            passed[0] += seconds
            slurm.step(name, lambda: None)

        try:
            execute(made, slurm.control(name), sleep=sleep, clock=lambda: passed[0])
        finally:
            slurm.leave(name)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(t.is_alive() for t in threads)
    return held(slurm.states())


WHEN = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)


@given(st.integers(2, 5), st.sampled_from([0.1, 0.5, 0.8]), st.lists(st.integers(0, 59), min_size=1, max_size=60))
@example(4, 0.1, [0])
@example(4, 0.1, [0, 1, 2, 3])
def test_in_any_order_of_steps_no_more_than_the_share_stay(num, share, order):
    names = [f"n{i}" for i in range(num)]
    assert len(prologs(names, share, order)) <= allowed_of(num, share)


def test_in_step_the_share_is_used_up():
    """Everybody drains before anybody counts: the first by name stays, the others yield."""
    assert prologs(["n0", "n1", "n2", "n3"], 0.1, [0, 1, 2, 3]) == ["n0"]
    assert prologs(["n0", "n1", "n2", "n3"], 0.5, [0, 1, 2, 3]) == ["n0", "n1"]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8), st.integers(1, 4))
def test_who_yields_is_the_same_whoever_asks(drawn, allowed):
    """Each decides for itself from one picture: together they leave exactly what is allowed."""
    states = {
        f"n{i}": SlurmNode(
            name=f"n{i}", states=("IDLE", "DRAIN") if out else ("IDLE",), reason=f"{OURS} [root@2026-{s}]"
        )
        for i, (s, out) in enumerate(drawn)
    }
    everybody = held(states)
    gone = [who_yields(states, [name], allowed, is_last_word=False) for name in everybody]
    assert len(everybody) - sum(map(len, gone)) == min(len(everybody), allowed)
    assert who_yields(states, everybody, allowed, is_last_word=True) == (everybody if len(everybody) > allowed else [])


def test_a_plan_of_several_nodes_yields_those_beyond_the_share():
    """The gate drains two at once while a prolog has drained a third."""
    names = [f"n{i}" for i in range(10)]
    slurm = Controller(names, [0], 50)
    slurm.alive = {"gate"}
    states = slurm.states()
    plan = DrainPlan(drain={"n1": OURS, "n2": OURS}, was={n: states[n] for n in ("n1", "n2")}, allowed=2)
    taken = slurm.control("gate")
    slurm.nodes["n9"] = ("IDLE+DRAIN", f" Reason={OURS} [root@2026-11-20T23:59:59]")

    def control(argv):
        return (
            taken(["scontrol", "update", "NodeName=n1", *argv[3:]])
            and taken(["scontrol", "update", "NodeName=n2", *argv[3:]])
            if argv[2] == "NodeName=n[1-2]"
            else taken(argv)
        )

    done = execute(plan, control, sleep=lambda _: None)
    assert [o.is_done for o in done] == [True, False]
    assert "the share is full" in done[1].why
    assert held(slurm.states()) == ["n9", "n1"]
