"""show, rejudge, diff, explain, schema, doctor."""

from __future__ import annotations

import json
import shutil
import tarfile

import pytest

from fairlead.base.machine import names
from fairlead.cli.explain import explain
from fairlead.records.codec import builtins
from fairlead.records.codes import explanations
from fairlead.records.finding import Finding, node
from fairlead.records.history import past_run, remember
from fairlead.records.runs import RunFolder
from fairlead.records.verdict import Verdict


def run_with(place, *findings, verdict="fail", verb="probe"):
    folder = RunFolder.create(place, verb, ["fairlead", verb, "-w", "h200-[000-003]"])
    document = {"schema": "fairlead.probe/1", "verdict": verdict, "findings": builtins(list(findings))}
    folder.finish(document, verdict=verdict, exit_code=3)
    return folder.path


def finding(code, verdict, name, message="is so"):
    return Finding(code=code, verdict=verdict, subject=node(name), message=message)


@pytest.fixture
def place(own_folder):
    return own_folder / "runs"


def test_show_lists_runs_the_newest_first_also_a_cut_short_and_a_damaged_one(fairlead, place):
    first = run_with(place, verdict="pass")
    cut = RunFolder.create(place, "probe", [], "20301231-000000-probe-0001").path
    broken = run_with(place)
    (broken / "run.json").write_text("{")
    done = fairlead("show")
    assert done.status == 0
    states = {line.split()[0]: line for line in done.out.splitlines()[1:]}
    assert set(states) == {first.name, cut.name, broken.name}
    assert "running" in states[cut.name], "this very process made it"
    assert "damaged" in states[broken.name]
    assert done.out.splitlines()[1].startswith(cut.name)
    assert len(fairlead("show", "--json").document["runs"]) == 2
    assert fairlead("show", "--runs", place / "none").out == f"no runs in {place / 'none'}\n"


def test_show_all_lists_runs_whose_folder_is_gone_with_what_was_not_well(fairlead, place):
    kept, gone = (RunFolder.create(place, "probe", []) for _ in range(2))
    for folder in (kept, gone):
        folder.finish({}, verdict="fail", exit_code=3)
        assert remember(place, past_run(folder.info, findings=[finding("ib/port-rate", Verdict.FAIL, "h200-001")]))
    shutil.rmtree(gone.path)
    assert len(fairlead("show").out.splitlines()) == 2
    first, second = fairlead("show", "--all").out.splitlines()[1:]
    assert first.split()[:3] == [kept.path.name, "probe", "fail"]
    assert second.split()[:3] == [gone.path.name, "probe", "fail"]
    assert second.endswith("folder gone; ib/port-rate on h200-001")
    document = fairlead("show", "--all", "--json").document
    assert [past["run"]["id"] for past in document["gone"]] == [gone.path.name]
    assert fairlead("show", "--json").document["gone"] == []


def test_show_renders_a_run_again(fairlead, place):
    path = run_with(place, finding("ib/port-rate", Verdict.FAIL, "h200-001", "carries 200 Gb/s"))
    done = fairlead("show", path.name[-4:])
    assert done.status == 0, "showing a failed run is no failure"
    assert "command  fairlead probe -w h200-[000-003]" in done.out
    assert "FAIL    h200-001" in done.out
    assert done.out.endswith("verdict  fail\n")
    assert fairlead("show", "last", "--json").document["shown"]["verdict"] == "fail"


def test_show_redacted_names_nobody(fairlead, place):
    run_with(place, finding("ib/port-rate", Verdict.FAIL, "h200-001", "talks to 10.1.2.3"))
    for extra in ([], ["--json"]):
        done = fairlead("show", "last", "--redact", *extra)
        assert "h200" not in done.out
        assert "10.1.2.3" not in done.out
        assert "node-000" in done.out


def test_show_packs_a_run(fairlead, place, own_folder):
    path = run_with(place, finding("ib/port-rate", Verdict.FAIL, "h200-001"))
    assert fairlead("show", "last", "--redact", "--pack", own_folder / "x.tar.gz").status == 0
    with tarfile.open(own_folder / "x.tar.gz") as tar:
        assert f"{path.name}/result.json" in tar.getnames()
        assert b"h200" not in tar.extractfile(f"{path.name}/result.json").read()
    assert fairlead("show", "last", "--pack", own_folder).status == 4, "a folder is in the way"


@pytest.mark.parametrize("text", ["{", "[]", '{"verdict": "maybe"}', '{"verdict": "pass", "findings": 3}'])
def test_a_damaged_run_is_an_error_not_a_crash(fairlead, place, text):
    path = run_with(place)
    (path / "result.json").write_text(text)
    for words in (["show", "last"], ["diff", "last", "last"]):
        done = fairlead(*words, "--json")
        assert done.status in (0, 2)
        if done.status:
            assert done.document["error"]["code"] == "run/damaged"
    assert fairlead("show", "last").status == 2


def test_diff_says_what_came_went_and_turned(fairlead, place):
    old = run_with(
        place,
        finding("a/stays", Verdict.FAIL, "n1"),
        finding("a/turns", Verdict.PASS, "n1"),
        finding("a/goes", Verdict.WARN, "n1"),
    )
    new = run_with(
        place,
        finding("a/stays", Verdict.FAIL, "n1"),
        finding("a/turns", Verdict.FAIL, "n1"),
        finding("a/comes", Verdict.WARN, "n2"),
    )
    changes = fairlead("diff", old, new, "--json").document["changes"]
    assert [(c["code"], c["was"], c["now"]) for c in changes] == [
        ("a/comes", "", "warn"),
        ("a/goes", "warn", ""),
        ("a/turns", "pass", "fail"),
    ]
    assert "no finding changed" in fairlead("diff", old, old).out


def test_rejudge_needs_facts(fairlead, place):
    run_with(place)
    assert fairlead("rejudge", "last", "--json").document["error"]["code"] == "run/no-facts"


def test_every_code_is_explained(fairlead):
    assert fairlead("explain", "disk/full").out == explain("disk/full").text + "\n"
    for code, entry in explanations().items():
        page = " ".join(explain(code).text.split())
        for part in (code, entry.title, entry.cause, entry.evidence, entry.remedy):
            assert " ".join(part.split()) in page


def test_codes_are_listed_once_each(fairlead):
    listed = [line.split()[0] for line in fairlead("explain").out.splitlines()[1:]]
    assert listed == list(explanations())
    assert [c["code"] for c in fairlead("explain", "--json").document["codes"]] == listed


def test_every_schema_prints_and_an_unknown_one_is_refused(fairlead):
    names = fairlead("schema", "--json").document["names"]
    assert {"finding", "facts", "run", "cluster"} <= set(names)
    for name in names:
        shown = fairlead("schema", name)
        assert json.loads(shown.out) == fairlead("schema", name, "--json").document["json_schema"]
        assert "$defs" in json.loads(shown.out)
    assert "did you mean `finding`?" in fairlead("schema", "findin").err


def test_doctor_names_every_capability_and_how_to_get_it(fairlead):
    done = fairlead("doctor", "--json")
    assert done.status == 0
    found = done.document["capabilities"]
    assert [c["name"] for c in found] == names()
    assert all(c["used_for"] and c["get"] and c["detail"] for c in found)
    text = fairlead("doctor").out
    for entry in found:
        (line,) = [ln for ln in text.splitlines() if ln.split()[0] == entry["name"]]
        assert line.split()[1] == ("yes" if entry["ok"] else "no")
        if not entry["ok"]:
            assert entry["get"] in line
