"""Whatever stands in a node's files: the readers do not fail, the judge does not fall over, no fault is hidden."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.checks import judge
from fairlead.records.facts import Facts
from fairlead.records.finding import verdict_of
from fairlead.records.verdict import Verdict
from support.depth import cases
from support.judging import facts_of, small, spec_of, verdict
from support.trees import SMI

SPEC = spec_of("Standard_ND96isr_H100_v5")


def faulty() -> object:
    """Eight GPUs and ports are declared, two are there; one port is down, one memory row waits, swap is on."""
    m = small()
    m.put("/sys/class/infiniband/mlx5_ib0/ports/1/state", "1: DOWN\n")
    m.edit(SMI, "<remapped_row_pending>No", "<remapped_row_pending>Yes", count=1)
    m.put(
        "/dev/kmsg",
        m.text("/dev/kmsg") + "3,9,88000000,-;NVRM: Xid (PCI:0001:00:00): 79, pid=1, GPU has fallen off the bus.\n",
    )
    return m


MACHINE = small()
FAULTY = faulty()
PATHS = sorted(MACHINE.files)
FAILED = {f.code for f in judge([facts_of(FAULTY)], SPEC) if f.verdict is Verdict.FAIL}  # type: ignore[arg-type]

junk = st.one_of(
    st.binary(max_size=64),
    st.text(max_size=64).map(str.encode),
    st.sampled_from(
        [
            b"\n",
            b"\0" * 9,
            b"N/A\n",
            b"-1\n",
            b"0x\n",
            b"{}",
            b"[]",
            b"<nvidia_smi_log/>",
            b"9" * 400,
            b"\xef\xbf\xbd",
            b"a:b:c:d:e:f\n",
        ]
    ),
)
damage = st.dictionaries(st.sampled_from(PATHS), junk, min_size=1, max_size=6)


def damaged(machine: object, what: dict[str, bytes]) -> object:
    worse = copy.deepcopy(machine)
    for path, data in what.items():
        worse.put(path, data)  # type: ignore[attr-defined]
    return worse


@given(damage)
@settings(max_examples=cases(50))
def test_junk_is_a_hole_and_never_a_crash(what: dict[str, bytes]) -> None:
    record = facts_of(damaged(MACHINE, what))  # type: ignore[arg-type]
    assert [why for _, why in Facts(record).holes() if "the reader failed" in why] == []
    findings = judge([record], SPEC)
    assert [f.message for f in findings if "has a bug" in f.message] == []


LEAVES = [m.span(1) for m in re.finditer(r">([^<>\n]*)</", MACHINE.text(SMI))]
WORDS = [
    "N/A",
    "[N/A]",
    "ERR!",
    "Unknown Error",
    "[GPU requires reset]",
    "Requested functionality has been deprecated",
    "",
    "-1",
    "1e999",
    "<x/>",
]
"""What nvidia-smi prints in place of a value when it cannot tell, and worse."""


@given(st.dictionaries(st.sampled_from(range(len(LEAVES))), st.sampled_from(WORDS), min_size=1, max_size=8))
@settings(max_examples=cases(50))
def test_a_gpu_that_answers_nonsense(words: dict[int, str]) -> None:
    text = MACHINE.text(SMI)
    for index in sorted(words, reverse=True):
        start, end = LEAVES[index]
        text = text[:start] + words[index] + text[end:]
    findings = judge([facts_of(damaged(MACHINE, {SMI: text.encode()}))], SPEC)  # type: ignore[arg-type]
    assert [f.message for f in findings if "has a bug" in f.message] == []


WHOLE = facts_of(MACHINE)  # type: ignore[arg-type]
values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=2), st.just({})
)


@given(st.data())
@settings(max_examples=cases(100))
def test_facts_that_no_probe_would_print(data: st.DataObject) -> None:
    """Facts of an old run, edited by hand or by another version: judged as far as they go, never a traceback."""
    records = [copy.deepcopy(WHOLE), copy.deepcopy(WHOLE)]
    for _ in range(data.draw(st.integers(1, 5))):
        place = records[0].facts
        while True:
            key = data.draw(st.sampled_from(sorted(place)))
            if not isinstance(place[key], dict) or not place[key] or data.draw(st.integers(0, 4)) == 0:
                break
            place = place[key]
        place[key] = data.draw(values)
    findings = judge(records, SPEC)
    assert {f.verdict for f in findings} <= set(Verdict)


def places(tree: dict[str, object], *above: str) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, *above, key)


@pytest.mark.parametrize("value", [None, "x", [3]])
def test_no_single_fact_can_stop_the_judge(value: object) -> None:
    record = copy.deepcopy(WHOLE)
    for *above, last in places(WHOLE.facts):
        place = record.facts
        for key in above:
            place = place[key]
        before, place[last] = place[last], value
        assert {f.verdict for f in judge([record, WHOLE], SPEC)} <= set(Verdict), (*above, last)
        place[last] = before


@given(damage)
@settings(max_examples=cases(50))
def test_junk_never_turns_a_fail_into_a_pass(what: dict[str, bytes]) -> None:
    findings = judge([facts_of(damaged(FAULTY, what))], SPEC)  # type: ignore[arg-type]
    assert {"gpu/count", "gpu/row-remap", "gpu/xid", "ib/count", "ib/port-state"} <= FAILED
    for code in FAILED:
        assert verdict(findings, code) in (Verdict.FAIL, Verdict.UNKNOWN), code
    assert verdict_of(findings) in (Verdict.FAIL, Verdict.UNKNOWN)
