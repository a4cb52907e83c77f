"""What Slurm itself says of the nodes: their states, the reasons for them, and the GPUs it believes in. Pure.

Reads `scontrol show node`, one node a line, or its JSON. The words of states are in cluster/slurmwords.py; what stands
around them is here, from 20.11 to 25.05. Knows nothing of how scontrol is reached.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from fairlead.base.nodeset import is_name
from fairlead.cluster.slurmwords import Work, are, node_words, unknown
from fairlead.preflight.slurm.reason import bare, is_ours
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

SHOW = ("scontrol", "show", "node", "-o", "--local", "--all")
"""`--local`: in a federation, other clusters may have nodes of the same names. `--all`: also nodes whose partitions are
hidden from this user, which else look as if Slurm did not know them."""
_BEHIND = " (?:Comment|Extra|InstanceId|InstanceType|ReservationName|TLSCert[A-Za-z]*|Topology)="
_TAIL = re.compile(_BEHIND)
"""What may follow the reason in a line: 20.11 has a comment there, 25.05 seven fields."""
_STAMP = re.compile(rf"( \[[^\[\]@]*@\d{{4}}-[^\[\]]*\])(?=\s*$| {{8}}|{_BEHIND})")
"""Slurm's own `[user@time]`. It stands behind the first line of a reason; further lines follow behind eight blanks."""
_GPUS = re.compile(r"gpu(?::([^:,()]+))?:(\d{1,9})\b")
_SLICE = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)
"""In the type of a slice of a GPU (MIG), as gres.conf has them: `a100_3g.20gb`, `1g.10gb`."""


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node in Slurm's words."""

    name: str
    states: tuple[str, ...]
    """`IDLE`, `DRAIN`, ...; marks are words, too: NOT_RESPONDING stands for Slurm's asterisk."""
    reason: str = ""
    """With `[user@time]` behind all of its lines."""
    gpus: int | None = None
    """Configured GPUs; None where Slurm knows no such resource on any node, or counts slices of GPUs."""
    cpus: int = 0
    address: str = ""
    """What Slurm's daemons use to reach it: an address or a name."""

    @property
    def bad_states(self) -> list[str]:
        """States in which Slurm gives the node no new work."""
        return are(self.states, Work.REFUSED, Work.DRAINED)

    @property
    def is_drained(self) -> bool:
        """By whomever."""
        return bool(are(self.states, Work.DRAINED))

    @property
    def set_aside(self) -> list[str]:
        """States in which somebody else plans something with the node."""
        return are(self.states, Work.SET_ASIDE)

    @property
    def unsure_states(self) -> list[str]:
        """States that tell neither good nor bad: words no table has, and Slurm's own UNKNOWN."""
        return unknown(self.states)


def parse(text: str) -> dict[str, SlurmNode]:
    """Node name -> what `scontrol show node -o`, or `--json`, says of it; what is no node is left out."""
    listed = _of_json(text) if text.lstrip().startswith("{") else map(_of_line, text.splitlines())
    found = {n.name: n for n in listed if n is not None}
    if not any(n.gpus for n in found.values()):
        return {name: msgspec.structs.replace(n, gpus=None) for name, n in found.items()}
    return found


def _of_line(line: str) -> SlurmNode | None:
    """A line of `-o`. A federated or multi-cluster command prints `CLUSTER: name` between them."""
    head, reason = _split(line)
    fields: dict[str, str] = {}
    for word in head.split():
        key, equals, value = word.partition("=")
        if equals:
            fields.setdefault(key, value)
    if not is_name(fields.get("NodeName", "")):
        return None
    return SlurmNode(
        name=fields["NodeName"],
        states=node_words(fields.get("State", "UNKNOWN")),
        reason=reason,
        gpus=_gpus(fields.get("Gres", "")),
        cpus=int(count) if (count := fields.get("CPUTot", "")).isdecimal() and len(count) < 10 else 0,
        address=fields.get("NodeAddr", ""),
    )


def _split(line: str) -> tuple[str, str]:
    """(the fields before the reason, the reason): free text must not be taken for fields, nor fields for the reason."""
    tail, start = _TAIL.search(line), line.find(" Reason=")
    if start < 0 or (tail and tail.start() < start):
        return line[: tail.start()] if tail else line, ""
    text = line[start + len(" Reason=") :]
    stamp = _STAMP.search(text)
    if stamp is None:
        found = _TAIL.search(text)
        return line[:start], (text[: found.start()] if found else text).strip()
    rest = text[stamp.end() :]
    more = _TAIL.search(rest)
    lines = [text[: stamp.start()], *(rest[: more.start()] if more else rest).split(" " * 8)]
    return line[:start], " ".join(w.strip() for w in lines if w.strip()) + stamp[1]


def _of_json(text: str) -> Iterator[SlurmNode | None]:
    """Nodes of `--json`: 21.08, 22.05 have a state and a list of flags, later ones one list, numbers in a dict."""
    try:
        nodes = json.loads(text).get("nodes", [])
    except (ValueError, AttributeError, RecursionError):
        return
    for said in nodes if isinstance(nodes, list) else []:
        if not isinstance(said, dict) or not is_name(str(said.get("name", ""))):
            continue
        state = said.get("state", [])
        words = [*([state] if isinstance(state, str) else state), *said.get("state_flags", [])]
        reason, who = " ".join(str(said.get("reason") or "").split()), said.get("reason_set_by_user") or ""
        if reason and (when := _number(said.get("reason_changed_at"))):
            reason += f" [{who}@{dt.datetime.fromtimestamp(when, dt.UTC):%Y-%m-%dT%H:%M:%S}]"
        yield SlurmNode(
            name=str(said["name"]),
            states=node_words(words),
            reason=reason,
            gpus=_gpus(str(said.get("gres") or "")),
            cpus=_number(said.get("cpus")),
            address=str(said.get("address") or ""),
        )


def _number(said: Any) -> int:
    """A number of JSON, plain or as `{"set": true, "infinite": false, "number": 7}`; 0 where it is not set."""
    if isinstance(said, dict):
        said = said.get("number", 0) if said.get("set") else 0
    return said if isinstance(said, int) else 0


def _gpus(gres: str) -> int | None:
    found = _GPUS.findall(gres)
    return None if any(_SLICE.search(kind) for kind, _ in found) else sum(int(num) for _, num in found)


def called(nodes: Mapping[str, SlurmNode], name: str) -> SlurmNode | None:
    """A node as Slurm knows it: by its name, else by the name without the domain that ssh may need."""
    return nodes.get(name) or nodes.get(name.partition(".")[0])


def unanswered(why: str) -> Finding:
    """Where Slurm is there and does not say how its nodes are: nobody knows what it keeps from work, nor its GPUs."""
    return Finding(
        code="preflight/node-state",
        verdict=Verdict.UNKNOWN,
        subject=Subject(kind="cluster"),
        message=f"Slurm did not say which nodes it keeps from work: {why}",
        evidence=(Evidence(" ".join(SHOW), why),),
        remedy="scontrol ping",
    )


def judge_scheduler(
    nodes: Mapping[str, SlurmNode],
    declared: Iterable[str],
    gpus: Mapping[str, int | None],
    shown: Mapping[str, int | None] = MappingProxyType({}),
) -> Iterator[Finding]:
    """Findings on declared nodes: those Slurm keeps from work, does not know, or gives another number of GPUs.

    A cluster file may be about a part of each node, as one made for a job is: what a node shows is right, too. A Slurm
    that knows none of them is that of another cluster.
    """
    known = {name: called(nodes, name) for name in declared}
    if not any(known.values()):
        return
    for name, found in known.items():
        if found is None:
            remedy = "add it to slurm.conf: scontrol reconfigure"
            yield _finding("preflight/not-in-slurm", name, "Slurm knows no such node", remedy)
            continue
        if found.bad_states:
            yield _kept_from_work(found)
        elif found.unsure_states:
            yield _nobody_knows(found)
        want = gpus.get(name)
        if found.gpus is not None and want is not None and found.gpus not in (want, shown.get(name)):
            message = f"Slurm gives it {found.gpus} GPUs, and it has {want}"
            remedy = "correct Gres in slurm.conf and gres.conf: slurmd -C; slurmd -G"
            yield _finding("preflight/gres", name, message, remedy, f"Gres gpu:{found.gpus}")


def _kept_from_work(found: SlurmNode) -> Finding:
    """A fail; only a warning where fairlead itself drained the node, for else it could never be found well again."""
    why = f": {bare(found.reason)}" if found.reason else ""
    drained_by_us = is_ours(found.reason) and all(s.startswith("DRAIN") for s in found.bad_states)
    said = f"State={'+'.join(found.states)}" + (f" Reason={found.reason}" if found.reason else "")
    return Finding(
        code="preflight/node-state",
        verdict=Verdict.WARN if drained_by_us else Verdict.FAIL,
        subject=node(found.name),
        message=f"Slurm keeps it from work: {', '.join(found.bad_states).lower()}{why}",
        evidence=(Evidence(" ".join(SHOW), said),),
        remedy=f"when mended: scontrol update nodename={found.name} state=resume",
    )


def _nobody_knows(found: SlurmNode) -> Finding:
    """Neither good nor bad: Slurm has not made up its mind, or uses a word that this version of fairlead lacks."""
    words = ", ".join(found.unsure_states).lower()
    is_slurms = set(found.unsure_states) <= {"UNKNOWN", "INVALID"}
    return Finding(
        code="preflight/node-state",
        verdict=Verdict.UNKNOWN,
        subject=node(found.name),
        message=f"Slurm does not know its state yet: {words}"
        if is_slurms
        else f"a state fairlead does not know: {words}",
        evidence=(Evidence(" ".join(SHOW), f"State={'+'.join(found.states)}"),),
        remedy="sinfo -N; man sinfo, NODE STATE CODES, says what the word means",
    )


def _finding(code: str, name: str, message: str, remedy: str, said: str = "") -> Finding:
    evidence = (Evidence(" ".join(SHOW), said),) if said else ()
    return Finding(
        code=code, verdict=Verdict.FAIL, subject=node(name), message=message, evidence=evidence, remedy=remedy
    )
