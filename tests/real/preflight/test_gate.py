"""The command on a live lab: what it writes when all is well, and that nothing stays whatever becomes of it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.enter import into_host, running
from fairlead.records.verdict import Verdict
from support.gating import without_ranks
from support.injector import FAIRLEAD, World, ranks_of
from support.processes import until
from support.promtext import read
from support.trials import run_inside, world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "torch")]

OURS = re.compile(rb"fairlead-(rank|agent|probe)")


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts with a GPU each on two planes, and a Slurm."""
    with world(gpus=1, planes=2) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_stays(lab) -> Iterator[None]:
    """Whatever a test does: no fault, no process of ours on a host, every node idle."""
    yield
    lab.heal()
    assert until(lambda: not ours_in(lab)), ours_in(lab)
    lab.calm()


def ours_in(lab: World) -> list[str]:
    """Our processes on the lab's hosts."""
    state = running(lab.name)
    hosts = {Path(f"/proc/{h.anchor.pid}/ns/pid").readlink() for h in state.hosts if h.anchor}
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/pid").readlink() in hosts:
                words = (entry / "cmdline").read_bytes()
                if OURS.search(words):
                    found.append(f"{entry.name} {words[:80]!r}")
    return found


def command(lab: World, *words: str) -> list[str]:
    return [*FAIRLEAD, "preflight", "-f", str(lab.file), "--runs", str(lab.file.parent / "runs"), *words]


def preflight(lab: World, *words: str, limit_s: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(lab, *words), capture_output=True, text=True, timeout=limit_s)


def test_all_well_in_text_files_metrics_and_page(lab, tmp_path):
    files = ["--html", str(tmp_path / "report.html"), "--prom", str(tmp_path / "preflight.prom")]
    done = preflight(lab, "--details", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "Total Execution Ranks: 4" in lines
    assert "SUCCESS: DDP Multi-Node AllReduce Ring Complete!" in lines
    for title in ("RANK  NODE  LOCAL", "NODE  OS ", "NODE  PORT ", "ALL-REDUCE  TIME"):
        assert any(line.startswith(title) for line in lines), title
    assert re.search(r"^verdict  pass   4 of 4 nodes usable$", done.stdout, re.MULTILINE)
    assert "not tested for bandwidth" in done.stdout

    (place,) = re.findall(r"^wrote +(\S+)", done.stderr, re.MULTILINE)
    run = Path(place)
    assert (run / "good.nodes").read_text().split() == ["n0", "n1", "n2", "n3"]
    assert (run / "bad.nodes").read_text() == ""
    assert "does not say which task" not in (run / "log.jsonl").read_text()
    ranks = json.loads((run / "ranks.json").read_text())
    assert ranks["backend"] == "tasks"
    starts = [s for s in ranks["lines"] if s["say"] == "start"]
    assert {s["slurm"]["SLURM_PROCID"] for s in starts} == {"0", "1", "2", "3"}
    assert all(s["interface"] == "fab0" for s in starts)
    metrics = read((tmp_path / "preflight.prom").read_text())
    assert any("verdict" in name for name in metrics)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "SUCCESS: DDP Multi-Node AllReduce Ring Complete!" in page


@pytest.mark.slow
def test_the_rendezvous_port_was_free_on_the_first_host_itself(lab):
    """Every port but one of the range is taken there; the batch host, which has them all free, is not asked.

    That rank 0 takes a free port of its own host is seen in launch/test_ranks.py; this is the same through the gate.
    """
    free = 50_123
    hold = (
        "import socket, sys, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))\n"
        "held = []\n"
        f"for p in range(49152, 65536):\n    if p != {free}:\n        s = socket.socket(socket.AF_INET6)\n"
        "        try:\n            s.bind(('::', p))\n        except OSError:\n            continue\n"
        "        s.listen(1)\n        held.append(s)\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    state = running(lab.name)
    words = into_host(state, state.host("n0"), [Path(FAIRLEAD[0]).with_name("python").as_posix(), "-c", hold])
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline().strip() == "held"
        done = preflight(lab, "--json")
        holder.communicate()
    result = json.loads(done.stdout)
    assert result["success"], [f for f in result["findings"] if f["verdict"] not in ("pass", "skip")]


def test_inside_a_job_it_tests_the_jobs_nodes_with_steps_of_that_job(lab):
    """Started by a real srun as every task of the job: the first works, and the exit status is the step's."""
    _, out = run_inside(lab, "4")
    result = json.loads(out)
    alarms = [f for f in result["findings"] if f["verdict"] in ("fail", "unknown")]
    assert result["success"], alarms
    assert (result["nodes"], result["ranks"]) == ("n[0-3]", 4)


def test_ranks_meet_nobody_over_a_dead_plane(lab):
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, "silent-drop", "p1/*"], check=True, capture_output=True)
    done = preflight(lab, "--json", "--exit", "nagios")
    result = json.loads(done.stdout)
    assert done.returncode == 2
    assert result["culprit"]["code"] == "preflight/unreachable"
    assert result["culprit"]["subject"] == {"kind": "plane", "name": "plane 1"}
    said = next(f for f in result["findings"] if f["code"] == "preflight/collective")
    assert said["verdict"] == "skip"
    assert "plane 1 is dead" in said["message"]
    assert result["bad"] == "", json.dumps([f for f in result["findings"] if f["verdict"] == "fail"], indent=1)


def test_a_fabric_that_is_slow_everywhere_is_found_where_no_median_can(lab):
    for plane in ("p0/*", "p1/*"):
        words = ["lab", "fault", "-n", lab.name, "rate", plane, "mbps=10"]
        subprocess.run([*FAIRLEAD, *words], check=True, capture_output=True)
    report = without_ranks(lab)
    assert (report.culprit.code, report.culprit.verdict) == ("preflight/slow-link", Verdict.FAIL)
    assert report.culprit.subject.name == "the fabric"
    assert "where a port carries 250 Mb/s" in report.culprit.message
    assert not report.bad


@pytest.mark.parametrize("moment", ["pairs", "ranks"])
def test_killed_outright_it_leaves_nothing_on_the_nodes(lab, moment):
    with subprocess.Popen(command(lab), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running_:
        want = "fairlead-agent" if moment == "pairs" else "fairlead-rank"
        assert until(lambda: any(want in p for p in ours_in(lab)), 120)
        running_.send_signal(signal.SIGKILL)
        running_.communicate()
    assert until(lambda: not ours_in(lab)), ours_in(lab)
    assert not any(True for _ in ranks_of(lab))


def test_interrupted_it_ends_with_130_and_leaves_nothing(lab):
    with subprocess.Popen(command(lab), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running_:
        assert until(lambda: any("fairlead-rank" in p for p in ours_in(lab)), 120)
        running_.send_signal(signal.SIGINT)
        running_.communicate(timeout=60)
    assert running_.returncode == 130


@pytest.mark.slow
def test_two_at_once_do_not_take_each_other_for_a_fault(lab):
    """Agents of both send on the same fabric, and their ranks are two jobs of Slurm, one after the other."""
    first, second = (
        subprocess.Popen(command(lab, "--json", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for words in ((), ("-w", "n[1-2]"))
    )
    for one in (first, second):
        out, err = one.communicate(timeout=280)
        result = json.loads(out)
        alarms = [f for f in result["findings"] if f["verdict"] in ("fail", "unknown")]
        assert one.returncode == 0, (alarms, err)
        assert result["success"]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["-w", "n9"], 2, "n9"),
        (["-x", "n[0-3]"], 2, "empty"),
        (["-w", ""], 2, "empty"),
        (["--every", "60"], 2, "--here"),
        (["--drain-share", "7"], 2, "share"),
        (["--yes"], 2, "--drain"),
        (["--html", "/"], 4, "Is a directory"),
        (["--prom", "/"], 4, "Is a directory"),
        (["--inside"], 2, "Slurm job"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(lab, words, status, says):
    runs = lab.file.parent / "runs"
    before = set(runs.glob("*"))
    done = preflight(lab, *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert set(runs.glob("*")) == before, "a run was begun"
