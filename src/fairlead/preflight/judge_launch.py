"""What the ranks are, judged before what they do: shape, GPUs, CPUs, settings, versions, interfaces, start. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fairlead.base.nodeset import fold
from fairlead.base.units import duration
from fairlead.preflight.facts import RankFacts
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

LAUNCH_SKEW_S = 10.0
_PER_RANK = re.compile(
    r"CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|.*_(LOCAL_)?RANK|OMPI_COMM_WORLD_.*|UCX_.*_ID"
)
"""Settings that may differ from rank to rank."""
_NO_FABRIC = re.compile(r"lo|docker\d*|veth.*|virbr\d*|cni\d*|br-.*")
"""Interfaces that reach no other node."""
_VERSIONS = ("torch", "cuda", "hip", "nccl", "python", "kernel")

Said = Mapping[str, Any]


def judge_launch(facts: RankFacts, *, rdma: str) -> list[Finding]:
    """Findings about the launch; `rdma` is the transport the cluster file declares."""
    starts = {s["rank"]: s for s in facts.lines if s["say"] == "start"}
    torch = {s["rank"]: s for s in facts.lines if s["say"] == "torch"}
    if not starts:
        return []
    judged = [
        *_shape(facts, starts),
        *_gpus(starts, torch),
        *_affinity(starts),
        *_settings(starts, rdma),
        *_versions(starts, torch),
        *_interfaces(starts),
        *_skew(starts),
    ]
    return judged or [_all_well(facts, starts)]


def _all_well(facts: RankFacts, starts: Mapping[int, Said]) -> Finding:
    how = "tasks of Slurm" if facts.backend == "tasks" else "processes"
    return Finding(
        code="preflight/launch",
        verdict=Verdict.PASS,
        subject=Subject(kind="job"),
        message=f"{len(starts)} ranks as {how}, {facts.per_node} on each of {len(facts.nodes)} nodes, "
        "each once; settings and versions equal",
    )


# ---- shape -----------------------------------------------------------------------------------------------------------


def _shape(facts: RankFacts, starts: Mapping[int, Said]) -> Iterator[Finding]:
    """Every rank exactly once, so many on each node, local ranks counted from 0."""
    said = [s for s in facts.lines if s["say"] == "start"]
    for rank, num in sorted(Counter(s["rank"] for s in said).items()):
        if num > 1:
            nodes = sorted({s["node"] for s in said if s["rank"] == rank})
            yield _job(
                "preflight/rank-twice",
                nodes,
                f"rank {rank} was started {num} times",
                "start one launcher only: look for a second torchrun or srun",
            )
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for s in starts.values():
        by_node[s["node"]].append(s["local_rank"])
    worlds = Counter(s["world"] for s in starts.values())
    if set(worlds) != {facts.wanted} and len(starts) != facts.wanted:
        yield _job(
            "preflight/rank-count",
            [],
            f"the job has {max(worlds)} ranks; {len(facts.nodes)} nodes with {facts.per_node} GPUs each need "
            f"{facts.wanted}",
            f"in the batch file: #SBATCH --ntasks-per-node={facts.per_node}",
        )
    for name in sorted(by_node):
        locals_ = sorted(by_node[name])
        # where ranks never started, that is the fault, not the numbers of the others
        if len(locals_) >= facts.per_node and locals_ != list(range(len(locals_))):
            yield Finding(
                code="preflight/local-ranks",
                verdict=Verdict.FAIL,
                subject=node(name),
                message=f"local ranks are {', '.join(map(str, locals_))}, which are not 0 to {len(locals_) - 1}",
                remedy="look at the launcher's environment: LOCAL_RANK, SLURM_LOCALID",
            )
        elif len(locals_) > facts.per_node:
            yield Finding(
                code="preflight/rank-count",
                verdict=Verdict.FAIL,
                subject=node(name),
                message=f"{len(locals_)} ranks were started, and there are {facts.per_node} GPUs",
                remedy=f"srun --ntasks-per-node={facts.per_node} --distribution=block",
            )


# ---- GPUs and CPUs ---------------------------------------------------------------------------------------------------


def _gpus(starts: Mapping[int, Said], torch: Mapping[int, Said]) -> Iterator[Finding]:
    """No physical GPU twice, and a GPU for every rank. What CUDA itself reports outweighs what the settings promise."""
    users: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, s in sorted(starts.items()):
        device = torch.get(rank, {}).get("device") or {}
        gpu = s.get("gpu") or {}
        name = device.get("uuid") or device.get("pci") or gpu.get("uuid") or gpu.get("pci")
        if name:
            users[s["node"], name].append(rank)
        elif s.get("gpus"):
            visible = s["env"].get("CUDA_VISIBLE_DEVICES")
            yield Finding(
                code="preflight/gpu-missing",
                verdict=Verdict.FAIL,
                subject=Subject(kind="rank", nodes=(s["node"],), name=f"rank {rank}"),
                message=f"there is no GPU for local rank {s['local_rank']} among the {s['gpus']} of the node",
                evidence=(Evidence("CUDA_VISIBLE_DEVICES", "not set" if visible is None else visible or "empty"),),
                remedy="ask Slurm for as many GPUs as ranks: --gres=gpu:N, --gpus-per-task=1",
            )
    for (name, gpu_name), ranks in sorted(users.items()):
        if len(ranks) > 1:
            seen = [starts[r]["env"].get("CUDA_VISIBLE_DEVICES", "not set") for r in ranks]
            yield Finding(
                code="preflight/gpu-shared",
                verdict=Verdict.FAIL,
                subject=Subject(kind="device", nodes=(name,), name=gpu_name),
                message=f"{len(ranks)} ranks use this GPU, and others stay idle",
                evidence=tuple(
                    Evidence(f"CUDA_VISIBLE_DEVICES of rank {r}", v) for r, v in zip(ranks, seen, strict=True)
                ),
                remedy="give each task its own GPU (--gpus-per-task=1), or let each use the one of its local rank",
                data={"ranks": ranks},
            )


def _affinity(starts: Mapping[int, Said]) -> Iterator[Finding]:
    """A rank's CPUs must include some near its GPU, and some near an RDMA port on the GPU's NUMA node."""
    for rank, s in sorted(starts.items()):
        gpu, mine = s.get("gpu") or {}, numbers(s.get("cpus", ""))
        beside = [d for d in s.get("rdma", {}).values() if d["numa"] == gpu.get("numa") and d["numa"] not in ("", "-1")]
        near = {"its GPU": gpu.get("cpus") or "", "the RDMA ports beside its GPU": ",".join(d["cpus"] for d in beside)}
        for what, cpus in near.items():
            if mine and numbers(cpus) and not numbers(cpus) & mine:
                yield Finding(
                    code="preflight/affinity",
                    verdict=Verdict.WARN,
                    subject=Subject(kind="rank", nodes=(s["node"],), name=f"rank {rank}"),
                    message=f"none of its CPUs is near {what}: every copy crosses the socket",
                    evidence=(Evidence("CPUs of the rank", s["cpus"]), Evidence(f"CPUs near {what}", cpus)),
                    remedy="srun --gpu-bind=closest --cpu-bind=cores, or leave binding to the launcher",
                )
                break


def numbers(text: str) -> set[int]:
    """CPU numbers of `0-3,8`.

    >>> sorted(numbers("0-2,8"))
    [0, 1, 2, 8]
    """
    out: set[int] = set()
    for piece in filter(None, text.split(",")):
        low, _, high = piece.partition("-")
        out |= set(range(int(low), int(high or low) + 1))
    return out


# ---- settings and versions -------------------------------------------------------------------------------------------


def _settings(starts: Mapping[int, Said], rdma: str) -> Iterator[Finding]:
    """Settings of communication libraries must be equal, and must not switch RDMA off where it is meant to be used."""
    names = sorted({k for s in starts.values() for k in s["env"] if not _PER_RANK.fullmatch(k)})
    for name in names:
        yield from _odd_ones(
            starts,
            partial(_setting, name),
            "preflight/env-drift",
            name,
            "set it alike everywhere: in the job's script, not in a node's profile",
        )
    yield from _odd_ones(
        starts,
        lambda s: s.get("nccl_conf", "") or "empty",
        "preflight/env-drift",
        "/etc/nccl.conf",
        "install the same file on every node",
    )
    if rdma not in ("none", "mrc"):
        off = sorted({s["node"] for s in starts.values() if s["env"].get("NCCL_IB_DISABLE") == "1"})
        if off:
            yield _job(
                "preflight/rdma-off",
                off,
                f"NCCL_IB_DISABLE=1 switches off the RDMA that the cluster file declares ({rdma})",
                "unset NCCL_IB_DISABLE",
            )


def _versions(starts: Mapping[int, Said], torch: Mapping[int, Said]) -> Iterator[Finding]:
    merged = {r: {**s, **torch.get(r, {})} for r, s in starts.items() if r in torch or not torch}
    for name in _VERSIONS:
        yield from _odd_ones(
            merged,
            partial(_version, name),
            "preflight/version-drift",
            name,
            "install the same version everywhere, or name the same environment with `python` in [[pool]]",
        )


def _setting(name: str, said: Said) -> str:
    return str(said["env"].get(name, "not set"))


def _version(name: str, said: Said) -> str:
    return str(said.get(name) or "none")


def _odd_ones(
    starts: Mapping[int, Said], value: Callable[[Said], str], code: str, what: str, remedy: str
) -> Iterator[Finding]:
    """A finding for each node whose ranks differ from what most nodes have."""
    by_value: defaultdict[str, set[str]] = defaultdict(set)
    for s in starts.values():
        by_value[str(value(s))].add(s["node"])
    if len(by_value) < 2:
        return
    usual = max(by_value, key=lambda v: (len(by_value[v]), v))
    for found in sorted(set(by_value) - {usual}):
        nodes = by_value[found] - by_value[usual] or by_value[found]
        for name in sorted(nodes):
            yield Finding(
                code=code,
                verdict=Verdict.FAIL,
                subject=node(name),
                message=f"{what} is {_short(found)}; on most nodes it is {_short(usual)}",
                evidence=(
                    Evidence(what, found[:200]),
                    Evidence(f"{what} on {fold(sorted(by_value[usual]))}", usual[:200]),
                ),
                remedy=remedy,
            )


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


# ---- interface and start ---------------------------------------------------------------------------------------------


def _interfaces(starts: Mapping[int, Said]) -> Iterator[Finding]:
    """The interface gloo and NCCL are told to use must exist, be up and reach others."""
    for name in sorted({s["node"] for s in starts.values()}):
        s = next(s for s in starts.values() if s["node"] == name)
        interface, facts, by = s.get("interface", ""), s.get("interface_facts") or {}, s.get("interface_by", "")
        if not by:
            continue  # nobody chose: the library will, and the collective shows whether it chose well
        if not facts:
            message = f"{by} names `{interface}`, and there is no such interface"
        elif (
            _NO_FABRIC.fullmatch(interface) and len({x["node"] for x in starts.values()}) > 1 and by.endswith("IFNAME")
        ):
            message = f"{by} names `{interface}`, which reaches no other node"
        elif facts.get("state") == "down":
            message = f"the interface `{interface}` is down"
        else:
            continue
        yield Finding(
            code="preflight/interface",
            verdict=Verdict.FAIL,
            subject=node(name),
            message=message,
            evidence=(Evidence(by, interface),),
            remedy="ip -br address; unset NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, or name the fabric's interface",
        )


def _skew(starts: Mapping[int, Said]) -> Iterator[Finding]:
    """Nodes whose ranks came up long after the first."""
    first = min(s["at_s"] for s in starts.values())
    late = {s["node"]: s["at_s"] - first for s in starts.values() if s["at_s"] - first > LAUNCH_SKEW_S}
    for name, by_s in sorted(late.items()):
        yield Finding(
            code="preflight/launch-skew",
            verdict=Verdict.WARN,
            subject=node(name),
            message=f"its ranks started {duration(by_s)} after the first: a job would wait that long at every start",
            remedy="look at prolog scripts, container pulls and file systems there",
            data={"late_s": by_s},
        )


def _job(code: str, nodes: Sequence[str] | Iterable[str], message: str, remedy: str) -> Finding:
    return Finding(
        code=code, verdict=Verdict.FAIL, subject=Subject(kind="job", nodes=tuple(nodes)), message=message, remedy=remedy
    )
