"""What a GPU computes may be no number at all, and JSON has no word for that: the rank that says it must be heard."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

from fairlead.launch.ears import Ears
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_reduce import judge_success
from fairlead.preflight.ranks.onnode.rank import mistakes
from fairlead.preflight.ranks.said import heard
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.verdict import Verdict
from support.rank_facts import of, ranks

torch = pytest.importorskip("torch")

SAYS = """
import sys
sys.argv = ["rank"]
from fairlead.launch.onnode.me import Me
Me({}).say("ddp", s=0.1, loss=float("nan"), found={"got": float("inf"), "all": [1.0, float("-inf")]}, good=True)
"""


def test_a_rank_whose_numbers_are_none_is_heard():
    env = {**os.environ, "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "FAIRLEAD_NODE": "n0"}
    done = subprocess.run([sys.executable, "-c", SAYS], env=env, capture_output=True, text=True, check=True)
    _, said = Ears().message(3, done.stdout.strip(), is_out=True)
    assert said is not None, done.stdout
    assert (said["loss"], said["found"], said["good"]) == (None, {"got": None, "all": [1.0, None]}, True)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sum_that_is_no_number_is_a_wrong_sum_of_that_rank(bad):
    data, want = torch.ones(100), torch.ones(100)
    data[7] = bad
    wrong = mistakes(data, want)
    facts = ranks(4, 8)
    # as it passes the border: the task writes, the control side reads
    of(facts, 13, "reduced").update(json.loads(json.dumps(wrong, allow_nan=False)))
    (found,) = [f for f in judge_ranks(facts, {}) if f.code.startswith("preflight/wrong")]
    assert (found.verdict, str(found.subject)) == (Verdict.FAIL, "n1 rank 13")
    assert "no number" in found.evidence[0].value


def test_ranks_that_do_not_say_their_sums_are_no_pass():
    """A line that is lost on its way, or that a rank keeps to itself."""
    facts = ranks(4, 8)
    facts.lines.remove(of(facts, 13, "reduced"))
    (found,) = list(judge_success(heard(facts), Wanted()))
    assert found.verdict is Verdict.UNKNOWN
    assert found.data["ranks"] == [13]


def test_ranks_that_do_not_say_their_gradient_are_no_pass():
    facts = ranks(4, 8)
    facts.lines.remove(of(facts, 13, "ddp"))
    (found,) = list(judge_success(heard(facts), Wanted()))
    assert (found.verdict, found.data["ranks"]) == (Verdict.UNKNOWN, [13])
