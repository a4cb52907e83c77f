"""What Slurm 20.11 to 25.05 print, read to the same thing; a word that nobody knows is neither good nor bad."""

from __future__ import annotations

import datetime as dt

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.scheduler import judge_nodes
from fairlead.cluster.slurmwords import JOB, NODE, Job, Work, are, node_words, unknown
from fairlead.preflight.slurm.drain import DrainRules, plan_drain
from fairlead.preflight.slurm.reason import bare, is_ours, set_by
from fairlead.preflight.slurm.scheduler import judge_scheduler, parse
from fairlead.records.finding import Finding, node
from fairlead.records.verdict import Verdict
from support.slurm_lines import VERSIONS, document, line

OURS = "fairlead node: 2026-11-20 gpu/count: 7 of 8 (run 20261120-100000-preflight-7f3a)"


def read(text):
    return parse(text)["n7"]


def judged(text):
    return [(f.code, f.verdict) for f in judge_scheduler(parse(text), ["n7"], {"n7": 8})]


# ---- a line ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_line_is_read_whole_in_every_version(version):
    found = read(line(version, "IDLE+DRAIN", reason="bad cable", comment="rack 7 Reason=none State=DOWN"))
    assert (found.states, found.gpus, found.cpus, found.address) == (("IDLE", "DRAIN"), 8, 96, "10.0.0.7")
    assert (bare(found.reason), set_by(found.reason)) == ("bad cable", "root")


@pytest.mark.parametrize("version", VERSIONS)
def test_free_text_is_taken_for_no_field(version):
    """A comment stands behind all fields, and may hold anything."""
    found = read(line(version, "IDLE", comment="was Reason=fan [ann@2026-01-01T00:00:00] State=DOWN NodeName=x"))
    assert (found.name, found.states, found.reason) == ("n7", ("IDLE",), "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_second_line_makes_a_reason_somebody_elses(version):
    assert is_ours(read(line(version, "IDLE+DRAIN", reason=OURS, comment="c")).reason)
    assert not is_ours(read(line(version, "IDLE+DRAIN", reason=OURS + "\nasked Ann", comment="c")).reason)


def test_a_reason_that_quotes_another_is_read_to_its_end():
    quoted = f"{OURS} [root@2026-11-01T00:00:00] seen by Ann"
    assert read(line("25.05", "IDLE+DRAIN", reason=quoted)).reason == f"{quoted} [root@2026-11-20T10:00:00]"


def test_what_other_clusters_print_between_the_lines_is_no_node():
    text = f"CLUSTER: east\n{line('23.02', 'IDLE')}\nNodeName=--uid=0 State=IDLE\nNodeName=a/b State=IDLE\n"
    assert list(parse(text)) == ["n7"]


# ---- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["21.08", "22.05", "23.02", "25.05"])
def test_json_says_what_the_line_says(version):
    states = ["IDLE", "DRAIN", "NOT_RESPONDING"]
    found = read(document(version, states, reason=OURS))
    assert (found.states, found.gpus, found.cpus, found.address) == (tuple(states), 8, 96, "10.0.0.7")
    assert is_ours(found.reason)
    assert set_by(found.reason) == "root"
    assert read(document(version, ["IDLE"])).reason == ""


@pytest.mark.parametrize("text", ["{", "{}", '{"nodes": 7}', '{"nodes": [7, {}, {"name": "a b"}]}', '{"nodes": null}'])
def test_json_that_is_none_of_slurms_names_no_node(text):
    assert parse(text) == {}


# ---- words -----------------------------------------------------------------------------------------------------------

# (what scontrol prints, whether Slurm gives the node work): node_state_string() of 20.11, and the joined flags of later
WORDS = [
    ("IDLE", True),
    ("IDLE+CLOUD", True),
    ("IDLE+DYNAMIC_NORM", True),
    ("IDLE+DYNAMIC", True),
    ("MIXED+PLANNED", True),
    ("ALLOCATED+COMPLETING", True),
    ("IDLE+CLOUD+POWERING_UP", True),
    ("IDLE+BLOCKED", True),
    ("ALLOCATED+REBOOT_REQUESTED", True),
    ("IDLE+MAINTENANCE", True),
    ("MAINT", True),
    ("RESERVED", True),
    ("IDLE+CLOUD+POWER", False),
    ("IDLE+CLOUD+POWERED_DOWN", False),
    ("IDLE+POWERING_DOWN", False),
    ("IDLE+POWER_DOWN", False),
    ("DOWN+REBOOT_ISSUED", False),
    ("IDLE+FAIL", False),
    ("DOWN+INVALID_REG", False),
    ("INVAL", False),
    ("IDLE+NOT_RESPONDING", False),
    ("MAINT*", False),
    ("REBOOT*", False),
    ("IDLE*+DRAIN", False),
    ("ALLOCATED+DRAIN", False),
    ("FUTURE", False),
    ("IDLE+EXTERNAL", False),
    ("IDLE+PERFCTRS", False),
]


@pytest.mark.parametrize(("state", "takes_work"), WORDS)
def test_every_documented_state_is_judged(state, takes_work):
    found = judged(line("22.05", state, reason="" if takes_work else "Not responding"))
    assert found == ([] if takes_work else [("preflight/node-state", Verdict.FAIL)])


@pytest.mark.parametrize("state", ["IDLE+QUANTUM", "HALF_ASLEEP", "IDLE?", "UNKNOWN", "?"])
def test_a_word_nobody_knows_is_neither_good_nor_bad(state):
    assert judged(line("25.05", state)) == [("preflight/node-state", Verdict.UNKNOWN)]
    nodes = parse(line("25.05", state))
    assert nodes["n7"].bad_states == []
    fail = Finding(code="gpu/count", verdict=Verdict.FAIL, subject=node("n7"), message="7 of 8")
    plan = plan_drain([fail], nodes, "r-1", dt.datetime(2026, 11, 20, tzinfo=dt.UTC), DrainRules(max_share=1))
    assert plan.is_empty
    assert "neither good nor bad" in plan.kept["n7"]


def test_a_bad_word_beside_an_unknown_one_is_bad():
    assert judged(line("25.05", "DOWN+QUANTUM")) == [("preflight/node-state", Verdict.FAIL)]


@pytest.mark.parametrize(
    ("mark", "flag"),
    [("*", "NOT_RESPONDING"), ("~", "POWERED_DOWN"), ("#", "POWERING_UP"), ("!", "POWER_DOWN"), ("%", "POWERING_DOWN"),
     ("$", "MAINTENANCE"), ("@", "REBOOT_REQUESTED"), ("^", "REBOOT_ISSUED"), ("-", "PLANNED")],
)  # fmt: skip
def test_a_mark_is_a_flag(mark, flag):
    assert node_words(f"mixed{mark}") == ("MIXED", flag)
    assert node_words(f"MIXED+{flag}") == ("MIXED", flag)


def test_every_word_has_one_meaning():
    assert {are([w], kind)[0] for w, kind in NODE.items()} == set(NODE)
    assert set(unknown(NODE)) == {w for w, kind in NODE.items() if kind is Work.UNSURE}
    assert not set(NODE) & {"", "MAINT", "INVAL"}


def test_sinfo_of_any_version_refuses_what_gives_no_work():
    said = "n1|idle~|none\nn2|reboot^|x\nn3|inval|low RealMemory\nn4|quantum|none\nn5|allocated+|none\nn6|drained$|fan"
    found = judge_nodes(NodeSet("n[1-6]"), said, in_job=False)
    assert {n: r.error for n, r in found.items()} == {
        "n2": "Slurm has it reboot: x",
        "n3": "Slurm has it inval: low RealMemory",
        "n6": "Slurm has it drained: fan",
    }
    assert set(judge_nodes(NodeSet("n[1-6]"), said, in_job=True)) == {"n2", "n3"}


def test_a_job_of_a_federation_waits_or_is_elsewhere():
    assert [JOB[w] for w in ("REQUEUE_FED", "REVOKED", "RUNNING", "CONFIGURING")] == [
        Job.WAITS, Job.ENDED, Job.RUNS, Job.WAITS,
    ]  # fmt: skip
