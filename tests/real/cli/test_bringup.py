"""`fairlead bringup` on a lab of this machine: the stages, a fault that is named, and nothing left, however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from fairlead.bringup import chosen_fault
from fairlead.cluster import enter
from fairlead.lab.faults import catalog
from fairlead.lab.faults.apply import heal, inject
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down, up
from fairlead.spec import load
from support import lab_census as census
from support.endpoints import SMALL
from support.labs import Lab, fresh_name

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "torch")]

FILE = """
schema = 1
[cluster]
name = "small"
[[pool]]
name = "lab"
nodes = "n[0-2]"
size = "lab"
gpus = 1
[fabric]
link = "ethernet"
rdma = "mrc"
planes = 2
t0 = 1
t1 = 2
[access]
via = "lab"
[lab]
name = "{name}"
"""


@pytest.fixture
def name(tmp_path):
    made = fresh_name()
    (tmp_path / "cluster.toml").write_text(FILE.format(name=made))
    return made


def command(*words):
    return [sys.executable, "-m", "fairlead", "bringup", *words]


def bringup(folder, *words, status):
    done = subprocess.run(command(*words, "--json"), cwd=folder, capture_output=True, text=True, timeout=240)
    found = json.loads(done.stdout)
    assert done.returncode == status, [f for f in found.get("findings", []) if f["verdict"] not in ("pass", "skip")]
    return found


def rejudged(folder):
    words = [sys.executable, "-m", "fairlead", "rejudge", "last", "--json"]
    return json.loads(subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120).stdout)


@pytest.mark.requires("slurm", "munge")
def test_without_a_file_a_lab_with_slurm_is_built_judged_and_taken_down(tmp_path):
    found = bringup(tmp_path, "--only", "preflight", "--html", "page.html", status=0)
    assert found["schema"] == "fairlead.bringup/1"
    assert found["verdict"] == "pass"
    assert [stage["name"] for stage in found["stages"]] == ["lab up", "preflight", "lab down"]
    assert "real Slurm" in found["stages"][0]["said"]
    assert found["headline"] == "4 of 4 nodes are ready"
    rails = next(f for f in found["findings"] if f["code"] == "preflight/rails")
    assert (rails["verdict"], rails["message"].partition(" rails")[0][-1:]) == ("pass", "4")
    page = (tmp_path / "page.html").read_text()
    assert "Total Execution Ranks: 8\nSUCCESS: DDP Multi-Node AllReduce Ring Complete!" in page
    run = tmp_path / "runs" / found["run"]
    assert (run / "good.nodes").read_text().split() == ["n0", "n1", "n2", "n3"]
    assert (run / "report.html").read_text() == page
    assert not enter.is_up(enter.read("lab"))


def test_a_fault_is_named_first_and_gone_afterwards(tmp_path, name):
    found = bringup(tmp_path, "--only", "preflight", "--fault", "silent-drop p1/n2", "--keep", status=3)
    assert (found["fault"]["kind"], found["fault"]["target"]) == ("silent-drop", "p1/n2")
    first = found["findings"][0]
    assert (first["verdict"], first["code"]) == ("fail", "preflight/unreachable")
    assert (first["subject"]["nodes"], first["subject"]["name"]) == (["n2"], "plane 1")
    again = rejudged(tmp_path)
    assert (again["verdict"], again["changes"]) == ("fail", [])
    assert again["findings"][0] == first
    state = enter.running(name)  # --keep: the lab stands, healed
    assert state.faults == ()
    down(name)
    assert census.left_of(name) == []


@pytest.mark.slow
def test_a_standing_lab_is_left_standing_and_healed(tmp_path, name):
    up(LabShape.from_spec(load(tmp_path / "cluster.toml")))
    keeper = enter.running(name).keeper
    found = bringup(tmp_path, "--only", "preflight", "--fault", "rate", status=3)
    assert "found standing" in found["stages"][0]["said"]
    assert (enter.running(name).keeper, enter.running(name).faults) == (keeper, ())


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Where what is kept between bringups is: below /tmp, of which each host has its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


ALL = ["audit", "preflight", "weights", "train", "serve", "logs"]


def named(found):
    return {stage["name"]: stage for stage in found["stages"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.requires("obstore")
def test_all_stages_in_their_order_and_on_from_where_one_failed(tmp_path, name, kept):
    for module in ("transformers", "aiohttp", "chdb", "accelerate", "fastapi", "uvicorn", "openai"):
        pytest.importorskip(module, reason=f"needs {module}: extras `train`, `serve`, `engine` and `logs`")
    text = (tmp_path / "cluster.toml").read_text()
    broken = f'{text}[bringup]\nmodel = "{tmp_path}/nothing"\nengine = {list(SMALL)}\n'
    (tmp_path / "cluster.toml").write_text(broken)
    first = bringup(tmp_path, "--keep", "--html", "page.html", status=4)
    assert [stage["name"] for stage in first["stages"]] == ["lab up", *ALL]
    was = {stage: row["verdict"] for stage, row in named(first).items()}
    assert [stage for stage, verdict in was.items() if verdict not in ("pass", "warn")] == ["serve"], first["stages"]
    assert "nothing" in named(first)["serve"]["said"]
    assert first["headline"].startswith("serve: ")
    assert "3 of 1000 steps, loss " in named(first)["train"]["said"]
    assert (tmp_path / "page.html").read_text().count("<h2>") > len(ALL)
    # the same file, mended from outside: nothing is done twice but what failed
    (tmp_path / "nothing").symlink_to(kept / "fairlead/bringup/small/work/tiny")
    second = bringup(tmp_path, "--resume", "--keep", status=0)
    assert [stage["name"] for stage in second["stages"]] == ["lab up", "serve"]
    assert "answered" in named(second)["serve"]["said"]
    # from a stage on: training goes on with its store
    third = bringup(tmp_path, "--from", "train", status=0)
    assert [stage["name"] for stage in third["stages"]] == ["lab up", "train", "serve", "logs"]
    assert "6 of 1000 steps" in named(third)["train"]["said"]
    down(name)  # --keep: it was found standing, and left so
    assert census.left_of(name) == []


@pytest.mark.slow
def test_after_a_preflight_that_failed_nothing_dear_is_begun_and_logs_are_kept(tmp_path, name):
    found = bringup(tmp_path, "--from", "preflight", "--fault", "silent-drop p1/n2", status=3)
    rows = named(found)
    assert [rows[stage]["verdict"] for stage in ("weights", "train", "serve")] == ["skip"] * 3
    assert rows["train"]["said"] == "left out: preflight ended with fail"
    assert rows["logs"]["verdict"] == "pass"
    assert found["findings"][0]["code"] == "preflight/unreachable"


def test_a_misspelt_stage_is_refused_before_anything_is_built(tmp_path, name):
    for words in (("--from", "trian"), ("--only", "trian"), ("--from", "train", "--only", "logs")):
        assert bringup(tmp_path, *words, status=2)["error"]["code"] == "cli/usage"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_its_lab_down(tmp_path, name, how):
    with subprocess.Popen(command(), cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("lab "), line
        time.sleep(0.7)  # somewhere in the middle of what comes next
        process.send_signal(how)
        _, said = process.communicate(timeout=180)
    assert process.returncode in {130, 143}, said
    assert "Traceback" not in said
    assert census.left_of(name) == []


@pytest.mark.slow
def test_two_at_once_take_turns_and_the_second_follows_a_killed_one(tmp_path, name):
    with subprocess.Popen(command("--only", "preflight"), cwd=tmp_path, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        assert first.stderr.readline().startswith("lab ")
        second = subprocess.Popen(
            command("--only", "preflight", "--json"), cwd=tmp_path, stdout=-1, stderr=subprocess.PIPE, text=True
        )
        assert second.stderr is not None
        assert f"another bringup has the lab `{name}`" in second.stderr.readline()
        first.kill()
        first.communicate()
    out, said = second.communicate(timeout=240)
    assert second.returncode == 0, said
    assert json.loads(out)["verdict"] == "pass"
    assert census.left_of(name) == []
    assert not (enter.place() / f"{name}.turn").exists()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("silent-drip", "lab/unknown-fault"),
        ("rate p0/n0 mpbs=3", "lab/bad-setting"),
        ("rate p9/n0", "lab/unknown-target"),
    ],
)
def test_a_misspelt_fault_is_refused_before_anything_is_built(tmp_path, name, fault, code):
    found = bringup(tmp_path, "--fault", fault, status=2)
    assert found["error"]["code"] == code
    assert census.left_of(name) == []
    assert not (tmp_path / "runs").exists()


def test_faults_are_for_labs(tmp_path):
    (tmp_path / "cluster.toml").write_text(
        FILE.format(name="x").replace('size = "lab"', 'size = "other"').replace('via = "lab"', 'via = "local"')
    )
    found = bringup(tmp_path, "--fault", "silent-drop", status=2)
    assert found["error"]["code"] == "bringup/fault-needs-lab"


@pytest.mark.requires("faketime")
def test_every_kind_of_fault_can_be_had_by_its_name_alone():
    lab = Lab(LabShape(name=fresh_name()))
    try:
        for kind in catalog.KINDS.values():
            fault = inject(lab.name, *chosen_fault(kind.name, lab.shape))
            heal(lab.name, str(fault.id))
        assert lab.state.faults == ()
    finally:
        down(lab.name)
