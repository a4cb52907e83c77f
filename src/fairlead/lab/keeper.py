"""The process that is the lab: it builds everything from a plan, then holds it by staying alive.

Knows: how to carry out a plan (plain JSON on stdin) and in which order. Must not know: shapes, addresses, faults, or
what the lab's record holds.

    up (the caller)      starts this program, writes the plan, reads the report, writes the record, says "commit"
    launcher             unshares: a user namespace if not privileged, and PID, mount, network, UTS and IPC namespaces
    keeper               first process of the new PID namespace; makes namespaces, links, addresses, hosts
    anchors              one per host (anchor.py), children of the keeper, each first in a PID namespace below

Nothing here outlives the keeper: namespaces have no other holder than its mount namespace, links live in namespaces,
and the kernel kills every process of a PID namespace with its first. Until "commit" the keeper dies with its parents
(PDEATHSIG, and end of file on stdin for the moment before that is set), so a killed `up` leaves no process and no
namespace. What can be left is a folder and empty cgroups, and those are named in a record written before either exists.
With "commit" it gives up that bond and only then puts the record in place that says the lab is up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fairlead.base.process import start_ticks
from fairlead.lab import anchor, bpf
from fairlead.lab import syscalls as sc

NETNS_DIR = Path("/run/netns")
"""Where the keeper's mount namespace names network namespaces, so that `ip netns` works inside it."""

_NO_MEMORY = "Cannot allocate memory"
_MAX_TRIES = 200


class BuildError(Exception):
    """A step failed. `step` names it, `line` is what was being said, `detail` what the tool or kernel answered."""

    def __init__(self, step: str, line: str, detail: str) -> None:
        super().__init__(f"{step}: {line}: {detail}")
        self.report = {"step": step, "line": line, "detail": detail}


def main() -> None:
    """The launcher: read the plan, leave for new namespaces, start the keeper, wait until it is committed or dead."""
    sc.die_with_parent()
    line = sys.stdin.readline()
    plan = json.loads(line) if line else None
    if plan is None or os.getppid() != plan["parent"]:
        return  # `up` was killed before the wish above could take effect
    try:
        if plan["rootless"]:
            _user_namespace()
        sc.unshare(sc.CLONE_NEWPID | sc.CLONE_NEWNS | sc.CLONE_NEWNET | sc.CLONE_NEWUTS | sc.CLONE_NEWIPC)
    except OSError as error:
        _say({"error": {"step": "unshare", "line": "unshare(2)", "detail": error.strerror}})
        return
    held, holder = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(held)
        sc.die_with_parent()
        _keep(plan, holder)
    os.close(holder)
    # one byte says the keeper stands by itself; end of file says it is gone
    if not os.read(held, 1):
        os.waitpid(keeper, 0)


def _keep(plan: dict[str, Any], holder: int) -> NoReturn:
    """The keeper's life; never returns."""
    try:
        place, coming, record = plan["commit"]
        home = os.open(place, os.O_PATH | os.O_DIRECTORY)  # now: its own /run will hide it
        report = _build(plan)
    except BuildError as error:
        _leave({"error": error.report})
    except OSError as error:
        _leave({"error": {"step": "build", "line": str(error.filename or ""), "detail": error.strerror or str(error)}})
    _say(report)
    if sys.stdin.readline().strip() != "commit":
        os._exit(1)
    # in this order: whoever reads in the record that the lab is up may rely on it
    sc.die_with_parent(0)
    try:
        os.rename(coming, record, src_dir_fd=home, dst_dir_fd=home)
    except OSError as error:
        _leave({"error": {"step": "commit", "line": record, "detail": error.strerror or str(error)}})
    os.close(home)
    _say({"held": True})
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    with contextlib.suppress(BrokenPipeError):  # the launcher may have gone with a killed `up`; the lab stays
        os.write(holder, b"!")
    os.close(holder)
    anchor.reap_forever()


def _leave(report: dict[str, Any]) -> NoReturn:
    _say(report)
    os._exit(1)


def _say(report: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def _build(plan: dict[str, Any]) -> dict[str, Any]:
    # on the machine's /proc, which is still mounted, our own number is the one the machine knows us by
    keeper_pid = int(Path("/proc/self").readlink().name)
    for path in plan["keeper_cgroups"]:
        Path(path, "cgroup.procs").write_text("0")
    sc.mount("none", "/", flags=sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("fairlead", "/run", "tmpfs", data="mode=755")
    NETNS_DIR.mkdir()
    sc.sethostname(f"lab-{plan['lab']}"[:63])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})

    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    _name_netns("mgmt")
    for name in plan["netns"]:
        sc.unshare(sc.CLONE_NEWNET)
        _name_netns(name)
        _write_sysctls(plan["before_devices"])
    sc.setns(home, sc.CLONE_NEWNET)
    run_batch("ip", plan["links"])
    for setup in plan["setups"]:
        apply_setup(setup)
    for netns, device in plan["computed_checksums"]:
        sc.enter(NETNS_DIR / netns, sc.CLONE_NEWNET)
        sc.set_tx_checksum(device, on=False)
    for port in plan["trims"]:
        trim_port(port)
    sc.setns(home, sc.CLONE_NEWNET)
    os.close(home)

    started = [(host["name"], *anchor.start(host, keep=plan["life"])) for host in plan["hosts"]]
    anchors = {}
    for name, ready, pid in started:
        answer = anchor.await_ready(ready, pid)
        if "error" in answer:
            raise BuildError(f"host {name}", answer["error"]["line"], answer["error"]["detail"])
        anchors[name] = answer
    return {"keeper": {"pid": keeper_pid, "start": _ticks_of_self()}, "anchors": anchors}


def apply_setup(setup: dict[str, Any]) -> None:
    """Say to one namespace what it is to have; leaves this process in that namespace."""
    sc.enter(NETNS_DIR / setup["netns"], sc.CLONE_NEWNET)
    _write_sysctls(setup["sysctl"])
    run_batch("ip", setup["ip"])
    run_batch("tc", setup["tc"])


def trim_port(port: dict[str, Any]) -> None:
    """Let one switch port trim; leaves this process in that port's namespace."""
    own = dict(port)
    sc.enter(NETNS_DIR / own.pop("netns"), sc.CLONE_NEWNET)
    try:
        bpf.trim(**own)
    except OSError as error:
        raise BuildError("bpf", f"trim at {port['netns']} {port['device']}", error.strerror or str(error)) from error


def run_batch(tool: str, lines: Sequence[str]) -> None:
    """Feed lines to `ip` or `tc` in one process. Raises BuildError naming the line that was refused.

    The kernel takes per-processor memory for each encapsulating route from a small reserve that it refills in the
    background; many routes at once can empty it. That refusal is temporary, so the rest is said again a little later.
    """
    rest, tries = list(lines), 0
    while rest:
        # one process reads all lines; -force would go on after a mistake
        done = subprocess.run(
            [tool, "-batch", "-"], input="\n".join(rest) + "\n", text=True, capture_output=True, check=False
        )
        if done.returncode == 0:
            return
        found = re.search(r"Command failed -:(\d+)", done.stderr)
        number = int(found[1]) if found else 1
        reason = " ".join(line for line in done.stderr.splitlines() if not line.startswith("Command failed"))
        tries += 1
        if _NO_MEMORY not in done.stderr or tries > _MAX_TRIES:
            raise BuildError(tool, rest[number - 1], reason or f"exit {done.returncode}")
        rest = rest[number - 1 :]
        time.sleep(0.005)


def _name_netns(name: str) -> None:
    """Give the network namespace this process is in a name below NETNS_DIR, which also keeps it alive."""
    place = NETNS_DIR / name
    place.touch()
    sc.bind("/proc/self/ns/net", place)


def _write_sysctls(pairs: Sequence[Sequence[str]]) -> None:
    for key, value in pairs:
        try:
            Path("/proc/sys/net", key).write_text(value)
        except OSError as error:
            raise BuildError("sysctl", f"net/{key} = {value}", error.strerror or str(error)) from error


def _user_namespace() -> None:
    """A user namespace in which this user is root."""
    uid, gid = os.geteuid(), os.getegid()
    sc.unshare(sc.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _ticks_of_self() -> int:
    return start_ticks(int(Path("/proc/self").readlink().name)) or 0


if __name__ == "__main__":
    main()
