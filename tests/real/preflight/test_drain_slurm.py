"""Draining and giving back on a real Slurm, and preflight as its prolog and health program on real slurmds."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from fairlead.cluster.child import Captured
from fairlead.cluster.enter import into_host, running
from fairlead.preflight.slurm.drain import DrainRules, plan_drain
from fairlead.preflight.slurm.reason import parse_reason
from fairlead.preflight.slurm.scheduler import SlurmNode
from fairlead.preflight.slurm.scontrol import ask_states, execute
from fairlead.records.finding import Finding, Subject, node
from fairlead.records.verdict import Verdict
from support.injector import FAIRLEAD, World
from support.processes import until
from support.trials import world

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm")]

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts with a GPU each, and a Slurm over them."""
    with world(gpus=1, planes=2) as made:
        yield made


@pytest.fixture(autouse=True)
def _as_before(lab) -> Iterator[None]:
    """Every node idle and without a reason, before and after."""
    yield
    lab.heal()
    lab.sh("head", "scontrol update nodename=n[0-3] state=resume 2>/dev/null || true")
    lab.calm()


def control_of(lab: World) -> Callable[..., Captured]:
    """Slurm's commands, on the lab's head."""

    def control(argv) -> Captured:
        state = running(lab.name)
        done = subprocess.run(into_host(state, state.host("head"), argv), capture_output=True, text=True, timeout=30)
        return Captured(done.returncode, done.stdout, done.stderr)

    return control


def states(lab: World) -> dict[str, SlurmNode]:
    return ask_states(control_of(lab))


def is_drained(lab: World, name: str) -> bool:
    return any(s.startswith("DRAIN") for s in states(lab)[name].states)


def preflight(lab: World, *words: str) -> dict:
    """The document of a run over some nodes."""
    runs = lab.file.parent / "runs"
    command = [*FAIRLEAD, "preflight", "-f", str(lab.file), "--json", "--runs", str(runs), *words]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=200).stdout)


def bad(name: str, code: str = "gpu/count") -> Finding:
    return Finding(code=code, verdict=Verdict.FAIL, subject=node(name), message="7 of 8 GPUs")


def well(name: str, code: str = "gpu/count") -> Finding:
    return Finding(code=code, verdict=Verdict.PASS, subject=node(name), message="8 GPUs")


def do(lab: World, findings, **rules) -> tuple:
    """Plan from what Slurm says now, and execute."""
    plan = plan_drain(findings, states(lab), "20261121-000000-preflight-aaaa", NOW, DrainRules(**rules))
    return plan, execute(plan, control_of(lab))


# ---- drain and undrain -----------------------------------------------------------------------------------------------


def test_a_bad_node_goes_and_comes_back_healed(lab):
    """Preview, drain, still bad, healed, preview, back: each by the command a person types."""
    fault = [*FAIRLEAD, "lab", "fault", "-n", lab.name, "file", "n2"]
    rate = ["path=/sys/class/infiniband/mlx5_1/ports/1/rate", "content=50 Gb/sec (1X EDR)"]
    subprocess.run([*fault, *rate], check=True, capture_output=True)

    shown = preflight(lab, "-w", "n2", "--drain")["slurm"]
    assert list(shown["drain"]) == ["n2"]
    assert shown["done"] == []
    assert not is_drained(lab, "n2")

    done = preflight(lab, "-w", "n2", "--drain", "--yes")
    assert [(o["node"], o["action"], o["is_done"]) for o in done["slurm"]["done"]] == [("n2", "drain", True)]
    reason = parse_reason(states(lab)["n2"].reason)
    assert reason is not None
    assert (reason.who, reason.day, reason.code) == ("node", dt.datetime.now(dt.UTC).date().isoformat(), "ib/port-rate")
    assert reason.run_id == done["run"]
    identity = json.loads((lab.file.parent / "runs" / done["run"] / "identity.json").read_text())
    assert identity["n2"]["hostname"] == "n2"

    kept = preflight(lab, "-w", "n2", "--undrain", "--yes")["slurm"]
    assert kept["undrain"] == []
    assert "ib/port-rate is fail now" in kept["kept"]["n2"]
    assert is_drained(lab, "n2")

    lab.heal()
    assert preflight(lab, "-w", "n2", "--undrain")["slurm"]["undrain"] == ["n2"]
    assert is_drained(lab, "n2")
    preflight(lab, "-w", "n2", "--undrain", "--yes")
    assert not is_drained(lab, "n2")
    lab.sh("head", "srun -w n2 -N1 -n1 --chdir=/tmp true")


def test_what_somebody_else_drained_is_not_touched(lab):
    lab.sh("head", "scontrol update nodename=n1 state=drain reason='fan, ticket 42'")
    plan, outcomes = do(lab, [bad("n1")])
    assert "already drained" in plan.kept["n1"]
    plan, outcomes = do(lab, [well("n1")])
    assert (plan.undrain, outcomes) == ((), [])
    assert states(lab)["n1"].reason.startswith("fan, ticket 42")
    assert is_drained(lab, "n1")


def test_a_reason_a_person_has_added_to_is_that_persons(lab):
    do(lab, [bad("n1")])
    lab.sh(
        "head", "scontrol update nodename=n1 reason=\"$(scontrol show node n1 | sed -n 's/.*Reason=//p'), asked Ann\""
    )
    plan, _ = do(lab, [well("n1")])
    assert plan.undrain == ()
    assert is_drained(lab, "n1")


def test_another_check_that_passed_gives_nothing_back(lab):
    do(lab, [bad("n1")])
    plan, _ = do(lab, [well("n1", "gpu/driver")])
    assert "did not test that" in plan.kept["n1"]
    plan, outcomes = do(lab, [well("n1")])
    assert outcomes[0].is_done
    assert not is_drained(lab, "n1")


def test_more_than_the_share_drains_nobody(lab):
    plan, outcomes = do(lab, [bad("n0"), bad("n3")])
    assert "2 of 4 nodes" in plan.refused
    assert outcomes == []
    assert not any(is_drained(lab, n) for n in lab.nodes)
    _, outcomes = do(lab, [bad("n0"), bad("n3")], max_share=0.5)
    assert [o.is_done for o in outcomes] == [True, True]
    # those drained before count
    plan, _ = do(lab, [bad("n1")], max_share=0.5)
    assert "2 drained by fairlead before" in plan.refused
    assert not is_drained(lab, "n1")


def test_who_acts_between_plan_and_deed_wins(lab):
    plan = plan_drain([bad("n1")], states(lab), "20261121-000000-preflight-aaaa", NOW)
    lab.sh("head", "scontrol update nodename=n1 state=drain reason=mine")
    [outcome] = execute(plan, control_of(lab))
    assert not outcome.is_done
    assert "changed meanwhile" in outcome.why
    assert states(lab)["n1"].reason.startswith("mine")


def test_a_bad_pair_drains_neither(lab):
    pair = Finding(
        code="preflight/unreachable",
        verdict=Verdict.FAIL,
        subject=Subject(kind="pair", nodes=("n0", "n1")),
        message="no packet arrives",
    )
    plan, outcomes = do(lab, [pair])
    assert outcomes == []
    assert set(plan.kept) == {"n0", "n1"}


# ---- on the nodes themselves -----------------------------------------------------------------------------------------


HEALTH = """#!/bin/sh
cd /
{{ echo "cwd $(pwd) home ${{HOME-none}}"
  FAIRLEAD_SPEC=/etc/fairlead.toml {fairlead} preflight --here --runs /tmp/runs {words} --json --quiet
  echo "status $?"; }} >>/tmp/health.log 2>&1
"""


@pytest.fixture
def health(lab) -> Iterator[Callable[[str], None]]:
    """Makes a script of ours Slurm's health program on n3, started every second."""

    def install(words: str) -> None:
        for host in [*lab.nodes, "head"]:
            script = HEALTH.format(fairlead=FAIRLEAD[0], words=words) if host == "n3" else "#!/bin/sh\n"
            lab.sh(host, f"rm -f /tmp/health.log; cat >/etc/fairlead.toml <<'END'\n{lab.file.read_text()}END\n")
            lab.sh(host, f"cat >/etc/slurm/health.sh <<'END'\n{script}END\nchmod +x /etc/slurm/health.sh")
            lines = "HealthCheckProgram=/etc/slurm/health.sh\\nHealthCheckInterval=1\\nHealthCheckNodeState=ANY"
            lab.sh(host, f"printf '{lines}\\n' >>/etc/slurm/slurm.conf")
        lab.sh("head", "scontrol reconfigure")

    yield install
    for host in [*lab.nodes, "head"]:
        lab.sh(host, "sed -i /HealthCheck/d /etc/slurm/slurm.conf; rm -rf /run/fairlead/preflight")
    lab.sh("head", "scontrol reconfigure")


def wait_for(what: Callable[[], object]) -> None:
    assert until(what, 120), "did not come about in time"


def looks(lab: World) -> list[dict]:
    """The documents the health program has printed."""
    log = lab.sh("n3", "cat /tmp/health.log 2>/dev/null || true")
    return [json.loads(text) for text in re.findall(r"^\{$.*?^\}$", log, re.MULTILINE | re.DOTALL)]


def test_as_a_health_program_it_keeps_its_pace(lab, health):
    """slurmd starts it every second, in / and without a home; it looks once, and repeats what it found."""
    health("--every 600")
    wait_for(lambda: len(looks(lab)) >= 4)
    found = looks(lab)
    assert [f["is_fresh"] for f in found[:4]] == [True, False, False, False]
    assert {f["verdict"] for f in found} == {"pass"}
    said = set(re.findall(r"^cwd .*$", lab.sh("n3", "cat /tmp/health.log"), re.MULTILINE))
    assert said == {"cwd / home none"}


def test_as_a_health_program_it_drains_its_own_node(lab, health):
    fault = [*FAIRLEAD, "lab", "fault", "-n", lab.name, "disk-full", "n3"]
    health("--every 2 --drain --yes")
    wait_for(lambda: looks(lab))
    assert not is_drained(lab, "n3")
    done = subprocess.run(fault, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: is_drained(lab, "n3"))
    reason = parse_reason(states(lab)["n3"].reason)
    assert reason is not None
    assert reason.code == "host/disk-space"
    assert not any(is_drained(lab, n) for n in ("n0", "n1", "n2"))


def test_as_a_prolog_it_keeps_jobs_off_a_bad_node(lab):
    """A good node passes its prolog in the time of one look; a bad one is drained, and the job runs elsewhere."""
    words = "preflight --here --prolog --every 300 --drain --yes --quiet --runs /tmp/runs"
    script = f"#!/bin/sh\nFAIRLEAD_SPEC=/etc/fairlead.toml {FAIRLEAD[0]} {words} >/dev/null 2>&1\n[ $? -ne 3 ]\n"
    for host in [*lab.nodes, "head"]:
        lab.sh(host, f"cat >/etc/fairlead.toml <<'END'\n{lab.file.read_text()}END\n")
        lab.sh(host, f"cat >/etc/slurm/prolog.sh <<'END'\n{script}END\nchmod +x /etc/slurm/prolog.sh")
        lab.sh(host, "echo Prolog=/etc/slurm/prolog.sh >>/etc/slurm/slurm.conf")
    lab.sh("head", "scontrol reconfigure")
    try:
        assert lab.sh("head", "srun -w n0 -N1 -n1 --chdir=/tmp hostname").strip() == "n0"
        rate = ["path=/sys/class/infiniband/mlx5_1/ports/1/rate", "content=50 Gb/sec (1X EDR)"]
        subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, "file", "n1", *rate], check=True)
        lab.sh("head", "cd /tmp; sbatch -w n1 -N1 -o /dev/null --wrap hostname")
        wait_for(lambda: is_drained(lab, "n1"))
        reason = parse_reason(states(lab)["n1"].reason)
        assert reason is not None
        assert reason.code == "ib/port-rate"
        wait_for(lambda: "RUNNING" not in lab.sh("head", "squeue -h -o %T"))  # it is queued again
    finally:
        for host in [*lab.nodes, "head"]:
            lab.sh(host, "sed -i /Prolog=/d /etc/slurm/slurm.conf; rm -rf /run/fairlead/preflight")
        lab.sh("head", "scancel -u root; scontrol reconfigure")
