"""Ranks that could not start or were not let on, as the launcher found them: no torch, stopped, not at the rendezvous.
Pure.

What fails in the same way wherever it was tried accuses no node: it is the job's own Python or image. Only where the
same thing went well on other nodes, those where it did not are odd.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.base.nodeset import NodeSet, fold
from fairlead.base.units import counted
from fairlead.errors import UsageError
from fairlead.launch.starts import explained
from fairlead.preflight.ranks.facts import RankFacts, nodes_by_rank
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

Said = Mapping[str, Any]

_STATES = {
    "silent": ("-", "gives no sign of life", "dmesg -T: the whole node may hang"),
    "stopped": ("T", "is stopped", "kill -CONT PID; find out who stops it: a debugger, a cgroup freezer, job control"),
    "stuck": ("D", "is stuck in the kernel", "cat /proc/PID/stack as root; dmesg -T: a file system or a driver hangs"),
}

_WORDS = {"failed": ("why", "kind", "text"), "over": ("kind",), "phase": ("phase",)}


def judge_cut(facts: RankFacts) -> list[Finding]:
    """A step that the scheduler ended itself: the nodes it lays that to, else nobody; empty where it did not."""
    lost = {n: cut for cut in facts.cut if is_set(cut.nodes) for n in NodeSet(cut.nodes) if n in facts.nodes}
    if lost:
        return [
            Finding(
                code="preflight/node-lost",
                verdict=Verdict.FAIL,
                subject=node(name),
                message=f"Slurm lost it while ranks ran: {cut.why}",
                evidence=(Evidence("Slurm", cut.said),),
                remedy="look at its console, its memory and its load; then drain it",
            )
            for name, cut in sorted(lost.items())
        ]
    if not facts.cut:
        return []
    return [
        Finding(
            code="preflight/step-ended",
            verdict=Verdict.UNKNOWN,
            subject=Subject(kind="job"),
            message=f"Slurm ended the ranks' step before they were through: {facts.cut[0].why}",
            evidence=tuple(Evidence("Slurm", cut.said) for cut in facts.cut[:3]),
            remedy="scontrol show job; sacct -j JOB; give the job more time, then preflight again",
            data={"why": facts.cut[0].why},
        )
    ]


def judge_start(facts: RankFacts) -> list[Finding]:
    """Findings that explain why the group did not come to its work; empty where it did, or others explain it better."""
    failed = _whole(facts, "failed")
    if failed:
        return list(_could_not(facts, failed))
    nodes = dict(enumerate(nodes_by_rank(facts)))
    over = [{**s, "node": nodes.get(s["rank"], s["node"])} for s in _whole(facts, "over")]
    if not over:
        return []
    if over[0]["kind"] in _STATES:
        return [_unwell(facts, said) for said in over]
    if over[0]["kind"] == "rendezvous":
        return list(_not_there(facts, over))
    return []


def _could_not(facts: RankFacts, failed: Sequence[Said]) -> Iterator[Finding]:
    pythons = {s["node"]: str(s.get("executable") or "python3") for s in _whole(facts, "start")}
    well = {s["node"] for s in _whole(facts, "torch")} - {s["node"] for s in failed}
    alike: defaultdict[tuple[str, str], list[Said]] = defaultdict(list)
    for said in failed:
        alike[str(said["why"]), str(said["text"])].append(said)
    for (why, text), those in sorted(alike.items()):
        nodes = sorted({s["node"] for s in those})
        python = pythons.get(nodes[0], "python3")
        words = explained(why, python=python, nodes=fold(nodes))
        quoted = f"{those[0]['kind']}: {text}" if those[0]["kind"] else text
        code = "preflight/no-torch" if why == "no-torch" else "preflight/cannot-start"
        more: dict[str, Any] = {
            "evidence": (Evidence(f"rank {those[0]['rank']}", quoted),),
            "remedy": words.remedy,
            "data": {"why": why, "ranks": sorted(s["rank"] for s in those), "python": python},
        }
        if well:  # elsewhere in the same job it went well
            message = f"{words.means}, which is well on {fold(sorted(well))}: {quoted}"
            for name in nodes:
                yield Finding(code=code, verdict=Verdict.FAIL, subject=node(name), message=message, **more)
            continue
        silent = len(facts.nodes) - len(nodes)
        rest = f"; {counted(silent, 'node')} had not come so far" if silent else ""
        yield Finding(
            code=code,
            verdict=Verdict.UNKNOWN,
            subject=Subject(kind="job", nodes=tuple(nodes)),
            message=f"{words.means} ({quoted}): {counted(len(nodes), 'node')} said so, and none said otherwise{rest}",
            **more,
        )


def is_set(text: str) -> bool:
    """Whether a word of the scheduler's names nodes."""
    try:
        return bool(NodeSet(text))
    except UsageError:
        return False


def _whole(facts: RankFacts, what: str) -> list[Said]:
    """Lines of one kind; one that lacks a word that counts here, or has something else in its place, says nothing."""
    words = ("node", *_WORDS.get(what, ()))
    found = [s for s in facts.lines if s.get("say") == what and type(s.get("rank")) is int]
    return [s for s in found if all(isinstance(s.get(word), str) for word in words)]


def _place(facts: RankFacts, rank: int) -> str:
    """The last phase a rank entered."""
    return next((s["phase"] for s in reversed(_whole(facts, "phase")) if s["rank"] == rank), "start")


def _unwell(facts: RankFacts, said: Said) -> Finding:
    letter, what, remedy = _STATES[said["kind"]]
    place = _place(facts, said["rank"])
    return Finding(
        code="preflight/rank-stopped",
        verdict=Verdict.FAIL,
        subject=Subject(kind="rank", nodes=(said["node"],), name=f"rank {said['rank']}"),
        message=f"its process {what} ({letter}) in {place}, while others wait for it",
        evidence=(Evidence("the group was stopped", facts.broken),),
        remedy=f"on the node: ps -o pid,stat,wchan:32,cmd; {remedy}",
        data={"phase": place, "state": letter},
    )


def _not_there(facts: RankFacts, over: Sequence[Said]) -> Iterator[Finding]:
    """Ranks that tried to reach rank 0's store and did not; where most nodes fail, it is rank 0's that is odd."""
    missing = sorted({s["node"] for s in over})
    store = next(iter(_whole(facts, "store")), None)
    if store is None:
        return  # rank 0 never opened it: it is late itself
    at = f"{store.get('host') or store['node']} {store.get('port')}"
    where = f"{at.replace(' ', ' port ')} on {store['node']}"
    # the node of the store reaches itself, and is no witness that others can
    there = [name for name in facts.nodes if name not in (*missing, store["node"])]
    more: dict[str, Any] = {
        "code": "preflight/no-rendezvous",
        "evidence": (Evidence("the group was stopped", facts.broken),),
        "remedy": f"from the node, while ranks run: nc -vz {at}; look for a firewall",
    }
    if len(missing) >= len(there):
        yield Finding(
            verdict=Verdict.FAIL,
            subject=Subject(kind="job", nodes=tuple(missing)),
            message=f"{counted(len(missing), 'node')} of {len(facts.nodes)} did not reach the rendezvous at {where}",
            **more,
        )
        return
    for name in missing:
        mine = sorted(s["rank"] for s in over if s["node"] == name)
        yield Finding(
            verdict=Verdict.FAIL,
            subject=node(name),
            message=f"{counted(len(mine), 'rank')} of it did not reach the rendezvous at {where}; others did",
            data={"ranks": mine},
            **more,
        )
