"""What this machine can do: each capability tried for real where a try is harmless, in namespaces that vanish again.

`fairlead doctor` prints this table; the test suite skips by it, and names what was missing.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TRY_SECONDS = 10

_NETNS = """
set -e
ip link add ve0 type veth peer name ve1
ip link set ve0 up; ip link set ve1 up
"""
_SRV6 = (
    _NETNS
    + """
ip -6 route add fcbb:bbbb:101::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev ve0
"""
)
_TBF = _NETNS + "tc qdisc add dev ve0 root tbf rate 250mbit burst 32k limit 256k\n"
_NFT = (
    _NETNS + "nft add table netdev t; nft add chain netdev t c '{ type filter hook ingress device ve0 priority 0; }'\n"
)


@dataclass(frozen=True)
class Capability:
    """One thing a machine may be able to do."""

    name: str
    ok: bool
    detail: str
    """What was found, or why not."""
    used_for: str
    get: str
    """What to type to have it."""


@dataclass(frozen=True)
class _Entry:
    name: str
    used_for: str
    get: str
    look: Callable[[], tuple[bool, str]]


def _root() -> tuple[bool, str]:
    return os.geteuid() == 0, f"user id {os.geteuid()}"


def _in_namespace(script: str, *flags: str) -> tuple[bool, str]:
    """Try a script in fresh namespaces: as root directly, else inside a user namespace."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False, "unshare or ip is not installed"
    command = ["unshare", *user, "--net", *flags, "sh", "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return False, str(exc)
    said = done.stderr.strip().splitlines()
    return done.returncode == 0, "tried" if done.returncode == 0 else (said[-1] if said else f"exit {done.returncode}")


def _user_namespaces() -> tuple[bool, str]:
    try:
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "true"],
            capture_output=True,
            text=True,
            timeout=_TRY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return False, str(exc)
    return done.returncode == 0, "tried" if done.returncode == 0 else done.stderr.strip()


def _programs(*names: str) -> Callable[[], tuple[bool, str]]:
    def look() -> tuple[bool, str]:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        missing = [n for n in names if not shutil.which(n, path=path)]
        return (False, f"not installed: {', '.join(missing)}") if missing else (True, ", ".join(names))

    return look


def _module(name: str) -> Callable[[], tuple[bool, str]]:
    def look() -> tuple[bool, str]:
        # find_spec does not import: `doctor` must not pay for torch
        found = importlib.util.find_spec(name) is not None
        return found, "installed" if found else "not installed"

    return look


def _path(*places: str) -> Callable[[], tuple[bool, str]]:
    def look() -> tuple[bool, str]:
        for place in places:
            root = Path(place).anchor or "."
            for hit in Path(root).glob(place.removeprefix(root)):
                return True, str(hit)
        return False, f"no {places[0]}"

    return look


_TABLE = (
    _Entry("root", "labs with real Slurm; installing packages", "run as root", _root),
    _Entry("userns", "labs as an ordinary user", "sysctl kernel.unprivileged_userns_clone=1", _user_namespaces),
    _Entry(
        "netns",
        "the lab",
        "a kernel with network namespaces, veth; apt install iproute2",
        lambda: _in_namespace(_NETNS),
    ),
    _Entry("srv6", "the lab's fabric", "a kernel with SRv6 next-csid (6.1+)", lambda: _in_namespace(_SRV6)),
    _Entry("tbf", "shaped lab links", "a kernel with sch_tbf", lambda: _in_namespace(_TBF)),
    _Entry("nft", "lab faults: loss, drops, marks", "apt install nftables", lambda: _in_namespace(_NFT)),
    _Entry(
        "slurm",
        "Slurm, on a cluster and in the lab",
        "apt install slurm-wlm",
        _programs("srun", "sbatch", "slurmctld", "slurmd"),
    ),
    _Entry("munge", "Slurm in the lab", "apt install munge", _programs("munged")),
    _Entry("ssh", "nodes reached by OpenSSH", "apt install openssh-client", _programs("ssh")),
    _Entry("sshd", "OpenSSH servers in the lab", "apt install openssh-server", _programs("sshd", "ssh-keygen")),
    _Entry("faketime", "clock skew in the lab", "apt install faketime", _path("/usr/lib/*/faketime/libfaketime.so.1")),
    _Entry("chromium", "checking the HTML report in a browser", "apt install chromium", _programs("chromium")),
    _Entry("kubectl", "nodes reached through Kubernetes", "see kubernetes.io/docs/tasks/tools", _programs("kubectl")),
    _Entry("torch", "real ranks: preflight, bringup", "pip install 'fairlead[ranks]'", _module("torch")),
    _Entry("numba", "the fabric simulator", "pip install 'fairlead[fabric]'", _module("numba")),
    _Entry("gpu", "NCCL, GPU checks", "an NVIDIA driver", _path("/proc/driver/nvidia/version")),
    _Entry(
        "infiniband", "InfiniBand checks", "an RDMA-capable VM size and its driver", _path("/sys/class/infiniband/*")
    ),
)

NAMES = tuple(e.name for e in _TABLE)


@functools.cache
def capability(name: str) -> Capability:
    """One capability by name, looked for once a process."""
    entry = next(e for e in _TABLE if e.name == name)
    ok, detail = entry.look()
    return Capability(entry.name, ok, detail, entry.used_for, entry.get)


def capabilities() -> list[Capability]:
    """All of them, in the order a new user meets them."""
    return [capability(name) for name in NAMES]
