"""From events to what may be the cause: candidates, those that fall out and why, and which of them bring about which.

A candidate is a class on a node (or of the job, or between two nodes) with all events that speak of it. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead.logs.diagnose.events import NS, Event, Scene
from fairlead.logs.diagnose.model import Evidence, Told
from fairlead.logs.diagnose.table import Class, table

_ORDERED = {"time-limit", "cancelled"}
"""What Slurm or a person did when the job was broken already, or was not."""
_ENDED = {"TIMEOUT", "DEADLINE", "CANCELLED"}
"""sacct(1), JOB STATE CODES: states of jobs that did not end by themselves."""


@dataclass(slots=True)
class Candidate:
    """A class of cause, on a node or on none."""

    cls: str
    nodes: tuple[str, ...]
    events: list[Event] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    fits: list[Event] = field(default_factory=list)
    """Symptoms that speak for it."""
    own: bool = False
    """Whether one of them names its node."""
    pair: bool = False
    """It is between its two nodes, and nothing tells which."""
    early: int = 0
    late: int = 0
    why_not: str = ""

    @property
    def law(self) -> Class:
        """What its class says."""
        return table().cls[self.cls]

    @property
    def sure(self) -> bool:
        """Whether one of its lines is enough."""
        return any(event.role == "cause" for event in self.events)

    @property
    def at(self) -> tuple[str, ...]:
        """Nodes on which it was seen, in the order of their times."""
        return tuple(dict.fromkeys(name for event in self.events for name in event.nodes or (event.by,) if name))

    def before(self, other: Candidate, slack: int = 0) -> bool:
        """Whether it was there earlier for certain."""
        if self.events and other.events:
            return self.events[0].before(other.events[0], slack)
        return self.late + slack < other.early


def candidates(scene: Scene, evidence: Evidence) -> tuple[list[Candidate], list[Event]]:
    """All that may be the cause, and all that is only a symptom."""
    found: dict[tuple[str, tuple[str, ...]], Candidate] = {}
    symptoms = [event for event in scene.events if event.cls in table().symptom]
    pairs = [event for event in scene.events if event.hit.signature.pair and event.cls in table().cls]
    for event in scene.events:
        if event.cls not in table().cls or event in pairs:
            continue
        owners: Iterable[tuple[str, ...]] = [()]
        if table().cls[event.cls].blames == "node":
            owners = [(name,) for name in event.nodes] or [()]
        for owner in owners:
            found.setdefault((event.cls, owner), Candidate(event.cls, owner)).events.append(event)
    _told(found, scene, evidence)
    made = _together(list(found.values()))
    links = _of_pairs(pairs)
    for one in [*made, *links]:
        one.events.sort(key=lambda e: (e.early, e.late, e.hit.line.offset))
        if one.events:
            one.early, one.late = min(e.early for e in one.events), min(e.late for e in one.events)
        else:
            one.early = one.late = min(t.time_ns for t in one.told)
    # what NCCL says of a pair is a symptom, as long as something else names a node of it
    return made + links, symptoms + pairs


def _told(found: dict[tuple[str, tuple[str, ...]], Candidate], scene: Scene, evidence: Evidence) -> None:
    """Findings of other runs, made while the job ran."""
    lead = int(table().limits.lead_s * NS)
    for told in evidence.findings:
        cls = table().finding.get(told.finding.code, "")
        names = [name for name in told.finding.subject.nodes if name in scene.job.nodes]
        if not cls or not scene.start - lead <= told.time_ns <= scene.end + lead or len(names) != 1:
            continue
        if told.finding.verdict in {"fail", "warn"}:
            owner = tuple(names) if table().cls[cls].blames == "node" else ()
            found.setdefault((cls, owner), Candidate(cls, owner)).told.append(told)


def _together(all_: list[Candidate]) -> list[Candidate]:
    """What is about no node joins what names one: `Slurm ended the job for memory` and the node where it was."""
    named = defaultdict(list)
    for one in all_:
        if one.nodes:
            named[one.cls].append(one)
    kept = []
    for one in all_:
        if not one.nodes and table().cls[one.cls].blames == "node" and named[one.cls]:
            for other in named[one.cls]:
                other.fits.extend(one.events)
            continue
        kept.append(one)
    return kept


def _of_pairs(pairs: list[Event]) -> list[Candidate]:
    """Links between nodes that NCCL gave up: who all of them meet in, else both ends of them."""
    if not pairs:
        return []
    if middle := met_in(pairs):
        return [Candidate("link", (middle,), [e for e in pairs if middle in e.nodes], own=True)]
    earliest = pairs[0]
    ends = tuple(dict.fromkeys(name for e in pairs if set(e.nodes) & set(earliest.nodes) for name in e.nodes))
    nodes = ends[:2] if len(earliest.nodes) == 2 and len(ends) <= 2 else earliest.nodes
    return [Candidate("link", nodes, [e for e in pairs if set(e.nodes) & set(nodes)] or pairs, pair=True)]


def met_in(pairs: list[Event]) -> str:
    """The one node that has more partners than each of them; empty where there is none."""
    partners: defaultdict[str, set[str]] = defaultdict(set)
    for event in pairs:
        if len(event.nodes) == 2:
            first, second = event.nodes
            partners[first].add(second)
            partners[second].add(first)
        elif event.nodes and event.peer:
            partners[event.nodes[0]].add(event.peer)
    num = {name: len(others) for name, others in partners.items()}
    most = [name for name in num if num[name] > 1 and all(num[name] > num.get(other, 1) for other in partners[name])]
    return most[0] if len(most) == 1 else ""


def sift(found: list[Candidate], symptoms: list[Event], scene: Scene, evidence: Evidence) -> None:
    """Say of each candidate why it is none, where there is a reason."""
    limits = table().limits
    slack = int(limits.slack_s * NS)
    for one in found:
        after = [s for s in symptoms if s.late + slack >= one.early and s not in one.events]
        law = one.law
        near = [s for s in after if _fits(one, s, law, found)]
        one.fits.extend(near)
        one.own = one.own or any(set(s.nodes) & set(one.nodes) for s in near)
        first = min((s.late for s in after if s.cls != "teardown"), default=scene.end)
        last = max((e.late for e in one.events), default=one.late)
        one.why_not = (
            _survived(one, scene, evidence)
            or _over(one, first, scene)
            or ("it was long before anything else failed" if _long_before(last, one, first, scene) else "")
            or ("it came after the job had ended" if one.early > scene.end + slack and not _late(one) else "")
        )
    standing = [one for one in found if not one.why_not]
    for one in standing:
        if one.sure or one.fits or any(e.hit.signature.pair for e in one.events):
            continue
        if not any(other.cls in one.law.symptoms and _meets(one, other) for other in standing if other is not one):
            one.why_not = "nothing that failed afterwards fits it"


def _fits(one: Candidate, symptom: Event, law: Class, found: list[Candidate]) -> bool:
    if symptom.cls in law.symptoms or (
        symptom.cls in table().cls and symptom.hit.signature.pair and "peer-lost" in law.symptoms
    ):
        if not one.nodes or set(symptom.nodes) & set(one.nodes):
            return True
        # a collective hangs for everybody; who lost an unknown peer may have lost this one
        return symptom.cls == "hang" or (symptom.cls in {"peer-lost", "link"} and len(symptom.nodes) < 2)
    return False


def _meets(one: Candidate, other: Candidate) -> bool:
    return not one.nodes or not other.nodes or bool(set(one.nodes) & set(other.nodes)) or other.pair


def _long_before(last: int, one: Candidate, first: int, scene: Scene) -> bool:
    """A job that still runs may have hung ever since; so may one that others ended, by what is sure to stop a rank."""
    law, until = one.law, min(first, scene.end)
    if scene.job.word in _ENDED and one.sure and "collective-hang" in law.brings_anywhere and first >= scene.end:
        return False
    return scene.job.end_ns is not None and last + int(law.acts_s * NS) < until


def _late(one: Candidate) -> bool:
    return any(e.hit.signature.late_s for e in one.events)


def _survived(one: Candidate, scene: Scene, evidence: Evidence) -> str:
    """Whether the job printed steps long after it."""
    survived = int(table().limits.survived_s * NS)
    furthest = max((p.time_ns for p in evidence.progress.values()), default=0)
    for event in one.events:
        line = event.hit.line
        mine = evidence.progress.get((line.file_id, line.rank))
        is_job = line.table == "slurmjobs_raw_CL"
        if is_job and mine is not None and mine.offset > line.offset:
            continue
        if not is_job and furthest and event.late + survived < furthest:
            continue
        return ""
    return "the program went on for several steps after it" if one.events else ""


def _over(one: Candidate, first: int, scene: Scene) -> str:
    """Whether it ended by itself before anything failed."""
    limits = table().limits
    if not one.events or one.sure or one.cls == "host-servicing":
        return ""
    if any(e.ended is None or e.flaps >= limits.flaps for e in one.events):
        return ""
    if max(e.ended or 0 for e in one.events) + int(limits.heal_s * NS) < first:
        return "it ended by itself before anything failed"
    return ""


def brings(one: Candidate, other: Candidate) -> bool:
    """Whether a candidate may have brought another about."""
    if one is other or one.why_not:
        return False
    law = one.law
    same = bool(set(one.nodes or one.at) & set(other.nodes or other.at)) or not other.at
    far = other.cls in law.brings_anywhere and (other.pair or other.cls != "link")  # retries, not somebody's cable
    by_class = far or (other.cls in law.brings and same)
    if other.cls in _ORDERED and law.tier < table().cls[other.cls].tier:
        by_class = True
    if one.cls == "link" and one.pair and other.cls in {"link", "node-lost"}:
        by_class = False
    if other.pair and other.cls == "link":
        # a pair is explained by what stands at one of its ends, or by what nobody can place
        by_class = (by_class or one.cls == "link") and (same or not one.nodes or len(other.nodes) < 2)
    slack = int(table().limits.slack_s * NS)
    return by_class and not other.before(one, slack)


def roots(found: list[Candidate]) -> list[Candidate]:
    """Candidates that nothing else brought about. Where two might have brought each other about, the earlier for
    certain stays, else the one nearer to the hardware.
    """
    standing = [one for one in found if not one.why_not]

    def wins(one: Candidate, other: Candidate) -> bool:
        if not brings(one, other):
            return False
        if not brings(other, one):
            return True
        if one.before(other) != other.before(one):
            return one.before(other)
        return (one.law.tier, not one.sure) < (other.law.tier, not other.sure)

    return [one for one in standing if not any(wins(other, one) for other in standing)]
