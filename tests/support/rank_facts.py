"""What a group of ranks says when all is well, to be changed by tests."""

from __future__ import annotations

from typing import Any

from fairlead.preflight.facts import RankEnd, RankFacts

PHASES = ("import", "rendezvous", "join", "ddp", "reduce", "split", "done")


def ranks(num_nodes: int = 4, per_node: int = 2, **more: Any) -> RankFacts:
    """A healthy run with one GPU a rank."""
    nodes = tuple(f"n{i}" for i in range(num_nodes))
    wanted = num_nodes * per_node
    fields: dict[str, Any] = {"limit_s": 120.0, "backend": "processes", "took_s": 8.0} | more
    facts = RankFacts(nodes=nodes, per_node=per_node, wanted=wanted, **fields)
    for rank in range(wanted):
        add_rank(facts, rank)
    return facts


def add_rank(facts: RankFacts, rank: int) -> None:
    """Everything a healthy rank says, and its end."""
    local, per_node = rank % facts.per_node, facts.per_node
    own = {"rank": rank, "node": facts.nodes[rank // per_node]}
    gpu = {"index": local, "uuid": f"GPU-{own['node']}-{local}", "pci": f"000{local}:00:00.0", "cpus": "0-3"}
    start = {
        "local_rank": local, "world": facts.wanted, "python": "3.11.7", "kernel": "6.8.0", "cpus": "0-3", "env": {},
        "slurm": {}, "nccl_conf": "", "interface": "fab0", "interface_by": "the fabric address",
        "interface_facts": {"mtu": "9000", "state": "up"}, "gpus": per_node, "gpu": gpu,
    }  # fmt: skip
    torch = {"torch": "2.13.0", "cuda": "", "hip": ""}
    say(facts, own, "start", 0.4, **start)
    for at, phase in enumerate(PHASES):
        if phase == "rendezvous":
            say(facts, own, "torch", 5.0, **torch)
        say(facts, own, "phase", 5.0 + at / 10, phase=phase, **({"bytes": 1 << 20} if phase == "reduce" else {}))
        if phase == "ddp":
            say(facts, own, "ddp", 5.5, s=0.1, loss=1.0, gradient_is_mean=True)
        if phase == "reduce":
            say(facts, own, "reduced", 5.6, bytes=1 << 20, s=[0.02, 0.02], wrong=0)
        if phase == "split":
            say(facts, own, "split", 5.7, compute_s=[0.002, 0.002], wait_s=[0.001, 0.001])
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
