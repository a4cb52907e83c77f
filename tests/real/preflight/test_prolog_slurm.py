"""`--here` as a real prolog on real slurmds: the share holds, a mended node is asked again, and every drain is written
down. And what a user without rights in Slurm is told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from fairlead.cluster.enter import into_host, running
from fairlead.preflight.slurm.reason import parse_reason
from fairlead.preflight.slurm.scheduler import SHOW, SlurmNode, parse
from support.injector import FAIRLEAD, World
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm")]

RUNS = "/tmp/runs"  # a host of the lab has its own /tmp
PROLOG = """#!/bin/sh
export FAIRLEAD_SPEC=/etc/fairlead.toml
exec >>/tmp/prolog.log 2>>/tmp/prolog.err
{fairlead} preflight --here --prolog --every 300 --drain --yes --json --runs /tmp/runs {words}
[ $? -ne 3 ]
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts with a GPU each, and a Slurm over them."""
    with world(gpus=1, planes=2) as made:
        yield made


@pytest.fixture
def prolog(lab) -> Iterator[Callable[[str], None]]:
    """Makes the recipe's script the prolog of every node."""

    def install(words: str = "") -> None:
        script = PROLOG.format(fairlead=FAIRLEAD[0], words=words)
        for host in [*lab.nodes, "head"]:
            lab.sh(host, f"cat >/etc/fairlead.toml <<'END'\n{lab.file.read_text()}END\n")
            lab.sh(host, f"cat >/etc/slurm/prolog.sh <<'END'\n{script}END\nchmod +x /etc/slurm/prolog.sh")
            lab.sh(host, "echo Prolog=/etc/slurm/prolog.sh >>/etc/slurm/slurm.conf")
            lab.sh(host, "echo SchedulerParameters=nohold_on_prolog_fail >>/etc/slurm/slurm.conf")
        lab.sh("head", "scontrol reconfigure")

    yield install
    lab.heal()
    for host in [*lab.nodes, "head"]:
        lab.sh(host, "sed -i '/Prolog=/d; /SchedulerParameters/d' /etc/slurm/slurm.conf")
        lab.sh(host, f"rm -rf /run/fairlead/preflight {RUNS} /tmp/prolog.*")
    lab.sh("head", "scancel -u root; scontrol reconfigure")
    lab.sh("head", "scontrol update nodename=n[0-3] state=resume 2>/dev/null || true")
    lab.calm()


def spoil(lab: World, *names: str) -> None:
    """One port of each node at half its rate, which the probe sees."""
    rate = ["path=/sys/class/infiniband/mlx5_1/ports/1/rate", "content=50 Gb/sec (1X EDR)"]
    for name in names:
        words = [*FAIRLEAD, "lab", "fault", "-n", lab.name, "file", name, *rate]
        subprocess.run(words, check=True, capture_output=True)


def states(lab: World) -> dict[str, SlurmNode]:
    return parse(lab.sh("head", " ".join(SHOW)))


def drained(lab: World) -> list[str]:
    return [name for name, node in states(lab).items() if node.is_drained]


def wait_for(what: Callable[[], object], limit_s: float = 90.0) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.5)


def documents(lab: World, host: str) -> list[dict]:
    """What the prologs of a host have said."""
    text, found = lab.sh(host, "cat /tmp/prolog.log 2>/dev/null || true"), []
    while text.strip():
        document, end = json.JSONDecoder().raw_decode(text.lstrip())
        found.append(document)
        text = text.lstrip()[end:]
    return found


def test_prologs_of_one_job_drain_no_more_than_the_share(lab, prolog):
    """Every node of the job is bad, and all prologs decide at once: one of four may go, three let their jobs begin."""
    prolog()
    spoil(lab, *lab.nodes)
    lab.sh("head", "cd /tmp; sbatch -N4 -o /dev/null --wrap 'sleep 1'")
    wait_for(lambda: all(documents(lab, n) for n in lab.nodes))
    wait_for(lambda: len(drained(lab)) == 1)
    time.sleep(4.0)  # longer than any of them waits for the others
    (gone,) = drained(lab)
    reason = parse_reason(states(lab)[gone].reason)
    assert reason is not None
    assert reason.code == "ib/port-rate"
    said = {n: documents(lab, n)[0] for n in lab.nodes}
    assert [n for n, d in said.items() if d["keeps_jobs_away"]] == [gone]
    assert {d["verdict"] for d in said.values()} == {"fail"}
    assert {n: d["exit"] for n, d in said.items()} == {n: 3 if n == gone else 0 for n in lab.nodes}
    # a job on three others runs, although they are bad: the share has the last word
    assert lab.sh("head", f"srun -N3 -x {gone} --chdir=/tmp hostname").split()
    assert drained(lab) == [gone]


def test_a_job_that_met_a_bad_node_runs_elsewhere_by_itself(lab, prolog):
    prolog()
    spoil(lab, "n0")
    job = lab.sh("head", "cd /tmp; sbatch --parsable -N1 -o /tmp/job.out --wrap hostname").strip()
    wait_for(lambda: "Reason=BeginTime" in lab.sh("head", f"scontrol -o show job {job}"))
    assert drained(lab) == ["n0"]
    # Slurm lets a job that it puts back wait until its credentials are void (AuthInfo, cred_expire): two minutes
    lab.sh("head", f"scontrol update jobid={job} StartTime=now")
    wait_for(lambda: "JobState=COMPLETED" in lab.sh("head", f"scontrol -o show job {job}"))
    assert " NodeList=n0" not in lab.sh("head", f"scontrol -o show job {job}")


def test_what_a_prolog_drains_is_written_down(lab, prolog):
    """The run that the reason names is there, with who the machine is, what was read, found and done."""
    prolog()
    spoil(lab, "n1")
    lab.sh("head", "cd /tmp; sbatch -w n1 -N1 -o /dev/null --wrap hostname")
    wait_for(lambda: drained(lab) == ["n1"])
    reason = parse_reason(states(lab)["n1"].reason)
    assert reason is not None
    wait_for(lambda: reason.run_id in lab.sh("n1", f"ls {RUNS}") and documents(lab, "n1"))
    run = f"{RUNS}/{reason.run_id}"
    identity = json.loads(lab.sh("n1", f"cat {run}/identity.json"))["n1"]
    assert (identity["hostname"], identity["run"]) == ("n1", reason.run_id)
    assert json.loads(lab.sh("n1", f"cat {run}/facts/n1.json"))["node"] == "n1"
    assert "ib/port-rate" in lab.sh("n1", f"cat {run}/findings.json")
    log = [json.loads(line) for line in lab.sh("n1", f"cat {run}/log.jsonl").splitlines()]
    assert [e["node"] for e in log if e["what"] == "drain"] == ["n1"]
    shown = lab.sh("n1", f"{FAIRLEAD[0]} show {run}")
    assert "ib/port-rate" in shown
    assert not lab.sh("n0", f"ls {RUNS} 2>/dev/null || true")


def test_a_bad_verdict_that_is_remembered_is_looked_at_again(lab, prolog):
    """An operator mends the node and resumes it: the next job is not sent away on what was found before."""
    prolog("--drain-share 1")
    spoil(lab, "n2")
    lab.sh("head", "cd /tmp; sbatch -w n2 -N1 -o /dev/null --wrap hostname")
    wait_for(lambda: drained(lab) == ["n2"])
    wait_for(lambda: documents(lab, "n2"))
    lab.sh("head", "scancel -u root")
    lab.heal()
    lab.sh("head", "scontrol update nodename=n2 state=resume")
    assert lab.sh("head", "srun -w n2 -N1 --chdir=/tmp hostname").strip() == "n2"
    last = documents(lab, "n2")[-1]
    assert (last["verdict"], last["is_fresh"], last["keeps_jobs_away"]) == ("pass", True, False)
    # a good verdict is remembered, and the next job need not wait for a look
    lab.sh("head", "srun -w n2 -N1 --chdir=/tmp true")
    assert documents(lab, "n2")[-1]["is_fresh"] is False


def test_a_prolog_that_cannot_work_keeps_no_job_away(lab, prolog):
    """A cluster file with a slip reaches every node at once: that must not drain them all."""
    prolog()
    for host in lab.nodes:
        lab.sh(host, "echo 'no = file' >/etc/fairlead.toml")
    assert len(lab.sh("head", "srun -N4 --chdir=/tmp hostname").split()) == 4
    assert drained(lab) == []


@pytest.mark.slow
def test_an_epilog_holds_to_the_share_as_well(lab, prolog):
    prolog()
    for host in [*lab.nodes, "head"]:
        lab.sh(host, "sed -i 's/^Prolog=/EpilogProlog=/; s/^EpilogProlog/Epilog/' /etc/slurm/slurm.conf")
    lab.sh("head", "scontrol reconfigure")
    spoil(lab, *lab.nodes)
    lab.sh("head", "srun -N4 --chdir=/tmp true")
    wait_for(lambda: len(drained(lab)) == 1)
    time.sleep(4.0)
    assert len(drained(lab)) == 1
    for host in [*lab.nodes, "head"]:
        lab.sh(host, "sed -i '/^Epilog=/d' /etc/slurm/slurm.conf")


# ---- a user without rights -------------------------------------------------------------------------------------------


def as_nobody(lab: World, host: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command of an ordinary user on a host, who may read where this test's Python lies, and nothing else."""
    state = running(lab.name)
    found = state.host(host)
    assert found is not None
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reads, "env", "HOME=/tmp/nobody"]
    return subprocess.run(into_host(state, found, [*user, *argv]), capture_output=True, text=True, timeout=200)


def test_an_ordinary_user_is_told_what_an_operator_would_type(lab, prolog):
    prolog()
    spoil(lab, "n3")
    for host in ("n3", "head"):
        lab.sh(host, "mkdir -p /tmp/nobody; chmod 777 /tmp/nobody")
    here = [sys.executable, "-m", "fairlead", "preflight", "--here", "-f", "/etc/fairlead.toml", "--drain"]
    shown = as_nobody(lab, "n3", *here)
    assert shown.returncode == 3, shown.stderr
    assert "would drain  n3" in shown.stdout
    done = as_nobody(lab, "n3", *here, "--yes")
    assert done.returncode == 3
    assert "NOT drained  n3  the user nobody may not change nodes in Slurm" in done.stdout
    assert drained(lab) == []
    (typed,) = [line.removeprefix("type     ") for line in done.stdout.splitlines() if line.startswith("type ")]
    lab.sh("head", typed)
    assert drained(lab) == ["n3"]
    assert parse_reason(states(lab)["n3"].reason) is not None
