"""The six lines that scripts of the published tool (azcp-cluster) look for, and a cap on what comes from the origin."""

from __future__ import annotations

import pytest

from fairlead.weights.objects import Object
from fairlead.weights.onnode import origin
from fairlead.weights.outcome import NodeState, SpreadOutcome
from fairlead.weights.planned import plan_of
from fairlead.weights.report import report_of, six_lines


def spread(*roots: str) -> SpreadOutcome:
    """Two files of 4 GB together on as many nodes in eight seconds; a node without a root has not everything."""
    plan = plan_of([Object(path="a", size=3 * 10**9), Object(path="b", size=10**9)], source="az://m")
    nodes = []
    for number, root in enumerate(roots):
        counts = {"origin_bytes": 4 * 10**9 // len(roots), "peer_bytes": 10**9, "retries": number}
        nodes.append(NodeState(f"n{number}", number, "10.0.0.1", root=root, counts=counts))
        nodes[-1].has = bytearray(len(plan.chunks))
    took_s = {"list": 0.5, "diff": 1.25, "spread": 8.0}
    return SpreadOutcome(plan, "az://m", "/m", nodes, took_s=took_s)


def words(out: SpreadOutcome) -> dict[str, dict[str, str]]:
    """As a script reads them: the word in brackets, then `name=value`."""
    rows = [line.split() for line in six_lines(out).splitlines()]
    return {name: dict(pair.split("=") for pair in pairs) for name, *pairs in rows}


def test_six_lines_in_their_order_say_what_was_counted():
    said = words(spread("r", "r", "r", ""))
    assert list(said) == ["[list]", "[diff]", "[download]", "[bcast]", "[filelist]", "[total]"]
    assert said["[list]"] == {"files": "2", "bytes": "4000000000", "seconds": "0.50"}
    assert said["[download]"] == {"bytes": "4000000000", "seconds": "8.00", "gbps": "4.00", "retries": "6"}
    assert said["[bcast]"] == {"bytes": "4000000000", "seconds": "8.00", "gbps_per_node": "1.00"}
    assert said["[filelist]"] == {"files": "2", "published": "3", "missing": "0"}
    assert said["[total]"] == {"nodes": "3/4", "bytes": "4000000000", "seconds": "9.75"}


def test_a_run_that_moved_nothing_has_all_six_lines():
    out = spread("r")
    out.took_s = {"list": 0.5, "diff": 0.0}
    assert (words(out)["[download]"]["gbps"], words(out)["[bcast]"]["gbps_per_node"]) == ("0.00", "0.00")


def test_files_that_could_not_be_had_are_told_by_why_and_each_group_with_what_to_do():
    out = spread("")
    names = [f"{i}.bin" for i in range(5)]
    out.missing = {**dict.fromkeys(names, "the origin answers 404 Not Found"), "z": "the origin does not give ranges"}
    out.kinds = {"the origin answers 404 Not Found": "gone", "the origin does not give ranges": "ranges"}
    out.beside = {"small": "0.bin"}
    found = {f.code: f for f in report_of(out).findings}
    gone, ranges = found["weights/missing"], found["weights/no-ranges"]
    assert gone.message == (
        "5 files could not be had: 0.bin, 1.bin, 2.bin, ...; 1 small file beside it in one chunk did not come either; "
        "why: the origin answers 404 Not Found"
    )
    assert "--leave-out '0.bin'" in gone.remedy
    assert ranges.message == "1 file could not be had: z; why: the origin does not give ranges"
    assert "into a folder" in ranges.remedy


@pytest.mark.parametrize("piece_bytes", [64 << 10, 1 << 20])
def test_no_more_than_the_cap_comes_from_the_origin_in_any_second(monkeypatch, piece_bytes):
    """By a clock of the test's own; what came before anybody asked is not saved up."""
    now, came = [100.0], []
    monkeypatch.setattr(origin.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(origin.time, "sleep", lambda wait_s: now.__setitem__(0, now[0] + wait_s))
    gate = origin.Gate(8, 10e6)
    for burst in range(2):
        now[0] += 60.0 * burst
        for _ in range(40_000_000 // piece_bytes):
            gate.pace(piece_bytes)
            came.append(now[0])
    for first in came:
        within = sum(first <= at < first + 1.0 for at in came) * piece_bytes
        assert within <= 10e6 * 1.1 + 2 * piece_bytes
    assert came[-1] - 100.0 - 60.0 == pytest.approx(8.0, abs=0.5), "and all that may come does"
