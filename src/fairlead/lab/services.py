"""What runs on a lab's hosts besides their first process: OpenSSH and Slurm, where the shape asks for them.

Knows: which service needs what, and when to start it. Must not know: any service's own files (sshd.py, slurm.py).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fairlead.errors import NotPermitted
from fairlead.lab import slurm, sshd, store
from fairlead.lab.shape import LabShape
from fairlead.records.labstate import HostState, LabState


def tools(shape: LabShape) -> dict[str, str]:
    """Programs the services need, and the packages they come in."""
    return (sshd.TOOLS if shape.sshd else {}) | (slurm.TOOLS if shape.slurm else {})


def check(shape: LabShape, *, privileged: bool) -> None:
    """Refuse what an ordinary user cannot have: both daemons become other users, and a user namespace has only one."""
    wanted = [name for name, is_on in (("OpenSSH", shape.sshd), ("Slurm", shape.slurm)) if is_on]
    if wanted and not privileged:
        raise NotPermitted(
            "lab/service-needs-root",
            f"{' and '.join(wanted)} in a lab: only for root, as an ordinary user cannot become others",
            hint="run as root, or leave out `sshd` in [lab] and `lab` in [slurm]",
        )


def prepare(shape: LabShape, folder: Path) -> None:
    """Make keys, before any host exists."""
    if shape.sshd:
        sshd.make_keys(folder)
    if shape.slurm:
        slurm.make_key(folder)


def files(shape: LabShape, state: LabState) -> dict[str, str]:
    """Files of the services, the same on every host."""
    folder = store.folder(shape.name)
    found: dict[str, str] = {}
    if shape.sshd:
        found |= sshd.files(folder)
    if shape.slurm:
        found |= slurm.files(shape, state, folder)
    return found


def private(shape: LabShape) -> tuple[str, ...]:
    """Those files that only their owner may read."""
    return (sshd.PRIVATE if shape.sshd else ()) + (slurm.PRIVATE if shape.slurm else ())


def start(shape: LabShape, state: LabState) -> LabState:
    """Start everything on a lab whose hosts stand; returns its record with the services in it."""
    if shape.sshd:
        for host in state.hosts:
            sshd.start_host(state, host)
        state = msgspec.structs.replace(state, ssh=sshd.client(state, store.folder(shape.name)))
    if shape.slurm:
        state = msgspec.structs.replace(state, slurm=slurm.start(shape, state, store.folder(shape.name)))
    return state


def start_host(shape: LabShape, state: LabState, host: HostState) -> None:
    """Start everything on one host, after it was booted again."""
    if shape.sshd:
        sshd.start_host(state, host)
    if shape.slurm:
        slurm.start_host(state, host)
