"""The order of things and the races; that real scontrol does what is written here is tested in tests/real."""

from __future__ import annotations

import re
import shlex

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.child import Captured
from fairlead.errors import SchedulerError
from fairlead.preflight.slurm.drain import DrainPlan
from fairlead.preflight.slurm.scheduler import parse
from fairlead.preflight.slurm.scontrol import ask_states, control_here, execute, outcomes_text

OURS = "fairlead node: 2026-11-21 gpu/count: 7 of 8 (run r-1)"
OTHER = "fairlead node: 2026-11-21 ib/count: none (run r-1)"


class Nodes:
    """Nodes as a controller keeps them, and `scontrol` over them."""

    def __init__(self, **nodes):
        self.nodes = {name: list(state) for name, state in nodes.items()}
        self.asked = []
        self.meanwhile = lambda: None
        self.refuses = set()
        self.complaint = "slurm_update error: Invalid node name specified"
        self.is_silent = False

    def __call__(self, argv):
        self.asked.append(list(argv))
        if self.is_silent:
            return Captured(1, "", "slurm_load_node error: Unable to contact slurm controller")
        if argv[1] == "show":
            text = "\n".join(self._line(*item) for item in self.nodes.items())
            return Captured(0, text, "")
        self.meanwhile()
        fields = dict(word.split("=", 1) for word in argv[2:])
        for name in set(NodeSet(fields["NodeName"])) - self.refuses:
            drains = fields["State"] == "DRAIN"
            self.nodes[name] = ["IDLE+DRAIN" if drains else "IDLE", fields.get("Reason", "")]
        return Captured(0, "", self.complaint if self.refuses else "")

    @staticmethod
    def _line(name, state):
        return f"NodeName={name} State={state[0]}" + (
            f" Reason={state[1]} [root@2026-11-21T00:00:00]" if state[1] else ""
        )

    @property
    def updates(self):
        return [argv[2:] for argv in self.asked if argv[1] == "update"]

    def plan(self, drain=None, undrain=()):
        was = parse("\n".join(self._line(*item) for item in self.nodes.items()))
        drain = drain or {}
        named = {n: was[n] for n in (*drain, *undrain)}
        return DrainPlan(drain=drain, undrain=tuple(undrain), was=named, allowed=10)


def test_each_reason_is_one_command_over_its_nodes():
    nodes = Nodes(n1=("IDLE", ""), n2=("IDLE", ""), n3=("ALLOCATED", ""), n4=("IDLE+DRAIN", OURS))
    done = execute(nodes.plan({"n1": OURS, "n2": OURS, "n3": OTHER}, ["n4"]), nodes)
    assert nodes.updates == [
        ["NodeName=n[1-2]", "State=DRAIN", f"Reason={OURS}"],
        ["NodeName=n3", "State=DRAIN", f"Reason={OTHER}"],
        ["NodeName=n4", "State=UNDRAIN"],
    ]
    assert all(o.is_done for o in done)
    assert [(o.node, o.action) for o in done] == [("n1", "drain"), ("n2", "drain"), ("n3", "drain"), ("n4", "undrain")]


def test_an_empty_plan_asks_nothing():
    nodes = Nodes(n1=("IDLE", ""))
    assert execute(nodes.plan(), nodes) == []
    assert nodes.asked == []


@pytest.mark.parametrize("now", [("IDLE+DRAIN", "ticket 42"), ("DOWN", ""), ("IDLE+DRAIN", "")])
def test_a_node_somebody_took_meanwhile_is_left_alone(now):
    nodes = Nodes(n1=("IDLE", ""), n2=("IDLE", ""))
    plan = nodes.plan({"n1": OURS, "n2": OURS})
    nodes.nodes["n1"] = list(now)
    done = execute(plan, nodes)
    assert nodes.updates == [["NodeName=n2", "State=DRAIN", f"Reason={OURS}"]]
    assert [o.is_done for o in done] == [False, True]
    assert "changed meanwhile" in done[0].why
    assert nodes.nodes["n1"] == list(now)


def test_a_node_of_ours_with_a_word_added_meanwhile_is_not_given_back():
    nodes = Nodes(n1=("IDLE+DRAIN", OURS))
    plan = nodes.plan(undrain=["n1"])
    nodes.nodes["n1"][1] = OURS + " do not touch, Ann"
    (done,) = execute(plan, nodes)
    assert not done.is_done
    assert nodes.updates == []


def test_a_node_that_left_slurm_is_said_so():
    nodes = Nodes(n1=("IDLE", ""))
    plan = nodes.plan({"n1": OURS})
    del nodes.nodes["n1"]
    assert execute(plan, nodes)[0].why == "Slurm does not know it any more"


def test_a_job_that_started_meanwhile_changes_nothing():
    nodes = Nodes(n1=("IDLE", ""))
    plan = nodes.plan({"n1": OURS})
    nodes.nodes["n1"][0] = "ALLOCATED"
    assert execute(plan, nodes)[0].is_done


def test_what_slurm_did_not_do_is_told_although_the_command_ended_well():
    nodes = Nodes(n1=("IDLE", ""), n2=("IDLE", ""))
    nodes.refuses = {"n2"}
    plan = nodes.plan({"n1": OURS, "n2": OURS})
    done = execute(plan, nodes)
    assert [o.is_done for o in done] == [True, False]
    assert done[1].why == "slurm_update error: Invalid node name specified"
    text = outcomes_text(plan, done)
    assert re.search(r"^drained +n1 +fairlead node: ", text, re.MULTILINE)
    assert re.search(r"^NOT drained +n2 +slurm_update error", text, re.MULTILINE)


@pytest.mark.parametrize("said", ["Invalid user id", "Access/permission denied"])
def test_who_may_not_change_nodes_is_told_so_and_what_an_operator_types(said):
    nodes = Nodes(n1=("IDLE", ""), n2=("IDLE+DRAIN", OURS))
    plan = nodes.plan({"n1": OTHER}, ["n2"])
    nodes.refuses, nodes.complaint = {"n1", "n2"}, f"slurm_update error: {said}"
    done = execute(plan, nodes)
    assert [o.is_done for o in done] == [False, False]
    text = outcomes_text(plan, done)
    assert re.search(r"^NOT drained +n1 +the user \S+ may not change nodes in Slurm", text, re.MULTILINE)
    typed = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("type ")]
    assert typed == [
        ["scontrol", "update", "NodeName=n1", "State=DRAIN", f"Reason={OTHER}"],
        ["scontrol", "update", "NodeName=n2", "State=UNDRAIN"],
    ]


def test_a_slurm_that_falls_silent_after_the_drain_proves_nothing():
    nodes = Nodes(n1=("IDLE", ""))
    plan, now = nodes.plan({"n1": OURS}), [0.0]
    nodes.meanwhile = lambda: setattr(nodes, "is_silent", True)
    (done,) = execute(plan, nodes, sleep=lambda s: now.append(now[-1] + s), clock=lambda: now[-1])
    assert not done.is_done
    assert "fell silent" in done.why


def test_no_slurm_is_an_error_that_says_so():
    with pytest.raises(SchedulerError, match="there is no Slurm") as caught:
        ask_states(lambda _: None)
    assert caught.value.code == "preflight/no-scheduler"
    with pytest.raises(SchedulerError, match="Unable to contact"):
        ask_states(lambda _: Captured(1, "", "\nslurm_load_node error: Unable to contact slurm controller\n"))


def test_commands_here_have_a_limit_and_may_be_missing(tmp_path, monkeypatch):
    slow = tmp_path / "scontrol"
    slow.write_text("#!/bin/sh\nexec sleep 5\n")
    slow.chmod(0o755)
    said = control_here(0.1)([str(slow), "show"])
    assert said.rc is None
    assert "timed out" in said.err
    assert control_here(1.0)([str(tmp_path / "missing")]) is None
    assert control_here(1.0)(["sh", "-c", "echo out; echo err >&2; exit 3"]) == (3, "out\n", "err\n")
