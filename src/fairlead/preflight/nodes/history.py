"""Which node failed in which preflight: a small file that outlives runs, so that a node's bad days add up.

    STATE/history.jsonl     one line a run (records/journal.py): who was asked, who failed of what

Only nodes' own problems count: a wrong request or an odd
Python environment is no mark against a machine. A failure counts for the machine that failed: one that was put in its
place under the same name, with another machine-id, begins anew.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead.base.nodeset import NodeSet
from fairlead.errors import UsageError
from fairlead.preflight.slurm.reason import Who, who_acts
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.records.finding import Evidence, Finding, node
from fairlead.records.journal import Journal
from fairlead.records.verdict import Verdict

FILE = "history.jsonl"
SOME = 8
"""Machine-ids kept of nodes that did not fail: enough to see that all machines are others."""
WINDOW = 10
AT_LEAST = 3
_OWN = ("node", "device", "port", "rank")
_OF_SLURM = ("preflight/node-state", "preflight/not-in-slurm")


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One preflight."""

    run: str
    time: str
    """UTC, ISO 8601."""
    cluster: str = ""
    nodes: str
    """Everybody who was asked, folded."""
    failed: dict[str, tuple[str, ...]] = {}
    """Node -> codes of its own faults."""
    machines: dict[str, str] = {}
    """Node -> its machine-id (man 5 machine-id): of those that failed, where it could be read, and of some others."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """How a node did in its last preflights."""

    of: int
    """How many of them there are."""
    failures: tuple[tuple[Entry, tuple[str, ...]], ...]
    """Those it failed in, and of what; oldest first."""

    @property
    def failed(self) -> int:
        """In how many it failed."""
        return len(self.failures)

    @property
    def codes(self) -> tuple[str, ...]:
        """Of what, the most frequent first."""
        return tuple(code for code, _ in Counter(c for _, codes in self.failures for c in codes).most_common())

    def __str__(self) -> str:
        what = ", ".join(self.codes[:3]) + (", ..." if len(self.codes) > 3 else "")
        since = self.failures[0][0].time[:10]
        return f"failed {self.failed} of its last {self.of} preflights, first on {since} ({what})"


# ---- pure ------------------------------------------------------------------------------------------------------------


def machine_ids(facts: Iterable[NodeFacts]) -> dict[str, str]:
    """The machine-id of each node that says one."""
    found = {}
    for record in facts:
        with contextlib.suppress(Unread):
            found[record.node] = str(Facts(record).get("host.identity.machine_id"))
    return found


def entry_of(
    run_id: str,
    when: dt.datetime,
    nodes: NodeSet,
    findings: Iterable[Finding],
    *,
    cluster: str = "",
    machines: Mapping[str, str] | None = None,
) -> Entry:
    """What a run leaves in the history."""
    failed: dict[str, dict[str, None]] = {}
    known = machines or {}
    for finding in findings:
        is_own = finding.subject.kind in _OWN and finding.code not in _OF_SLURM
        if finding.verdict is Verdict.FAIL and is_own and who_acts(finding.code) is Who.NODE:
            for name in finding.subject.nodes:
                failed.setdefault(name, {})[finding.code] = None
    return Entry(
        run=run_id,
        time=when.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        cluster=cluster,
        nodes=str(nodes),
        failed={name: tuple(codes) for name, codes in failed.items()},
        machines={name: known[name] for name in (*failed, *list(known)[:SOME]) if name in known},
    )


def of_these(entries: Iterable[Entry], machines: Mapping[str, str]) -> list[Entry]:
    """The entries as far as they are about the machines that stand there now.

    Where every machine that can be compared is another one, so are those of which nobody read the machine-id.
    """
    out = []
    for entry in entries:
        both = entry.machines.keys() & machines.keys()
        gone = {name for name in both if entry.machines[name] != machines[name]}
        if gone and gone == both:
            continue
        if gone:
            nodes = str(NodeSet(_asked(entry.nodes) - gone))
            failed = {name: codes for name, codes in entry.failed.items() if name not in gone}
            out.append(msgspec.structs.replace(entry, nodes=nodes, failed=failed))
        else:
            out.append(entry)
    return out


@functools.lru_cache(maxsize=256)
def _asked(folded: str) -> frozenset[str]:
    """Everybody a folded set names; nobody where it is none. Runs ask for the same few sets again and again."""
    try:
        return frozenset(NodeSet(folded))
    except UsageError:
        return frozenset()


def repeats(entries: Sequence[Entry], name: str, window: int = WINDOW) -> Repeats | None:
    """A node's failures in its last `window` preflights, oldest entry first; None where there are none."""
    last = [e for e in entries if name in _asked(e.nodes)][-window:]
    failures = tuple((e, e.failed[name]) for e in last if name in e.failed)
    return Repeats(len(last), failures) if failures else None


def judge_history(
    past: Sequence[Entry], now: Entry, *, window: int = WINDOW, at_least: int = AT_LEAST
) -> list[Finding]:
    """A warning for each node of this run that failed in so many of its last preflights, this one included."""
    everything = [*past, now]
    suspects = {name for e in everything for name in e.failed} & _asked(now.nodes)
    found = {name: repeats(everything, name, window) for name in NodeSet(suspects)}
    return [_offender(name, r, at_least) for name, r in found.items() if r and r.failed >= at_least]


def _offender(name: str, found: Repeats, at_least: int) -> Finding:
    return Finding(
        code="preflight/repeat-offender",
        verdict=Verdict.WARN,
        subject=node(name),
        message=str(found),
        evidence=tuple(Evidence(f"run {e.run}", ", ".join(codes)) for e, codes in found.failures),
        remedy=f"drain it and have it repaired, even if it passes now: scontrol update nodename={name} state=drain",
        data={"failed": found.failed, "of": found.of, "limit": at_least, "codes": list(found.codes)},
    )


def failed_before(past: Sequence[Entry], now: Entry, window: int = WINDOW) -> dict[str, str]:
    """Node -> how often it failed, in words, for nodes that fail now and did before within the window."""
    found = {name: repeats([*past, now], name, window) for name in now.failed}
    return {name: str(r) for name, r in found.items() if r and r.failed > 1}


# ---- the file --------------------------------------------------------------------------------------------------------


class History:
    """The file, for one cluster; entries of other clusters are kept and not seen."""

    def __init__(self, place: Path, cluster: str = "") -> None:
        self._journal = Journal(place / FILE, Entry)
        self._cluster = cluster

    def entries(self) -> list[Entry]:
        """Every preflight remembered, oldest first. No file, no entries."""
        return [e for e in self._journal.entries() if e.cluster == self._cluster]

    def add(self, entry: Entry) -> bool:
        """Remember one; False where somebody holds the lock too long. Raises DiskFull or NotPermitted."""
        return self._journal.add(entry)
