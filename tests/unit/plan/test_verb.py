"""`fairlead plan` as it is typed: answers, exit statuses, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli.app import run
from support.traps import WELL

CLUSTER = """\
schema = 1
[cluster]
name = "train"
[[pool]]
name = "gpu"
size = "{size}"
nodes = "g-[0-3]"
[fabric]
link = "infiniband"
rdma = "{rdma}"
[access]
via = "slurm"
[plan]
{plan}
"""


@pytest.fixture
def said(capsys, tmp_path, monkeypatch):
    """Runs the verb in an empty folder: (exit, document)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_SPEC", raising=False)

    def call(*words):
        status = run(["plan", *map(str, words), "--json"])
        return status, json.loads(capsys.readouterr().out)

    return call


def cluster(tmp_path, plan="", size="Standard_ND96isr_H100_v5", rdma="ib"):
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER.format(plan=plan, size=size, rdma=rdma))
    return file


def codes(document):
    return {f["code"]: f["verdict"] for f in document["findings"]}


def test_a_question_answered(said, tmp_path):
    status, document = said("--parameters", 70, "--gpus", 128)
    assert status == 0
    assert document["schema"] == "fairlead.plan/1"
    assert codes(document) == {"plan/choice": "pass", "plan/network": "pass", "plan/storage": "pass"}
    assert len(document["choice"]["rejected"]) > 20
    assert list(tmp_path.iterdir()) == []


def test_nothing_asked_and_nothing_that_fits(said):
    status, document = said()
    assert (status, document["error"]["code"]) == (2, "plan/nothing-asked")
    status, document = said("--parameters", 10_000, "--gpus", 8)
    assert status == 3
    assert codes(document) == {"plan/choice": "fail"}


def test_written_then_changed_by_hand_then_forced(said, tmp_path):
    cluster(tmp_path)
    assert said("--write", "out")[0] == 0
    assert (tmp_path / "out/slurm/prolog.sh").stat().st_mode & 0o111
    target = tmp_path / "out/slurm/gres.conf"
    target.write_text(target.read_text() + "# mine\n")
    status, document = said("--write", "out")
    assert status == 3
    assert codes(document)["plan/changed-by-hand"] == "fail"
    assert "# mine" in target.read_text()
    status, document = said("--against", "out")
    assert (status, codes(document)["plan/changed-by-hand"]) == (0, "warn")
    status, document = said("--write", "out", "--force")
    assert (status, codes(document)["plan/changed-by-hand"]) == (0, "warn")
    assert "# mine" not in target.read_text()


def test_a_cluster_that_does_not_hold_its_job(said, tmp_path):
    cluster(tmp_path, plan="gpus = 64")
    status, document = said("--brief")
    assert (status, codes(document)["plan/choice"]) == (3, "fail")
    assert "too few" in document["findings"][0]["message"]
    cluster(tmp_path, plan="gpus = 32", size="Standard_NC96ads_A100_v4", rdma="none")
    status, document = said()
    assert (status, codes(document)["plan/choice"]) == (3, "fail")


def test_a_fabric_that_leaves_ports_unused_is_a_warning(said, tmp_path):
    file = cluster(tmp_path, rdma="none")
    file.write_text(file.read_text().replace('link = "infiniband"', 'link = "ethernet"'))
    assert codes(said()[1])["plan/network"] == "warn"


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ("numbers = { memory_sharee = 0.5 }", "plan/no-number"),
        ("prices = { Standard_ND96 = 3.0 }", "plan/no-size"),
        ('networks = ["10.0.0.1/8"]', "plan/no-network"),
        ('mig = "all-1g.10gb"\ntime_slices = 2', "plan/mig-and-slices"),
        ('resource_group = "a; rm -rf /"', "spec/type"),
        ('region = "East US"', "spec/type"),
        ('program = "/opt/x; reboot"', "spec/type"),
    ],
)
def test_a_slip_in_the_table_is_told_with_its_line(said, tmp_path, plan, code):
    cluster(tmp_path, plan=plan)
    status, document = said()
    problem = document["error"]["problems"][0]
    assert status == 2
    assert problem["line"] >= 13
    if code != "spec/type":
        assert problem["code"] == code


def test_only_a_part_and_groups(said, tmp_path):
    cluster(tmp_path)
    (tmp_path / "groups").write_text("g-0 a\ng-1 a\ng-2 b\ng-3 b\n")
    status, document = said("--only", "slurm", "--groups", "groups")
    paths = [f["path"] for f in document["files"]]
    assert status == 0
    assert "slurm/topology.conf" in paths
    assert all(p.startswith("slurm/") for p in paths)
    (tmp_path / "groups").write_text("g-0 a\n")
    status, document = said("--groups", "groups")
    assert (status, document["error"]["code"]) == (2, "plan/groups")


def test_lint_answers(said, tmp_path):
    for name, text in WELL.items():
        path = tmp_path / "m" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    status, document = said("--lint", "m")
    assert (status, document["schema"], document["verdict"]) == (0, "fairlead.plan-lint/1", "pass")
    job = tmp_path / "m/job.yaml"
    job.write_text(job.read_text().replace("- IPC_LOCK", "- SYS_PTRACE"))
    status, document = said("--lint", "m/job.yaml", "m/policy.yaml")
    bad = [f for f in document["findings"] if f["verdict"] == "fail"]
    assert (status, [f["code"] for f in bad]) == (3, ["plan/no-ipc-lock"])
    assert bad[0]["data"]["line"] > 0
    status, document = said("--lint", "nowhere")
    assert (status, document["error"]["code"]) == (2, "plan/no-files")
    status, document = said("--lint", "m", "--size", "Standard_Nothing")
    assert (status, document["error"]["code"]) == (2, "cli/no-size")


def test_files_of_other_rooms_are_written_for_nodes(said, tmp_path, monkeypatch):
    import fairlead

    room = tmp_path / "more" / "guard"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text("")
    (room / "unit.py").write_text(
        "def files(spec):\n"
        "    return {'/etc/systemd/system/guard.service': f'[Unit]\\nDescription={spec.cluster.name}\\n'}\n"
    )
    (room / "room.py").write_text(
        "from fairlead.base.rooms import Room\nROOM = Room(node_files=('fairlead.guard.unit:files',))\n"
    )
    monkeypatch.setattr(fairlead, "__path__", [*fairlead.__path__, str(tmp_path / "more")])
    cluster(tmp_path)
    assert said("--only", "node", "--write", "out")[0] == 0
    text = (tmp_path / "out/node/files/etc/systemd/system/guard.service").read_text()
    assert text == "[Unit]\nDescription=train\n"


def test_a_long_difference_is_cut_and_the_choice_stands_last(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_SPEC", raising=False)
    cluster(tmp_path, plan="gpus = 32\nparameters_b = 7.0")
    assert run(["plan"]) == 0
    text = capsys.readouterr().out
    assert "+HealthCheckProgram=/etc/slurm/health.sh" in text
    assert text.rstrip().splitlines()[-1].startswith("plan     4 x Standard_ND96isr_H100_v5, rdma, AMLFS-")
    runs = text.split("--- /dev/null")
    assert max(len(part.splitlines()) for part in runs[:-1]) < 320


def test_the_example_holds(said):
    place = Path(__file__).parents[3] / "examples" / "plan"
    status, document = said("--spec", place / "cluster.toml", "--groups", place / "groups.txt")
    assert (status, document["verdict"]) == (0, "pass")
    assert "slurm/topology.conf" in [f["path"] for f in document["files"]]
    assert document["notes"] == []
