"""What a record proves, and what it does not."""

from __future__ import annotations

import pytest

from fairlead.records.verdict import Verdict, aggregate
from fairlead.serve.proof.asking import Asked
from fairlead.serve.proof.judge import judge
from fairlead.serve.proof.record import Attempt, Record

ANSWERED = (
    Asked(what="GET /v1/models", status=200, took_s=0.1),
    Asked(what="POST /v1/completions", status=200, took_s=0.2),
    Asked(what="POST /v1/chat/completions", status=404, took_s=0.1, why="no such path"),
)
CALL = Attempt(how="connect", to="10.1.2.3:443/tcp", pid=7, process="python -m server", at_s=1.5, num=3)
NAME = Attempt(how="query", to="dns:huggingface.co", pid=8, process="worker", at_s=0.1, thread="hub")


def judged(allowed=(), **record):
    findings = judge(Record(**{"model": "m", "asked": ANSWERED, "watched_s": 60.0, **record}), allowed)
    return aggregate(f.verdict for f in findings), findings


def test_answers_and_no_call_prove_it():
    verdict, findings = judged()
    assert (verdict, findings[0].code) == (Verdict.PASS, "serve/offline")
    assert "1 of 2 generations" in findings[0].message


def test_each_call_is_named_with_process_and_destination():
    verdict, findings = judged(attempts=(CALL, NAME))
    assert verdict is Verdict.FAIL
    assert [(f.subject.name, f.data["to"]) for f in findings] == [
        ("python -m server", "10.1.2.3:443/tcp"),
        ("worker", "dns:huggingface.co"),
    ]
    assert "3 times" in findings[0].message
    assert "asked for the name huggingface.co" in findings[1].message
    assert "thread hub" in findings[1].message


def test_a_call_counts_though_nobody_was_answered():
    verdict, findings = judged(attempts=(CALL,), asked=(), model="")
    assert verdict is Verdict.FAIL
    assert {f.code for f in findings} == {"serve/called-out", "serve/no-answer"}


def test_what_is_allowed_is_shown_and_does_not_count():
    verdict, findings = judged(allowed=("10.1.*",), attempts=(CALL,))
    assert verdict is Verdict.PASS
    assert {f.verdict for f in findings} == {Verdict.PASS, Verdict.SKIP}
    assert judged(allowed=("10.1.2.3:80/*",), attempts=(CALL,))[0] is Verdict.FAIL


@pytest.mark.parametrize(
    "record",
    [
        {"asked": (), "model": "", "ready_s": 600.0},
        {"asked": (), "model": "", "status": 1},
        {"asked": ANSWERED[:1] + ANSWERED[2:]},
        {"status": -9},
        {"no_route": 4},
    ],
    ids=["never ready", "ended", "answers nothing", "killed while watched", "packets without a call"],
)
def test_without_an_answer_or_an_explanation_nothing_is_proven(record):
    verdict, findings = judged(**record)
    assert verdict is Verdict.UNKNOWN
    assert all(f.remedy for f in findings)


def test_calls_beyond_what_is_kept_are_counted():
    verdict, findings = judged(attempts=(CALL,), left_out=5)
    assert verdict is Verdict.FAIL
    assert any("5 more calls" in f.message for f in findings)
