from __future__ import annotations

from itertools import permutations, product

import pytest

from fairlead.errors import Exit
from fairlead.records.verdict import Verdict, aggregate, exit_of, nagios_of

PASS, WARN, FAIL, UNKNOWN, SKIP = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN, Verdict.SKIP


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([], UNKNOWN),
        ([SKIP], SKIP),
        ([PASS], PASS),
        ([PASS, SKIP], PASS),
        ([PASS, WARN], WARN),
        ([WARN, UNKNOWN], UNKNOWN),
        ([UNKNOWN, FAIL], FAIL),
        ([FAIL, PASS, WARN, SKIP, UNKNOWN], FAIL),
    ],
)
def test_the_worst_wins_and_nothing_is_no_pass(verdicts, whole):
    for order in permutations(verdicts):
        assert aggregate(order) is whole


def test_adding_a_verdict_never_makes_a_whole_better():
    badness = {PASS: 0, WARN: 1, UNKNOWN: 2, FAIL: 3}
    real = [v for v in Verdict if v is not SKIP]
    for some in product(real, repeat=3):
        for more in Verdict:
            assert badness[aggregate([*some, more])] >= badness[aggregate(some)]


@pytest.mark.parametrize(
    ("verdict", "status", "strict", "nagios", "nagios_strict"),
    [
        (PASS, Exit.OK, Exit.OK, 0, 0),
        (SKIP, Exit.OK, Exit.OK, 0, 0),
        (WARN, Exit.OK, Exit.FAIL, 1, 2),
        (FAIL, Exit.FAIL, Exit.FAIL, 2, 2),
        (UNKNOWN, Exit.UNKNOWN, Exit.UNKNOWN, 3, 3),
    ],
)
def test_exit_statuses(verdict, status, strict, nagios, nagios_strict):
    assert exit_of(verdict) is status
    assert exit_of(verdict, warn_as_fail=True) is strict
    assert nagios_of(verdict) == nagios
    assert nagios_of(verdict, warn_as_fail=True) == nagios_strict


def test_the_table_above_is_complete():
    assert {e.name for e in Exit} == {"OK", "BUG", "USAGE", "FAIL", "UNKNOWN", "RETRY", "INTERRUPTED"}
    assert all(e.meaning for e in Exit)
