"""What the ranks are, judged before what they do: shape, GPUs, CPUs, settings, versions, interfaces, start. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from fairlead.base.nodeset import fold
from fairlead.base.units import counted, duration, whole
from fairlead.checks.skews import DEVICES
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.said import Heard, Start, Torch, heard
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

_PER_RANK = re.compile(
    r"CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|.*_(LOCAL_)?RANK|OMPI_COMM_WORLD_.*|UCX_.*_ID|NCCL_HOSTID"
)
"""Settings that may differ from rank to rank, or from node to node."""
MAX_CPUS = 8192
"""CONFIG_NR_CPUS of x86 goes no further (arch/x86/Kconfig)."""
_NO_FABRIC = re.compile(r"lo|docker\d*|veth.*|virbr\d*|cni\d*|br-.*")
"""Interfaces that reach no other node."""
_VERSIONS = {
    "torch": Verdict.FAIL,
    "cuda": Verdict.FAIL,
    "hip": Verdict.FAIL,
    "nccl": Verdict.FAIL,
    "python": Verdict.WARN,
    "kernel": Verdict.WARN,
}
"""What a difference means, as in checks/skews.py: ranks of one job run on any kernel, not with any NCCL."""


def judge_launch(facts: RankFacts, wanted: Wanted | None = None) -> list[Finding]:
    """Findings about the launch."""
    said, wanted = heard(facts), wanted or Wanted()
    starts, torch = said.start, said.torch
    untold = list(_untold(said))
    if not starts:
        return untold
    judged = [
        *untold,
        *_shape(said),
        *_gpus(starts, torch),
        *_affinity(starts, facts.backend),
        *_settings(starts, wanted),
        *_versions(starts, torch, wanted),
        *_interfaces(starts),
        *_skew(starts, wanted.numbers["launch_skew_s"]),
    ]
    if len(starts) == facts.wanted and not any(f.verdict is not Verdict.SKIP for f in judged):
        judged.append(_all_well(facts, starts))
    return [*judged, *_left_alone(facts, wanted)]


def _untold(said: Heard) -> Iterator[Finding]:
    """Ranks that did something and did not tell what they are: whether that is as it should be is not known."""
    past = {r for r, phases in said.phases.items() if any(p.phase not in ("start", "import") for p in phases)}
    on_gpus = {r for r, told in said.torch.items() if told.device}
    again = "preflight again; if it stays, look at the output of these ranks: `words` in ranks.json"
    unreadable = (
        "chmod a+r /etc/nccl.conf on these nodes, and see that it is plain text: NCCL cannot read it there either"
    )
    missing = {
        "who and where they are": (said.spoke - said.start.keys(), again),
        "their version of torch": (past - said.torch.keys(), again),
        "their version of NCCL": ({r for r in on_gpus if not said.torch[r].nccl}, again),
        "what stands in /etc/nccl.conf": (
            {r for r, start in said.start.items() if start.nccl_conf is None},
            unreadable,
        ),
    }
    for what, (untold, remedy) in missing.items():
        if ranks := {r for r in untold if 0 <= r < said.facts.wanted}:
            yield Finding(
                code="preflight/launch",
                verdict=Verdict.UNKNOWN,
                subject=Subject(kind="job", nodes=tuple(sorted({said.node_of(r) for r in ranks}))),
                message=f"{counted(len(ranks), 'rank')} of {said.facts.wanted} did not tell {what}, so whether all are "
                "alike is not known",
                evidence=(Evidence("ranks.json has it not of", ", ".join(map(str, sorted(ranks)[:16]))),),
                remedy=remedy,
                data={"ranks": sorted(ranks)},
            )


def _left_alone(facts: RankFacts, wanted: Wanted) -> Iterator[Finding]:
    """GPUs that no rank used, as another node of the job has fewer."""
    more = sorted(name for name in facts.nodes if wanted.gpus.get(name, 0) > facts.per_node > 0)
    if more and wanted.device == "gpu":
        num = sum(wanted.gpus[name] - facts.per_node for name in more)
        yield Finding(
            code="preflight/not-tested",
            verdict=Verdict.WARN,
            subject=Subject(kind="job", nodes=tuple(more)),
            message=f"{num} GPUs of {fold(more)} were used by no rank: each node ran {facts.per_node}, as many as "
            "the one with the fewest has",
            remedy="preflight nodes with equally many GPUs by themselves: fairlead preflight -w NODES",
            data={"num": num, "per_node": facts.per_node},
        )


def _all_well(facts: RankFacts, starts: Mapping[int, Start]) -> Finding:
    how = "tasks of Slurm" if facts.backend == "tasks" else "processes"
    return Finding(
        code="preflight/launch",
        verdict=Verdict.PASS,
        subject=Subject(kind="job"),
        message=f"{len(starts)} ranks as {how}, {facts.per_node} on each of {len(facts.nodes)} nodes, "
        "each once; settings and versions equal",
    )


# ---- shape -----------------------------------------------------------------------------------------------------------


def _shape(said: Heard) -> Iterator[Finding]:
    """Every rank exactly once, so many on each node, local ranks counted from 0."""
    facts, starts = said.facts, said.start
    for rank, num in sorted(Counter(s.rank for s in said.starts).items()):
        if num > 1:
            nodes = sorted({s.node for s in said.starts if s.rank == rank})
            yield _job(
                "preflight/rank-twice",
                nodes,
                f"rank {rank} was started {num} times",
                "start one launcher only: look for a second torchrun or srun",
            )
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for s in starts.values():
        by_node[s.node].append(s.local_rank)
    worlds = Counter(s.world for s in starts.values())
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


def _gpus(starts: Mapping[int, Start], torch: Mapping[int, Torch]) -> Iterator[Finding]:
    """No physical GPU twice, and a GPU for every rank. What CUDA itself reports outweighs what the settings promise."""
    users: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, s in sorted(starts.items()):
        said = torch.get(rank)
        device = said.device if said else None
        name = (device.id if device else "") or s.gpu.id
        if name:
            users[s.node, name].append(rank)
        elif s.gpus and not (said and said.num_devices == 0):  # one without any is said by judge_no_gpu
            visible = s.env.get("CUDA_VISIBLE_DEVICES")
            yield Finding(
                code="preflight/gpu-missing",
                verdict=Verdict.FAIL,
                subject=Subject(kind="rank", nodes=(s.node,), name=f"rank {rank}"),
                message=f"there is no GPU for local rank {s.local_rank} among the {s.gpus} of the node",
                evidence=(Evidence("CUDA_VISIBLE_DEVICES", "not set" if visible is None else visible or "empty"),),
                remedy="ask Slurm for as many GPUs as ranks: --gres=gpu:N, --gpus-per-task=1",
            )
    for (name, gpu_name), ranks in sorted(users.items()):
        if len(ranks) > 1:
            seen = [starts[r].env.get("CUDA_VISIBLE_DEVICES", "not set") for r in ranks]
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


def _affinity(starts: Mapping[int, Start], backend: str) -> Iterator[Finding]:
    """A rank's CPUs must include some near its GPU, and some near an RDMA port on the GPU's NUMA node.

    CPUs that the step of this very preflight bound say nothing about the job of the user.
    """
    for rank, s in sorted(starts.items()):
        mine = numbers(s.cpus)
        beside = [d for d in s.rdma.values() if d.get("numa") == s.gpu.numa and d.get("numa") not in ("", "-1", None)]
        near = {"its GPU": s.gpu.cpus, "the RDMA ports beside its GPU": ",".join(d.get("cpus", "") for d in beside)}
        for what, cpus in near.items():
            if mine and numbers(cpus) and not numbers(cpus) & mine:
                by, is_ours = bound_by(s, backend)
                yield Finding(
                    code="preflight/affinity",
                    verdict=Verdict.SKIP if is_ours else Verdict.WARN,
                    subject=Subject(kind="rank", nodes=(s.node,), name=f"rank {rank}"),
                    message=f"none of its CPUs is near {what}; they were bound by {by}"
                    + (", which is no setting of the job's" if is_ours else ": every copy crosses the socket"),
                    evidence=(Evidence("CPUs of the rank", s.cpus), Evidence(f"CPUs near {what}", cpus),
                              *(Evidence(k, v) for k, v in s.slurm.items() if k.startswith("SLURM_CPU_BIND"))),
                    remedy="srun --gpu-bind=closest --cpu-bind=cores, or leave binding to the launcher",
                    data={"bound_by": by},
                )  # fmt: skip
                break


def bound_by(said: Start, backend: str) -> tuple[str, bool]:
    """(who bound a rank to its CPUs, whether that was the step that preflight itself started).

    Slurm tells a task what its step asked for in SLURM_CPU_BIND_TYPE (srun(1), output environment variables): none
    where it bound nothing. The step of the ranks is preflight's own; an allocation with fewer CPUs is the job's.
    """
    kind = said.slurm.get("SLURM_CPU_BIND_TYPE", "") or said.slurm.get("SLURM_CPU_BIND", "")
    if backend == "tasks" and kind and "none" not in kind:
        return f"preflight's own step ({kind})", True
    for name in ("OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        if said.env.get(name):
            return f"{name} in its environment", False
    return "the allocation of the job" if said.slurm.get("SLURM_JOB_ID") else "whatever started it", False


def numbers(text: str) -> set[int]:
    """CPU numbers of `0-3,8`, as far as a kernel has them; none where a rank says anything else.

    >>> sorted(numbers("0-2,8")), numbers("some"), len(numbers("0-999999999"))
    ([0, 1, 2, 8], set(), 8192)
    """
    out: set[int] = set()
    for piece in filter(None, text.split(",")):
        first, last = (whole(end) for end in (piece.partition("-")[0], piece.rpartition("-")[2]))
        if first is None or last is None:
            return set()
        out |= set(range(first, min(last + 1, MAX_CPUS)))
    return out


# ---- settings and versions -------------------------------------------------------------------------------------------


def _settings(starts: Mapping[int, Start], wanted: Wanted) -> Iterator[Finding]:
    """Settings of communication libraries must be equal, and must not switch RDMA off where it is meant to be used."""
    names = sorted({k for s in starts.values() for k in s.env if not _PER_RANK.fullmatch(k)})
    pools = _by_pool(starts, wanted)
    for name in names:
        yield from _odd_ones(
            pools,
            partial(_setting, name),
            "preflight/env-drift",
            name,
            "set it alike everywhere: in the job's script, not in a node's profile",
            verdict=Verdict.WARN if DEVICES.fullmatch(name) else Verdict.FAIL,
        )
    yield from _odd_ones(
        [[s for s in pool if s.nccl_conf is not None] for pool in pools],
        lambda s: s.nccl_conf or "empty",
        "preflight/env-drift",
        "/etc/nccl.conf",
        "install the same file on every node",
    )
    if wanted.rdma not in ("none", "mrc"):
        off = sorted({s.node for s in starts.values() if s.env.get("NCCL_IB_DISABLE") == "1"})
        if off:
            yield _job(
                "preflight/rdma-off",
                off,
                f"NCCL_IB_DISABLE=1 switches off the RDMA that the cluster file declares ({wanted.rdma})",
                "unset NCCL_IB_DISABLE",
            )


def _versions(starts: Mapping[int, Start], torch: Mapping[int, Torch], wanted: Wanted) -> Iterator[Finding]:
    merged = {r: s for r, s in starts.items() if r in torch or not torch}
    for name, verdict in _VERSIONS.items():
        # without a GPU there is none; judge_no_gpu says that
        told = {r: s for r, s in merged.items() if name != "nccl" or (r in torch and torch[r].nccl)}
        yield from _odd_ones(
            _by_pool(told, wanted),
            partial(_version, name, torch),
            "preflight/version-drift",
            name,
            "install the same version everywhere, or name the same environment with `python` in [[pool]]",
            verdict=verdict,
        )


def _by_pool(starts: Mapping[int, Start], wanted: Wanted) -> list[list[Start]]:
    """Ranks on nodes of one kind: those of another have an image and devices of their own."""
    out: defaultdict[str, list[Start]] = defaultdict(list)
    for said in starts.values():
        out[wanted.pools.get(said.node, "")].append(said)
    return list(out.values())


def _setting(name: str, said: Start) -> str:
    """A setting as the node has it, without its own name: a cache or a log may lie in a folder of each node's."""
    value = said.env.get(name, "not set")
    for own in filter(None, (said.node, said.host)):
        value = re.sub(rf"\b{re.escape(own)}\b", "NODE", value)
    return value


def _version(name: str, torch: Mapping[int, Torch], said: Start) -> str:
    return str(getattr(torch.get(said.rank), name, "") or getattr(said, name, "") or "none")


def _odd_ones(
    pools: Iterable[Iterable[Start]],
    value: Callable[[Start], str],
    code: str,
    what: str,
    remedy: str,
    *,
    verdict: Verdict = Verdict.FAIL,
) -> Iterator[Finding]:
    """What differs within a pool."""
    for starts in pools:
        yield from (replace(f, verdict=verdict) for f in _odd_of_pool(starts, value, code, what, remedy))


def _odd_of_pool(
    starts: Iterable[Start], value: Callable[[Start], str], code: str, what: str, remedy: str
) -> Iterator[Finding]:
    """A finding for each node whose ranks differ from most nodes; one about the job where no value has a majority."""
    by_value: defaultdict[str, set[str]] = defaultdict(set)
    for s in starts:
        by_value[value(s)].add(s.node)
    if len(by_value) < 2:
        return
    usual = max(by_value, key=lambda v: (len(by_value[v]), v))
    if 2 * len(by_value[usual]) <= len(set().union(*by_value.values())):
        shares = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
        yield Finding(
            code=code,
            verdict=Verdict.FAIL,
            subject=Subject(kind="job", nodes=tuple(sorted(set().union(*by_value.values())))),
            message=f"{what} differs, and no value has a majority: "
            + "; ".join(f"{_short(v)} on {fold(sorted(nodes))}" for v, nodes in shares[:4])
            + (f"; and {len(shares) - 4} more" if len(shares) > 4 else ""),
            evidence=tuple(Evidence(f"{what} on {fold(sorted(nodes))}", v[:200]) for v, nodes in shares[:4]),
            remedy=remedy,
        )
        return
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


def _interfaces(starts: Mapping[int, Start]) -> Iterator[Finding]:
    """The interface gloo and NCCL are told to use must exist, be up and reach others."""
    first: dict[str, Start] = {}
    for start in starts.values():
        first.setdefault(start.node, start)
    for name, s in sorted(first.items()):
        interface, facts, by = s.interface, s.interface_facts, s.interface_by
        if not by:
            continue  # nobody chose: the library will, and the collective shows whether it chose well
        if not facts:
            message = f"{by} names `{interface}`, and there is no such interface"
        elif _NO_FABRIC.fullmatch(interface) and len(first) > 1 and by.endswith("IFNAME"):
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


def _skew(starts: Mapping[int, Start], limit_s: float) -> Iterator[Finding]:
    """Nodes whose ranks came up long after the first."""
    first = min(s.at_s for s in starts.values())
    late = {s.node: s.at_s - first for s in starts.values() if s.at_s - first > limit_s}
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
