"""The diagnosis: which candidate is the cause, how sure that is, what follows from it, and what to do. Pure."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.base.nodeset import NodeSet, fold
from fairlead.logs.diagnose.causes import Candidate, brings, candidates, met_in, roots, sift
from fairlead.logs.diagnose.events import NS, Event, Scene, scene
from fairlead.logs.diagnose.hang import Missing, missing
from fairlead.logs.diagnose.model import Cited, Confidence, Diagnosis, Evidence, Link, Other
from fairlead.logs.diagnose.signatures import speaker
from fairlead.logs.diagnose.table import table
from fairlead.records.codes import explanations
from fairlead.records.finding import Finding

NOTHING = "not-in-the-logs"
_MOST_TEXT = 600
_MOST_OTHERS = 12
_BY_STATE = {"TIMEOUT": "time-limit", "PREEMPTED": "preemption", "CANCELLED": "cancelled", "DEADLINE": "time-limit"}
"""sacct(1), JOB STATE CODES."""


def diagnose(evidence: Evidence, now_ns: int) -> Diagnosis:
    """Why a job died. `now_ns` is the end of what is known of one that still runs."""
    job = evidence.job
    if job.ended_well:
        return Diagnosis(
            job=job.id,
            state=job.state,
            what="",
            confidence="none",
            says="the job completed: there is nothing to explain",
        )
    seen = scene(evidence, now_ns)
    found, symptoms = candidates(seen, evidence)
    who = missing(symptoms, evidence)
    _add_told(found, job.word, seen, symptoms, who)
    sift(found, symptoms, seen, evidence)
    _broken_anyway(found, job.word)
    standing = sorted(roots(found), key=functools.cmp_to_key(_surer_first))
    if not standing:
        return _nothing(seen, found, symptoms)
    return _told(_Case(seen, evidence, found, symptoms, standing, who))


@dataclass(frozen=True, slots=True)
class _Case:
    """All that was made of the evidence."""

    seen: Scene
    evidence: Evidence
    found: list[Candidate]
    symptoms: list[Event]
    standing: list[Candidate]
    """What nothing else brought about, the likeliest first."""
    who: Missing | None


def _add_told(found: list[Candidate], state: str, seen: Scene, symptoms: list[Event], who: Missing | None) -> None:
    """What the state says by itself, and who did not come to a collective."""
    cls = _BY_STATE.get(state, "")
    if cls and not any(one.cls == cls for one in found):
        found.append(Candidate(cls, (), early=seen.end, late=seen.end))
    if state == "NODE_FAIL" and not any(one.cls in {"node-lost", "node-crash"} for one in found):
        silent = [s for s in symptoms if s.cls == "node-silent" and s.ended is None]
        if silent:
            found.append(
                Candidate("node-lost", silent[0].nodes[:1], silent, early=silent[0].early, late=silent[0].late)
            )
    hangs = [s for s in symptoms if s.cls == "hang"]
    if who is not None:
        nodes = who.nodes or tuple(dict.fromkeys(name for rank in who.ranks if (name := seen.places.of_rank(rank))))
        early = min((s.early for s in hangs), default=seen.start)
        late = min((s.late for s in hangs), default=seen.end)
        found.append(Candidate("collective-hang", nodes, hangs, own=who.firm, early=early, late=late))
    elif hangs:
        found.append(Candidate("collective-hang", (), hangs, early=hangs[0].early, late=hangs[0].late))


def _broken_anyway(found: list[Candidate], state: str) -> None:
    """A state that names its cause lets stand what is sure alone: a job at its time limit may have been well."""
    for one in found:
        if (
            one.cls in {"program-error", "gpu-program", "nan-loss"}
            and not one.why_not
            and state == "TIMEOUT"
            and not one.fits
        ):
            one.why_not = "nothing ended with it; the job ran into its time limit"
        if one.cls == "collective-hang":
            one.why_not = ""


def _surer_first(one: Candidate, other: Candidate) -> int:
    """Sure before possible, then the earlier for certain, then the nearer to the hardware, then the better told."""

    def weight(c: Candidate) -> int:
        if c.cls == "collective-hang":
            return 0
        if c.sure or not c.events:
            return 3
        return 2 if c.own or c.fits else 1

    if weight(one) != weight(other):
        return weight(other) - weight(one)
    if one.before(other) != other.before(one):
        return -1 if one.before(other) else 1
    if one.law.tier != other.law.tier:
        return one.law.tier - other.law.tier
    if one.own != other.own:
        return -1 if one.own else 1
    mine, theirs = (len(one.fits), one.nodes), (len(other.fits), other.nodes)
    return -1 if (-mine[0], mine[1]) < (-theirs[0], theirs[1]) else 1


def _tied(first: Candidate, other: Candidate) -> bool:
    """Whether nothing but a name orders them, and they blame others."""
    return (
        set(other.nodes) != set(first.nodes)
        and bool(other.nodes)
        and bool(first.nodes)
        and first.law.tier == other.law.tier
        and first.sure == other.sure
        and first.own == other.own
        and not first.before(other)
    )


def _told(case: _Case) -> Diagnosis:
    seen, evidence, found, symptoms, standing, who = (
        case.seen, case.evidence, case.found, case.symptoms, case.standing, case.who,
    )  # fmt: skip
    first = standing[0]
    ties = [one for one in standing[1:] if _tied(first, one)]
    job = seen.job
    law, blamed = first.law, first.nodes
    if law.blames == "cluster" or (first.law.blames == "job" and first.cls != "collective-hang"):
        blamed = ()
    cited = _citing(first, evidence, seen)
    if first.pair and len(blamed) > 1:
        singled = {
            name for finding in cited if finding.verdict == "fail" for name in finding.subject.nodes if name in blamed
        }
        blamed = tuple(singled) if len(singled) == 1 else blamed
    between = first.pair and len(blamed) > 1
    if ties:
        blamed = tuple(dict.fromkeys([*blamed, *(name for tie in ties for name in tie.nodes)]))
    at = "" if blamed else _place(first, symptoms, job.num_tasks)
    sure: Confidence = "low"
    if first.cls == "collective-hang":
        sure = "medium" if first.own and blamed else "low"
    elif not ties and not between:
        competing = [
            o for o in standing if o is not first and o.sure and not first.before(o) and o.law.tier <= first.law.tier
        ]
        sure = (
            "high"
            if (first.sure or not first.events) and not competing
            else "medium"
            if first.own or first.fits
            else "low"
        )
    explained = explanations()[f"diagnose/{first.cls}"]
    seen_on = fold(first.at) if law.blames == "cluster" else at
    where = f" on {fold(blamed)}" if blamed and not between and not ties else f" on {seen_on}" if at else ""
    if between or ties:
        where = (
            f" between {' and '.join(blamed)}"
            if between
            else f" on one of {fold(blamed)}: nothing tells which was first"
        )
    said = _said(first, who)
    shown = _best([*first.events, *(event for event in first.fits if event.cls == first.cls)])
    roots_ = tuple(_cite(event, seen) for event in shown)
    victims = _victims(case, blamed, at)
    return Diagnosis(
        job=job.id,
        state=job.state,
        what=first.cls,
        confidence=sure,
        says=f"{explained.title.rstrip('.')}{where}: {said}" if said else f"{explained.title.rstrip('.')}{where}",
        nodes=blamed,
        at=at,
        devices=tuple(sorted({event.device for event in first.events if event.device})),
        ranks=who.ranks if who is not None and first.cls == "collective-hang" else _ranks(first),
        roots=roots_,
        chain=_chain(first, found, symptoms, seen),
        victims=fold(victims) if victims else "",
        remedy=explained.remedy,
        command=_command(first, blamed, between=between or bool(ties), job=job.id),
        exclude=f"--exclude={NodeSet(blamed)}" if blamed and law.drain and not (between or ties) else "",
        cited=cited,
        others=_others(first, found),
        offsets_s={name: (off.least / NS, off.most / NS) for name, off in seen.offsets.items() if off.known},
    )  # fmt: skip


def _place(first: Candidate, symptoms: list[Event], num_tasks: int) -> str:
    """Where it was, though nobody is to blame: by its own lines, else by srun, which tells whose task ended first."""
    if first.law.blames == "cluster" and first.cls != "storage-stall":
        return ""
    if first.at:
        return first.at[0]
    exits = sorted((s for s in symptoms if s.cls == "task-exit" and s.nodes), key=lambda s: s.hit.line.offset)
    lone = exits and len(exits[0].nodes) == 1 and len(first.events) * 2 <= max(num_tasks, 2)  # else all ranks say it
    return exits[0].nodes[0] if lone else ""


def _said(first: Candidate, who: Missing | None) -> str:
    if first.cls == "collective-hang" and who is not None:
        if not who.ranks:
            return f"all ranks of {fold(who.nodes)} {who.says}"
        ranks = ", ".join(map(str, who.ranks[:8])) + (f" and {len(who.ranks) - 8} more" if len(who.ranks) > 8 else "")
        return f"rank {ranks} {who.says}"
    if first.events:
        best = _best(first.events)[0]
        return best.hit.signature.says + (f" ({best.device})" if best.device else "")
    return first.told[0].finding.message[:_MOST_TEXT] if first.told else ""


def _best(events: list[Event]) -> list[Event]:
    """Lines to show: the earliest of each kind, those that are enough by themselves first."""
    sure = sorted(events, key=lambda event: event.role != "cause")
    kinds: dict[tuple[str, tuple[str, ...], str], Event] = {}
    for event in sure:
        kinds.setdefault((event.hit.signature.id, event.nodes, event.device), event)
    return list(kinds.values())[:5]


def _ranks(first: Candidate) -> tuple[int, ...]:
    return tuple(dict.fromkeys(event.rank for event in first.events if event.rank is not None))[:64]


def _victims(case: _Case, blamed: tuple[str, ...], at: str) -> list[str]:
    """Nodes that only suffered: they are named by symptoms, or by what the cause brought about."""
    first = case.standing[0]
    named = {name for s in case.symptoms for name in s.nodes}
    named |= {name for one in case.found if one is not first and brings(first, one) for name in one.nodes}
    return [name for name in case.seen.job.nodes if name in named and name not in blamed and name != at]


def _chain(first: Candidate, found: list[Candidate], symptoms: list[Event], seen: Scene) -> tuple[Link, ...]:
    """From the cause over what it brought about to the end of the job."""
    links: list[tuple[int, int, Link]] = []
    if first.events:
        head = _best(first.events)[0]
        links.append((0, first.early, _link(first.cls, head, first.events, seen)))
    for one in found:
        followed = one is not first and bool(one.events) and not one.why_not and brings(first, one)
        if followed and one.cls != "collective-hang":
            links += [(1, one.early, _link(one.cls, one.events[0], one.events, seen))]
    kinds: dict[str, list[Event]] = {}
    for symptom in symptoms:
        if symptom.cls in table().symptom and symptom not in first.events and symptom.late >= first.early:
            kinds.setdefault(symptom.cls, []).append(symptom)
    links += [(1, those[0].early, _link(cls, those[0], those, seen)) for cls, those in kinds.items()]
    links.sort(key=lambda each: (each[0], each[1] if each[2].what != "teardown" else seen.end))
    state = seen.job.state or "it ended"
    return (*(link for _, _, link in links), Link(what="job", says=f"job {seen.job.id}: {state}"))


def _link(what: str, event: Event, events: list[Event], seen: Scene) -> Link:
    nodes = sorted({name for each in events for name in each.nodes if name})
    return Link(
        what=what,
        says=event.hit.signature.says,
        nodes=fold(nodes) if nodes else "",
        num=len(events),
        line=_cite(event, seen),
    )


def _cite(event: Event, seen: Scene) -> Cited:
    line = event.hit.line
    clock = seen.offsets.get(event.by)
    at = line.time_ns - (clock.middle if clock else 0)
    stamp = dt.datetime.fromtimestamp(at / NS, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Cited(
        time=stamp if line.time_from == "line" else f"~{stamp}",
        node=event.by or line.node,
        source=speaker(line),
        text=event.hit.text[:_MOST_TEXT],
        says=event.hit.signature.says,
        signature=event.hit.signature.id,
        path=line.path,
    )


def _citing(first: Candidate, evidence: Evidence, seen: Scene) -> tuple[Finding, ...]:
    """Findings of other runs that name the same node in that time: a day before, an hour after."""
    names = set(first.nodes or first.at)
    fits = [
        told
        for told in evidence.findings
        if told.finding.verdict in {"fail", "warn"}
        and set(told.finding.subject.nodes) & names
        and seen.start - 86_400 * NS <= told.time_ns <= seen.end + 3600 * NS
    ]
    fits.sort(key=lambda t: (table().finding.get(t.finding.code, "") != first.cls, -t.time_ns))
    return tuple({(t.finding.code, str(t.finding.subject)): t.finding for t in reversed(fits)}.values())[::-1][:10]


def _command(first: Candidate, blamed: tuple[str, ...], *, between: bool, job: int) -> str:
    """What takes the node out; of two that nothing tells apart, none is drained."""
    if not blamed or not first.law.drain:
        return ""
    nodes = NodeSet(blamed)
    if between:
        return f"fairlead preflight --nodes {nodes}"
    return f'scontrol update NodeName={nodes} State=DRAIN Reason="{first.cls}: job {job}"'


def _others(first: Candidate, found: Iterable[Candidate]) -> tuple[Other, ...]:
    made = []
    for one in found:
        if one is first or not (one.events or one.told):
            continue
        why = one.why_not or ("it followed" if brings(first, one) else "other evidence is stronger or earlier")
        made.append(Other(what=one.cls, nodes=fold(one.nodes or one.at) if one.nodes or one.at else "", why=why))
    return tuple(made[:_MOST_OTHERS])


def _nothing(seen: Scene, found: list[Candidate], symptoms: list[Event]) -> Diagnosis:
    """What is known all the same: whom several others could not reach, else who ended first."""
    exits = [s for s in symptoms if s.cls in {"task-exit", "killed"}]
    pairs = [s for s in symptoms if s.hit.signature.pair and not (exits and exits[0].before(s))]
    says, at = "the cause is not in the logs", met_in(pairs)
    if at:
        told = next(s for s in pairs if at in s.nodes)
        says += f"; several others lost {at}, or never reached it: {told.hit.text.strip()[:200]}"
    elif exits:
        who = fold(exits[0].nodes) if exits[0].nodes else "somebody"
        at = exits[0].nodes[0] if exits[0].nodes else ""
        says += f"; the first that is known to have ended is {who}: {exits[0].hit.text.strip()[:200]}"
    return Diagnosis(
        job=seen.job.id,
        state=seen.job.state,
        what=NOTHING,
        confidence="none",
        says=says,
        at=at,
        chain=_chain(Candidate("node-lost", (), early=seen.start), [], symptoms, seen),
        remedy=explanations()[f"diagnose/{NOTHING}"].remedy,
        others=_others(Candidate("node-lost", ()), found),
    )
