"""What `dcgmi diag -j` prints, in the shapes of DCGM 3 and 4 as published, and what becomes of it.

Shapes: DCGM 4 as users print it (category, test `software`, results by entity, `error_severity` of each warning,
`test_summary`, `entity_groups`, `metadata`), DCGM 3 by NVIDIA's own tests of its JSON (`gpu_ids`, PASS in capitals,
null between tests, a line before the document) and by the format its source describes (warnings as plain texts).
Severities: docs.nvidia.com/datacenter/dcgm, Diagnostic Errors. The texts are ours.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead.probe.readers.dcgm import DIAG
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import judged, of, small

PASS, FAIL, WARN, UNKNOWN, SKIP = Verdict.PASS, Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN, Verdict.SKIP
CONFIG, ISOLATE, MONITOR, RESET = 5, 2, 1, 6


def four(*gpus: tuple[str, int | None]) -> str:
    """DCGM 4: (status, severity of its warning) of each GPU."""
    results: list[dict[str, Any]] = []
    for index, (status, severity) in enumerate(gpus):
        result: dict[str, Any] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": index, "status": status}
        if severity is not None:
            warning = {"error_category": 8, "error_id": 29, "error_severity": severity, "warning": f"about GPU {index}"}
            result["warnings"] = [warning]
        results.append(result)
    tests = [{"name": "software", "results": results, "test_summary": {"status": gpus[0][0] if gpus else "Skip"}}]
    return json.dumps(
        {
            "DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]},
            "entity_groups": [{"entities": [], "entity_group": "GPU", "entity_group_id": 1}],
            "metadata": {"Driver Version Detected": "580.82.09", "version": "4.2.3"},
        }
    )


def three(**tests: dict[str, Any]) -> str:
    """DCGM 3: a result for all GPUs at once, null between tests, and a line before it."""
    rows: list[Any] = []
    for name, result in tests.items():
        rows += [{"name": name.replace("_", " "), "results": [{"gpu_ids": "0,1", **result}]}, None]
    categories = [{"category": "Deployment", "tests": rows}]
    return "WARNING: a line before it\n" + json.dumps({"DCGM GPU Diagnostic": {"test_categories": categories}})


def diagnostic(text: str, rc: int = 0) -> Finding:
    m = small()
    m.cmd(DIAG, text, rc)
    (found,) = of(judged(m), "gpu/diagnostic")
    return found


@pytest.mark.parametrize(
    ("text", "verdict", "message"),
    [
        (four(("Pass", None), ("Pass", None)), PASS, "2 results of dcgmi diag pass"),
        (four(("Fail", CONFIG), ("Pass", None)), WARN, "software on GPU 0: about GPU 0"),
        (four(("Pass", None), ("Fail", MONITOR)), WARN, "software on GPU 1: about GPU 1"),
        (four(("Pass", None), ("Fail", ISOLATE)), FAIL, "ISOLATE: software on GPU 1: about GPU 1"),
        (four(("Fail", RESET), ("Fail", CONFIG)), FAIL, "RESET: software on GPU 0: about GPU 0"),
        (four(("Pass", CONFIG)), PASS, "1 results of dcgmi diag pass"),
        (four(("Skip", None)), UNKNOWN, "no test of dcgmi diag ran"),
        (four(("Not Run", None)), UNKNOWN, "no status of a test: software on GPU 0: Not Run"),
        (three(Denylist={"status": "PASS"}, NVML_Library={"status": "PASS"}), PASS, "2 results of dcgmi diag pass"),
        (three(Inforom={"status": "FAIL", "warnings": ["it is corrupt"]}), WARN, "Inforom on GPU 0,1: it is corrupt"),
        (three(Page_Retirement={"status": "SKIPPED"}), UNKNOWN, "no test of dcgmi diag ran"),
    ],
)
def test_only_what_takes_a_gpu_from_jobs_fails_a_node(text: str, verdict: Verdict, message: str) -> None:
    found = diagnostic(text, 226 if verdict in (FAIL, WARN) else 0)
    assert (found.verdict, found.message) == (verdict, message)


@pytest.mark.parametrize(
    "text",
    [
        "Error: unable to establish a connection to the specified host: localhost\n",
        "",
        four(("Pass", None))[:200],
        '{"DCGM Diagnostic": {"runtime_error": "GPU 0 is not supported"}}',
        '{"DCGM Diagnostic": {"version": "4.2.3"}}',
        '{"DCGM Diagnostic": []}',
        '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "software", "results": [{}]}]}]}}',
        "{" * 5000,
    ],
)
def test_what_is_no_whole_answer_is_unknown(text: str) -> None:
    assert diagnostic(text, 255).verdict is UNKNOWN


def test_where_nobody_asked_it_is_skipped_and_says_how_to_ask() -> None:
    (found,) = of(judged(small()), "gpu/diagnostic")
    assert (found.verdict, found.message) == (SKIP, "nobody asked DCGM: fairlead probe --dcgm does")


def test_asked_on_a_machine_without_it_is_unknown() -> None:
    """`--dcgm` as the program takes it, on a tree that knows there is no dcgmi."""
    m = small()
    m.absent.add("dcgmi")
    m.put(trees.cmd_path(DIAG) + ".took", "0.001\n")
    (found,) = of(judged(m), "gpu/diagnostic")
    assert (found.verdict, found.message) == (UNKNOWN, "could not read dcgm.results: no such command")
