"""What a running lab is, for whoever wants to enter it, change it or look at it: the one record `lab up` leaves.

Processes are named by pid and start time together: a pid alone may have come to mean another process. Namespaces of
switches have names below the keeper's mount namespace, `/proc/<keeper>/root/run/netns/<name>`; those of a host are its
anchor's, `/proc/<anchor>/ns/*`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

STATE_SCHEMA = "fairlead.lab-state/1"


class Process(msgspec.Struct, frozen=True):
    """A process for as long as it lives."""

    pid: int
    start: int
    """Clock ticks since boot, from /proc/PID/stat."""


class HostPort(msgspec.Struct, frozen=True, kw_only=True):
    """A host's port in one plane."""

    plane: int
    interface: str
    address: str
    """The port's own address: what is left of a path, and where ordinary sockets reach this host in this plane only."""
    link: str
    mac: str


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: str
    number: int
    t0: int
    port: int
    """The T0 it sits below, and at which of its ports; the same in every plane."""
    management: str
    fabric: str
    """The address ordinary programs use; traffic to it is spread over all planes."""
    ports: tuple[HostPort, ...] = ()
    anchor: Process | None = None
    """First process of the host's namespaces; None while the host is dead."""
    cgroups: tuple[str, ...] = ()
    """Directories whose cgroup.procs a process entering the host joins."""


class SwitchState(msgspec.Struct, frozen=True, kw_only=True):
    """One switch."""

    name: str
    plane: int
    tier: Literal[0, 1]
    index: int
    netns: str
    segment: str
    """The /48 it acts on."""


class LinkEnd(msgspec.Struct, frozen=True):
    """One end of a link."""

    netns: str
    device: str


class LinkState(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the fabric; `upper` is the end closer to T1."""

    name: str
    plane: int
    lower: LinkEnd
    upper: LinkEnd
    rate_mbps: int


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that is in force."""

    id: int
    kind: str
    target: str
    params: dict[str, str] = {}
    since: str = ""
    """UTC."""


class SlurmState(msgspec.Struct, frozen=True, kw_only=True):
    """The lab's own Slurm."""

    head: str
    """The node that runs slurmctld and from which its commands work."""
    bin: str
    """A directory on the machine with srun, sbatch, ... of this Slurm: first in PATH, they are the lab's."""
    partition: str


class SshState(msgspec.Struct, frozen=True, kw_only=True):
    """The lab's own OpenSSH servers."""

    config: str
    """A client configuration on the machine: `ssh -F CONFIG n0`."""
    options: tuple[str, ...]
    """The same as settings for `ssh -o`."""


class LabState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a lab. Phase `building` is a journal: what may have been made and must go."""

    schema: str = STATE_SCHEMA
    name: str
    phase: Literal["building", "up"]
    created: str
    uid: int
    is_rootless: bool
    """Made by an ordinary user: entering begins with the keeper's user namespace."""
    shape: dict[str, Any]
    """The LabShape it was built from."""
    cgroup_roots: tuple[str, ...] = ()
    """Directories below which the lab's cgroups are; the lab's alone."""
    keeper: Process | None = None
    hosts: tuple[HostState, ...] = ()
    switches: tuple[SwitchState, ...] = ()
    links: tuple[LinkState, ...] = ()
    faults: tuple[Fault, ...] = ()
    slurm: SlurmState | None = None
    ssh: SshState | None = None

    def host(self, name: str) -> HostState | None:
        """The host of that name."""
        return next((h for h in self.hosts if h.name == name), None)


class PortStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a link as the kernel counts it."""

    is_up: bool
    has_carrier: bool
    rate_mbps: int | None = None
    """What the port is held to; None if nothing holds it."""
    rx_packets: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    drops: int = 0
    """Dropped by the port's queue."""
    backlog_bytes: int = 0


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One link, both ends."""

    name: str
    plane: int
    lower: PortStatus
    upper: PortStatus
    faults: tuple[int, ...] = ()
    """Faults in force on it, by id."""

    @property
    def has_carrier(self) -> bool:
        """Whether both ends see each other."""
        return self.lower.has_carrier and self.upper.has_carrier


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: str
    state: Literal["up", "hung", "dead"]
    num_processes: int = 0
    scratch_used_pct: float | None = None
    faults: tuple[int, ...] = ()


class LabStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A lab at one moment; with the LabState, all that a drawing needs."""

    name: str
    is_up: bool
    hosts: tuple[HostStatus, ...] = ()
    links: tuple[LinkStatus, ...] = ()
    faults: tuple[Fault, ...] = ()
