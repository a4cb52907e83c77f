"""Events that the platform has scheduled, as the gate and a node's own program ask for them: within the job's time."""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from email.utils import formatdate

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.evidence import Evidence
from fairlead.preflight.nodes.here import look_here
from fairlead.preflight.slurm.drain import DrainRules, plan_drain
from fairlead.preflight.slurm.inside import within_job
from fairlead.preflight.slurm.reason import parse_reason
from fairlead.preflight.slurm.scheduler import SlurmNode
from fairlead.records.verdict import Verdict
from fairlead.spec.contract import contract_of
from support import trees
from support.judging import facts_of, small, spec_of

SPEC = spec_of("Standard_ND96isr_H100_v5")
NOW_S = trees.TAKEN_AT_NS / 1e9


def reboot(minutes, now_s):
    """A machine that the platform will restart."""
    event = {
        "EventId": "602d9444", "EventType": "Reboot", "ResourceType": "VirtualMachine", "Resources": ["n0"],
        "EventStatus": "Scheduled", "NotBefore": formatdate(now_s + 60 * minutes, usegmt=True),
    }  # fmt: skip
    machine = small()
    machine.put(trees.EVENTS, json.dumps({"DocumentIncarnation": 7, "Events": [event]}))
    return machine


def job(minutes, now_s=NOW_S):
    return {"SLURM_JOB_ID": "42", "SLURM_JOB_END_TIME": f"{now_s + 60 * minutes:.0f}"}


def verdict(findings):
    return next(f.verdict for f in findings if f.code == "host/scheduled-event")


@pytest.mark.parametrize(
    ("environ", "at_min", "want"),
    [
        ({}, 15, Verdict.FAIL),  # within the cluster file's own time
        (job(10), 15, Verdict.PASS),  # the job is over by then
        (job(20), 15, Verdict.FAIL),
        (job(3000), 2000, Verdict.FAIL),  # a job of two days, longer than half a day
        (job(-5), 15, Verdict.FAIL),  # a clock that is wrong tells nothing
        ({"SLURM_JOB_END_TIME": "Unknown"}, 15, Verdict.FAIL),
    ],
)
def test_the_gate_asks_for_events_within_the_jobs_time(environ, at_min, want):
    spec = within_job(SPEC, environ, NOW_S)
    seen = Evidence(spec, NodeSet("n0"), facts=[facts_of(reboot(at_min, NOW_S))])
    found = seen.node_findings()
    assert verdict(found) is want


def test_the_jobs_time_says_where_it_comes_from():
    spec = within_job(SPEC, job(20), NOW_S)
    contract = contract_of(spec, spec.pools[0])
    assert contract.event_window_min == 20
    assert "job 42" in str(contract.source("event_window_min"))


def test_a_node_with_an_event_is_drained_with_the_event_as_the_reason():
    seen = Evidence(SPEC, NodeSet("n0"), facts=[facts_of(reboot(15, NOW_S))])
    found = [f for f in seen.node_findings() if f.code == "host/scheduled-event"]
    states = {"n0": SlurmNode(name="n0", states=("IDLE",))}
    plan = plan_drain(found, states, "20261122-000000-preflight-7f3a", dt.datetime(2026, 11, 22, tzinfo=dt.UTC))
    reason = parse_reason(plan.drain["n0"])
    assert reason is not None
    assert (reason.who, reason.code) == ("node", "host/scheduled-event")
    assert "Reboot in 15 min" in reason.text
    assert plan_drain(found, states, "r", dt.datetime.now(dt.UTC), DrainRules(drains=False)).is_empty


def test_a_nodes_own_program_asks_too(tmp_path, monkeypatch):
    """The real probe, as `--here` starts it, over a tree of a machine that is to be restarted."""
    root = tmp_path / "tree"
    trees.read(reboot(15, NOW_S), root, "n0")  # a tree keeps the time it was read
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --root {root}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    found = look_here("n0", SPEC, tmp_path / "pace")
    assert verdict(found.findings) is Verdict.FAIL
    spec = within_job(SPEC, job(10, now_s := time.time()), now_s)
    assert verdict(look_here("n0", spec, tmp_path / "pace").findings) is Verdict.PASS
