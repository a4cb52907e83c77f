"""Finding a lab by its record, and the words that put a command inside it.

Knows: where labs leave their records, who of them is alive, and the programs `sh` and `nsenter`. Must not know: how
labs are built or changed (`lab/` does, and writes the records), or what is run in them.

    DIR/<name>/state.json    the LabState, always whole

DIR is /run/fairlead/labs for root, otherwise below the user's run-time or state directory; FAIRLEAD_LABS names another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairlead.base.process import start_ticks
from fairlead.base.suggest import did_you_mean
from fairlead.base.trust import NotOurs, own_folder, read_file
from fairlead.errors import LabError
from fairlead.records.codec import from_json
from fairlead.records.journal import state_place
from fairlead.records.labstate import HostState, LabState, Process

RECORD = "state.json"
MAX_BYTES = 1 << 28
"""What a lab's record can be at most."""


def place() -> Path:
    """The directory of all labs of this user."""
    if chosen := os.environ.get("FAIRLEAD_LABS"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/run/fairlead/labs")
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return (Path(base) / "fairlead" if base.startswith("/") else state_place()) / "labs"


def folder(name: str) -> Path:
    """A lab's own directory."""
    return place() / name


def names() -> list[str]:
    """Every lab that has a directory."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(p.name for p in place().iterdir() if p.is_dir())
    return []


def read(name: str) -> LabState | None:
    """A lab's record; None where there is none. Raises LabError `lab/bad-record` where it cannot be read.

    Its words are run, so it counts only where nobody else could have written it.
    """
    try:
        own_folder(folder(name), make=False)
        return from_json(read_file(folder(name) / RECORD, MAX_BYTES, ours=True), LabState)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise LabError(
            "lab/bad-record",
            f"the record of the lab `{name}` cannot be read: {_why(error)}",
            hint=f"fairlead lab down --name {name}" if not isinstance(error, NotOurs) else f"ls -ld {error.filename}",
        ) from error


def running(name: str) -> LabState:
    """The record of a lab that stands. Raises LabError `lab/not-up`."""
    state = read(name)
    if state is None or not is_up(state):
        up = standing()
        near = f"; {did_you_mean(name, up)}" if up else ""
        other = f', or name one that stands in the cluster file: [lab] name = "{up[0]}"' if up else ""
        raise LabError("lab/not-up", f"the lab `{name}` is not up{near}", hint=f"fairlead lab up{other}")
    return state


def standing() -> list[str]:
    """Every lab that stands. One whose record is spoilt is not known to; it says so when it is asked for by name."""
    found = []
    for name in names():
        with contextlib.suppress(LabError):
            if is_up(read(name)):
                found.append(name)
    return found


def is_up(state: LabState | None) -> bool:
    """Whether a lab stands."""
    return state is not None and state.phase == "up" and is_alive(state.keeper)


def is_alive(process: Process | None) -> bool:
    """Whether a process is still the one that was meant."""
    return process is not None and start_ticks(process.pid) == process.start


def _why(error: Exception) -> str:
    """What is wrong with a record, with the place where that is another."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


# the shell (`0`) joins the host's cgroups first, so that freezing or killing the host takes in what runs there. An
# ordinary user may be in a session from which it cannot: then the command runs, and a freeze passes it by
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || %s; shift; done; shift; exec "$@"'


def into_host(state: LabState, host: HostState, argv: Sequence[str]) -> list[str]:
    """A command as it runs on a lab host: in its cgroups and all its namespaces.

    The host must be alive; check `host.anchor` before.
    """
    assert host.anchor is not None, "a dead host cannot be entered"
    words = ["nsenter", "-t", str(host.anchor.pid), *_user(state), "-m", "-u", "-i", "-n", "-p", "--", *argv]
    join = _JOIN % ("true" if state.is_rootless else "exit 125")
    return ["sh", "-c", join, "sh", *host.cgroups, "--", *words] if host.cgroups else words


def into_netns(state: LabState, netns: str, argv: Sequence[str]) -> list[str]:
    """A command in the network namespace of a switch (`p2-t0-1`), a host or `mgmt`, and nothing else of it."""
    assert state.keeper is not None
    place = f"/proc/{state.keeper.pid}/root/run/netns/{netns}"
    return ["nsenter", "-t", str(state.keeper.pid), *_user(state), f"--net={place}", "--", *argv]


def into_keeper(state: LabState, argv: Sequence[str]) -> list[str]:
    """A command beside the keeper: in the lab, on no host."""
    assert state.keeper is not None
    return ["nsenter", "-t", str(state.keeper.pid), *_user(state), "-m", "-u", "-i", "-n", "-p", "--", *argv]


def _user(state: LabState) -> list[str]:
    return ["-U", "--preserve-credentials"] if state.is_rootless else []
