"""How to enter a lab host, from its record alone: the words to put before a command.

Knows: LabState and the programs `sh` and `nsenter`. Must not know: how labs are built, or what is run in them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.records.labstate import HostState, LabState

# the shell joins the host's cgroups first, so that freezing or killing the host takes in what runs there; `0` is itself
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


def into_host(state: LabState, host: HostState, argv: Sequence[str]) -> list[str]:
    """A command as it runs on a lab host: its cgroups and all its namespaces.

    The host must be alive; check `host.anchor` by pid and start time before.
    """
    assert host.anchor is not None, "a dead host cannot be entered"
    words = ["nsenter", "-t", str(host.anchor.pid), *_user(state), "-m", "-u", "-i", "-n", "-p", "--", *argv]
    return ["sh", "-c", _JOIN, "sh", *host.cgroups, "--", *words] if host.cgroups else words


def into_netns(state: LabState, netns: str, argv: Sequence[str]) -> list[str]:
    """A command in the network namespace of a switch (`p2-t0-1`), a host or `mgmt`, and nothing else of it."""
    assert state.keeper is not None
    place = f"/proc/{state.keeper.pid}/root/run/netns/{netns}"
    return ["nsenter", "-t", str(state.keeper.pid), *_user(state), f"--net={place}", "--", *argv]


def into_keeper(state: LabState, argv: Sequence[str]) -> list[str]:
    """A command beside the keeper: in the lab, below no host."""
    assert state.keeper is not None
    return ["nsenter", "-t", str(state.keeper.pid), *_user(state), "-m", "-u", "-i", "-n", "-p", "--", *argv]


def _user(state: LabState) -> list[str]:
    return ["-U", "--preserve-credentials"] if state.is_rootless else []
