"""`fairlead lab` as a person types it: answers, documents, exit statuses, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from fairlead.spec import preset_text
from support import lab_census as census
from support.labs import fresh_name
from support.processes import until

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft")]


def fairlead(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "fairlead", "lab", *words], capture_output=True, text=True, timeout=120, **more
    )


@pytest.fixture(scope="module")
def name():
    made = fresh_name()
    done = fairlead("up", "-n", made)
    assert done.returncode == 0, done.stderr
    yield made
    fairlead("down", "-n", made)


def document(*words, status=0):
    done = fairlead(*words, "--json")
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_up_says_what_it_built_and_up_again_changes_nothing(name):
    found = document("up", "-n", name)
    assert found["schema"] == "fairlead.lab-up/1"
    assert found["lab"]["phase"] == "up"
    assert len(found["lab"]["hosts"]) == 4


def test_status_draws_and_documents(name, tmp_path):
    drawn = fairlead("status", "-n", name, "--svg", str(tmp_path / "f.svg"))
    assert "plane 3  2 up  2 up  up  up  up  up" in drawn.stdout
    assert (tmp_path / "f.svg").read_text().startswith("<svg")
    found = document("status", "-n", name)
    assert {h["state"] for h in found["status"]["hosts"]} == {"up"}
    assert len(found["status"]["links"]) == 32
    assert all(link["lower"]["rate_mbps"] == 250 for link in found["status"]["links"])


def test_exec_passes_everything_through(name):
    done = fairlead("exec", "n1", "-n", name, "--", "sh", "-c", "hostname; cat; echo err >&2; exit 7", input="in")
    assert (done.stdout, done.stderr, done.returncode) == ("n1\nin", "err\n", 7)
    assert "seg6local" in fairlead("exec", "p0/t0-0", "-n", name, "--", "ip", "-6", "route").stdout


def test_exec_dies_with_what_started_it(name):
    argv = [sys.executable, "-m", "fairlead", "lab", "exec", "n1", "-n", name, "--", "sleep", "4321"]
    started = subprocess.Popen(argv)
    count = ["sh", "-c", "pgrep -fc '^sleep 4321' || true"]

    def sleepers() -> str:
        return fairlead("exec", "n1", "-n", name, "--", *count).stdout.strip()

    assert until(lambda: sleepers() == "1")
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert until(lambda: sleepers() == "0")


def test_faults_come_are_listed_and_go(name):
    injected = document("fault", "loss", "p0/n0", "percent=5", "-n", name)["injected"]
    assert injected["params"] == {"percent": "5", "side": "both"}
    assert "loss percent=5" in fairlead("status", "-n", name).stdout
    assert document("status", "-n", name)["status"]["faults"][0]["kind"] == "loss"
    assert document("fault", "--heal", "all", "-n", name)["healed"] == [injected]
    assert document("status", "-n", name)["status"]["faults"] == []


def test_a_script_plays_in_time(name, tmp_path):
    (tmp_path / "s").write_text("0 silent-drop p2/n3\n0.5 heal all\n0.6 link-down p1/n0\n")
    done = fairlead("fault", "--script", str(tmp_path / "s"), "-n", name)
    assert done.returncode == 0
    assert "1 fault in force" in done.stdout
    times = [float(line.split()[0]) for line in done.stderr.splitlines() if " s  " in line]
    assert [round(t, 1) >= due for t, due in zip(times, (0, 0.5, 0.6), strict=True)] == [True] * 3
    assert document("status", "-n", name)["status"]["faults"][0]["kind"] == "link-down"
    fairlead("fault", "--heal", "all", "-n", name)


def test_an_interrupted_script_leaves_no_fault(name, tmp_path):
    (tmp_path / "s").write_text("0 silent-drop p2/n3\n60 heal all\n")
    argv = [sys.executable, "-m", "fairlead", "lab", "fault", "--script", str(tmp_path / "s"), "-n", name]
    player = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert "silent-drop" in player.stderr.readline()
    player.send_signal(signal.SIGINT)
    assert player.wait(60) == 130
    player.stderr.close()
    assert document("status", "-n", name)["status"]["faults"] == []


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["status", "-n", "never-built"], 4, "lab/not-up"),
        (["status", "-n", ""], 4, "lab/not-up"),
        (["exec", "n9", "-n", "{name}", "--", "true"], 2, "lab/unknown-node"),
        (["fault", "los", "p0/n0", "-n", "{name}"], 2, "lab/unknown-fault"),
        (["fault", "loss", "p0/n9", "-n", "{name}"], 2, "lab/unknown-target"),
        (["fault", "loss", "p0/n0", "percent=x", "-n", "{name}"], 2, "lab/bad-setting"),
        (["fault", "-n", "{name}"], 2, "lab/bad-fault"),
        (["fault", "--heal", "9", "-n", "{name}"], 2, "lab/no-such-fault"),
        (["fault", "--script", "/nowhere", "-n", "{name}"], 2, "lab/bad-script"),
        (["fault", "rate", "p0/n0", "mbps=0", "-n", "{name}"], 2, "lab/bad-setting"),
        (["fault", "file", "n0", "path=/usr/bin/env", "content=x", "-n", "{name}"], 4, "lab/not-its-own"),
        (["fault", "file", "n0", "path=/etc", "content=x", "-n", "{name}"], 4, "lab/not-its-own"),
        (["up", "-n", "../x"], 2, "lab/bad-name"),
    ],
)
def test_refusals_are_documents_too(name, words, status, code):
    json_first = [words[0], "--json", *(w.format(name=name) for w in words[1:])]
    done = fairlead(*json_first)
    assert done.returncode == status, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == code


def test_a_cluster_file_shapes_the_lab(tmp_path):
    lab = fresh_name()
    (tmp_path / "cluster.toml").write_text(
        f"""schema = 1
[cluster]
name = "{lab}"
[[pool]]
name = "p"
size = "lab"
nodes = "w[00-05]"
gpus = 2
[fabric]
link = "ethernet"
rdma = "mrc"
planes = 2
t0 = 3
t1 = 1
[access]
via = "lab"
[lab]
rate_mbps = 100
"""
    )
    done = fairlead("up", "-f", str(tmp_path / "cluster.toml"), "--json")
    try:
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["lab"]
        assert [h["name"] for h in found["hosts"]] == [f"w0{i}" for i in range(6)]
        assert len(found["switches"]) == 2 * (3 + 1)
        said = fairlead("exec", "w05", "-f", str(tmp_path / "cluster.toml"), "--", "nvidia-smi", "-L")
        assert len(said.stdout.splitlines()) == 2
    finally:
        fairlead("down", "-f", str(tmp_path / "cluster.toml"))
    assert census.left_of(lab) == []


def test_a_healthy_lab_passes_every_check_and_a_faulty_host_is_named(tmp_path):
    lab = fresh_name()
    file = tmp_path / "cluster.toml"
    file.write_text(preset_text("lab").replace('name = "lab"\n', f'name = "{lab}"\n', 1))

    def probe():
        argv = [sys.executable, "-m", "fairlead", "probe", "-f", str(file), "--runs", str(tmp_path / "runs"), "--json"]
        found = json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=120).stdout)
        failed = {(f["code"], *f["subject"]["nodes"]) for f in found["findings"] if f["verdict"] == "fail"}
        return (
            found["verdict"],
            failed,
            [f["message"] for f in found["findings"] if f["verdict"] in ("warn", "unknown")],
        )

    assert fairlead("up", "-f", str(file)).returncode == 0
    try:
        assert probe() == ("pass", set(), [])
        fairlead("fault", "missing-hca", "n2", "hca=mlx5_1", "-f", str(file))
        fairlead("fault", "driver-version", "n1", "version=535.1", "-f", str(file))
        fairlead("fault", "node-dead", "n3", "-f", str(file))
        verdict, failed, _ = probe()
        assert verdict in ("fail", "unknown")
        assert ("ib/count", "n2") in failed
        assert any(code == "skew/gpu-driver" and "n1" in nodes for code, *nodes in failed)
    finally:
        fairlead("down", "-f", str(file))


def test_without_the_right_to_make_namespaces_it_says_so_and_leaves_nothing(tmp_path):
    """An ordinary user where user namespaces are forbidden: made so by a limit of none."""
    story = (
        "import ctypes, os; from fairlead.lab.shape import LabShape; from fairlead.lab import up\n"
        "from fairlead.errors import FairleadError\n"
        "try: up.up(LabShape(name='x'))\n"
        "except FairleadError as e: print(e.code, e.exit, e.hint)\n"
    )
    # inside a user namespace whose own limit of user namespaces is none
    as_nobody = f'exec setpriv --inh-caps=-all --bounding-set=-all {sys.executable} -c "$S"'
    script = f"echo 0 >/proc/sys/user/max_user_namespaces; {as_nobody}"
    done = subprocess.run(
        ["unshare", "-U", "-r", "sh", "-c", script],
        env={**os.environ, "S": story, "FAIRLEAD_LABS": str(tmp_path / "labs")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.startswith("lab/not-permitted 4"), done.stdout + done.stderr
    assert not (tmp_path / "labs").exists()
