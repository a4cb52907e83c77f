"""What a group of ranks says when all is well, to be changed by tests: on GPUs with NCCL over InfiniBand, or on CPUs.

NCCL's lines are written from its format strings as published logs show them (NVIDIA/nccl src/transport/net_ib.cc,
src/transport/net.cc, src/transport/p2p.cc, src/init.cc; versions 2.4 to 2.30).
"""

from __future__ import annotations

from typing import Any

from fairlead.preflight.ranks.facts import RankEnd, RankFacts

PHASES = ("import", "rendezvous", "join", "card", "rails", "ddp", "reduce", "rounds", "done")
CARD = {"matmul_flops": 7.4e14, "matmul": "bf16 8192", "copy_bytes_s": 2.9e12, "h2d_bytes_s": 5.2e10,
        "d2h_bytes_s": 5.1e10, "node_reduce_s": 0.001, "node_reduce_bytes": 1 << 28, "took_s": 1.0}  # fmt: skip


def ranks(num_nodes: int = 4, per_node: int = 2, *, on: str = "gpus", **more: Any) -> RankFacts:
    """A healthy run: one GPU a rank, or CPUs."""
    nodes = tuple(f"n{i}" for i in range(num_nodes))
    wanted = num_nodes * per_node
    fields: dict[str, Any] = {"limit_s": 120.0, "backend": "processes", "took_s": 8.0} | more
    facts = RankFacts(nodes=nodes, per_node=per_node, wanted=wanted, **fields)
    for rank in range(wanted):
        add_rank(facts, rank, on=on)
    return facts


def nccl_lines(local: int, num_nodes: int = 4, num_hcas: int = 8, layer: str = "IB") -> list[str]:
    """What NCCL 2.2x says on one GPU of a node with InfiniBand, and the accelerated Ethernet port behind its HCAs."""
    hcas = " ".join(f"[{i}]mlx5_ib{i}:1/{layer}/SHARP" for i in range(num_hcas))
    said = [
        "NCCL version 2.26.2+cuda12.8",
        f"NET/IB : Using {hcas} [{num_hcas}]mlx5_an0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>",
        "Using network IB",
        "via P2P/CUMEM",
    ]
    if num_nodes > 1:
        said += [f"[{way}] via NET/IB/{local}/GDRDMA" for way in ("send", "receive")]
    return said


def add_rank(facts: RankFacts, rank: int, *, on: str = "gpus") -> None:
    """Everything a healthy rank says, and its end."""
    local, per_node = rank % facts.per_node, facts.per_node
    is_gpu = on == "gpus"
    own = {"rank": rank, "node": facts.nodes[rank // per_node]}
    gpu = {"index": local, "uuid": f"GPU-{own['node']}-{local}", "pci": f"000{local}:00:00.0", "cpus": "0-3"}
    start = {
        "local_rank": local, "world": facts.wanted, "python": "3.11.7", "kernel": "6.8.0", "cpus": "0-3", "env": {},
        "slurm": {}, "nccl_conf": "", "interface": "fab0", "interface_by": "the fabric address",
        "interface_facts": {"mtu": "9000", "state": "up"}, "gpus": per_node, "gpu": gpu,
    }  # fmt: skip
    torch: dict[str, Any] = {"torch": "2.13.0+cpu", "cuda": "", "hip": ""}
    if is_gpu:
        device = {"name": "NVIDIA H100 80GB HBM3", "uuid": gpu["uuid"], "pci": gpu["pci"], "memory_bytes": 80 << 30}
        torch = {"torch": "2.8.0+cu128", "cuda": "12.8", "hip": "", "nccl": "2.26.2", "device": device,
                 "num_devices": per_node, "driver": "570.172.08", "driver_cuda": "12.8", "device_files": per_node,
                 "unreadable_files": 0, "visible": {}}  # fmt: skip
    say(facts, own, "start", 0.4, **start)
    for at, phase in enumerate(PHASES):
        if phase == "rendezvous":
            say(facts, own, "torch", 5.0, **torch)
        say(facts, own, "phase", 5.0 + at / 10, phase=phase, **({"bytes": 1 << 20} if phase == "reduce" else {}))
        if phase == "card" and is_gpu:
            say(facts, own, "nccl", 5.2, lines=dict.fromkeys(nccl_lines(local, len(facts.nodes)), 2))
            say(facts, own, "card", 5.3, **CARD, node_ranks=per_node)
        if phase == "ddp":
            say(facts, own, "ddp", 5.5, s=0.1, loss=1.0, gradient_is_mean=True)
        if phase == "reduce":
            say(facts, own, "reduced", 5.6, bytes=1 << 20, s=[0.02, 0.02], wrong=0)
        if phase == "rounds":
            say(facts, own, "rounds", 5.7, compute_s=[0.002, 0.002], wait_s=[0.001, 0.001])
    facts.ends.append(RankEnd(node=own["node"], rank=rank, state="done", rc=0, at_s=8.0))


def say(facts: RankFacts, own: dict[str, Any], what: str, at_s: float, **fields: Any) -> None:
    """One line of a rank."""
    facts.lines.append(own | {"say": what, "at_s": at_s} | fields)


def of(facts: RankFacts, rank: int, what: str, phase: str = "") -> dict[str, Any]:
    """The line in which a rank said something, to be changed."""
    return next(s for s in facts.lines if s["rank"] == rank and s["say"] == what and (not phase or s["phase"] == phase))


def stop_at(facts: RankFacts, rank: int, phase: str, **end: Any) -> None:
    """This rank says nothing more once it has entered a phase, and ends like this."""
    at = facts.lines.index(of(facts, rank, "phase", phase))
    facts.lines[:] = [s for i, s in enumerate(facts.lines) if s["rank"] != rank or i <= at]
    replace_end(facts, rank, **end)


def replace_end(facts: RankFacts, rank: int, **end: Any) -> None:
    """Another end of a rank."""
    old = next(e for e in facts.ends if e.rank == rank)
    facts.ends.remove(old)
    facts.ends.append(RankEnd(**({"node": old.node, "rank": rank, "state": "failed", "at_s": 8.0} | end)))
