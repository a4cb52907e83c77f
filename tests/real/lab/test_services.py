"""Real OpenSSH and real Slurm on lab hosts, side by side with another lab's, and gone with the lab."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fairlead.cluster import State, connect
from fairlead.cluster.lab import slurm_environ
from fairlead.cluster.table import Slurm
from fairlead.lab.faults.apply import heal, inject
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down
from fairlead.spec import preset
from support import lab_census as census
from support.labs import Lab, fresh_name
from support.processes import until

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "sshd")]


@pytest.fixture(scope="module")
def lab():
    made = Lab(LabShape(name=fresh_name(), planes=2, gpus=4, sshd=True, slurm=True))
    yield made
    down(made.name)


def ssh(lab, host, *words, **more):
    return subprocess.run(
        ["ssh", "-F", lab.state.ssh.config, host, *words], capture_output=True, text=True, timeout=60, **more
    )


def test_ssh_from_outside_the_lab_lands_on_the_host(lab):
    done = ssh(lab, "n2", "hostname; ls /sys/class/infiniband; cat /proc/1/cmdline | tr '\\0' ' '")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["n2", "mlx5_0", "mlx5_1"]
    assert lab.name in done.stdout


def test_ssh_passes_input_output_and_status(lab):
    done = ssh(lab, "n1", "cat; echo err >&2; exit 7", input="in\n")
    assert (done.stdout, done.stderr, done.returncode) == ("in\n", "err\n", 7)


def test_ssh_to_a_dead_host_fails(lab):
    inject(lab.name, "node-dead", "n1", {})
    assert ssh(lab, "n1", "true").returncode == 255
    heal(lab.name, "all")
    assert ssh(lab, "n1", "hostname").stdout == "n1\n"


def test_keys_are_the_labs_own_and_private(lab):
    key = Path(lab.state.ssh.config).parent / "user_key"
    assert key.stat().st_mode & 0o077 == 0
    assert lab.sh("n0", "stat -c %a /run/fairlead/ssh/host_key") == "600"


@pytest.fixture
def idle(lab):
    """Slurm has every host idle: one that was booted again takes a moment."""
    assert until(lambda: lab.sh("head", "sinfo -h -t idle -o %D") == "4", 90), lab.sh("head", "sinfo -N -l")


@pytest.mark.usefixtures("idle")
def test_slurm_runs_a_task_on_every_host_with_its_gpus(lab):
    said = lab.sh(
        "head", "srun -N4 --gres=gpu:lab:4 sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES $SLURM_TOPOLOGY_ADDR'"
    )
    assert sorted(said.splitlines()) == [
        "n0 0,1,2,3 core.t0-0.n0",
        "n1 0,1,2,3 core.t0-0.n1",
        "n2 0,1,2,3 core.t0-1.n2",
        "n3 0,1,2,3 core.t0-1.n3",
    ]


@pytest.mark.usefixtures("idle")
def test_a_batch_job_runs_on_its_host(lab):
    job = lab.sh("head", "sbatch --parsable -w n2 --output=/mnt/out --wrap 'hostname; ls /sys/class/net'")
    assert until(lambda: "COMPLETED" in lab.sh("head", f"scontrol show job {job}"))
    assert lab.sh("n2", "cat /mnt/out").split()[:2] == ["n2", "eth0"]


@pytest.mark.usefixtures("idle")
def test_the_commands_outside_are_the_labs(lab, tmp_path):
    env = slurm_environ(lab.name)
    done = subprocess.run(
        ["srun", "-N4", "sh", "-c", "cat >/dev/null; hostname"], env=env, capture_output=True, text=True, input="x"
    )
    assert sorted(done.stdout.split()) == ["n0", "n1", "n2", "n3"], done.stderr
    script = tmp_path / "a script.sh"
    script.write_text("#!/bin/sh\n#SBATCH --nodelist=n1\necho $(hostname) $1 >/mnt/from-a-script\n")
    done = subprocess.run(
        ["sbatch", "--parsable", "--wait", str(script)], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert lab.sh("n1", "cat /mnt/from-a-script") == "n1"


@pytest.mark.usefixtures("idle")
def test_a_cluster_via_slurm_is_the_labs(lab, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", slurm_environ(lab.name)["PATH"])
    spec = preset("lab").spec
    spec = msgspec.structs.replace(
        spec,
        access=msgspec.structs.replace(spec.access, via="slurm"),
        pools=tuple(msgspec.structs.replace(p, python=sys.executable) for p in spec.pools),
    )
    with connect(spec.with_table(Slurm(options=())), folder=tmp_path) as cluster:
        say = "import os; print(os.environ['RANK'], os.uname().nodename)"
        results = cluster.run_ranks("n[0-3]", [sys.executable, "-c", say], per_node=1, limit_s=60)
        assert [r.stdout.text.split() for r in results] == [[str(i), f"n{i}"] for i in range(4)], results


def test_a_cluster_via_ssh_is_the_labs(lab, tmp_path):
    spec = preset("lab").spec
    access = msgspec.structs.replace(spec.access, via="ssh", ssh_options=lab.state.ssh.options)
    spec = msgspec.structs.replace(spec, access=access)
    (tmp_path / "x").write_bytes(b"data")
    with connect(spec, folder=tmp_path) as cluster:
        results = cluster.run("n[0-3]", ["hostname"], limit_s=30)
        assert [r.stdout.text.strip() for r in results] == ["n0", "n1", "n2", "n3"], results
        assert all(r.ok for r in cluster.push("n[0-1]", tmp_path / "x", "/mnt/x", limit_s=30))
        inject(lab.name, "node-dead", "n2", {})
        states = {r.node: r.state for r in cluster.run("n[1-2]", ["hostname"], limit_s=30)}
        assert states == {"n1": State.DONE, "n2": State.UNREACHABLE}
    heal(lab.name, "all")
    assert lab.sh("n1", "cat /mnt/x") == "data"


@pytest.mark.usefixtures("idle")
def test_slurm_notices_a_dead_host_and_takes_it_back(lab):
    def state():
        return lab.sh("head", "sinfo -h -n n3 -o %T")

    inject(lab.name, "node-dead", "n3", {})

    def is_down():
        # what it said while it lived may arrive after this, and bring it back
        lab.sh("head", "scontrol update nodename=n3 state=down reason=test")
        return state().startswith("down")

    assert until(is_down)
    heal(lab.name, "all")
    lab.sh("head", "scontrol update nodename=n3 state=resume", check=False)  # it may have come back by itself
    assert until(lambda: state() == "idle", 90)
    assert lab.sh("head", "srun -w n3 hostname") == "n3"


def test_two_labs_have_a_slurm_each():
    both = [Lab(LabShape(name=fresh_name(), planes=1, t0=1, t1=1, nodes=("a0", "a1"), slurm=True)) for _ in range(2)]
    try:
        assert [sorted(made.sh("head", "srun -N2 hostname").split()) for made in both] == [["a0", "a1"]] * 2
    finally:
        for made in both:
            roots = made.state.cgroup_roots
            down(made.name)
            assert census.left_of(made.name, roots) == []
