"""Nodes that are lab hosts: entered by their namespaces, from the lab's record alone."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence

from fairlead.base.nodeset import NodeSet
from fairlead.base.suggest import did_you_mean
from fairlead.cluster import enter, scheduler
from fairlead.cluster.backend import Backend, last_line
from fairlead.cluster.protocol import Command, Refusal, State
from fairlead.cluster.slurm import new_step, tasks_step
from fairlead.errors import LabError

_CANCEL_LIMIT_S = 10.0


def slurm_environ(lab: str) -> dict[str, str]:
    """An environment in which Slurm is the lab's own, for a SlurmBackend. LabError `lab/no-slurm` where it has none."""
    state = enter.running(lab)
    if state.slurm is None:
        raise LabError(
            "lab/no-slurm", f"the lab `{lab}` has no Slurm", hint="set `lab = true` in [slurm], then build it"
        )
    return {**os.environ, "PATH": f"{state.slurm.bin}:{os.environ.get('PATH', os.defpath)}"}


class LabBackend(Backend):
    """The hosts of one lab on this machine. Raises LabError `lab/not-up` from `ready` where it does not stand."""

    name = "lab"

    def __init__(self, lab: str) -> None:
        self._lab = lab
        self._tag = f"fairlead-{secrets.token_hex(4)}"
        """What names of jobs in the lab's Slurm begin with."""
        self._jobs: list[str] = []

    def environ(self) -> Mapping[str, str]:
        """This process's own, with the place first where a host keeps the tools of the hardware it shows."""
        return {**os.environ, "PATH": f"/usr/local/bin:{os.environ.get('PATH', os.defpath)}"}

    async def ready(self, nodes: NodeSet) -> Mapping[str, Refusal]:
        """Which hosts there are, and which of them live. A frozen one counts as living, as a hung machine does."""
        state = enter.running(self._lab)
        known = [host.name for host in state.hosts]
        refused: dict[str, Refusal] = {}
        for node in nodes:
            host = state.host(node)
            if host is None:
                why = f"the lab `{self._lab}` has no such host; {did_you_mean(node, known)}"
                refused[node] = Refusal(State.UNREACHABLE, why, "fairlead lab status")
            elif not enter.is_alive(host.anchor):
                refused[node] = Refusal(State.UNREACHABLE, "the lab host is dead", "fairlead lab status")
        return refused

    def wrap(self, node: str, argv: Sequence[str]) -> list[str]:
        """Into the host's cgroups and namespaces. The record is read anew: a host may have been booted meanwhile."""
        state = enter.running(self._lab)
        host = state.host(node)
        if host is None or not enter.is_alive(host.anchor):
            return ["sh", "-c", "echo the lab host is dead >&2; exit 125"]
        return enter.into_host(state, host, argv)

    def wrap_tasks(self, nodes: NodeSet, per_node: int, command: Command, options: Sequence[str]) -> list[str] | None:
        """One step of the lab's own Slurm; nobody else uses the lab, so no allocation comes first."""
        slurm = enter.running(self._lab).slurm
        if slurm is None:
            return None
        self._jobs.append(name := new_step(self._tag))
        place = [f"--partition={slurm.partition}", f"--job-name={name}", *options]
        return self.wrap_control(tasks_step(nodes, per_node, place, command.env, command.argv))

    def wrap_control(self, argv: Sequence[str]) -> list[str] | None:
        """The commands of the lab's own Slurm work on its head."""
        state = enter.running(self._lab)
        head = state.host(state.slurm.head) if state.slurm else None
        if head is None or not enter.is_alive(head.anchor):
            return None
        return enter.into_host(state, head, argv)

    async def close(self) -> None:
        """Cancel what is left in the lab's Slurm: the job of an srun that was killed outlives it."""
        while self._jobs:
            with contextlib.suppress(LabError):  # the lab may have gone down meanwhile
                argv = self.wrap_control(["scancel", f"--name={self._jobs.pop()}"])
                if argv is not None:
                    await scheduler.ask(argv, self.environ(), _CANCEL_LIMIT_S)

    def explain(self, node: str, rc: int | None, said: str) -> Refusal:
        """`nsenter` and the shell before it speak for themselves; what they say is about the host, not the command."""
        if not enter.is_up(enter.read(self._lab)):
            return Refusal(State.UNREACHABLE, f"the lab `{self._lab}` went down", "fairlead lab up")
        if "nsenter:" in said or rc == 125:
            return Refusal(
                State.UNREACHABLE, last_line(said) or "the lab host cannot be entered", "fairlead lab status"
            )
        return super().explain(node, rc, said)
