"""The history of runs outlives their folders and says what was not well."""

from __future__ import annotations

from fairlead.records.finding import Finding, node
from fairlead.records.history import past_run, past_runs, remember
from fairlead.records.runs import RunFolder, list_runs, prune
from fairlead.records.verdict import Verdict


def ended(place, verb, *findings, nodes=""):
    folder = RunFolder.create(place, verb, ["fairlead", verb])
    folder.finish({}, verdict="fail", exit_code=3)
    assert remember(place, past_run(folder.info, nodes=nodes, findings=findings))
    return folder.info.id


def bad(code, name, verdict=Verdict.FAIL):
    return Finding(code=code, verdict=verdict, subject=node(name), message="x")


def test_a_run_is_remembered_with_what_was_not_well_folded_over_nodes(tmp_path):
    findings = [
        bad("ib/count", "n1"),
        bad("ib/count", "n3"),
        bad("gpu/ecc", "n2", Verdict.UNKNOWN),
        bad("host/shm", "n1", Verdict.PASS),
        bad("host/swap", "n1", Verdict.SKIP),
    ]
    name = ended(tmp_path, "preflight", *findings, nodes="n[1-4]")
    (past,) = past_runs(tmp_path)
    assert (past.run.id, past.run.verdict, past.run.exit, past.nodes) == (name, "fail", 3, "n[1-4]")
    assert past.said == {"fail": {"ib/count": "n[1,3]"}, "unknown": {"gpu/ecc": "n2"}}


def test_it_outlives_the_folders_and_is_asked_by_verb(tmp_path):
    ids = [ended(tmp_path, verb) for verb in ("probe", "preflight", "probe")]
    prune(tmp_path, 1)
    assert len(list_runs(tmp_path)) == 1
    assert [p.run.id for p in past_runs(tmp_path)] == ids
    assert [p.run.id for p in past_runs(tmp_path, verb="probe")] == [ids[0], ids[2]]
    assert past_runs(tmp_path / "elsewhere") == []
