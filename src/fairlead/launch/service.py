"""Services: programs on nodes that outlive the command that started them. One result for every node, as everywhere.

    deploy(cluster, nodes, Service(name="watch", source=text))      started, upgraded or unchanged
    status(cluster, nodes)                                          what runs where
    renew(cluster, nodes, "watch", lease_s=86_400)
    stop(cluster, nodes, "watch")                                   ended, and its files are gone

On a node systemd keeps it where there is one that takes a unit of ours: the system's for root, which starts it after a
boot, too; the user's own otherwise. Elsewhere a small supervisor does, which restarts it with growing pauses and ends
when its lease is not renewed. What Slurm starts in a step ends with the step, so there only systemd can keep a service;
without one, reach the nodes by ssh or begin it in the prolog.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fairlead.cluster import Cluster, Command, NodeSet, Program, Result
from fairlead.errors import UsageError
from fairlead.records.border import Border, Breach, Text, Word, shown

LEASE_S = 86_400.0
"""A day: whoever uses a service renews it long before."""
LIMIT_S = 60.0
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?\Z")
Pythons: TypeAlias = str | Mapping[str, str]
"""The Python that runs a service, and what looks after it: one for all nodes, or of each."""
_PARTS = (
    "fairlead.launch.onnode.supervisor",
    "fairlead.base.trust",
    "fairlead.launch.onnode.keeping",
    "fairlead.launch.onnode.service",
)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A program that shall run on nodes, whatever becomes of whoever started it."""

    name: str
    """Up to 32 lower-case letters, digits and dashes: it becomes a unit and a folder."""
    source: str = field(repr=False)
    """The program: one file of Python."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    lease_s: float = LEASE_S
    """How long a supervisor keeps it without hearing from anybody; systemd asks for none."""
    manager: Literal["auto", "systemd", "supervisor"] = "auto"

    def __post_init__(self) -> None:
        check_name(self.name)


class ServiceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one service is on one node."""

    node: str
    name: str
    state: Literal["running", "waiting", "dead", "absent", "unknown"]
    """waiting: it ended, and will be started again; dead: nobody will; absent: it is not there at all."""
    did: str = ""
    """What a request changed: started, upgraded, unchanged, stopped, nothing."""
    manager: str = ""
    pid: int = 0
    up_s: float = 0.0
    restarts: int = 0
    last_exit: str = ""
    lease_s: float = 0.0
    """Seconds that are left of a supervisor's lease."""
    digest: str = ""
    """Of program, arguments and environment: equal ones are the same service."""
    log: tuple[str, ...] = ()
    """Its last lines."""
    error: str = ""
    """Why the request failed on this node."""
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether the node did as asked, and the service is as it should be after that."""
        if self.did in ("stopped", "nothing"):
            return not self.error and self.state == "absent"
        fell = self.restarts and self.did in ("started", "upgraded")  # within its first moments
        return not self.error and self.state == "running" and not fell


class _Answer(msgspec.Struct, kw_only=True):
    did: Word = ""
    services: Annotated[list[dict[str, Any]], Meta(max_length=1024)] = []
    error: Text = ""
    hint: Text = ""


_answer = Border(_Answer, "an answer about services")


def check_name(name: str) -> str:
    """Raises UsageError for a name that cannot be a service's."""
    if not NAME.match(name):
        text = f"`{name}` cannot name a service: up to 32 lower-case letters, digits and dashes"
        raise UsageError("launch/service-name", text, hint="fairlead service ls")
    return name


def deploy(
    cluster: Cluster, nodes: NodeSet | str, service: Service, *, python: Pythons = "python3", limit_s: float = LIMIT_S
) -> list[ServiceState]:
    """Have it run on every node, as it is now: what runs already is left alone, what differs is replaced."""
    asked = {
        "do": "deploy",
        "name": service.name,
        "source": service.source,
        "args": list(service.args),
        "env": dict(service.env),
        "lease_s": service.lease_s,
        "manager": service.manager,
        "supervisor": Program.of("fairlead-supervisor", *_PARTS[:1], call="main()").source.decode(),
    }
    return _ask(cluster, nodes, asked, limit_s, python)


def status(
    cluster: Cluster, nodes: NodeSet | str, name: str = "", *, python: Pythons = "python3", limit_s: float = LIMIT_S
) -> list[ServiceState]:
    """Every service of this user on every node, or one of them; a node without any has none here."""
    return _ask(cluster, nodes, {"do": "status", "name": name and check_name(name)}, limit_s, python)


def renew(
    cluster: Cluster, nodes: NodeSet | str, name: str, *, lease_s: float = LEASE_S, python: Pythons = "python3",
    limit_s: float = LIMIT_S,
) -> list[ServiceState]:  # fmt: skip
    """Have supervisors keep it for so long from now."""
    return _ask(cluster, nodes, {"do": "renew", "name": check_name(name), "lease_s": lease_s}, limit_s, python)


def stop(
    cluster: Cluster, nodes: NodeSet | str, name: str, *, python: Pythons = "python3", limit_s: float = LIMIT_S
) -> list[ServiceState]:
    """End it, everything it started, and whoever kept it; remove its files."""
    return _ask(cluster, nodes, {"do": "stop", "name": check_name(name)}, limit_s, python)


def _ask(
    cluster: Cluster, nodes: NodeSet | str, asked: Mapping[str, Any], limit_s: float, python: Pythons
) -> list[ServiceState]:
    program = Program.of("fairlead-service", *_PARTS, call="answer()")
    commands = {}
    for node in NodeSet(nodes):
        its = python if isinstance(python, str) else python.get(node, "python3")
        told = json.dumps({**asked, "python": its}).encode() + b"\n"
        commands[node] = Command(argv=program.words(its), stdin=program.stdin + told, may_leave=True)
    results = cluster.run_each(commands, limit_s=limit_s)
    return [state for result in results for state in _states(result, str(asked["name"]))]


def _states(result: Result, name: str) -> Sequence[ServiceState]:
    """What a node answered; one that did not is unknown."""
    if result.ok:
        try:
            said = _answer(result.stdout.text)
        except Breach as breach:
            said = _Answer(error=f"it answered with {breach}")
    else:
        words = result.stderr.text.strip().splitlines()
        said = _Answer(error=result.error + (f": {shown(words[-1])}" if words else ""), hint=result.hint)
    if said.error:
        return [ServiceState(node=result.node, name=name, state="unknown", error=said.error, hint=said.hint)]
    try:
        return [msgspec.convert({**s, "node": result.node, "did": said.did}, ServiceState) for s in said.services]
    except msgspec.ValidationError as error:
        why = f"it answered with services that cannot be read: {shown(str(error))}"
        return [ServiceState(node=result.node, name=name, state="unknown", error=why)]
