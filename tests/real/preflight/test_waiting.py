"""A lab whose real Slurm holds the ranks back, or ends them: preflight says so, and blames no node and no torch."""

from __future__ import annotations

import json
import subprocess

import pytest

from fairlead.cluster import connect
from fairlead.cluster.enter import into_host, running
from fairlead.preflight.gate import run
from fairlead.records.verdict import Verdict
from fairlead.spec.loader import load
from support.injector import FAIRLEAD
from support.processes import until
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "torch")]


@pytest.mark.slow
def test_ranks_behind_another_job_are_said_to_wait_for_it() -> None:
    with world(hosts=2, gpus=1, planes=2) as lab:
        lab.file.write_text(lab.file.read_text() + "[launch]\npending_s = 8\n")
        state = running(lab.name)
        partition = f"--partition={state.slurm.partition}"
        other = ["srun", "--nodes=2", "--exclusive", partition, "--mpi=none", "--chdir=/tmp", "sleep", "300"]
        with subprocess.Popen(into_host(state, state.host("head"), other)) as holder:
            try:
                _until_it_runs(lab.name)
                words = [*FAIRLEAD, "preflight", "-f", str(lab.file), "--runs", str(lab.file.parent / "runs"), "--json"]
                done = subprocess.run(words, capture_output=True, text=True, timeout=240)
            finally:
                holder.terminate()
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert result["culprit"]["code"] == "preflight/step-pending", result["findings"]
    assert "is pending: Resources" in result["culprit"]["message"]
    assert result["bad"] == ""


def test_ranks_that_slurm_ends_are_nobodys_fault() -> None:
    with world(hosts=2, gpus=1, planes=2) as lab:
        state = running(lab.name)

        def cancel_before_the_sums(text: str) -> None:
            if text == "ranks: reduce":
                steps = into_host(state, state.host("head"), ["squeue", "--noheader", "--steps", "--format=%i %j"])
                listed = subprocess.run(steps, capture_output=True, text=True, check=True).stdout.split()
                ours = [step for step in listed if step[0].isdigit() and "." in step and not step.endswith(BATCH)]
                subprocess.run(into_host(state, state.host("head"), ["scancel", *ours]), check=True)

        spec = load(lab.file)
        with connect(spec) as cluster:
            report = run(cluster, spec, note=cancel_before_the_sums)
    assert report.ranks is not None
    assert [c.why for c in report.ranks.cut][:1] == ["cancelled"], report.ranks.words
    fails = [(f.code, str(f.subject)) for f in report.findings if f.verdict in (Verdict.FAIL, Verdict.UNKNOWN)]
    assert fails == [("preflight/step-ended", "job")]
    assert not report.bad


BATCH = (".batch", ".extern")


def _until_it_runs(name: str) -> None:
    state = running(name)
    ask = into_host(state, state.host("head"), ["squeue", "--noheader", "--format=%T"])
    is_running = until(lambda: subprocess.run(ask, capture_output=True, text=True).stdout.strip() == "RUNNING")
    assert is_running, "the other job never ran"
