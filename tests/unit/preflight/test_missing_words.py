"""Generated: for each kind of line that ranks say, and each field of it, a job that is well and lacks it is unknown.

Of all ranks, of one node's, of one rank: never a fault, which would send healthy nodes away for a line that was cut,
and never the claim that it is well by less than before (ids S1, S3, S7, S8, S14, C1 to C4, C6, C7 of the check list).
"""

from __future__ import annotations

import pytest

from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_launch import judge_launch
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict, aggregate
from support.rank_facts import ranks

NODES, EACH = 4, 8
CLAIMS = {
    "start": "preflight/launch",
    "torch": "preflight/launch",
    "nccl": "preflight/transport",
    "phase": "preflight/collective",
    "ddp": "preflight/collective",
    "reduced": "preflight/collective",
    "rounds": "preflight/collective",
}
"""Kind of line -> the claim that rests on it."""
OWN = {"say", "rank", "node", "at_s"}
NO_CLAIM = {
    ("phase", "bytes"),  # words for where a rank stood, if it stopped
    ("ddp", "loss"),
    ("ddp", "s"),
    # of what torch says of GPUs: why there are none, where there are none
    *(("torch", name) for name in ("device_files", "driver", "driver_cuda", "unreadable_files", "visible")),
    # which GPU a rank has: the driver's files say so too
    ("torch", "device"),
    ("torch", "num_devices"),
}
"""Fields that a job which is well is not judged by."""
FIELDS = sorted({(s["say"], name) for s in ranks(NODES, EACH).lines for name in s if s["say"] in CLAIMS} - NO_CLAIM)
WHO = {"all": range(NODES * EACH), "a node": range(EACH, 2 * EACH), "a rank": (EACH + 3,)}


def said(facts: RankFacts) -> list[Finding]:
    wanted = Wanted(rdma="all")
    return [*judge_launch(facts, wanted), *judge_ranks(facts, {}, wanted)]


def passed(findings: list[Finding]) -> set[str]:
    return {f.code for f in findings if f.verdict is Verdict.PASS}


def test_the_whole_job_is_well() -> None:
    found = said(ranks(NODES, EACH))
    assert {f.verdict for f in found} == {Verdict.PASS}
    assert passed(found) == set(CLAIMS.values())


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("kind", CLAIMS)
def test_without_a_line(kind: str, who: str) -> None:
    facts = ranks(NODES, EACH)
    facts.lines[:] = [s for s in facts.lines if s["say"] != kind or s["rank"] not in WHO[who]]
    unknown(said(facts), CLAIMS[kind])


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(("kind", "name"), [field for field in FIELDS if field[1] not in OWN])
def test_without_a_field(kind: str, name: str, who: str) -> None:
    facts = ranks(NODES, EACH)
    for line in facts.lines:
        if line["say"] == kind and line["rank"] in WHO[who]:
            line.pop(name, None)
    unknown(said(facts), CLAIMS[kind])


@pytest.mark.parametrize("times", [[], [0.0], [-0.1], [0.001, 0.0]])
@pytest.mark.parametrize("who", WHO)
def test_an_all_reduce_without_a_time_was_not_measured(who: str, times: list[float]) -> None:
    facts = ranks(NODES, EACH)
    for line in facts.lines:
        if line["say"] == "reduced" and line["rank"] in WHO[who]:
            line["s"] = times
    unknown(said(facts), "preflight/collective")


@pytest.mark.parametrize("who", WHO)
def test_without_their_ends(who: str) -> None:
    facts = ranks(NODES, EACH)
    facts.ends[:] = [end for end in facts.ends if end.rank not in WHO[who]]
    unknown(said(facts), "preflight/collective")


def test_a_settings_file_that_cannot_be_read_is_no_other_setting() -> None:
    facts = ranks(NODES, EACH)
    for line in facts.lines:
        if line["say"] == "start":
            line["nccl_conf"] = None if line["rank"] in WHO["a node"] else "NCCL_IB_TIMEOUT=20"
    found = said(facts)
    unknown(found, "preflight/launch")
    (untold,) = [f for f in found if f.verdict is Verdict.UNKNOWN]
    assert untold.subject.nodes == ("n1",)
    assert "chmod a+r /etc/nccl.conf" in untold.remedy


def unknown(found: list[Finding], claim: str) -> None:
    assert aggregate(f.verdict for f in found) is Verdict.UNKNOWN, [str(f) for f in found]
    assert not [str(f) for f in found if f.verdict in (Verdict.FAIL, Verdict.WARN)]
    assert claim not in passed(found)
