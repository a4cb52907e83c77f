"""Who did not come to a collective: from what watchdogs say, and from dumps of the flight recorder. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairlead.logs.diagnose.events import Event
from fairlead.logs.diagnose.model import Evidence, Rank


class Missing(NamedTuple):
    """Ranks that were not where the others waited."""

    ranks: tuple[int, ...]
    says: str
    firm: bool = False
    """Each rank was heard, and said so itself."""
    nodes: tuple[str, ...] = ()
    """Whose ranks these are, where only that is known."""


def missing(symptoms: Iterable[Event], evidence: Evidence) -> Missing | None:
    """Who kept the others waiting; None where nothing tells."""
    return from_dumps(evidence.dumps) or _from_watchdogs([s for s in symptoms if s.cls == "hang"], evidence)


def _from_watchdogs(hangs: list[Event], evidence: Evidence) -> Missing | None:
    enqueued = {
        e.rank: int(e.hit.groups["enqueued"][:18]) for e in hangs if e.rank is not None and "enqueued" in e.hit.groups
    }
    waits = {
        e.rank: (int(e.hit.groups["seq"][:18]), e.hit.groups["op"])
        for e in hangs
        if e.rank is not None and "seq" in e.hit.groups
    }
    num = evidence.job.num_tasks
    if len(enqueued) > 2 and (behind := _behind(enqueued)):
        return Missing(
            behind, f"fell behind: enqueued {enqueued[behind[0]]}, others {max(enqueued.values())}", firm=True
        )
    if len(waits) > 2 and (behind := _behind({rank: seq for rank, (seq, _) in waits.items()})):
        return Missing(behind, f"still waits for number {waits[behind[0]][0]}, others for a later one", firm=True)
    heard = set(waits) | set(enqueued)
    if num and len(heard) * 2 >= num:
        silent = tuple(rank for rank in range(num) if rank not in heard)
        if silent and len(silent) * 4 <= num:
            seq, name = Counter(waits.values()).most_common(1)[0][0] if waits else (0, "a collective")
            return Missing(silent, f"did not say that it waits for {name} number {seq}, as the others do")
    spoke = {name for e in hangs for name in e.nodes}
    quiet = tuple(name for name in evidence.job.nodes if name not in spoke)
    if len(spoke) > 1 and quiet and len(quiet) * 4 <= len(evidence.job.nodes):
        return Missing((), "did not say that they wait, as those of all other nodes do", nodes=quiet)
    return None


def _behind(values: Mapping[int, int]) -> tuple[int, ...]:
    """Those below what most have, where they are few."""
    common, votes = Counter(values.values()).most_common(1)[0]
    low = sorted(rank for rank, value in values.items() if value < common)
    if not low or votes * 2 <= len(values) or len(low) * 4 > len(values):
        return ()
    return tuple(low)


def from_dumps(dumps: tuple[Rank, ...]) -> Missing | None:
    """The first collective of a group that some of its ranks never scheduled, or scheduled as another one, while others
    wait in it.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    groups = {name: members for dump in dumps for name, members in dump.members.items()}
    worst: tuple[int, Missing] | None = None
    for name, members in groups.items():
        present = [rank for rank in members if rank in by_rank]
        numbers = {seq for rank in present for seq in by_rank[rank].groups.get(name, {})}
        for seq in sorted(numbers):
            said = {rank: by_rank[rank].groups.get(name, {}).get(seq, "") for rank in present}
            late = tuple(
                rank for rank in present
                if not said[rank] and max(by_rank[rank].groups.get(name, {}), default=-1) < seq
            )  # fmt: skip
            waiting = [rank for rank in present if said[rank] and not said[rank].endswith(" completed")]
            kinds = Counter(text.rpartition(" ")[0] for text in said.values() if text)
            odd: tuple[int, ...] = ()
            if len(kinds) > 1 and waiting:
                common, votes = kinds.most_common(1)[0]
                odd = tuple(r for r in present if said[r] and said[r].rpartition(" ")[0] != common)
                odd = odd if votes > len(odd) else ()
            gone = tuple(rank for rank in members if rank not in by_rank) if len(present) * 2 > len(members) else ()
            guilty = late or odd or (gone if waiting else ())
            if guilty and waiting and len(guilty) < len(members):
                what = kinds.most_common(1)[0][0] if kinds else "a collective"
                how = (
                    "never came to"
                    if late
                    else "came with another call than"
                    if odd
                    else "left no dump, and others wait in"
                )
                found = Missing(guilty, f"{how} {what} number {seq} of group {name}", firm=bool(late or odd))
                if worst is None or seq < worst[0]:
                    worst = (seq, found)
                break
    return worst[1] if worst else None
