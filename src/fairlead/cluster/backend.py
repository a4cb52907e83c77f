"""What differs between ways of reaching nodes: how a command there is a command here, and why it may be refused."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.protocol import Command, Refusal, State


class Backend(abc.ABC):
    """A way to reach nodes. One method says how; the others have answers that suit most.

    The engine pipes a program through the wrapped command: its standard input, output and error must pass through
    unchanged, and its end of file must arrive on the node.
    """

    name: str
    reach_s: float = 10.0
    """How long reaching a node may take, however short the limit of what it is asked to do."""

    @abc.abstractmethod
    def wrap(self, node: str, argv: Sequence[str]) -> list[str]:
        """The local command that runs `argv` on the node."""

    def wrap_contained(self, node: str, argv: Sequence[str]) -> list[str]:
        """The same, inside the container image the cluster file names; where it names none, `wrap`."""
        return self.wrap(node, argv)

    def container_of(self, node: str) -> str:
        """The image that `wrap_contained` uses there; empty where it uses none."""
        return ""

    def wrap_tasks(self, nodes: NodeSet, per_node: int, command: Command, options: Sequence[str]) -> list[str] | None:
        """One step of a scheduler that runs a command as `per_node` tasks on each node; None where there is none.

        The nodes are ready. Every line that a task writes is labelled with its number; which node that is, the
        scheduler is asked (slurmsteps.py).
        """
        return None

    def wrap_control(self, argv: Sequence[str]) -> list[str] | None:
        """A command of the scheduler itself (`scontrol`), as it runs here; None where there is no scheduler."""
        return None

    def environ(self) -> Mapping[str, str] | None:
        """The environment of the local command; None for this process's own."""
        return None

    async def ready(self, nodes: NodeSet) -> Mapping[str, Refusal]:
        """Make nodes usable (an allocation, say); returns those that cannot be used, and why.

        Raises MissingTool or SchedulerError where nothing can be run at all.
        """
        return {}

    def explain(self, node: str, rc: int | None, said: str) -> Refusal:
        """Why the wrapped command ended before the node-side program spoke: from its status and what it printed."""
        return self.explain_python(rc, said) or Refusal(
            State.UNREACHABLE, last_line(said) or f"{self.name} ended with status {rc} and said nothing"
        )

    def explain_python(self, rc: int | None, said: str) -> Refusal | None:
        """The one refusal every backend shares: the node was reached, but has no Python to run the program with."""
        if rc in (126, 127) or ("python" in said and ("not found" in said or "No such file" in said)):
            why = last_line(said) or "not found"
        elif "fairlead needs Python" in said:
            why = last_line(said)
        else:
            return None
        return Refusal(State.FAILED, f"no Python to run there: {why}", "name one with `python` in the node's [[pool]]")

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give everything back."""


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
