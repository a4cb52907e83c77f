"""`fairlead exec` as a user types it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.records.runs import list_runs
from support.processes import left_after, until_marked

pytestmark = pytest.mark.real

CLUSTER = """
schema = 1
[access]
via = "{via}"
{access}
[[pool]]
name = "a"
size = "other"
nodes = "n[1-6]"
gpus = 0
ports = 0
"""


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "cluster.toml").write_text(CLUSTER.format(via="local", access=""))
    return tmp_path


def environ(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD_")}
    return kept | {"NO_COLOR": "1"} | changes


def fairlead(place: Path, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "fairlead", "exec", *words]
    return subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=120, env=environ(**changes))


def test_nodes_that_answer_alike_are_one_block(place):
    done = fairlead(
        place, "-x", "n6", "--", "sh", "-c", "[ $FAIRLEAD_NODE = n3 ] && exec sh -c 'echo bad >&2; exit 7'; echo good"
    )
    assert done.stdout == "n[1-2,4-5] (4)  done\ngood\n\nn3 (1)  failed  exit status 7\nstderr  bad\n"
    assert "5 nodes: 4 done, 1 failed" in done.stderr
    assert done.returncode == 3


def test_all_well_is_exit_0_and_leaves_a_run_folder(place):
    done = fairlead(place, "-w", "n[1-2]", "--", "echo", "-n", "--json")
    assert (done.returncode, done.stdout) == (0, "n[1-2] (2)  done\n--json\n")
    [run] = list_runs(place / "runs")
    [call] = [json.loads(line) for line in (run / "commands.jsonl").read_text().splitlines()]
    assert (call["via"], call["argv"], call["nodes"], call["rc"]) == (
        "local",
        ["echo", "-n", "--json"],
        "n[1-2]",
        {"0": "n[1-2]"},
    )
    assert json.loads((run / "result.json").read_text())["verdict"] == "pass"
    assert (run / "spec.toml").read_text() == (place / "cluster.toml").read_text()


def test_json_is_one_document_with_every_node(place):
    done = fairlead(
        place, "--json", "--timeout", "5", "--", "sh", "-c", "[ $FAIRLEAD_NODE = n2 ] && sleep 60; printf '\\377'"
    )
    document = json.loads(done.stdout)
    assert document["schema"] == "fairlead.exec/1"
    assert [(r["node"], r["state"], r["stdout"]) for r in document["results"]] == [
        (f"n{i}", "timeout" if i == 2 else "done", "" if i == 2 else "\\xff") for i in range(1, 7)
    ]
    assert done.returncode == document["exit"] == 3


@pytest.mark.requires("ssh")
def test_a_node_out_of_reach_is_exit_4(place):
    access = 'ssh_options = ["HostName=127.0.0.1", "Port=9"]'
    (place / "cluster.toml").write_text(CLUSTER.format(via="ssh", access=access))
    done = fairlead(place, "-w", "n[1-2]", "--", "true")
    assert done.stdout == "n[1-2] (2)  unreachable  it refuses connections: no SSH server listens\n"
    assert "next     nc -vz NODE 22" in done.stderr
    assert done.returncode == 4


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-w", "n[1-2]"], "cli/usage"),
        (["-w", "n7", "--", "true"], "nodes/unknown"),
        (["-w", "n[1-", "--", "true"], "nodes/syntax"),
        (["-w", "n1", "-x", "n1", "--", "true"], "nodes/empty"),
        (["-w", "", "--", "true"], "nodes/empty"),
        (["--fanout", "0", "--", "true"], "spec/out-of-range"),
    ],
)
def test_a_wrong_command_line_runs_nothing(place, words, code):
    done = fairlead(place, "--json", *words)
    assert json.loads(done.stdout)["error"]["code"] == code
    assert done.returncode == 2
    assert not (place / "runs").exists()


def test_leaving_out_what_is_not_there_is_said(place):
    done = fairlead(place, "-x", "n[6-8]", "--", "true")
    assert done.returncode == 0
    assert done.stdout.startswith("n[1-5] (5)  done")
    assert "-x leaves out n[7-8], which the cluster does not have" in done.stderr


@pytest.mark.requires("root")
def test_a_disk_that_fills_up_meanwhile_loses_no_answer(place):
    runs = place / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=64k", "none", str(runs)], check=True)
    try:
        # the output goes into the run's result, which is then too large
        done = fairlead(place, "-w", "n1", "--", "sh", "-c", "yes line | head -c 100000")
        assert done.returncode == 5
        assert done.stdout.startswith("n1 (1)  done\nline\n")
        assert "fairlead: no room left to write" in done.stderr
        told = fairlead(place, "-w", "n1", "--json", "--", "sh", "-c", "yes line | head -c 100000")
        assert (told.returncode, json.loads(told.stdout)["error"]["code"]) == (5, "disk/full")
    finally:
        subprocess.run(["umount", str(runs)], check=True)


def test_slurm_absent_is_exit_4_and_says_what_to_type(place, tmp_path):
    (place / "cluster.toml").write_text(CLUSTER.format(via="slurm", access=""))
    done = fairlead(place, "--", "true", PATH=str(tmp_path))
    assert done.returncode == 4
    assert "Slurm is not on this machine: no srun" in done.stderr
    assert "next     fairlead doctor" in done.stderr
    assert done.stdout == ""


def test_a_line_with_blanks_hints_at_a_shell(place):
    done = fairlead(place, "-w", "n1", "--", "uname -r")
    assert "there is no program `uname -r`" in done.stdout
    assert "sh -c 'uname -r'" in done.stderr


def test_live_lines_name_their_node(place):
    done = fairlead(place, "--live", "-w", "n[1-2]", "--", "sh", "-c", "echo a; echo b >&2; [ $FAIRLEAD_NODE = n1 ]")
    assert sorted(done.stdout.splitlines()[:2]) == ["n1: a", "n2: a"]
    assert done.stdout.splitlines()[2:] == ["n2 (1)  failed  exit status 1"]
    assert {"n1: b", "n2: b"} <= set(done.stderr.splitlines())


@pytest.mark.parametrize(("number", "why"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")])
def test_an_interrupt_shows_what_had_come_and_says_what_was_stopped(place, number, why):
    mark = f"86{secrets.randbelow(10**9):09}.5"
    # the others begin to hang when the first has long ended
    wait = f"until [ -e done ]; do sleep 0.1; done; sleep 1; sleep {mark}"
    script = f"echo hi; [ $FAIRLEAD_NODE = n1 ] && touch done && exit; {wait}"
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "exec", "-w", "n[1-3]", "--", "sh", "-c", script],
        cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(),
    )  # fmt: skip
    until_marked(f"sleep\0{mark}", 2, limit_s=30)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "n1 (1)  done\nhi\n\nn[2-3] (2)  cancelled  stopped\nhi\n"
    assert f"{why}; stopped on n[2-3] (2)" in err
    assert "Traceback" not in err
    assert left_after(mark, 20) == {}


def test_each_call_to_nodes_is_told_in_the_runs_log_and_with_v_on_stderr(place):
    done = fairlead(place, "-w", "n[1-3]", "-v", "--", "sh", "-c", "[ $FAIRLEAD_NODE != n2 ]")
    (log,) = place.glob("runs/*/log.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    asks, answered = (e for e in events if e["source"] == "fairlead.cluster")
    assert (asks["what"], asks["data"]["nodes"], asks["data"]["via"]) == ("asks 3 nodes", "n[1-3]", "local")
    assert (answered["severity"], answered["data"]["states"]) == ("warn", {"done": "n[1,3]", "failed": "n2"})
    assert answered["data"]["errors"] == {"exit status 1": "n2"}
    assert answered["data"]["took_ms"] >= 0
    for event in events:
        assert sum(event["what"] in line for line in done.stderr.splitlines()) >= 1, event
    quiet = fairlead(place, "-w", "n[1-3]", "--", "true")
    assert "asks 3 nodes" not in quiet.stderr
