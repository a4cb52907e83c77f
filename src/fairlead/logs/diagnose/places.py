"""Which node a line is about: ranks, addresses and names of hosts become nodes of the job. Pure.

A rank's node is what NCCL says of it; else the layout by block, as srun has it unless it is told otherwise
(srun(1), --distribution=block): only where ranks divide evenly over nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fairlead.base.nodeset import NodeSet
from fairlead.errors import UsageError
from fairlead.logs.diagnose.model import Job, Line
from fairlead.logs.diagnose.signatures import Hit

_RANK = re.compile(r"\[(?:PG [^\]]{0,80} )?Rank (\d{1,6})\]")
_GLOBAL = re.compile(r"\[rank(\d{1,6})\]:|(\d{1,6}): ")
_QUOTES = re.compile(r"[\"']+")
_OF_TASK = re.compile(r"[._-](?:rank|task)?(\d{1,6})\.(?:out|err|log)\Z")


class Places:
    """Names of the nodes of one job."""

    def __init__(self, job: Job, hits: Iterable[Hit]) -> None:
        self.job = job
        self._names = {name: name for name in job.nodes} | {short(name): name for name in job.nodes}
        self._addresses: dict[str, str] = {}
        self._ranks: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        for hit in hits:
            host = self.node(hit.groups.get("host", ""))
            if host and "address" in hit.groups:
                self._addresses[hit.groups["address"]] = host
            if host and "rank" in hit.groups and "size" in hit.groups:
                rank, size = int(hit.groups["rank"]), int(hit.groups["size"])
                # a rank of a smaller communicator is another number
                if size >= self._sizes.get(rank, 0):
                    self._ranks[rank], self._sizes[rank] = host, size
        largest = max(self._sizes.values(), default=0)
        self._ranks = {rank: host for rank, host in self._ranks.items() if self._sizes[rank] == largest}

    def node(self, name: str) -> str:
        """The node of a host name or an address; empty where it is none of the job's."""
        return self._names.get(name) or self._names.get(short(name)) or self._addresses.get(name, "") if name else ""

    def of_rank(self, rank: int) -> str:
        """The node of a rank; empty where nobody can tell."""
        if rank in self._ranks:
            return self._ranks[rank]
        nodes, tasks = self.job.nodes, self.job.num_tasks
        if not nodes or (tasks or 0) % len(nodes) or not 0 <= rank < tasks:
            return nodes[0] if len(nodes) == 1 else ""
        return nodes[rank // (tasks // len(nodes))]

    def named(self, text: str) -> tuple[str, ...]:
        """Nodes of the job in a folded list, or in one of JSON."""
        text = _QUOTES.sub("", text)
        try:
            found = [self.node(name) for name in NodeSet(text.strip(",[]") if "[" not in text else text)]
        except UsageError:
            return ()
        return tuple(dict.fromkeys(name for name in found if name))

    def rank_of(self, line: Line, hit_rank: str = "") -> int | None:
        """The rank that speaks: what the words say, the launcher's mark, the name of its file. `[default3]:` is a rank
        of its node alone, and no rank of the job.
        """
        head = line.text[:200]
        for found in (hit_rank, _first(_RANK.search(head)), _first(_GLOBAL.match(head))):
            if found:
                return int(found)
        if (
            line.table == "slurmjobs_raw_CL"
            and (task := _first(_OF_TASK.search(line.path)))
            and self.job.id != int(task)
        ):
            return int(task)
        return None

    def of_speaker(self, line: Line, rank: int | None) -> str:
        """The node that speaks."""
        if line.table != "slurmjobs_raw_CL":
            return self.node(line.node)
        if found := self.node(line.node):
            return found
        if rank is not None and (found := self.of_rank(rank)):
            return found
        name = line.path.rpartition("/")[2]
        inside = [
            node
            for node in self.job.nodes
            if re.search(rf"(?<![A-Za-z0-9-]){re.escape(short(node))}(?![A-Za-z0-9-])", name)
        ]
        return inside[0] if len(inside) == 1 else self.job.nodes[0] if len(self.job.nodes) == 1 else ""


def short(name: str) -> str:
    """A host name without its domain; an address as it is."""
    return name if name.replace(".", "").isdigit() or ":" in name else name.partition(".")[0]


def _first(found: re.Match[str] | None) -> str:
    return next((group for group in found.groups() if group), "") if found else ""
