"""Who a process is. Paths of cgroups as the documents of Slurm, kubelet, Docker and containerd show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.probe.readers.tree import Tree
from fairlead.watch.onnode.owners import Owners, identity, label

LONG = "8a1c0ad2c8b04be3bcf5b3d1c06a8f0c7b7e3a5d9f6c4b2a1908f7e6d5c4b3a2"
POD = "kubepods-burstable-pod6b3c5f1e_0d7a_4a30_9c1b_1f2e3d4c5b6a"
KINDS = [
    # slurm.schedmd.com/cgroup_v2.html: the tree below slurmstepd.scope
    ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", {"job": "123", "step": "0"}),
    ("0::/system.slice/slurmstepd.scope/job_123/step_batch/user/task_special", {"job": "123", "step": "batch"}),
    ("0::/system.slice/n1_slurmstepd.scope/job_9/step_extern/slurm", None),
    # slurm.schedmd.com/cgroups.html: v1 hierarchies
    (
        "9:memory:/slurm/uid_1000/job_77/step_0/task_0\n4:cpuset:/slurm/uid_1000/job_77/step_0",
        {"job": "77", "step": "0"},
    ),
    ("9:memory:/slurm_n1/uid_0/job_5/step_extern", {"job": "5", "step": "extern"}),
    # docs.docker.com, runmetrics; kubernetes.io, cgroup drivers
    (f"0::/system.slice/docker-{LONG}.scope", {"container": LONG[:12]}),
    (f"12:pids:/docker/{LONG}", {"container": LONG[:12]}),
    (f"0::/machine.slice/libpod-{LONG}.scope/container", {"container": LONG[:12]}),
    (
        f"0::/kubepods.slice/kubepods-burstable.slice/{POD}.slice/cri-containerd-{LONG}.scope",
        {"container": LONG[:12], "pod": "6b3c5f1e-0d7a-4a30-9c1b-1f2e3d4c5b6a"},
    ),
    (
        f"3:cpu:/kubepods/besteffort/pod6b3c5f1e-0d7a-4a30-9c1b-1f2e3d4c5b6a/{LONG}",
        {"container": LONG[:12], "pod": "6b3c5f1e-0d7a-4a30-9c1b-1f2e3d4c5b6a"},
    ),
    ("0::/user.slice/user-1000.slice/session-3.scope", {}),
    ("", {}),
]


@pytest.mark.parametrize(("cgroup", "said"), KINDS)
def test_cgroups_name_job_container_and_pod(cgroup, said):
    found = identity(cgroup)
    if said is None:
        said = {"job": "9", "step": "extern"}
    if "job" in said:
        said = {**said, "job_by": "cgroup"}
    assert found == said


def test_a_job_by_a_processs_own_word_is_marked_so_and_the_cgroup_goes_before():
    environ = b"HOME=/root\0SLURM_JOB_ID=42\0X=1\0"
    assert identity("0::/user.slice", environ) == {"job": "42", "job_by": "environment"}
    assert identity(KINDS[0][0], environ)["job"] == "123"
    assert identity("0::/user.slice", b"NOT_SLURM_JOB_ID=42\0") == {}


def test_this_very_process_is_known_and_one_that_ended_is_what_it_was():
    owners = Owners(Tree("/"))
    me = owners.look({os.getpid()})[os.getpid()]
    assert me["uid"] == str(os.getuid())
    assert me["comm"] == Path("/proc/self/comm").read_text().strip()
    assert owners.look({1 << 22})[1 << 22] == {"pid": 1 << 22, "gone": True}


def test_a_number_that_another_process_has_now_is_another_owner(tmp_path):
    proc = tmp_path / "proc/700"
    proc.mkdir(parents=True)
    tail = " S 1 700 700 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0"

    def shows(comm, start, job):
        (proc / "stat").write_text(f"700 ({comm})" + tail.format(start=start))
        (proc / "status").write_text("Name:\tx\nUid:\t1001\t1001\t1001\t1001\n")
        (proc / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n")

    owners = Owners(Tree(str(tmp_path)))
    shows("python (x) y", 10, 1)
    first = owners.look({700})[700]
    assert (first["comm"], first["job"]) == ("python (x) y", "1")
    shows("python (x) y", 99, 2)
    assert owners.look({700})[700]["job"] == "2"
    (proc / "stat").unlink()
    assert owners.look({700})[700]["job"] == "2", "it has ended since: it is what it was"


@pytest.mark.parametrize(
    ("owner", "word"),
    [
        ({"job": "7", "user": "ann"}, "job 7"),
        ({"pod": "p", "container": "c"}, "pod p"),
        ({"container": "c"}, "container c"),
        ({"kern": "ib_ipoib"}, "kernel ib_ipoib"),
        ({"user": "ann", "comm": "x"}, "ann x"),
        ({"uid": "1001", "user": "", "comm": "x"}, "1001 x"),
    ],
)
def test_an_owner_in_a_word(owner, word):
    assert label(owner) == word
