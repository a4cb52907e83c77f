# ruff: noqa: E501 - one line a message, as it is printed
"""The check list's ids of scheduler, launch and collectives: each with an input that holds and one that does not.

Written from what the list says passes (docs/reference/check-list.md) before the rules were opened; of this project only
the form of what ranks and pairs report was known (`preflight/ranks/facts.py`, `preflight/pairs/facts.py`). The job is 16
nodes of 8 GPUs, n5 is the bad one. Words of others: NCCL (src/transport/net_socket.cc, net.cc), scontrol(1) with its
State and Reason, mej/nhc's messages, srun(1) for what a task is told.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from fairlead.preflight.pairs.facts import Burst, Clock, PairFacts, Speed, Work
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_launch import judge_launch
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.preflight.slurm.scheduler import judge_scheduler, parse
from fairlead.records.codes import listed
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support.rank_facts import of, ranks, replace_end, say, stop_at
from support.slurm_lines import line

NODES, EACH, BAD = 16, 8, 5
MINE = range(BAD * EACH, BAD * EACH + EACH)
ONE = BAD * EACH + 3
"""A rank of the bad node."""
FAILS = (Verdict.FAIL, Verdict.WARN)


def job(change: Callable[[RankFacts], object] = lambda _: None, **wanted: object) -> list[Finding]:
    facts = ranks(NODES, EACH)
    change(facts)
    asked = Wanted(rdma="all", **wanted)
    addresses = {f"n{i}": f"10.0.0.{4 + i}" for i in range(NODES)}
    return [*judge_launch(facts, asked), *judge_ranks(facts, addresses, asked)]


def fabric(**more: object) -> list[Finding]:
    """Every directed pair on the Ethernet and two InfiniBand rails, whole and fast."""
    fields = {
        "nodes": tuple(f"n{i}" for i in range(NODES)),
        "paths": ("default route", "ib0", "ib1"),
        "addresses": tuple((f"10.0.0.{4 + i}", f"172.16.1.{4 + i}", f"172.16.2.{4 + i}") for i in range(NODES)),
        "small": 200,
        "full": 8,
        "full_bytes": {0: 1472, 1: 2016, 2: 2016},
        "num_flows": 8,
        "again_small": 400,
        "members": tuple(range(NODES)),
        "tcp_tested": NODES * (NODES - 1),
        "speeds": [Speed(a, b, p, 40_000_000_000, 30_000, 3) for a, b in permutations(range(NODES), 2) for p in (1, 2)],
        "clocks": {i: Clock(i * 1_000_000, 200_000) for i in range(NODES)},
        "work": {i: [Work(50_000_000, 50_000_000)] for i in range(NODES)},
        "rounds": {"burst": NODES - 1, "speed": NODES - 1},
    } | more
    return judge_pairs(PairFacts(**fields))


def nodes(state: str, reason: str = "") -> list[Finding]:
    good = [line("25.05", "IDLE", name=f"n{i}") for i in range(NODES) if i != BAD]
    text = "\n".join([*good, line("25.05", state, reason=reason, name=f"n{BAD}")])
    return judge_scheduler(parse(text), [f"n{i}" for i in range(NODES)], {})


def each(what: str, **values: object) -> Callable[[RankFacts], object]:
    """Another value in what every rank of the bad node said."""
    return lambda facts: [of(facts, rank, what).update(values) for rank in MINE]


def without(rank: int) -> Callable[[RankFacts], object]:
    def change(facts: RankFacts) -> None:
        facts.lines[:] = [s for s in facts.lines if s["rank"] != rank]
        replace_end(facts, rank, rc=1, state="failed")

    return change


def later(seconds: float) -> Callable[[RankFacts], object]:
    def change(facts: RankFacts) -> None:
        facts.lines[:] = [s | {"at_s": s["at_s"] + seconds} if s["rank"] in MINE else s for s in facts.lines]

    return change


def env_of_a_task(facts: RankFacts) -> None:
    """What srun sets for each task (srun(1), OUTPUT ENVIRONMENT VARIABLES), and the same NCCL settings for all."""
    for rank in range(NODES * EACH):
        node, local = divmod(rank, EACH)
        own = of(facts, rank, "start")
        own["slurm"] = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        own["env"] = {
            "CUDA_VISIBLE_DEVICES": str(local),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "NCCL_IB_HCA": "mlx5_ib",
        }


def no_store(facts: RankFacts) -> None:
    """Rank 0 listens, and who is not there when all others are has not reached it."""
    facts.broken = "8 ranks did not come to the rendezvous within 60 s"
    for rank in range(NODES * EACH):
        stop_at(facts, rank, "rendezvous", state="stopped", rc=-15)
    say(facts, {"rank": 0, "node": "n0"}, "store", 3.0, host="10.0.0.4", port=40123)
    for rank in MINE:
        say(facts, {"rank": rank, "node": f"n{BAD}"}, "over", 60.0, kind="rendezvous", why=facts.broken)


def waiting(phase: str, *, alone: str, is_silent: bool = False) -> Callable[[RankFacts], object]:
    """One rank stays in a phase, all others in the one after it, until the limit."""

    def change(facts: RankFacts) -> None:
        facts.broken, facts.took_s = "no sign of progress", 120.0
        for rank in range(NODES * EACH):
            at = alone if rank == ONE else phase
            stop_at(facts, rank, at, state="stopped", rc=-15)
            own = {"rank": rank, "node": facts.nodes[rank // EACH]}
            facts.beats[rank] = own | {"say": "beat", "at_s": 6.0 if is_silent and rank == ONE else 119.0, "phase": at}

    return change


def by_sockets(facts: RankFacts) -> None:
    for rank in MINE:
        of(facts, rank, "nccl")["lines"] = dict.fromkeys(
            [
                "NCCL version 2.26.2+cuda12.8",
                "NET/IB : No device found.",
                "NET/Socket : Using [0]eth0:10.0.0.9<0>",
                "Using network Socket",
                "[send] via NET/Socket/0",
                "[receive] via NET/Socket/0",
            ],
            2,
        )


def port(small: int, full: int, whole: int, dark: int) -> dict[str, list[Burst]]:
    """Bursts from and to the bad node on ib0, and what came of the repetition."""
    bad = [(a, b) for a, b in permutations(range(NODES), 2) if BAD in (a, b)]
    first = [Burst(a, b, 1, small, full, whole, dark) for a, b in bad]
    return {"bursts": first, "again": [Burst(a, b, 1, small * 2, full, whole, dark) for a, b in bad[:6]]}


def slow_rail() -> dict[str, list[Speed]]:
    speeds = [
        Speed(a, b, p, 9_000_000_000 if (BAD in (a, b) and p == 2) else 40_000_000_000, 30_000, 3)
        for a, b in permutations(range(NODES), 2)
        for p in (1, 2)
    ]
    return {"speeds": speeds, "speeds_again": [s for s in speeds if BAD in (s.src, s.dst)]}


HOLDS: dict[str, Callable[[], list[Finding]]] = {
    "S1": job,
    "S2": fabric,
    "S3": lambda: job(later(3.0)),
    "S4": job,
    "S5": fabric,
    "S6": fabric,
    "S7": lambda: job(
        each(
            "start", interface="eth0", interface_by="NCCL_SOCKET_IFNAME", interface_facts={"mtu": "1500", "state": "up"}
        )
    ),
    "S8": lambda: job(env_of_a_task),
    "S9": lambda: fabric(clocks={i: Clock(20_000_000 if i == BAD else 0, 200_000) for i in range(NODES)}),
    "S11": lambda: nodes("IDLE"),
    "S14": job,
    "C1": lambda: job(later(8.0)),
    "C2": job,
    "C3": job,
    "C4": job,
    "C5": fabric,
    "C6": lambda: job(each("rounds", compute_s=[0.0021, 0.0022], wait_s=[0.001, 0.001])),
    "C7": job,
    "C8": fabric,
}

BREAKS: dict[str, list[Callable[[], list[Finding]]]] = {
    "S1": [lambda: job(without(ONE)), lambda: job(lambda facts: of(facts, ONE, "start").update(local_rank=2))],
    "S2": [
        lambda: fabric(
            addresses=tuple(
                ("", "", "") if i == BAD else (f"10.0.0.{4 + i}", f"172.16.1.{4 + i}", f"172.16.2.{4 + i}")
                for i in range(NODES)
            )
        )
    ],
    "S3": [lambda: job(later(45.0))],
    "S4": [lambda: job(no_store)],
    "S5": [
        lambda: fabric(tcp=[(BAD, b, "ETIMEDOUT") for b in range(NODES) if b != BAD]),
        lambda: fabric(tcp=[(b, BAD, "ECONNREFUSED") for b in range(NODES) if b != BAD]),
    ],
    "S6": [lambda: fabric(**port(200, 0, 0, 0))],
    "S7": [
        lambda: job(each("start", interface="docker0", interface_by="NCCL_SOCKET_IFNAME")),
        lambda: job(each("start", interface="lo", interface_by="GLOO_SOCKET_IFNAME")),
    ],
    "S8": [
        lambda: job(each("start", env={"NCCL_IB_DISABLE": "1"})),
        lambda: job(each("start", nccl_conf="NCCL_IB_TIMEOUT=14")),
    ],
    "S9": [lambda: fabric(clocks={i: Clock(3_000_000_000 if i == BAD else 0, 200_000) for i in range(NODES)})],
    "S11": [
        lambda: nodes("IDLE+DRAIN", "NHC: check_hw_ib: No IB port mlx5_ib3:1 is ACTIVE (LinkUp 400 Gb/sec)."),
        lambda: nodes("DOWN", "Not responding"),
        lambda: nodes("IDLE+INVALID_REG", "gres/gpu count reported lower than configured (7 < 8)"),
    ],
    "S14": [lambda: job(each("start", python="3.9.18")), lambda: job(each("torch", torch="2.7.1+cu126"))],
    "C1": [lambda: job(waiting("join", alone="import")), lambda: job(waiting("reduce", alone="ddp"))],
    "C2": [lambda: job(by_sockets)],
    "C3": [lambda: job(each("ddp", gradient_is_mean=False))],
    "C4": [lambda: job(lambda facts: of(facts, ONE, "reduced").update(wrong=3))],
    "C5": [lambda: fabric(**port(0, 0, 0, 8))],
    "C6": [
        lambda: job(lambda facts: of(facts, ONE, "rounds").update(compute_s=[0.021, 0.022], wait_s=[0.0001, 0.0001]))
    ],
    "C7": [lambda: job(waiting("reduce", alone="ddp", is_silent=True))],
    "C8": [lambda: fabric(**slow_rail())],
}
CASES = [(id_, i) for id_, cases in BREAKS.items() for i in range(len(cases))]


def alarms(found: list[Finding]) -> list[Finding]:
    return [f for f in found if f.verdict in (*FAILS, Verdict.UNKNOWN)]


@pytest.mark.parametrize("id_", HOLDS)
def test_what_the_list_wants_is_no_alarm(id_: str) -> None:
    found = HOLDS[id_]()
    assert [str(f) for f in alarms(found)] == []
    assert found


@pytest.mark.parametrize(("id_", "number"), CASES, ids=str)
def test_what_the_list_does_not_want_is_told_by_its_id(id_: str, number: int) -> None:
    found = [f for f in BREAKS[id_][number]() if f.verdict in FAILS]
    told = [f for f in found if f.code in listed()[id_].codes]
    assert told, [str(f) for f in found]
    assert any(f"n{BAD}" in str(f.subject) or f"n{BAD}" in f.subject.nodes for f in told), [str(f) for f in told]
    named = {node for f in found if f.verdict is Verdict.FAIL for node in f.subject.nodes}
    assert named <= {f"n{BAD}"}, [str(f) for f in found]


def test_every_id_of_these_groups_has_both() -> None:
    elsewhere = {"S10", "S12", "S13"}  # files of a node: tests/unit/checks/test_documented_guest.py
    assert set(HOLDS) == set(BREAKS) == {i for i in listed() if i[0] in "SC"} - elsewhere
