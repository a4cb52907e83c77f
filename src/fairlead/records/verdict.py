"""The five words a judgement can say, for a finding and for a whole run, and how they add up."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from fairlead.errors import Exit


class Verdict(enum.StrEnum):
    """`unknown` means there was no evidence either way; it is never a pass and never a fail."""

    PASS = "pass"  # noqa: S105 - a word of the verdict
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"


_WORST_FIRST = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN, Verdict.PASS)


def aggregate(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of many: fail > unknown > warn > pass. Skips never count; nothing at all is unknown.

    >>> aggregate([Verdict.PASS, Verdict.WARN, Verdict.SKIP])
    <Verdict.WARN: 'warn'>
    """
    seen = set(verdicts)
    for verdict in _WORST_FIRST:
        if verdict in seen:
            return verdict
    return Verdict.SKIP if Verdict.SKIP in seen else Verdict.UNKNOWN


def exit_of(verdict: Verdict, *, warn_as_fail: bool = False) -> Exit:
    """The exit status of a run with this verdict."""
    if verdict is Verdict.WARN and warn_as_fail:
        return Exit.FAIL
    return {Verdict.FAIL: Exit.FAIL, Verdict.UNKNOWN: Exit.UNKNOWN}.get(verdict, Exit.OK)


def nagios_of(verdict: Verdict, *, warn_as_fail: bool = False) -> int:
    """The status health-check programs expect: 0 ok, 1 warning, 2 critical, 3 unknown."""
    if verdict is Verdict.WARN and warn_as_fail:
        return 2
    return {Verdict.WARN: 1, Verdict.FAIL: 2, Verdict.UNKNOWN: 3}.get(verdict, 0)
