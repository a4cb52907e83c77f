"""Doing things in a lab that stands: lines for a namespace, a host's files, a host's first process.

Knows: how to reach each part of a running lab from outside. Must not know: why; faults and services decide that.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.base.suggest import did_you_mean
from fairlead.cluster.enter import into_host, into_keeper, into_netns
from fairlead.errors import LabError, UsageError
from fairlead.lab import cgroups
from fairlead.lab.store import is_alive, running
from fairlead.records.labstate import HostState, LabState, Process

LIMIT_S = 60.0
_BIND = ("setpriv", "--pdeathsig", "KILL", "--")


def say(state: LabState, netns: str, tool: Sequence[str], lines: Sequence[str]) -> None:
    """Feed lines to a tool in a namespace of the lab. Raises LabError with what it answered."""
    if not lines:
        return
    done = subprocess.run(
        into_netns(state, netns, tool),
        input="\n".join(lines) + "\n",
        text=True,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise LabError(
            "lab/refused",
            f"{' '.join(tool)} in {netns} answered: {' '.join(done.stderr.split())}",
            hint=f"fairlead lab status --name {state.name}",
        )


def ask(state: LabState, netns: str, argv: Sequence[str]) -> str:
    """What a command prints in a namespace of the lab; empty where it fails."""
    done = subprocess.run(into_netns(state, netns, argv), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.stdout if done.returncode == 0 else ""


def run_on(state: LabState, host: HostState, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command on a host."""
    return subprocess.run(
        into_host(state, host, argv),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def words_into(name: str, node: str, argv: Sequence[str]) -> list[str]:
    """The words that run a command on a host or in a switch of a lab; it dies with the process that runs them.

    Raises UsageError where there is no such node, LabError where it is dead.
    """
    state = running(name)
    switch = next((s for s in state.switches if node in (s.name, s.netns)), None)
    if switch:
        return [*_BIND, *into_netns(state, switch.netns, argv)]
    host = state.host(node)
    if host is None:
        known = [*(h.name for h in state.hosts), *(s.name for s in state.switches)]
        raise UsageError(
            "lab/unknown-node",
            f"no host or switch `{node}`; {did_you_mean(node, known)}",
            hint=f"fairlead lab status -n {name}",
        )
    if not is_alive(host.anchor):
        raise LabError("lab/node-dead", f"{node} is dead", hint=f"fairlead lab fault -n {name} --heal node-dead")
    return bound(state, host, argv)


def bound(state: LabState, host: HostState, argv: Sequence[str]) -> list[str]:
    """The words that run a command on a host so that it dies with the process that runs them."""
    # twice: `nsenter` waits outside for the command inside, and each must go with its parent
    return [*_BIND, *into_host(state, host, [*_BIND, *argv])]


def host_path(host: HostState, path: str) -> Path:
    """A file of a host as this process reaches it; `path` without a leading slash."""
    assert host.anchor is not None
    return Path(f"/proc/{host.anchor.pid}/root", path)


def processes_of(host: HostState) -> list[int]:
    """Every process in a host's PID namespace, by the machine's numbers."""
    if host.anchor is None:
        return []
    with contextlib.suppress(OSError):
        mine = Path(f"/proc/{host.anchor.pid}/ns/pid").readlink()
        return [pid for pid in _all_pids() if _pid_namespace(pid) == mine]
    return []


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _pid_namespace(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink()
    except OSError:
        return None


def freeze(host: HostState, *, frozen: bool) -> None:
    """Stop or continue a host: by its cgroup, or process by process where it has none."""
    if cgroups.freeze(host.cgroups, frozen=frozen):
        return
    done: set[int] = set()
    while fresh := set(processes_of(host)) - done:  # what forked while we were at it comes next
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)
        done |= fresh


def kill(host: HostState) -> None:
    """End every process of a host. The first one of its PID namespace takes all others with it."""
    cgroups.freeze(host.cgroups, frozen=False)
    if host.anchor:
        end(host.anchor)
    cgroups.kill(host.cgroups)


def end(first: Process, *, limit_s: float = 30.0) -> None:
    """Kill the first process of a PID namespace and wait until the kernel has ended all others in it."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(first.pid)
        try:
            if is_alive(first):  # checked with the handle open, so it cannot come to mean another one
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [], limit_s)
        finally:
            os.close(handle)


def boot(state: LabState, plan: dict[str, Any]) -> Process:
    """Start the first process of a host again, beside the others, from the plan it was first made by."""
    program = "from fairlead.lab.inside import _boot; _boot()"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        into_keeper(state, [sys.executable, "-P", "-c", program]),
        input=json.dumps(plan), env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"error": {"detail": done.stderr}}
    if "error" in answer:
        raise LabError(
            "lab/refused",
            f"{plan['name']} does not boot: {answer['error']['detail']}",
            hint=f"fairlead lab down -n {state.name}",
        )
    return Process(**answer)


def _boot() -> None:
    """The far side of `boot`: forks the anchor and leaves it to the keeper."""
    from fairlead.lab import anchor

    plan = json.load(sys.stdin)
    answer = anchor.await_ready(*anchor.start(plan))
    sys.stdout.write(json.dumps(answer))
