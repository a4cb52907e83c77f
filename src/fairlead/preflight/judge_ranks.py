"""What the ranks did, judged: who died, who stood still, who was late, wrong sums, speed, and the proof of RDMA. Pure.

When a group of ranks fails, every rank complains and one is the cause. The cause is looked for in this order, and the
complaints of the others are kept as its evidence:

    a rank that never started; a rank whose process ended without an error of its own (killed, crashed); a rank that
    fell silent while the others spoke; a rank that had not come as far as the others wait for; a rank whose own error
    is not about a peer; the peer that most of the others complain of.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairlead.base.units import duration, size
from fairlead.preflight.facts import RankEnd, RankFacts
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

STRAGGLER_RATIO = 2.0
SILENT_S = 2.0
LARGE_BYTES = 1 << 26
"""From this size on an all-reduce is expected to reach what is known of a VM size."""
_PHASES = ("start", "import", "rendezvous", "join", "ddp", "reduce", "split", "done")
_ABOUT_A_PEER = re.compile(
    r"[Cc]onnection (closed|reset|refused)|[Tt]imed? ?out|Broken pipe|[Ss]ocket|remote process|connectFullMesh|"
    r"DistNetworkError|heartbeat|Gloo|unhandled system error|unhandled cuda error|NCCL"
)
_PEER = re.compile(r"(?:peer|to|from) (?:\[([0-9a-f.:]+)\]|([0-9.]+)):\d+")

Said = Mapping[str, Any]


def judge_ranks(
    facts: RankFacts, addresses: Mapping[str, str], *, rdma: str, expected: Mapping[str, Any] | None = None
) -> list[Finding]:
    """All findings of the collective. `addresses`: node -> its ranks' address; `expected`: numbers of the VM size."""
    causes = list(_causes(facts, addresses))
    if facts.launch_only:
        return [*causes, _not_run(facts)]
    if causes:
        return causes
    return [
        *_wrong(facts),
        *_stragglers(facts),
        *_transport(facts, rdma),
        *_bandwidth(facts, rdma, expected or {}),
        *_success(facts),
    ]


def has_succeeded(findings: Iterable[Finding]) -> bool:
    """Whether every rank went through every collective and every value was right."""
    return any(f.code == "preflight/collective" and f.verdict is Verdict.PASS for f in findings)


# ---- who broke it ----------------------------------------------------------------------------------------------------


def _causes(facts: RankFacts, addresses: Mapping[str, str]) -> Iterator[Finding]:
    started = {s["rank"]: s for s in facts.lines if s["say"] == "start"}
    errors = {s["rank"]: s for s in reversed(facts.lines) if s["say"] == "error"}
    failed = [
        e
        for e in facts.ends
        if e.state == "failed" or (e.state not in ("done", "cancelled", "stopped") and e.rank not in started)
    ]
    finished = {s["rank"] for s in facts.lines if s["say"] == "phase" and s.get("phase") == "done"}
    if len(finished) >= facts.wanted and not failed:
        return
    if not started and failed:
        yield _launch_failed(failed)
        return
    missing = [r for r in range(facts.wanted) if r not in started]
    died = sorted((e for e in failed if e.rank in started and e.rank not in errors), key=lambda e: e.at_s)
    if died:
        first = died[0].at_s
        for end in died:
            if end.at_s - first < 0.5 or not _is_consequence(end):
                yield _died(end, facts, errors)
        return
    if missing:
        # where some ended by themselves, the others were only stopped before they could speak
        ended = [e.rank for e in failed if e.rank in missing]
        yield from _missing(ended or missing, facts)
        return
    silent = _silent(facts, finished)
    if silent:
        for rank in silent:
            yield _stands_still(rank, facts)
        return
    own = [e for e in errors.values() if not _ABOUT_A_PEER.search(f"{e['kind']} {e['text']}")]
    if own:
        for said in sorted(own, key=lambda s: s["at_s"]):
            yield _own_error(said)
        return
    late = _late(facts, finished, errors)
    if late:
        for rank in late:
            yield _came_late(rank, facts)
        return
    yield _nobody_named(facts, errors, addresses)


def _is_consequence(end: RankEnd) -> bool:
    return end.rc == 70 or (end.rc or 0) == 75


def _place(facts: RankFacts, rank: int) -> str:
    """The last phase a rank entered, with the size of the message where it has one."""
    last = [s for s in facts.lines if s["rank"] == rank and s["say"] == "phase"]
    if not last:
        return "start"
    said = last[-1]
    return f"{said['phase']} of {size(said['bytes'])}" if "bytes" in said else str(said["phase"])


def _rank_subject(facts: RankFacts, rank: int) -> Subject:
    name = (
        next((s["node"] for s in facts.lines if s["rank"] == rank), "")
        or facts.nodes[min(rank // facts.per_node, len(facts.nodes) - 1)]
    )
    return Subject(kind="rank", nodes=(name,), name=f"rank {rank}")


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


def _died(end: RankEnd, facts: RankFacts, errors: Mapping[int, Said]) -> Finding:
    complaints = [Evidence(f"rank {r} in {e['phase']}", e["text"]) for r, e in sorted(errors.items())]
    words = [Evidence("its last words", end.stderr.splitlines()[-1])] if end.stderr else []
    place = _place(facts, end.rank)
    return Finding(
        code="preflight/rank-died",
        verdict=Verdict.FAIL,
        subject=_rank_subject(facts, end.rank),
        message=f"its process ended by itself ({end.error or end.state}) {_in(place)}",
        evidence=(*words, *complaints[: 3 - len(words)]),
        remedy="dmesg -T | tail on the node (out of memory, GPU errors); then run the ranks of this node alone",
        data={"rc": end.rc, "phase": place, "at_s": end.at_s, "complaints": len(errors)},
    )


def _in(place: str) -> str:
    return "before any collective" if place in ("start", "import", "rendezvous") else f"inside the collective: {place}"


def _missing(ranks: list[int], facts: RankFacts) -> Iterator[Finding]:
    """Ranks that never said a word, by node."""
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    ends = {e.rank: e for e in facts.ends}
    for rank in ranks:
        name = ends[rank].node if rank in ends else facts.nodes[min(rank // facts.per_node, len(facts.nodes) - 1)]
        by_node[name].append(rank)
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


def _silent(facts: RankFacts, finished: set[int]) -> list[int]:
    """Ranks past their import whose last sign of life is much older than the newest of all."""
    last: dict[int, float] = {}
    for said in [*facts.lines, *facts.beats.values()]:
        last[said["rank"]] = max(last.get(said["rank"], 0.0), said["at_s"])
    # one that is stopped before its first beat has at least said that it is through with its import
    came_up = {s["rank"] for s in facts.lines if s["say"] == "phase" and s["phase"] not in ("start", "import")}
    alive = (came_up | facts.beats.keys()) - finished - {s["rank"] for s in facts.lines if s["say"] == "error"}
    newest = max(last.values(), default=0.0)
    return sorted(r for r in alive if newest - last[r] > SILENT_S)


def _stands_still(rank: int, facts: RankFacts) -> Finding:
    place = _place(facts, rank)
    last = max([s["at_s"] for s in facts.lines if s["rank"] == rank] + [facts.beats.get(rank, {}).get("at_s", 0.0)])
    return Finding(
        code="preflight/rank-stopped",
        verdict=Verdict.FAIL,
        subject=_rank_subject(facts, rank),
        message=f"stands still {_in(place)}: its last sign of life came "
        f"{duration(max(0.0, facts.took_s - last))} before the end, while others beat on",
        evidence=(Evidence("the group was stopped", facts.broken),),
        remedy="on the node: ps -C python3 -o pid,stat,wchan:32,cmd (T: stopped, D: stuck in the kernel); dmesg -T",
        data={"phase": place, "last_s": last},
    )


def _late(facts: RankFacts, finished: set[int], errors: Mapping[int, Said]) -> list[int]:
    """Ranks that had not entered what most others were waiting in."""
    steps: defaultdict[int, int] = defaultdict(int)
    for said in facts.lines:
        if said["say"] == "phase":
            steps[said["rank"]] += 1
    alive = {r: n for r, n in steps.items() if r not in finished}
    if len(alive) < 2:
        return []
    furthest = max(alive.values())
    late = sorted(r for r, n in alive.items() if n < furthest)
    return late if len(late) <= len(alive) // 2 else []


def _came_late(rank: int, facts: RankFacts) -> Finding:
    place = _place(facts, rank)
    return Finding(
        code="preflight/rank-late",
        verdict=Verdict.FAIL,
        subject=_rank_subject(facts, rank),
        message=f"came no further than {place} while the others waited for it",
        evidence=(Evidence("the group was stopped", facts.broken or "its ranks gave up"),),
        remedy="on the node: py-spy dump, or cat /proc/PID/stack; look for a file system or a device that hangs",
        data={"phase": place},
    )


def _own_error(said: Said) -> Finding:
    return Finding(
        code="preflight/rank-error",
        verdict=Verdict.FAIL,
        subject=Subject(kind="rank", nodes=(said["node"],), name=f"rank {said['rank']}"),
        message=f"failed in {said['phase']} with {said['kind']}: {said['text'][:160]}",
        evidence=(Evidence(said.get("at", ""), said["text"]),),
        remedy="run the same on this node alone; the error is its own, not a peer's",
        data={"phase": said["phase"], "kind": said["kind"]},
    )


def _nobody_named(facts: RankFacts, errors: Mapping[int, Said], addresses: Mapping[str, str]) -> Finding:
    """Every rank came equally far and each complains of another: the peers complained of most are as far as it goes."""
    owner = {address: name for name, address in addresses.items()}
    peers = [found[1] or found[2] for e in errors.values() if (found := _PEER.search(e["text"]))]
    blamed = Counter(owner[peer] for peer in peers if peer in owner)
    named = [name for name, num in blamed.items() if num > 1 and num == max(blamed.values())]
    furthest = max(
        (_place(facts, r) for r in range(facts.wanted)), key=lambda p: _PHASES.index(p.split(" ")[0]), default="start"
    )
    return Finding(
        code="preflight/collective-failed",
        verdict=Verdict.FAIL,
        subject=Subject(kind="job", nodes=tuple(sorted(named)) if len(named) == 1 else ()),
        message=f"the ranks failed together {_in(furthest)}: {facts.broken or 'no rank finished'}",
        evidence=tuple(Evidence(f"rank {r}", e["text"]) for r, e in sorted(errors.items())[:4]),
        remedy="look at what passed between nodes during the run: the pair phase saw all pairs well before it",
        data={"blamed": dict(blamed)},
    )


def _not_run(facts: RankFacts) -> Finding:
    return Finding(
        code="preflight/collective",
        verdict=Verdict.SKIP,
        subject=Subject(kind="job"),
        message=f"the ranks were started and met nobody: {facts.launch_only}",
    )


# ---- what they computed ----------------------------------------------------------------------------------------------


def _wrong(facts: RankFacts) -> Iterator[Finding]:
    """Sums that are not exact, and gradients that are not the mean."""
    for said in facts.lines:
        if said["say"] == "reduced" and said.get("wrong"):
            yield Finding(
                code="preflight/wrong-sum",
                verdict=Verdict.FAIL,
                subject=_rank_subject(facts, said["rank"]),
                message=f"an all-reduce of {size(said['bytes'])} came back wrong in {said['wrong']} elements",
                evidence=(Evidence(f"element {said['first']}", f"{said['got']}, and exact is {said['want']}"),),
                remedy="do not use these nodes: data is corrupted on the way; test pairs of them with nccl-tests -c 1",
            )
        if said["say"] == "ddp" and not said.get("gradient_is_mean"):
            yield Finding(
                code="preflight/wrong-gradient",
                verdict=Verdict.FAIL,
                subject=_rank_subject(facts, said["rank"]),
                message="after a DistributedDataParallel step its gradient is not the mean of all ranks' own",
                remedy="look for different versions of torch, or data corrupted on the way",
            )


def _stragglers(facts: RankFacts) -> Iterator[Finding]:
    """Ranks that compute far longer than the others, for which the others wait."""
    best = {s["rank"]: min(s["compute_s"]) for s in facts.lines if s["say"] == "split" and s["compute_s"]}
    waits = {s["rank"]: statistics.median(s["wait_s"]) for s in facts.lines if s["say"] == "split" and s["wait_s"]}
    if len(best) < 3:
        return
    middle = statistics.median(best.values())
    mad = statistics.median(abs(v - middle) for v in best.values())
    others_wait = statistics.median(waits.values())
    for rank, compute_s in sorted(best.items()):
        if compute_s > STRAGGLER_RATIO * middle and compute_s > middle + 6 * mad and waits[rank] <= others_wait:
            yield Finding(
                code="preflight/straggler",
                verdict=Verdict.FAIL,
                subject=_rank_subject(facts, rank),
                message=f"takes {compute_s / middle:.1f} times as long as the median rank, and all wait for it",
                evidence=(Evidence("best round", duration(compute_s)), Evidence("median rank", duration(middle))),
                remedy="nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE; look for another job on the node",
                data={"compute_s": compute_s, "median_s": middle},
            )


def _transport(facts: RankFacts, rdma: str) -> Iterator[Finding]:
    """Where there are GPUs and RDMA is declared, NCCL itself must say that it uses it."""
    if rdma == "none" or not any(s.get("nccl") for s in facts.lines if s["say"] == "torch"):
        return
    by_network: defaultdict[str, set[str]] = defaultdict(set)
    node_of = {s["rank"]: s["node"] for s in facts.lines if s["say"] == "start"}
    for rank, words in facts.nccl.items():
        for word in words:
            if word.startswith("Using network "):
                by_network[word.removeprefix("Using network ")].add(node_of.get(rank, ""))
    if not by_network:
        yield Finding(
            code="preflight/transport",
            verdict=Verdict.UNKNOWN,
            subject=Subject(kind="job"),
            message="NCCL did not say which network it chose",
            remedy="unset NCCL_DEBUG, or set it to INFO",
        )
    for network, nodes in sorted(by_network.items()):
        if network == "Socket":
            yield Finding(
                code="preflight/transport",
                verdict=Verdict.FAIL,
                subject=Subject(kind="job", nodes=tuple(sorted(nodes))),
                message=f"NCCL uses TCP sockets, and the cluster file declares {rdma}",
                evidence=(Evidence("NCCL", f"Using network {network}"),),
                remedy="NCCL_DEBUG=INFO shows why: look for NCCL_IB_DISABLE, memlock limits, a missing RDMA plugin",
            )
        else:
            gdr = any("GDRDMA" in w for words in facts.nccl.values() for w in words)
            yield Finding(
                code="preflight/transport",
                verdict=Verdict.PASS,
                subject=Subject(kind="job", nodes=tuple(sorted(nodes))),
                message=f"NCCL uses {network}" + (" with GPUDirect RDMA" if gdr else ""),
            )


def bandwidth(facts: RankFacts) -> dict[int, tuple[float, float]]:
    """Message size -> (seconds, busbw in bytes/s) as nccl-tests defines it: size / time x 2 (n-1) / n."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for said in facts.lines:
        if said["say"] == "reduced" and said["s"]:
            times[said["bytes"]].append(statistics.median(said["s"]))
    factor = 2 * (facts.wanted - 1) / facts.wanted if facts.wanted > 1 else 1.0
    return {b: (statistics.fmean(t), b / statistics.fmean(t) * factor) for b, t in sorted(times.items())}


def _bandwidth(facts: RankFacts, rdma: str, expected: Mapping[str, Any]) -> Iterator[Finding]:
    """The largest message against what the VM size is known to reach, in a node or between nodes over RDMA."""
    found, is_one = bandwidth(facts), len(facts.nodes) == 1
    want = expected.get("node_allreduce_busbw_gbs" if is_one else "job_allreduce_busbw_gbs")
    if not found or want is None or (not is_one and rdma == "none"):
        return
    num_bytes, (_, busbw) = list(found.items())[-1]
    gbs = busbw / 1e9
    for verdict, limit in ((Verdict.FAIL, want.fail_below), (Verdict.WARN, want.warn_below)):
        if limit is not None and num_bytes >= LARGE_BYTES and gbs < limit:
            yield Finding(
                code="preflight/busbw",
                verdict=verdict,
                subject=Subject(kind="node" if is_one else "job", nodes=facts.nodes),
                message=f"all-reduce of {size(num_bytes)}: busbw {gbs:.1f} GB/s, expected {limit:g}",
                evidence=(Evidence("expected by", want.source),),
                remedy="nvidia-smi nvlink -s; nvidia-smi topo -m; look for a GPU that is throttled",
                data={"value": gbs, "limit": limit, "unit": "GB/s"},
            )
            return


def _success(facts: RankFacts) -> Iterator[Finding]:
    found = bandwidth(facts)
    if not found:
        return
    wrong = any(s.get("wrong") for s in facts.lines if s["say"] == "reduced")
    bad = any(s["say"] == "ddp" and not s.get("gradient_is_mean") for s in facts.lines)
    if wrong or bad:
        return
    num_bytes, (took_s, busbw) = list(found.items())[-1]
    left_out = sorted({b for s in facts.lines if s["say"] == "left_out" for b in s["bytes"]})
    beyond = f"; {', '.join(map(size, left_out))} left out: longer than `reduce_s`" if left_out else ""
    yield Finding(
        code="preflight/collective",
        verdict=Verdict.PASS,
        subject=Subject(kind="job"),
        message=f"{facts.wanted} ranks: a DDP step and all-reduces up to {size(num_bytes)}, every value exact; "
        f"busbw {busbw / 1e9:.3g} GB/s, {duration(took_s)}{beyond}",
        data={"busbw_bytes_per_s": busbw, "bytes": num_bytes, "time_s": took_s, "left_out_bytes": left_out,
              "sizes": {str(b): {"time_s": t, "busbw_bytes_per_s": r} for b, (t, r) in found.items()}},
    )  # fmt: skip
