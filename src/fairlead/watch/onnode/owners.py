"""Who a process is: user, command, container, Slurm job. Reading is one function, what the text means another (pure).

The cgroup is the kernel's and Slurm's word; a process cannot change it without rights. `SLURM_JOB_ID` in a process's
environment is its own word: taken where Slurm keeps no cgroups, and marked so.
"""

from __future__ import annotations

import contextlib
import re

from fairlead.probe.readers.tree import Hole, Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLURM = re.compile(
    r"/(?:slurm|(?:[^/]+_)?slurmstepd\.scope|slurm_[^/]+)/(?:[^/]+/)*?job_(\d{1,10})(?:/step_([\w.]{1,20}))?"
)
"""cgroup v1: /slurm/uid_1000/job_7/step_0; v2: /system.slice/slurmstepd.scope/job_7/step_0/user (slurm.schedmd.com,
cgroup_v2)."""
CONTAINER = re.compile(r"(?:docker|cri-containerd|crio|libpod|containerd|nerdctl)[-:/]([0-9a-f]{64})|/([0-9a-f]{64})\b")
POD = re.compile(r"pod([0-9a-f]{8}[-_](?:[0-9a-f]{4}[-_]){3}[0-9a-f]{12})")
"""kubepods.slice/.../kubepods-burstable-podUID.slice (kubelet with systemd), kubepods/burstable/podUID (without)."""
JOB_ID = re.compile(rb"(?:\A|\0)SLURM_JOB_ID=(\d{1,10})\0")
MAX_CACHED = 4096


def identity(cgroup: str, environ: bytes = b"") -> dict[str, str]:
    """`job`, `step`, `job_by`, `container`, `pod`, as far as there are any.

    >>> identity("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")
    {'job': '7', 'step': '0', 'job_by': 'cgroup'}
    """
    found: dict[str, str] = {}
    slurm = SLURM.search(cgroup)
    if slurm:
        found["job"] = slurm[1]
        if slurm[2]:
            found["step"] = slurm[2]
        found["job_by"] = "cgroup"
    else:
        said = JOB_ID.search(environ)
        if said:
            found["job"], found["job_by"] = said[1].decode(), "environment"
    container, pod = CONTAINER.search(cgroup), POD.search(cgroup)
    if container:
        found["container"] = (container[1] or container[2])[:12]
    if pod:
        found["pod"] = pod[1].replace("_", "-")
    return found


def label(owner: dict[str, Any]) -> str:
    """An owner in one word or two: the job, the pod, the container, or the user and command."""
    for key, name in (("job", "job "), ("pod", "pod "), ("container", "container ")):
        if owner.get(key):
            return name + str(owner[key])
    if owner.get("kern"):
        return "kernel " + str(owner["kern"])
    return "%s %s" % (owner.get("user") or owner.get("uid", "?"), owner.get("comm", "?"))


class Owners:
    """Processes by number, read once each: number and start time are an identity."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.cached: dict[int, dict[str, Any]] = {}
        self.users: dict[str, str] | None = None

    def look(self, pids: set[int]) -> dict[int, dict[str, Any]]:
        """What these processes are. One that has ended meanwhile is what it was, where that is known."""
        found = {pid: self._one(pid) for pid in pids}
        self.cached = {**{k: v for k, v in self.cached.items() if k in pids}, **found}
        return found

    def _one(self, pid: int) -> dict[str, Any]:
        base = "/proc/%d/" % pid
        before = self.cached.get(pid)
        try:
            stat = self.tree.read_bytes(base + "stat", 4096).decode("utf-8", "backslashreplace")
            comm, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 1 :].split()
            start = int(rest[19])
        except (Hole, ValueError, IndexError):
            return before or {"pid": pid, "gone": True}
        if before and before.get("start") == start and before.get("comm") == comm:
            return before
        found: dict[str, Any] = {"pid": pid, "comm": comm[:64], "start": start}
        try:
            status = self.tree.read_bytes(base + "status", 16384)
            uid = re.search(rb"^Uid:\t(\d+)", status, re.MULTILINE)
            if uid:
                found["uid"] = uid[1].decode()
                found["user"] = self._user(found["uid"])
        except Hole:
            pass
        try:
            cgroup = self.tree.read_bytes(base + "cgroup", 65536).decode("utf-8", "backslashreplace")
        except Hole:
            cgroup = ""
        environ = b""
        if "job_" not in cgroup:
            with contextlib.suppress(Hole):
                environ = self.tree.read_bytes(base + "environ")
        found.update(identity(cgroup, environ))
        return found

    def _user(self, uid: str) -> str:
        """By the local file alone: a directory service may hang, and this must not."""
        if self.users is None:
            try:
                text = self.tree.read_bytes("/etc/passwd").decode("utf-8", "replace")
            except Hole:
                text = ""
            rows = [line.split(":") for line in text.split("\n")]
            self.users = {row[2]: row[0][:32] for row in rows if len(row) > 2}
        return self.users.get(uid, "")


def openers(tree: Tree, names: dict[str, str]) -> dict[int, str]:
    """Processes that hold a uverbs file open -> the device; `names`: uverbs0 -> mlx5_0. Costs a walk over /proc."""
    found: dict[int, str] = {}
    for pid in tree.optional_names("/proc"):
        if not pid.isdigit():
            continue
        base = "/proc/" + pid + "/fd"
        try:
            for fd in tree.names(base):
                where = tree.link(base + "/" + fd)
                if where.startswith("/dev/infiniband/uverbs"):
                    device = names.get(where.rpartition("/")[2])
                    if device:
                        found[int(pid)] = device
        except Hole:
            continue
    return found
