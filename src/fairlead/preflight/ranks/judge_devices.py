"""What each GPU delivers by itself: which is slower than its peers, and which could not do what they could. Pure."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.base.nodeset import fold
from fairlead.base.units import counted
from fairlead.preflight.ranks.said import Card, Heard
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict


@dataclass(frozen=True, slots=True)
class _Rate:
    """One quantity of a card: how to read it, its unit, its shares, and the VM size's name for it."""

    name: str
    read: Callable[[Card], float | None]
    unit: str
    per: float
    shares: str
    expected: str = ""


class _Said(NamedTuple):
    """What is wrong with one quantity."""

    verdict: Verdict
    text: str
    data: dict[str, float | str]


def _node_rate(card: Card) -> float | None:
    if not card.node_reduce_s or card.node_ranks < 2:
        return None
    return card.node_reduce_bytes / card.node_reduce_s * 2 * (card.node_ranks - 1) / card.node_ranks


RATES = (
    _Rate("matrix rate", lambda c: c.matmul_flops, "TFLOPS", 1e12, "matmul", "gpu_gemm_tflops"),
    _Rate("memory copy", lambda c: c.copy_bytes_s, "GB/s", 1e9, "copy", "gpu_memory_gbs"),
    _Rate("copy from the host", lambda c: c.h2d_bytes_s, "GB/s", 1e9, "copy", "gpu_h2d_gbs"),
    _Rate("copy to the host", lambda c: c.d2h_bytes_s, "GB/s", 1e9, "copy", "gpu_d2h_gbs"),
)
OF_THE_NODE = _Rate("all-reduce within the node", _node_rate, "GB/s", 1e9, "copy")
"""One number for all ranks of a node. On CPUs it goes over loopback, and says nothing about a device."""
PARTS = {
    "matrix": "could not multiply matrices",
    "copy": "could not copy within its memory",
    "host": "could not copy from and to the host",
}
"""What a card measures, onnode/device.py, and what it means that it could not."""
_NO_MEMORY = re.compile(r"out of memory|OutOfMemory|cannot pin|CUBLAS_STATUS_ALLOC_FAILED")


def judge_cards(heard: Heard, wanted: Wanted) -> Iterator[Finding]:
    """Devices slower than the median of the same kind, or than the VM size's least; one finding a device.

    A slow all-reduce within a node is the node's: which of its GPUs and links holds it up, the time does not tell.
    """
    kinds: defaultdict[tuple[str, str], dict[int, Card]] = defaultdict(dict)
    for rank, card in sorted(heard.cards.items()):
        kinds[kind_of(heard, wanted, rank)][rank] = card
    for (kind, _), cards in sorted(kinds.items()):
        slow: defaultdict[int, list[_Said]] = defaultdict(list)
        for rate in RATES:
            values = {r: v / rate.per for r, c in cards.items() if (v := rate.read(c))}
            for rank, one in _slow(rate, values, wanted, is_gpu=bool(kind)).items():
                slow[rank].append(one)
        for rank, found in sorted(slow.items()):
            # a CPU rank shares its core: one slow moment is nothing, and what stays slow the straggler test judges
            if kind or len(found) >= sum(rate.read(cards[rank]) is not None for rate in RATES):
                yield _of_a_device(heard, rank, cards[rank], found, is_gpu=bool(kind))
        if kind:
            yield from _slow_nodes(heard, wanted, cards)
            yield from _unmeasured(heard, kind, cards)


def _of_a_device(heard: Heard, rank: int, card: Card, found: Sequence[_Said], *, is_gpu: bool) -> Finding:
    is_bad = is_gpu and any(said.verdict is Verdict.FAIL for said in found)
    return Finding(
        code="preflight/slow-gpu",
        verdict=Verdict.FAIL if is_bad else Verdict.WARN,
        subject=_device_subject(heard, rank),
        message="; ".join(said.text for said in found),
        evidence=(Evidence("measured by", f"rank {rank}, {card.matmul} matrices, all ranks at once"),),
        remedy="nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER (rocm-smi -a); lspci -vv: LnkSta; then "
        "test this GPU alone"
        if is_gpu
        else "top on the node: another program, or a CPU limit, keeps this rank from its processor",
        data={"rank": rank, **_place(heard, rank), "rates": [said.data for said in found]},
    )


def _slow_nodes(heard: Heard, wanted: Wanted, cards: Mapping[int, Card]) -> Iterator[Finding]:
    """The all-reduce within each node, by the word of its first rank."""
    first = {heard.node_of(r): r for r in sorted(cards, reverse=True) if OF_THE_NODE.read(cards[r])}
    values = {r: (OF_THE_NODE.read(cards[r]) or 0.0) / OF_THE_NODE.per for r in first.values()}
    for rank, said in sorted(_slow(OF_THE_NODE, values, wanted, is_gpu=True).items()):
        yield Finding(
            code="preflight/slow-gpu",
            verdict=said.verdict,
            subject=node(heard.node_of(rank)),
            message=said.text,
            evidence=(Evidence("measured by", f"rank {rank}, with {cards[rank].node_ranks - 1} others of its node"),),
            remedy="nvidia-smi nvlink -s and -e, nvidia-smi topo -m (rocm-smi --showtopo); then test pairs of its "
            "GPUs: nvbandwidth, p2pBandwidthLatencyTest",
            data={"rates": [said.data]},
        )


def _unmeasured(heard: Heard, kind: str, cards: Mapping[int, Card]) -> Iterator[Finding]:
    """What a GPU could not do while others of its kind could; what none of them could tells of none."""
    for part, words in PARTS.items():
        missed = {r: text for r, card in cards.items() if (text := card.missed.get(part))}
        if missed and len(missed) == len(cards) > 1:
            yield Finding(
                code="preflight/slow-gpu",
                verdict=Verdict.UNKNOWN,
                subject=Subject(kind="job"),
                message=f"none of the {len(cards)} GPUs ({kind}) {words}, so that is not judged",
                evidence=(Evidence("torch", next(iter(missed.values()))),),
                remedy="look for a torch build that knows this GPU: torch.cuda.get_arch_list()",
                data={"part": part},
            )
            continue
        for rank, text in sorted(missed.items()):
            is_full = _NO_MEMORY.search(text)
            yield Finding(
                code="preflight/slow-gpu",
                verdict=Verdict.WARN if is_full else Verdict.FAIL,
                subject=_device_subject(heard, rank),
                message=f"{words}: {text[:160]}",
                evidence=(Evidence(f"torch on rank {rank}", text),),
                remedy="nvidia-smi --query-compute-apps=pid,used_memory: another process holds its memory"
                if is_full
                else "dmesg -T | grep -i xid; nvidia-smi -q -d ECC,ROW_REMAPPER; dcgmi diag -r 3 on this GPU",
                data={"rank": rank, **_place(heard, rank), "part": part},
            )


def kind_of(heard: Heard, wanted: Wanted, rank: int) -> tuple[str, str]:
    """(model of a rank's GPU, empty for a CPU; its node's pool): the same GPU is fed otherwise in another machine."""
    device = heard.torch[rank].device if rank in heard.torch else None
    return device.name if device else "", wanted.pools.get(heard.node_of(rank), "")


def _slow(rate: _Rate, values: Mapping[int, float], wanted: Wanted, *, is_gpu: bool) -> dict[int, _Said]:
    """Rank -> what is wrong with its value, among those of one kind; in the rate's own unit."""
    numbers, out = wanted.numbers, dict[int, _Said]()
    warn, fail = (
        (numbers[f"gpu_{rate.shares}_warn_share"], numbers[f"gpu_{rate.shares}_fail_share"])
        if is_gpu
        else (0.0, numbers["cpu_warn_share"])
    )
    known = wanted.size.expected.get(rate.expected) if is_gpu and wanted.size else None
    least = known.fail_below if known else None
    middle = statistics.median(values.values()) if values else 0.0
    mad = statistics.median(abs(v - middle) for v in values.values()) if values else 0.0
    for rank, value in values.items():
        data: dict[str, float | str] = {"name": rate.name, "value": value, "unit": rate.unit, "median": middle}
        shown = f"{rate.name} {value:.3g} {rate.unit}"
        # among fewer than four nobody can say which one is odd; CPU ranks share cores, and spread by what they share
        is_odd = len(values) > 3 and (not is_gpu or value < middle - numbers["outlier_mads"] * mad)
        if is_odd and value < max(warn, fail) * middle:
            verdict = Verdict.FAIL if value < fail * middle else Verdict.WARN
            out[rank] = _Said(verdict, f"{shown}, {value / middle:.0%} of the median's {middle:.3g}", data)
        elif least and value < numbers["size_floor_share"] * least:
            data |= {"limit": numbers["size_floor_share"] * least, "limit_source": known.source if known else ""}
            out[rank] = _Said(Verdict.FAIL, f"{shown}, and this VM size has at least {least:g}", data)
    return out


def _device_subject(heard: Heard, rank: int) -> Subject:
    place = _place(heard, rank)
    if not place["uuid"] and not place["pci"]:
        return Subject(kind="rank", nodes=(heard.node_of(rank),), name=f"rank {rank}")
    words = [f"GPU {place['index']}" if place["index"] is not None else "GPU", str(place["pci"]), str(place["uuid"])]
    return Subject(kind="device", nodes=(heard.node_of(rank),), name=" ".join(w for w in words if w))


def _place(heard: Heard, rank: int) -> dict[str, str | int | None]:
    """Index, PCI address and UUID of a rank's GPU: CUDA's own words first, as they outweigh what settings promise."""
    said, start = heard.torch.get(rank), heard.start.get(rank)
    device = said.device if said else None
    driver = start.gpu if start else None
    return {
        "index": driver.index if driver else None,
        "pci": (device.pci if device else "") or (driver.pci if driver and device else ""),
        "uuid": (device.uuid if device else "") or (driver.uuid if driver and device else ""),
    }


def cards_summary(heard: Heard) -> str:
    """The median of each quantity, for the line that says that all is well."""
    parts = []
    for rate in (*RATES, OF_THE_NODE):
        values = [v / rate.per for c in heard.cards.values() if (v := rate.read(c))]
        if values:
            parts.append(f"{rate.name} {statistics.median(values):.3g} {rate.unit}")
    nodes = fold(sorted({heard.node_of(r) for r in heard.cards}))
    return f"{counted(len(heard.cards), 'device')} on {nodes}, median: {', '.join(parts)}" if parts else ""
