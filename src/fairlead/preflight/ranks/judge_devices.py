"""The device of each rank: why one that should have a GPU has none, and which GPU is slower than its peers. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fairlead.base.nodeset import fold
from fairlead.base.units import counted
from fairlead.preflight.ranks.said import Card, Heard, Torch
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

EMPTY = ("", "-1", "none", "void", "NoDevFiles")
"""What visible devices are set to when there are none (CUDA: -1 and everything behind it; Slurm: NoDevFiles)."""


# ---- no GPU ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cause:
    """Why torch reaches no GPU, and the next thing to do."""

    name: str
    says: str
    remedy: str


def without_gpu(heard: Heard) -> dict[int, Cause]:
    """Rank -> why it reaches no GPU. Ranks of older programs, which did not say, are left out."""
    return {rank: why_none(said) for rank, said in sorted(heard.torch.items()) if said.num_devices == 0}


def why_none(said: Torch) -> Cause:
    """The first of the causes that fits what the rank read."""
    built = said.cuda or said.hip
    for name, value in said.visible.items():
        if value.strip() in EMPTY and name != "NVIDIA_VISIBLE_DEVICES":
            shown = value.strip() or "empty"
            return Cause(
                "hidden",
                f"{name} is {shown}, which hides every GPU from it",
                f"unset {name} in the job's script and in profiles; with Slurm ask for GPUs: --gres=gpu:N",
            )
    if not built:
        return Cause(
            "cpu-build",
            f"its torch ({said.torch}) is built without CUDA and without ROCm",
            "install the GPU build in the Python that [[pool]] names: fairlead exec -- PYTHON -m pip show torch",
        )
    if said.device_files == 0:
        loaded = f", though the driver {said.driver} is loaded" if said.driver else ", and no GPU driver is loaded"
        return Cause(
            "no-device-files",
            f"no device file of a GPU is to be seen from it{loaded}",
            "in a container give it the GPUs: enroot's nvidia hook, docker --gpus all, apptainer --nv or --rocm"
            if said.driver
            else "load the driver: modprobe nvidia (amdgpu), then look at dmesg",
        )
    if said.device_files and said.unreadable_files >= said.device_files:
        return Cause(
            "no-permission",
            f"it may open none of the {said.device_files} device files of GPUs",
            "ask Slurm for GPUs (--gres=gpu:N); without Slurm look at the owner and mode of /dev/nvidia*, /dev/dri",
        )
    if said.cuda and said.driver_cuda and _version(said.driver_cuda)[0] < _version(said.cuda)[0]:
        return Cause(
            "old-driver",
            f"the GPU driver ({said.driver}) supports CUDA {said.driver_cuda}, and its torch is built for {said.cuda}",
            "update the driver, or install the torch build for the driver's CUDA",
        )
    if said.why_not:
        return Cause("refused", f"torch reaches no GPU: {said.why_not[:160]}", "nvidia-smi (rocm-smi); dmesg -T")
    return Cause("unknown", "torch reaches no GPU, and does not say why", "nvidia-smi (rocm-smi); dmesg -T")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(p) for p in text.split(".") if p.isdigit()) or (0,)


def judge_no_gpu(heard: Heard, wanted: Wanted) -> Iterator[Finding]:
    """Ranks that should have a GPU and have none. The same on every rank is the job's software, and no node's fault."""
    if wanted.device == "cpu":
        return
    found = {r: cause for r, cause in without_gpu(heard).items() if wanted.gpus.get(heard.node_of(r), 0) > 0}
    if wanted.device == "gpu":
        found = without_gpu(heard)
    if not found:
        return
    causes = Counter(cause.name for cause in found.values())
    if len(found) == len(heard.torch) and len(causes) == 1 and len(heard.facts.nodes) > 1:
        cause, rank = next(iter(found.values())), min(found)
        text = f"none of the {len(found)} ranks has a GPU: {cause.says}"
        yield _no_gpu(Subject(kind="job"), text, cause, heard.torch[rank], sorted(found))
        return
    by_node: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, cause in found.items():
        by_node[heard.node_of(rank), cause.name].append(rank)
    for (name, _), ranks in sorted(by_node.items()):
        cause = found[ranks[0]]
        whole = len(ranks) == heard.facts.per_node
        subject = (
            node(name) if whole or len(ranks) > 1 else Subject(kind="rank", nodes=(name,), name=f"rank {ranks[0]}")
        )
        which = f"{counted(len(ranks), 'rank')} of {heard.facts.per_node} on it {'has' if len(ranks) == 1 else 'have'}"
        text = f"{which if subject.kind == 'node' else 'has'} no GPU: {cause.says}"
        yield _no_gpu(subject, text, cause, heard.torch[ranks[0]], ranks)


def _no_gpu(subject: Subject, message: str, cause: Cause, said: Torch, ranks: list[int]) -> Finding:
    read = {
        "torch": f"{said.torch}, CUDA {said.cuda or 'none'}, HIP {said.hip or 'none'}",
        "driver": f"{said.driver or 'none'}, CUDA {said.driver_cuda or 'unknown'}",
        "device files": f"{said.device_files}, of them {said.unreadable_files} not to be opened",
        **{name: value or "(empty)" for name, value in said.visible.items()},
    }
    return Finding(
        code="preflight/no-gpu",
        verdict=Verdict.FAIL,
        subject=subject,
        message=message,
        evidence=tuple(Evidence(f"{key} of rank {said.rank}", value) for key, value in read.items())[:5],
        remedy=cause.remedy,
        data={"cause": cause.name, "ranks": ranks, "why_not": said.why_not},
    )


# ---- slow ones -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rate:
    """One quantity of a card: how to read it, its unit, its shares, and the VM size's name for it."""

    name: str
    read: Callable[[Card], float | None]
    unit: str
    per: float
    shares: str
    expected: str = ""
    is_shared: bool = False
    """One number for all ranks of a node."""


def _node_rate(card: Card) -> float | None:
    if not card.node_reduce_s or card.node_ranks < 2:
        return None
    return card.node_reduce_bytes / card.node_reduce_s * 2 * (card.node_ranks - 1) / card.node_ranks


RATES = (
    _Rate("matrix rate", lambda c: c.matmul_flops, "TFLOPS", 1e12, "matmul", "gpu_gemm_tflops"),
    _Rate("memory copy", lambda c: c.copy_bytes_s, "GB/s", 1e9, "copy", "gpu_memory_gbs"),
    _Rate("copy from the host", lambda c: c.h2d_bytes_s, "GB/s", 1e9, "copy", "gpu_h2d_gbs"),
    _Rate("copy to the host", lambda c: c.d2h_bytes_s, "GB/s", 1e9, "copy", "gpu_d2h_gbs"),
    _Rate("all-reduce within the node", _node_rate, "GB/s", 1e9, "copy", is_shared=True),
)


def judge_cards(heard: Heard, wanted: Wanted) -> Iterator[Finding]:
    """Devices slower than the median of the same kind, or than the VM size's least; one finding a device."""
    kinds: defaultdict[tuple[str, str], dict[int, Card]] = defaultdict(dict)
    for rank, card in sorted(heard.cards.items()):
        kinds[kind_of(heard, wanted, rank)][rank] = card
    for (kind, _), cards in sorted(kinds.items()):
        slow: defaultdict[int, list[tuple[Verdict, str, dict[str, float | str]]]] = defaultdict(list)
        for rate in RATES:
            for rank, one in _slow(rate, cards, wanted, is_gpu=bool(kind), heard=heard).items():
                slow[rank].append(one)
        for rank, found in sorted(slow.items()):
            # a CPU rank shares its core: one slow moment is nothing, and what stays slow the straggler test judges
            if not kind and len(found) < sum(
                rate.read(cards[rank]) is not None for rate in RATES if not rate.is_shared
            ):
                continue
            is_bad = kind and any(v is Verdict.FAIL for v, _, _ in found)
            worst = Verdict.FAIL if is_bad else Verdict.WARN
            yield Finding(
                code="preflight/slow-gpu",
                verdict=worst,
                subject=_device_subject(heard, rank),
                message="; ".join(text for _, text, _ in found),
                evidence=(Evidence("measured by", f"rank {rank}, {cards[rank].matmul} matrices, all ranks at once"),),
                remedy="nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER (rocm-smi -a); lspci -vv: LnkSta; then "
                "test this GPU alone"
                if kind
                else "top on the node: another program, or a CPU limit, keeps this rank from its processor",
                data={"rank": rank, **_place(heard, rank), "rates": [data for _, _, data in found]},
            )


def kind_of(heard: Heard, wanted: Wanted, rank: int) -> tuple[str, str]:
    """(model of a rank's GPU, empty for a CPU; its node's pool): the same GPU is fed otherwise in another machine."""
    device = heard.torch[rank].device if rank in heard.torch else None
    return device.name if device else "", wanted.pools.get(heard.node_of(rank), "")


def _slow(
    rate: _Rate, cards: Mapping[int, Card], wanted: Wanted, *, is_gpu: bool, heard: Heard
) -> dict[int, tuple[Verdict, str, dict[str, float | str]]]:
    values = {r: v / rate.per for r, c in cards.items() if (v := rate.read(c))}
    if rate.is_shared and not is_gpu:  # over loopback, by processes that share cores: it says nothing about a device
        return {}
    if rate.is_shared:  # one rank speaks for its node
        first = {heard.node_of(r): r for r in sorted(values, reverse=True)}
        values = {r: values[r] for r in first.values()}
    numbers, out = wanted.numbers, {}
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
            out[rank] = (verdict, f"{shown}, {value / middle:.0%} of the median's {middle:.3g}", data)
        elif least and value < numbers["size_floor_share"] * least:
            data |= {"limit": numbers["size_floor_share"] * least, "limit_source": known.source if known else ""}
            out[rank] = (Verdict.FAIL, f"{shown}, and this VM size has at least {least:g}", data)
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
    for rate in RATES:
        values = [v / rate.per for c in heard.cards.values() if (v := rate.read(c))]
        if values:
            parts.append(f"{rate.name} {statistics.median(values):.3g} {rate.unit}")
    nodes = fold(sorted({heard.node_of(r) for r in heard.cards}))
    return f"{counted(len(heard.cards), 'device')} on {nodes}, median: {', '.join(parts)}" if parts else ""
