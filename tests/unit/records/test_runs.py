from __future__ import annotations

import datetime as dt
import os
import platform
import re
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from fairlead.errors import NotPermitted, RunError
from fairlead.records import runs
from fairlead.records.codec import to_json
from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, node
from fairlead.records.runs import Run, RunFolder, default_place, find_run, is_running, list_runs, new_id, prune
from fairlead.records.verdict import Verdict


def finished(place, verdict="pass", when=None):
    run_id = new_id("probe", when)
    folder = RunFolder.create(place, "probe", ["fairlead", "probe"], run_id)
    folder.finish({"verdict": verdict, "findings": []}, verdict=verdict, exit_code=0)
    return folder.path


def at(second):
    return dt.datetime(2026, 11, 20, 21, 0, second, tzinfo=dt.UTC)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


# ---- one run ---------------------------------------------------------------------------------------------------------


def test_a_run_is_written_and_read_back(tmp_path):
    folder = RunFolder.create(tmp_path / "runs", "lab up", ["fairlead", "lab", "up"])
    assert re.fullmatch(r"\d{8}-\d{6}-lab-up-[0-9a-f]{4}", folder.path.name)
    folder.write_facts([NodeFacts(node="n2"), NodeFacts(node="n1", facts={"os": {"kernel": "6.1"}})])
    folder.append("commands.jsonl", {"argv": ["true"], "rc": 0})
    folder.append("commands.jsonl", {"argv": ["false"], "rc": 1})
    found = Finding(code="x/y", verdict=Verdict.FAIL, subject=node("n1"), message="is bad")
    folder.finish({"verdict": "fail", "findings": [msgspec.to_builtins(found)]}, verdict="fail", exit_code=3)
    run = Run(folder.path)
    assert (run.info.verb, run.info.verdict, run.info.exit, run.info.host) == ("lab up", "fail", 3, platform.node())
    assert run.info.end >= run.info.start
    assert run.verdict is Verdict.FAIL
    assert run.findings() == [found]
    assert [f.node for f in run.facts()] == ["n1", "n2"]
    assert (folder.path / "commands.jsonl").read_text().count("\n") == 2
    assert names(folder.path) == ["commands.jsonl", "facts", "result.json", "run.json"]


def test_a_run_id_holds_nothing_a_path_could_stumble_over():
    assert re.fullmatch(r"\d{8}-\d{6}-[a-z-]+-[0-9a-f]{4}", new_id("../../etc/passwd\0 x"))


def test_a_run_cut_short_says_so(tmp_path):
    folder = RunFolder.create(tmp_path, "probe", [])
    with pytest.raises(RunError, match="the run was cut short") as caught:
        Run(folder.path).result()
    assert caught.value.code == "run/no-part"
    assert Run(folder.path).facts() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"verdict": 3}', '{"verdict": "maybe"}', "\xff\x00", '{"id": 1}'])
def test_damage_is_named_with_its_file(tmp_path, text):
    path = finished(tmp_path)
    (path / "result.json").write_text(text)
    with pytest.raises(RunError, match=r"result\.json") as caught:
        _ = Run(path).verdict
    assert caught.value.code == "run/damaged"
    (path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        Run(path)


def test_findings_of_the_wrong_shape_are_damage(tmp_path):
    path = finished(tmp_path)
    (path / "result.json").write_text('{"verdict": "pass", "findings": [{"code": 3}]}')
    with pytest.raises(RunError, match="damaged"):
        Run(path).findings()


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        Run(tmp_path)


# ---- many runs -------------------------------------------------------------------------------------------------------


def test_two_in_the_same_second_never_share_a_folder(tmp_path):
    same, made, errors = new_id("probe"), [], []

    def claim():
        try:
            made.append(RunFolder.create(tmp_path, "probe", [], same).path)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=claim) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(set(made)) == 12
    assert len(list_runs(tmp_path)) == 12


def test_when_every_name_is_taken_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(runs.secrets, "token_hex", lambda _: "7f3a")
    monkeypatch.setattr(runs, "new_id", lambda _: "20261120-210000-probe-7f3a")
    RunFolder.create(tmp_path, "probe", [])
    with pytest.raises(RunError) as caught:
        RunFolder.create(tmp_path, "probe", [])
    assert caught.value.code == "run/no-name"


def test_a_run_is_found_by_name_by_its_end_as_last_and_by_path(tmp_path):
    first, second = finished(tmp_path, when=at(1)), finished(tmp_path, when=at(2))
    for word in (first.name, first.name[-4:], str(first)):
        assert find_run(word, tmp_path).path == first
    assert find_run("last", tmp_path).path == second
    with pytest.raises(RunError, match=f"the newest is {second.name}"):
        find_run("nope", tmp_path)
    with pytest.raises(RunError, match="there is none yet"):
        find_run("last", tmp_path / "elsewhere")


def test_an_ambiguous_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(runs.secrets, "token_hex", lambda _: "7f3a")
    finished(tmp_path, when=at(1))
    finished(tmp_path, when=at(2))
    with pytest.raises(RunError, match="fits 2 runs"):
        find_run("7f3a", tmp_path)


def test_other_folders_are_not_runs(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "20261120-210000-probe-7f3a").mkdir()
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "nowhere") == []


# ---- retention -------------------------------------------------------------------------------------------------------


def test_retention_keeps_the_newest(tmp_path):
    paths = [finished(tmp_path, when=at(i)) for i in range(6)]
    assert prune(tmp_path, 2) == paths[:4]
    assert names(tmp_path) == [p.name for p in paths[4:]]


def test_keep_zero_keeps_all(tmp_path):
    finished(tmp_path)
    assert prune(tmp_path, 0) == []
    assert len(list_runs(tmp_path)) == 1


def test_a_running_one_is_never_removed_however_old(tmp_path):
    running = RunFolder.create(tmp_path, "probe", [], new_id("probe", at(0)))
    for i in range(1, 5):
        finished(tmp_path, when=at(i))
    prune(tmp_path, 1)
    assert is_running(running.path)
    assert running.path in list_runs(tmp_path)
    assert len(list_runs(tmp_path)) == 2


def test_one_that_was_killed_is_removed_in_its_turn(tmp_path):
    script = f"""
import os, signal
from pathlib import Path
from fairlead.records.runs import RunFolder
RunFolder.create(Path({str(tmp_path)!r}), "probe", [], "20261120-200000-probe-dead")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -9
    (killed,) = list_runs(tmp_path)
    assert not is_running(killed)
    kept = finished(tmp_path)
    assert prune(tmp_path, 1) == [killed]
    assert names(tmp_path) == [kept.name]


def test_one_on_another_host_is_left_to_that_host(tmp_path):
    folder = RunFolder.create(tmp_path, "probe", [], new_id("probe", at(0)))
    elsewhere = msgspec.structs.replace(folder.info, host="another-host", pid=1, started_ticks=1)
    (folder.path / "run.json").write_text(to_json(elsewhere))
    finished(tmp_path)
    prune(tmp_path, 1)
    assert folder.path.is_dir()


def test_a_reused_process_number_is_not_mistaken_for_the_run(tmp_path):
    folder = RunFolder.create(tmp_path, "probe", [])
    reused = msgspec.structs.replace(folder.info, started_ticks=folder.info.started_ticks - 1)
    (folder.path / "run.json").write_text(to_json(reused))
    assert not is_running(folder.path)


def test_what_a_killed_retention_left_goes_with_the_next(tmp_path):
    (tmp_path / ".gone-abc" / "20261120-210000-probe-7f3a").mkdir(parents=True)
    finished(tmp_path)
    prune(tmp_path, 5)
    assert not (tmp_path / ".gone-abc").exists()


# ---- where -----------------------------------------------------------------------------------------------------------


def test_runs_go_below_the_current_folder(tmp_path):
    assert default_place(tmp_path, {}) == tmp_path / "runs"


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/u"}, "/state/fairlead/runs"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/u"}, "/home/u/.local/state/fairlead/runs"),
        ({"HOME": "/home/u"}, "/home/u/.local/state/fairlead/runs"),
        ({}, "/var/lib/fairlead/runs" if os.geteuid() == 0 else f"/var/tmp/fairlead-{os.getuid()}/runs"),
    ],
)
def test_never_below_the_root_even_for_root(env, place):
    assert default_place(Path("/"), env) == Path(place)


def test_never_where_somebody_else_could_exchange_them(tmp_path):
    env = {"HOME": "/home/u"}
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert default_place(tmp_path / "open", env) == Path("/home/u/.local/state/fairlead/runs")
    with pytest.raises(NotPermitted, match="everybody may write to it") as caught:
        RunFolder.create(tmp_path / "open", "probe", [])
    assert (caught.value.code, list((tmp_path / "open").iterdir())) == ("disk/not-ours", [])
    (tmp_path / "open" / "runs").symlink_to(tmp_path)
    with pytest.raises(NotPermitted):
        RunFolder.create(tmp_path / "open" / "runs", "probe", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_runs_folder_that_a_neighbour_laid_out_is_not_used(tmp_path):
    (tmp_path / "precious").mkdir()
    for kind in ("folder", "link"):
        there = tmp_path / kind / "runs"
        there.parent.mkdir()
        there.mkdir() if kind == "folder" else there.symlink_to(tmp_path / "precious")
        os.lchown(there, 54321, 54321)
        assert default_place(there.parent, {"HOME": "/home/u"}) == Path("/home/u/.local/state/fairlead/runs")
        with pytest.raises(NotPermitted) as caught:
            RunFolder.create(there, "probe", [])
        assert caught.value.code == "disk/not-ours"
    assert list((tmp_path / "precious").iterdir()) == []


def test_what_a_run_leaves_is_for_its_caller_alone(tmp_path):
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path / "runs", "exec", ["fairlead", "exec", "--", "login", "--token", "secret"])
        folder.append("commands.jsonl", {"argv": ["login"]})
        folder.write_facts([NodeFacts(node="n1")])
        folder.finish({"verdict": "pass"}, verdict="pass", exit_code=0)
    finally:
        os.umask(before)
    assert (tmp_path / "runs").stat().st_mode & 0o077 == 0
    assert folder.path.stat().st_mode & 0o077 == 0
    assert {p.name for p in folder.path.rglob("*.json*") if p.stat().st_mode & 0o077} == set()


@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_pipe_in_place_of_a_file_is_damage_and_is_not_waited_for(tmp_path, name):
    path = finished(tmp_path)
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(RunError, match="not a regular file"):
        _ = Run(path).verdict


def test_a_file_without_end_is_damage(tmp_path, monkeypatch):
    path = finished(tmp_path)
    with (path / "run.json").open("ab") as file:
        file.truncate(1 << 34)
    with pytest.raises(RunError, match="larger than"):
        Run(path)


def test_a_current_folder_that_is_gone_is_like_the_root(tmp_path, monkeypatch):
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    monkeypatch.chdir(doomed)
    doomed.rmdir()
    assert default_place(env={"HOME": "/home/u"}) == Path("/home/u/.local/state/fairlead/runs")
    assert RunFolder.create(tmp_path, "probe", []).info.cwd == "/"


def test_a_file_in_the_way_is_refused_by_name(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(NotPermitted, match="cannot write") as caught:
        RunFolder.create(tmp_path / "runs", "probe", [])
    assert "--runs DIR" in caught.value.hint


def test_where_the_kernel_makes_no_folders_it_is_refused(tmp_path):
    with pytest.raises(NotPermitted):
        RunFolder.create(Path("/proc/self/runs"), "probe", [])
    assert os.getpid() > 0
