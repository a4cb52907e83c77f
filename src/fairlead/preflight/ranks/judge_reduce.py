"""What ranks computed, judged: exact values, the straggler test, bandwidth of the all-reduce. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fairlead.base.units import counted, duration, size
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge_devices import cards_summary, kind_of
from fairlead.preflight.ranks.judge_transport import is_within_nvlink, networks
from fairlead.preflight.ranks.limits import reduce_limit
from fairlead.preflight.ranks.said import Heard, Reduced, heard
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import size as size_of


def judge_values(said: Heard) -> Iterator[Finding]:
    """Sums that are not exact, and gradients that are not the mean.

    What one rank corrupts others pass on: where ranks of several nodes got it wrong, it may have come from any of them.
    """
    wrong = [reduced for reduced in said.reduced if reduced.wrong]
    nodes = sorted({said.node_of(reduced.rank) for reduced in wrong})
    is_spread = len(nodes) > 1
    for reduced in wrong[:1] if is_spread else wrong:
        who = f" on {counted(len({r.rank for r in wrong}), 'rank')} of {len(nodes)} nodes" if is_spread else ""
        yield Finding(
            code="preflight/wrong-sum",
            verdict=Verdict.FAIL,
            subject=Subject(kind="job", nodes=tuple(nodes)) if is_spread else rank_subject(said, reduced.rank),
            message=f"an all-reduce of {size(reduced.bytes)} came back wrong in {reduced.wrong} elements{who}",
            evidence=(
                Evidence(
                    f"element {reduced.first} on rank {reduced.rank}",
                    f"{'no number' if reduced.got is None else reduced.got}, and exact is {reduced.want}",
                ),
            ),
            remedy="do not use these nodes: data is corrupted on the way; test pairs of them with nccl-tests -c 1",
        )
    for step in said.ddp:
        if not step.gradient_is_mean:
            yield Finding(
                code="preflight/wrong-gradient",
                verdict=Verdict.FAIL,
                subject=rank_subject(said, step.rank),
                message="after a DistributedDataParallel step its gradient is not the mean of all ranks' own",
                remedy="look for different versions of torch, or data corrupted on the way",
            )


def judge_stragglers(said: Heard, wanted: Wanted) -> Iterator[Finding]:
    """The straggler test: ranks that compute far longer than others of their kind, and for which the others wait."""
    best = {r: min(s.compute_s) for r, s in said.rounds.items() if s.compute_s}
    waits = {r: statistics.median(s.wait_s) for r, s in said.rounds.items() if s.wait_s}
    kinds: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for rank, compute_s in best.items():
        kinds[kind_of(said, wanted, rank)][rank] = compute_s
    for alike in kinds.values():
        if len(alike) > 2:  # of two nobody can say which is slow
            yield from _stragglers(said, wanted, alike, waits)


def _stragglers(
    said: Heard, wanted: Wanted, best: Mapping[int, float], waits: Mapping[int, float]
) -> Iterator[Finding]:
    ratio, mads = wanted.numbers["straggler_ratio"], wanted.numbers["outlier_mads"]
    middle = statistics.median(best.values())
    mad = statistics.median(abs(v - middle) for v in best.values())
    others_wait = statistics.median(waits.values()) if waits else 0.0
    for rank, compute_s in sorted(best.items()):
        if compute_s > ratio * middle and compute_s > middle + mads * mad and waits.get(rank, 0.0) <= others_wait:
            yield Finding(
                code="preflight/straggler",
                verdict=Verdict.FAIL,
                subject=rank_subject(said, rank),
                message=f"takes {compute_s / middle:.1f} times as long as the median rank, and all wait for it",
                evidence=(Evidence("best round", duration(compute_s)), Evidence("median rank", duration(middle))),
                remedy="nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE; look for another job on the node",
                data={"compute_s": compute_s, "median_s": middle},
            )


def bandwidth(facts: RankFacts) -> dict[int, tuple[float, float]]:
    """Message size -> (seconds, busbw in bytes/s) as nccl-tests defines it: size / time x 2 (n-1) / n."""
    return _bandwidth(heard(facts).reduced, facts.wanted)


def _bandwidth(reduced: Sequence[Reduced], num_ranks: int) -> dict[int, tuple[float, float]]:
    """nccl-tests averages over iterations and takes the slowest rank's average (-a 1 is its default: all ranks' mean);
    ranks here agree on the slowest one's time before they say it, so that any of them has it.
    """
    times: defaultdict[int, list[float]] = defaultdict(list)
    for said in reduced:
        if said.s:
            times[said.bytes].append(statistics.fmean(said.s))
    factor = 2 * (num_ranks - 1) / num_ranks if num_ranks > 1 else 1.0
    return {b: (m, b / m * factor) for b, t in sorted(times.items()) if (m := statistics.fmean(t)) > 0}


def judge_bandwidth(said: Heard, wanted: Wanted) -> Iterator[Finding]:
    """Each message size that a limit holds for, in a node or between nodes over RDMA. One finding: the worst."""
    facts = said.facts
    found, is_one = _bandwidth(said.reduced, facts.wanted), len(facts.nodes) == 1
    on_gpus = any(t.num_devices or t.nccl for t in said.torch.values())
    if not found or not on_gpus or (not is_one and wanted.rdma == "none") or not _are_all_gpus(facts, wanted):
        return
    over_nvlink = is_within_nvlink(networks(said).values())
    warmups = {r.bytes: (r.warmups, len(r.s)) for r in said.reduced}
    missed: list[tuple[float, Finding]] = []
    for num_bytes, (_, busbw) in found.items():
        row = reduce_limit(wanted.size, nodes=len(facts.nodes), message_bytes=num_bytes, over_nvlink=over_nvlink)
        if row is None:
            continue
        gbs = busbw / 1e9
        for verdict, limit in ((Verdict.FAIL, row.fail_below), (Verdict.WARN, row.warn_below)):
            if limit is not None and gbs < limit:
                finding = Finding(
                    code="preflight/busbw",
                    verdict=verdict,
                    subject=Subject(kind="node" if is_one else "job", nodes=facts.nodes if is_one else ()),
                    message=f"all-reduce of {size(num_bytes)}: busbw {gbs:.1f} GB/s, expected {limit:g}",
                    evidence=(
                        Evidence(f"expected of {row.holds_for}", row.source),
                        Evidence("warm-up iterations, timed batches", "{}, {}".format(*warmups[num_bytes])),
                    ),
                    remedy="nvidia-smi nvlink -s; nvidia-smi topo -m; look for a throttled GPU, and at the rails",
                    data={"value": gbs, "limit": limit, "unit": "GB/s", "bytes": num_bytes, "nodes": len(facts.nodes)},
                )
                missed.append((gbs / limit, finding))
                break
    if missed:
        yield min(missed, key=lambda m: (m[1].verdict is not Verdict.FAIL, m[0]))[1]


def _are_all_gpus(facts: RankFacts, wanted: Wanted) -> bool:
    """Whether ranks use every GPU that the VM size has: what it reaches was measured with all, and fewer reach less."""
    table = size_of(wanted.size.name) or wanted.size if wanted.size else None
    return table is None or not table.gpus or facts.per_node == table.gpus


def judge_success(said: Heard, wanted: Wanted) -> Iterator[Finding]:
    """The line that says that every rank went through everything."""
    facts = said.facts
    found = _bandwidth(said.reduced, facts.wanted)
    if any(True for _ in judge_values(said)):
        return
    if mute := _mute(said):
        yield Finding(
            code="preflight/collective",
            verdict=Verdict.UNKNOWN,
            subject=Subject(kind="job", nodes=tuple(sorted({said.node_of(r) for r in mute}))),
            message=f"{counted(len(mute), 'rank')} of {facts.wanted} did not tell what came of every collective, so "
            "whether all values were exact is not known",
            evidence=(Evidence("ranks.json has no line", ", ".join(map(str, mute[:16]))),),
            remedy="preflight again; if it stays, look at the output of these ranks: `words` in ranks.json",
            data={"ranks": mute},
        )
        return
    num_bytes, (took_s, busbw) = list(found.items())[-1]
    left_out = sorted({b for line in said.left_out for b in line.bytes})
    beyond = f"; {', '.join(map(size, left_out))} left out: longer than `reduce_s`, or no memory" if left_out else ""
    rows = (
        reduce_limit(wanted.size, nodes=len(facts.nodes), message_bytes=b, over_nvlink=over)
        for b in found
        for over in (False, True)
    )
    judged = [row for row in rows if row and row.value is not None and _are_all_gpus(facts, wanted)]
    on_gpus = any(t.num_devices for t in said.torch.values())
    beyond += "" if judged or not on_gpus else "; no limit holds for these sizes, so bandwidth is not judged"
    yield Finding(
        code="preflight/collective",
        verdict=Verdict.PASS,
        subject=Subject(kind="job"),
        message=f"{facts.wanted} ranks: a DDP step and all-reduces up to {size(num_bytes)}, every value exact; "
        f"busbw {busbw / 1e9:.3g} GB/s, {duration(took_s)}{beyond}",
        data={"busbw_bytes_per_s": busbw, "bytes": num_bytes, "time_s": took_s, "left_out_bytes": left_out,
              "sizes": {str(b): {"time_s": t, "busbw_bytes_per_s": r} for b, (t, r) in found.items()},
              "devices": cards_summary(said)},
    )  # fmt: skip


def _mute(said: Heard) -> list[int]:
    """Ranks that lack a line: of the DDP step, of the straggler test, of their end, or of a size that others have."""
    told: defaultdict[int, set[int]] = defaultdict(set)
    for reduced in said.reduced:
        if reduced.s and min(reduced.s) > 0:
            told[reduced.rank].add(reduced.bytes)
    everything = set().union(*told.values())
    ended = {end.rank for end in said.facts.ends}
    whole = {step.rank for step in said.ddp} & said.rounds.keys() & said.finished & ended
    return [r for r in range(said.facts.wanted) if not told[r] or told[r] != everything or r not in whole]


def rank_subject(said: Heard, rank: int) -> Subject:
    """A rank, with its node."""
    return Subject(kind="rank", nodes=(said.node_of(rank),), name=f"rank {rank}")
