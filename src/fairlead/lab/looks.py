"""Whether this machine can hold a lab: what it needs of the kernel, tried for real in namespaces that vanish again."""

from __future__ import annotations

import os
import shutil
import subprocess

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

Look = tuple[bool, str]
"""Whether it is there, and what was found or why not."""


def root() -> Look:
    """Labs with a real Slurm, and installing packages, take root."""
    return os.geteuid() == 0, f"user id {os.geteuid()}"


def user_namespaces() -> Look:
    """An ordinary user's lab lives in one."""
    return _try(["unshare", "--user", "--map-root-user", "true"])


def netns() -> Look:
    """Network namespaces and virtual links."""
    return _in_namespace(_NETNS)


def srv6() -> Look:
    """Routes that act on micro-segments."""
    return _in_namespace(_SRV6)


def tbf() -> Look:
    """Token buckets on links."""
    return _in_namespace(_TBF)


def nft() -> Look:
    """Rules on what enters a link."""
    return _in_namespace(_NFT)


def _in_namespace(script: str) -> Look:
    """Try a script in fresh namespaces: as root directly, else inside a user namespace."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False, "unshare or ip is not installed"
    return _try(["unshare", *user, "--net", "sh", "-c", script])


def _try(command: list[str]) -> Look:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return False, str(exc)
    said = done.stderr.strip().splitlines()
    return done.returncode == 0, "tried" if done.returncode == 0 else (said[-1] if said else f"exit {done.returncode}")
