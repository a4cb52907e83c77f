"""What the ranks did, judged: who broke the group, if it broke; else what each judge beside this one finds. Pure.

When a group of ranks fails, every rank complains and one is the cause. The cause is looked for in this order, and the
complaints of the others are kept as its evidence:

    a rank without the GPU it should have; a step that Slurm ended itself; a rank that could not start or was not let on
    (judge_start.py);
    a rank whose process ended without an error of its own (killed, crashed); a rank that never started; a rank that
    fell silent while the others spoke; a rail on which nothing arrived; a port whose requests got no answer; a rank
    whose own error is not about a peer; a rank that had not come as far as the others wait for; the peer that most of
    the others complain of.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from fairlead.base.units import counted, duration, size
from fairlead.launch.patience import Patience
from fairlead.preflight.ranks.facts import RankEnd, RankFacts
from fairlead.preflight.ranks.judge_devices import judge_cards
from fairlead.preflight.ranks.judge_no_gpu import judge_no_gpu
from fairlead.preflight.ranks.judge_perftest import judge_perftest
from fairlead.preflight.ranks.judge_rails import judge_rails
from fairlead.preflight.ranks.judge_reduce import (
    bandwidth,
    judge_bandwidth,
    judge_stragglers,
    judge_success,
    judge_values,
    rank_subject,
)
from fairlead.preflight.ranks.judge_start import judge_cut, judge_start
from fairlead.preflight.ranks.judge_transport import failed_ports, judge_failures, judge_transport, networks
from fairlead.preflight.ranks.said import Error, Heard, heard
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

__all__ = ["bandwidth", "has_succeeded", "judge_ranks"]

_PHASES = (
    "start",
    "import",
    "rendezvous",
    "join",
    "card",
    "rails",
    "perftest",
    "ddp",
    "reduce",
    "split",
    "rounds",
    "done",
)
_ABOUT_A_PEER = re.compile(
    r"[Cc]onnection (closed|reset|refused)|[Tt]imed? ?out|Broken pipe|[Ss]ocket|remote process|connectFullMesh|"
    r"DistNetworkError|heartbeat|Gloo|unhandled system error|unhandled cuda error|NCCL"
)
_OWN_IN_NCCL = re.compile(
    r"Cuda failure|Failed to CUDA|shared memory segment|[Cc]annot allocate memory|Too many open files|No space left|"
    r"Call to ibv_(?:reg_mr|create_cq|create_qp|alloc_pd|open_device)"
)
"""What NCCL's last error says of its own process: a CUDA call, memory, files, locked memory."""
_PEER = re.compile(r"(?:peer|to|from) (?:\[([0-9a-f.:]+)\]:\d+|([0-9.]+):\d+|([\w.:-]+)<\d+>)")
"""gloo's `[fd00::1]:4711`, and NCCL's `10.0.0.5<4711>` or `n5.cluster<4711>`."""


def judge_ranks(facts: RankFacts, addresses: Mapping[str, str], wanted: Wanted | None = None) -> list[Finding]:
    """All findings of the ranks. `addresses`: node -> its ranks' address; `wanted`: what they are held against."""
    said, wanted = heard(facts), wanted or Wanted()
    garbled = list(_garbled(said))
    lies = list(_lies(said))
    causes = lies or list(judge_no_gpu(said, wanted)) or judge_cut(facts) or judge_start(facts)
    causes = causes or list(_causes(said, addresses, wanted))
    if facts.launch_only:
        return [*garbled, *causes, _not_run(facts)]
    if causes:
        return [*garbled, *causes, *judge_values(said)]
    return [
        *garbled,
        *judge_values(said),
        *judge_stragglers(said, wanted),
        *judge_cards(said, wanted),
        *judge_transport(said, wanted),
        *judge_rails(said, wanted),
        *judge_perftest(said, wanted),
        *judge_bandwidth(said, wanted),
        *judge_success(said, wanted),
    ]


def has_succeeded(findings: Iterable[Finding]) -> bool:
    """Whether every rank went through every collective and every value was right."""
    return any(f.code == "preflight/collective" and f.verdict is Verdict.PASS for f in findings)


def _lies(said: Heard) -> Iterator[Finding]:
    """Ranks that sent what no rank of ours sends: the group ended for that, and of the others nothing is known."""
    for lie in said.facts.lies:
        if 0 <= lie.rank < said.facts.wanted:
            yield Finding(
                code="cluster/bad-answer",
                verdict=Verdict.FAIL,
                subject=rank_subject(said, lie.rank),
                message=f"it sent {lie.what}, so it was heard no more and the ranks were stopped",
                evidence=(Evidence("what it sent", lie.said),),
                remedy="keep the node out, and look at what runs there: fairlead explain cluster/bad-answer",
            )


def _garbled(said: Heard) -> Iterator[Finding]:
    """Lines that are not what they should be: what they were to tell is not known of that rank."""
    by_rank: defaultdict[int, list[str]] = defaultdict(list)
    for line in said.garbled:
        by_rank[line.rank].append(f"`{line.say}`: {line.why}")
    for rank, why in sorted(by_rank.items()):
        yield Finding(
            code="preflight/rank-words",
            verdict=Verdict.UNKNOWN,
            subject=rank_subject(said, rank) if 0 <= rank < said.facts.wanted else Subject(kind="job"),
            message=f"{counted(len(why), 'line')} of it cannot be read, so part of it was not judged",
            evidence=tuple(Evidence("ranks.json", text) for text in why[:3]),
            remedy="preflight again; if it stays, the node runs another program, or its output is cut on the way",
        )


# ---- who broke it ----------------------------------------------------------------------------------------------------


def _causes(said: Heard, addresses: Mapping[str, str], wanted: Wanted) -> Iterator[Finding]:
    facts, started, errors, finished = said.facts, said.spoke, said.errors, said.finished
    failed = [
        e
        for e in facts.ends
        if e.state == "failed" or (e.state not in ("done", "cancelled", "stopped") and e.rank not in started)
    ]
    if len(finished) >= facts.wanted and not failed:
        return
    if not facts.broken and len({e.rank for e in facts.ends if e.state == "done"}) >= facts.wanted:
        return  # all went well to their end: who did not tell everything broke nothing
    if not started:
        yield _launch_failed(failed) if failed else _no_word(facts)
        return
    missing = [r for r in range(facts.wanted) if r not in started]
    # torch aborts a rank whose RDMA requests failed: that is no death of its own
    cut_off = {r for r, words in networks(said).items() if words.num_errors}
    died = [e for e in failed if e.rank in started and e.rank not in errors and e.rank not in cut_off]
    died.sort(key=lambda e: e.at_s)
    if died:
        first = died[0].at_s
        for end in died:
            if end.at_s - first < 0.5 or not _is_consequence(end):
                yield _died(end, said)
        return
    if missing:
        # where some ended by themselves, the others were only stopped before they could speak
        ended = [e.rank for e in failed if e.rank in missing]
        yield from _missing(ended or missing, said)
        return
    silent = _silent(said, finished)
    if silent:
        for rank in silent:
            yield _stands_still(rank, said)
        return
    if any(r.s is None for r in said.rails):
        rails = [f for f in judge_rails(said, wanted) if f.verdict in (Verdict.FAIL, Verdict.WARN)]
        yield from rails
        if rails:
            return  # else it came late, or was cut by the other end: no cause of its own
    if unanswered := list(failed_ports(said, addresses)):
        yield from unanswered
        return
    own = [e for e in errors.values() if _is_own(f"{e.kind} {e.text}")]
    if own:
        for error in sorted(own, key=lambda e: e.at_s):
            yield _own_error(error)
        return
    late = _late(said, finished)
    if late:
        for rank in late:
            yield _came_late(rank, said)
        return
    yield _nobody_named(said, addresses)


def _is_own(text: str) -> bool:
    """Whether an error is the rank's own; one of the library's says so in the last words it quotes."""
    return bool(_OWN_IN_NCCL.search(text) if "Last error:" in text else not _ABOUT_A_PEER.search(text))


def _is_consequence(end: RankEnd) -> bool:
    return end.rc == 70 or (end.rc or 0) == 75


def _place(said: Heard, rank: int) -> str:
    """The last phase a rank entered, with the size of the message where it has one."""
    last = said.phases.get(rank)
    if not last:
        return "start"
    word = {"split": "straggler test", "rounds": "straggler test"}.get(last[-1].phase, last[-1].phase)
    return f"{word} of {size(last[-1].bytes)}" if last[-1].bytes is not None else word


def _launch_failed(failed: list[RankEnd]) -> Finding:
    why = Counter(e.error or e.stderr.splitlines()[-1] if e.error or e.stderr else "no reason given" for e in failed)
    nodes = sorted({e.node for e in failed})
    return Finding(
        code="preflight/no-ranks",
        verdict=Verdict.FAIL,
        subject=Subject(kind="job", nodes=tuple(nodes)),
        message=f"no rank came up: {why.most_common(1)[0][0]}",
        evidence=tuple(Evidence(f"rank {e.rank}", e.stderr.splitlines()[-1]) for e in failed if e.stderr)[:3],
        remedy="is torch in the Python that the [[pool]] names? try: fairlead exec -- PYTHON -c 'import torch'",
    )


def _no_word(facts: RankFacts) -> Finding:
    """Every process was there, and none of them spoke in time: no node is the odd one."""
    return Finding(
        code="preflight/no-ranks",
        verdict=Verdict.UNKNOWN,
        subject=Subject(kind="job", nodes=facts.nodes),
        message=f"no rank said a word on any node: {facts.broken or 'they were ended before'}",
        remedy="what do they wait for, an image or a file system? If they are only slow, raise start_s in [launch]",
    )


def _died(end: RankEnd, said: Heard) -> Finding:
    errors = said.errors
    complaints = [Evidence(f"rank {r} in {e.phase}", e.text) for r, e in sorted(errors.items())]
    words = [Evidence("its last words", end.stderr.splitlines()[-1])] if end.stderr else []
    place = _place(said, end.rank)
    return Finding(
        code="preflight/rank-died",
        verdict=Verdict.FAIL,
        subject=rank_subject(said, end.rank),
        message=f"its process ended by itself ({end.error or end.state}) {_in(place)}",
        evidence=(*words, *complaints[: 3 - len(words)]),
        remedy="dmesg -T | tail on the node (out of memory, GPU errors); then run the ranks of this node alone",
        data={"rc": end.rc, "phase": place, "at_s": end.at_s, "complaints": len(errors)},
    )


def _in(place: str) -> str:
    return "before any collective" if place in ("start", "import", "rendezvous") else f"inside the collective: {place}"


def _missing(ranks: list[int], said: Heard) -> Iterator[Finding]:
    """Ranks that never said a word, by node."""
    facts = said.facts
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    ends = {e.rank: e for e in facts.ends}
    for rank in ranks:
        by_node[said.node_of(rank)].append(rank)
    for name, mine in sorted(by_node.items()):
        why = next((ends[r].error for r in mine if r in ends and ends[r].error), "")
        words = next((ends[r].stderr.splitlines()[-1] for r in mine if r in ends and ends[r].stderr), "")
        yield Finding(
            code="preflight/rank-missing",
            verdict=Verdict.FAIL,
            subject=node(name),
            message=f"{len(mine)} of its ranks never started" + (f": {why}" if why else ""),
            evidence=(Evidence("its last words", words),) if words else (),
            remedy="fairlead exec -w NODE -- PYTHON -c 'import torch'; with Slurm: srun -w NODE hostname",
            data={"ranks": mine},
        )


def _silent(said: Heard, finished: frozenset[int]) -> list[int]:
    """Ranks past their import whose last sign of life is much older than the newest of all."""
    last: dict[int, float] = {}
    for line in [*said.lines, *said.beats.values()]:
        last[line.rank] = max(last.get(line.rank, 0.0), line.at_s)
    # one that is stopped before its first beat has at least said that it is through with its import
    came_up = {r for r, phases in said.phases.items() if any(p.phase not in ("start", "import") for p in phases)}
    alive = (came_up | said.beats.keys()) - finished - said.errors.keys()
    newest, limit_s = max(last.values(), default=0.0), Patience(ranks=said.facts.wanted).silent_s
    return sorted(r for r in alive if newest - last[r] > limit_s)


def _stands_still(rank: int, said: Heard) -> Finding:
    facts, place = said.facts, _place(said, rank)
    last = max([s.at_s for s in said.lines if s.rank == rank] + [b.at_s for r, b in said.beats.items() if r == rank])
    return Finding(
        code="preflight/rank-stopped",
        verdict=Verdict.FAIL,
        subject=rank_subject(said, rank),
        message=f"stands still {_in(place)}: its last sign of life came "
        f"{duration(max(0.0, facts.took_s - last))} before the end, while others beat on",
        evidence=(Evidence("the group was stopped", facts.broken),),
        remedy="on the node: ps -C python3 -o pid,stat,wchan:32,cmd (T: stopped, D: stuck in the kernel); dmesg -T",
        data={"phase": place, "last_s": last},
    )


def _late(said: Heard, finished: frozenset[int]) -> list[int]:
    """Ranks that had not entered what most others were waiting in."""
    alive = {r: len(phases) for r, phases in said.phases.items() if r not in finished}
    if len(alive) < 2:
        return []
    furthest = max(alive.values())
    late = sorted(r for r, n in alive.items() if n < furthest)
    return late if len(late) <= len(alive) // 2 else []


def _came_late(rank: int, said: Heard) -> Finding:
    facts, place = said.facts, _place(said, rank)
    return Finding(
        code="preflight/rank-late",
        verdict=Verdict.FAIL,
        subject=rank_subject(said, rank),
        message=f"came no further than {place} while the others waited for it",
        evidence=(Evidence("the group was stopped", facts.broken or "its ranks gave up"),),
        remedy="on the node: py-spy dump, or cat /proc/PID/stack; look for a file system or a device that hangs",
        data={"phase": place},
    )


def _own_error(error: Error) -> Finding:
    return Finding(
        code="preflight/rank-error",
        verdict=Verdict.FAIL,
        subject=Subject(kind="rank", nodes=(error.node,), name=f"rank {error.rank}"),
        message=f"failed in {error.phase} with {error.kind}: {error.text[:160]}",
        evidence=(Evidence(error.at, error.text),),
        remedy="run the same on this node alone; the error is its own, not a peer's",
        data={"phase": error.phase, "kind": error.kind},
    )


def _nobody_named(said: Heard, addresses: Mapping[str, str]) -> Finding:
    """Every rank came equally far and each complains of another: the peers complained of most are as far as it goes.

    Where the library says which port's requests failed, the port that failed most is named beside them.
    """
    facts, errors = said.facts, said.errors
    owner = {address: name for name, address in addresses.items()} | {name: name for name in addresses}
    # requests that ended in an error are told above, where they are evidence
    texts = [e.text for e in errors.values() if "Got completion" not in e.text]
    peers = [found[1] or found[2] or found[3] for text in texts if (found := _PEER.search(text))]
    blamed = Counter(name for peer in peers if (name := owner.get(peer) or owner.get(peer.partition(".")[0])))
    named = [name for name, num in blamed.items() if num > 1 and num == max(blamed.values())]
    furthest = max(
        (_place(said, r) for r in range(facts.wanted)),
        key=lambda p: next((i for i, phase in enumerate(_PHASES) if p.startswith(phase)), 0),
        default="start",
    )
    ports = judge_failures(said)
    return Finding(
        code="preflight/collective-failed",
        verdict=Verdict.FAIL,
        subject=Subject(kind="job", nodes=tuple(sorted(named)) if len(named) == 1 else ()),
        message=f"the ranks failed together {_in(furthest)}: {facts.broken or 'no rank finished'}",
        evidence=(
            *(Evidence(f"failed work requests on {name}", f"{hca}: {num}") for name, hca, num in ports[:2]),
            *(Evidence(f"rank {r}", e.text) for r, e in sorted(errors.items())[:4]),
        ),
        remedy="look at the ports named; else at what passed between nodes during the run: the pair phase saw all "
        "pairs well before it",
        data={"blamed": dict(blamed), "failed_ports": [list(p) for p in ports[:16]]},
    )


def _not_run(facts: RankFacts) -> Finding:
    return Finding(
        code="preflight/collective",
        verdict=Verdict.SKIP,
        subject=Subject(kind="job"),
        message=f"the ranks were started and met nobody: {facts.launch_only}",
    )
