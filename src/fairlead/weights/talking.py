"""The nodes of a spread, as the control side talks to them: orders out, what they say in.

What a node says is held to its type before anybody looks at it; who said it is the connection it came by. Must not know
what is spread, nor who takes from whom.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from fairlead.base.nodeset import NodeSet
from fairlead.cluster import Line, Program, Result
from fairlead.cluster.heard import Key
from fairlead.cluster.protocol import Message
from fairlead.records.border import Breach, shown
from fairlead.records.log import tell
from fairlead.weights.outcome import NodeState
from fairlead.weights.told import TOLD, Told

log = logging.getLogger("fairlead.weights")
START_S = 60.0
"""How long nodes may take to start and to say what they have, beyond the time of the first."""


class Group(Protocol):
    """The programs on nodes, as a spread talks to them; see cluster/live.py."""

    @property
    def num_starting(self) -> int: ...  # noqa: D102
    @property
    def has_unread(self) -> bool: ...  # noqa: D102
    def send(self, message: Message, to: str | None = None) -> None: ...  # noqa: D102
    def read_all(self, timeout_s: float) -> Sequence[Line]: ...  # noqa: D102
    def take_ended(self) -> list[tuple[Key, Result]]: ...  # noqa: D102
    def close(self, grace_s: float = 0.0) -> object: ...  # noqa: D102
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None, /
    ) -> None: ...


class Starter(Protocol):
    """Whoever starts them: a Cluster, or the ranks of an MPI job."""

    def start(self, program: Program, nodes: NodeSet, *, limit_s: float) -> Group: ...  # noqa: D102


class Talk:
    """With the programs of one spread."""

    def __init__(
        self, group: Group, nodes: Sequence[NodeState], num_chunks: int, gone: Callable[[NodeState], None]
    ) -> None:
        """`gone` is told of each node that takes no further part, or has ended when all was done."""
        self.group, self.nodes, self.num_chunks, self.gone = group, nodes, num_chunks, gone
        self.by_name = {n.name: n for n in nodes}
        self.early: list[tuple[NodeState, Told]] = []
        """What was said while something else was waited for."""

    def say(self, what: Mapping[str, Any], to: NodeState | None = None) -> None:
        """An order to one node, or to all."""
        self.group.send(json.dumps(what, separators=(",", ":")), to=to.name if to is not None else None)

    def read(self, wait_s: float) -> list[tuple[NodeState, Told]]:
        """What nodes said; those that ended are lost."""
        out = []
        for line in self.group.read_all(wait_s):
            node = self.by_name.get(line.node)
            if node is None or node.failed is not None:
                continue
            if line.stream != "stdout" or not line.text.startswith("{"):
                tell(log, "words of a node", node=line.node, text=shown(line.text))
                continue
            try:
                told = TOLD(line.text)
                if any(c >= self.num_chunks for c in told.chunks):
                    raise Breach("chunks that there are not", line.text)  # noqa: TRY301
                node.heard_s = time.monotonic()
                out.append((node, told))
            except Breach as breach:
                self.lose(node, "cluster/bad-answer", f"it sent {breach}")
        if not self.group.has_unread:  # an end is known before the last words are read
            for (name, _), result in self.group.take_ended():
                node = self.by_name.get(name)
                if node is None or node.failed is not None:
                    continue
                if node.root:
                    self.gone(node)
                else:
                    self.lose(
                        node, result.code or "weights/node-lost", result.error or "its program ended", result.hint
                    )
        return out

    def until(self, has: Callable[[NodeState], bool], take: Callable[[NodeState, Told], None], do: str) -> None:
        """Wait until every node that can has said it."""
        deadline = time.monotonic() + START_S
        while any(n.failed is None and not has(n) for n in self.nodes):
            for node, told in self.read(1.0):
                deadline = time.monotonic() + START_S  # who puts chunks together from what is there says that it lives
                if told.do == do:
                    take(node, told)
                elif told.do == "failed":
                    self.lose(node, told.code, told.text, told.hint)
                elif told.do not in ("here", "look"):
                    self.early.append((node, told))
            if self.group.num_starting:
                deadline = time.monotonic() + START_S
            if time.monotonic() > deadline:
                for n in self.nodes:
                    if n.failed is None and not has(n):
                        self.lose(n, "weights/node-lost", f"it said nothing for {START_S:g} s")

    def lose(self, node: NodeState, code: str, text: str, hint: str = "") -> None:
        """A node takes no further part."""
        node.failed = (code or "weights/node-fault", text, hint)
        tell(log, "node is out", level=logging.WARNING, node=node.name, code=code, why=text)
        self.gone(node)
