from __future__ import annotations

import datetime as dt

import pytest

from fairlead.preflight.slurm.reason import (
    MAX_LENGTH,
    Reason,
    Who,
    bare,
    is_ours,
    parse_reason,
    reason_of,
    set_by,
    who_acts,
)
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.verdict import Verdict

WHEN = dt.datetime(2026, 11, 20, 23, 30, tzinfo=dt.timezone(dt.timedelta(hours=-2)))
RUN = "20261121-013000-preflight-7f3a"


def fail(code="gpu/count", message="7 GPUs answer, 8 expected", subject=None):
    return Finding(code=code, verdict=Verdict.FAIL, subject=subject or node("n1"), message=message)


def test_a_reason_says_who_when_what_and_in_which_run():
    assert str(reason_of([fail()], RUN, WHEN)) == (
        "fairlead node: 2026-11-21 gpu/count: 7 GPUs answer, 8 expected (run 20261121-013000-preflight-7f3a)"
    )


def test_a_users_mistake_is_addressed_to_the_user():
    reason = str(reason_of([fail("preflight/env-drift", "NCCL_DEBUG is WARN")], RUN, WHEN))
    assert reason.startswith("fairlead user: ")


def test_a_defect_is_named_although_a_mistake_was_found_first():
    reason = reason_of([fail("skew/torch", "2.4"), fail("ib/port-rate", "slow")], RUN, WHEN)
    assert (reason.who, reason.code) == (Who.NODE, "ib/port-rate")
    assert reason.text == "slow (+1 more)"


def test_the_part_is_named():
    subject = Subject(kind="port", nodes=("n1",), name="mlx5_ib3/1")
    assert reason_of([fail("ib/port-rate", "200 Gb/s", subject)], RUN, WHEN).text == "mlx5_ib3/1: 200 Gb/s"


def test_what_is_written_can_be_read_back():
    reason = reason_of([fail(), fail("ib/count", "x")], RUN, WHEN)
    assert parse_reason(str(reason)) == reason
    assert parse_reason(f"{reason} [slurm@2026-11-21T01:30:00]") == reason
    assert parse_reason(f"{reason} [slurm@2026-11-21T01:30:00] Comment=rack 7") == reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Not responding [slurm@2026-11-21T01:30:00]",
        "fairlead is great",
        "fairlead: node: 2026-11-21 gpu/count: x (run 1)",
        "fairlead node: 2026-11-21 gpu/count: x (run 1), ticket 42",
        "ticket 42, was fairlead node: 2026-11-21 gpu/count: x (run 1)",
        "fairlead node: 2026-11-21 gpu/count: x (run 1)\nmore",
        "fairlead admin: 2026-11-21 gpu/count: x (run 1)",
    ],
)
def test_anything_else_is_somebody_elses(text):
    assert not is_ours(text)


def test_a_copied_reason_with_a_word_added_is_its_writers():
    """`scontrol update reason=` with what scontrol showed, and more: Slurm then puts its own stamp behind all of it."""
    copied = f"{reason_of([fail()], RUN, WHEN)} [root@2026-11-21T01:30:00], asked Ann [ann@2026-11-21T08:00:00]"
    assert not is_ours(copied)
    assert set_by(copied) == "ann"
    assert bare(copied).endswith("asked Ann")


def test_who_set_it():
    assert (bare("bad fan [ann@2026-11-21T01:30:00]"), set_by("bad fan [ann@2026-11-21T01:30:00]")) == (
        "bad fan",
        "ann",
    )
    assert (bare("bad fan"), set_by("bad fan")) == ("bad fan", "")


def test_unknown_codes_are_the_nodes_problem():
    assert who_acts("gpu/what-comes-next") is Who.NODE


@pytest.mark.parametrize("length", [0, 10, 150, 5000])
def test_the_length_is_bounded_and_the_run_stays_readable(length):
    said = str(reason_of([fail(message="word " * (length // 5))] * 3, RUN, WHEN))
    assert len(said) <= MAX_LENGTH
    assert parse_reason(said).run_id == RUN
    assert said.endswith(f"(+2 more) (run {RUN})")


def test_one_endless_word_is_cut_as_well():
    said = str(reason_of([fail(message="x" * 5000)], RUN, WHEN))
    assert len(said) <= MAX_LENGTH
    assert is_ours(said)


def test_nothing_gets_in_that_a_shell_or_slurm_would_read():
    evil = "a'b\"c`d`$(e)\n\x1b[31mf [root@2026] g=h|i;j\\k & \u202e ü"
    text = reason_of([fail(message=evil)], RUN, WHEN).text
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set("'\"`$[]=|\\&<>{}!*?#~^")


def test_a_forged_end_does_not_forge_a_run():
    said = str(reason_of([fail(message="fine (run forged-1)")], RUN, WHEN))
    assert parse_reason(said).run_id == RUN


def test_a_bare_reason_is_rendered_within_bounds_too():
    assert len(str(Reason(Who.NODE, "2026-11-21", "gpu/count", "y " * 500, RUN))) <= MAX_LENGTH
