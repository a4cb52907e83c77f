"""A node that lies, at any step, by many seeds: verdicts of honest nodes stay, nothing falls over, nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.checks import judge
from fairlead.cluster import talk
from fairlead.cluster.engine import Engine
from fairlead.cluster.onnode.frames import END, FRAME, MAGIC
from fairlead.cluster.protocol import State
from fairlead.launch.ears import Ears
from fairlead.preflight.pairs.drive import Driver
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.phase import pair_phase
from fairlead.preflight.pairs.steps import Counted, Plan
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_launch import judge_launch
from fairlead.preflight.slurm.scheduler import parse as parse_nodes
from fairlead.probe import NodeAnswer, sort_answers
from fairlead.probe.addresses import book_of
from fairlead.records.border import Breach
from fairlead.records.codec import from_json, to_json
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import rank_facts
from support.depth import cases
from support.hostile import Agents, Liar, Scripted, wires
from support.judging import facts_of, small, spec_of

NODES = tuple(f"n{i}" for i in range(6))
LIAR = "n4"
SEEDS = range(cases(10))
EACH = 34
"""Conversations of a test: with four kinds and ten seeds more than a thousand; with FAIRLEAD_DEPTH=100 it is 10^5."""


def accused(findings: list[Finding]) -> set[tuple[str, tuple[str, ...]]]:
    """What fails of honest nodes alone."""
    failed = [f for f in findings if f.verdict is Verdict.FAIL and f.subject.nodes]
    return {(f.code, f.subject.nodes) for f in failed if LIAR not in f.subject.nodes}


def check(findings: list[Finding]) -> None:
    """Subjects are of the run."""
    for finding in findings:
        assert set(finding.subject.nodes) <= set(NODES)
        NodeSet(finding.subject.nodes)


# ---- frames ----------------------------------------------------------------------------------------------------------

END_OF_IT = json.dumps({"rc": 0, "out": 5, "err": 0}).encode()
HONEST = [(b"H", 0, b""), (b"o", 0, b"well\n"), (b"e", 0, b""), (b"x", 0, END_OF_IT), (b"z", 0, b"")]
WELL = MAGIC + b"".join(FRAME.pack(kind, rank, len(said)) + said + END for kind, rank, said in HONEST)


@pytest.mark.parametrize("seed", SEEDS)
def test_frames(seed, monkeypatch):
    for number in range(EACH):
        said = dict.fromkeys(NODES, WELL) | {LIAR: Liar(seed * EACH + number).frames(HONEST)}
        monkeypatch.setattr(talk, "Child", wires(said))
        started = time.monotonic()
        results = asyncio.run(Engine(Scripted(said)).run(NodeSet(NODES), ["true"], limit_s=5.0))
        assert [(r.node, r.state, r.stdout.text) for r in results if r.node != LIAR] == [
            (n, State.DONE, "well\n") for n in NODES if n != LIAR
        ]
        mine = next(r for r in results if r.node == LIAR)
        assert len(mine.error) < 1000
        assert len(mine.stdout.data) < 1 << 20
        assert time.monotonic() - started < 30


# ---- agents ----------------------------------------------------------------------------------------------------------


def phase(liar: Liar | None) -> tuple[Agents, list[Finding]]:
    addresses = tuple((f"10.0.0.{i}", f"10.1.0.{i}", f"10.2.0.{i}") for i in range(len(NODES)))
    ports = [["rail 1", "ib0", "mlx5_0", 1], ["rail 2", "ib1", "mlx5_1", 1]]
    counted = tuple(Counted(ports=ports, since_ns=1) for _ in NODES)
    plan = Plan(nodes=NODES, paths=("eth", "rail 1", "rail 2"), addresses=addresses, counted=counted, port_bps=4e11)
    agents = Agents(NODES, 3, {LIAR: liar} if liar else {})
    facts = Driver(agents, NODES, lost_s=0.0).run(pair_phase(plan))
    return agents, judge_pairs(facts, plan.limits)


def test_without_a_liar_all_is_well():
    assert {f.verdict for f in phase(None)[1]} == {Verdict.PASS}


@pytest.mark.parametrize("seed", SEEDS)
def test_agents(seed):
    for number in range(EACH):
        agents, findings = phase(Liar(seed * EACH + number))
        check(findings)
        assert accused(findings) == set()
        for order in agents.orders:
            for row in order.get("peers", ()):  # nothing of a liar's own making reaches the others
                assert len(row) == 4
                assert all(isinstance(port, int) and 0 <= port <= 65535 for port in row)


# ---- facts -----------------------------------------------------------------------------------------------------------

SPEC = spec_of("Standard_ND96isr_H100_v5")
FACTS = json.loads(json.dumps({"schema": "fairlead.facts/1", "facts": facts_of(small()).facts}))
GOOD = json.dumps(FACTS).encode()
ALIKE = sort_answers([NodeAnswer(n, GOOD) for n in NODES[2:]])[0]
AT_FAULT = {f.code for f in judge(ALIKE, SPEC) if f.verdict is Verdict.FAIL}
"""All nodes are one small machine, whose GPUs have one name each: that is so with and without a liar."""


@pytest.mark.parametrize("seed", SEEDS)
def test_facts(seed):
    for number in range(EACH):
        liar = Liar(seed * EACH + number)
        document = liar.json(FACTS)
        answers = [NodeAnswer(n, document if n == LIAR else GOOD) for n in NODES[2:]]
        facts, silent = sort_answers(answers, silent=Verdict.FAIL)
        assert {f.node for f in facts} | {n for f in silent for n in f.subject.nodes} == set(NODES[2:])
        book = book_of(facts)
        assert {p.node for p in book.places} == {f.node for f in facts}
        if number % 8 == 0:
            findings = [*silent, *judge(facts, SPEC)]
            check(findings)
            assert {code for code, _ in accused(findings)} <= AT_FAULT


# ---- ranks -----------------------------------------------------------------------------------------------------------


def spoken(liar: Liar, on: str, backend: str) -> RankFacts:
    """What ranks of three nodes say: those of one lie in some of their lines, in any field of them."""
    facts = rank_facts.ranks(3, 2, on=on, backend=backend)
    own_lines = [i for i, line in enumerate(facts.lines) if line["node"] == "n1"]
    for i in liar.draw.choices(own_lines, k=liar.draw.randrange(1, 4)):
        own = {name: facts.lines[i][name] for name in ("rank", "node", "at_s")}
        said = {name: value for name, value in facts.lines[i].items() if name not in own}
        with contextlib.suppress(Breach):
            _, heard = Ears().message(own["rank"], liar.json(said).decode("utf-8", "backslashreplace"), is_out=True)
            facts.lines[i] = {**(heard or {"say": ""}), **own}
    return facts


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks(seed):
    for number in range(EACH):
        liar = Liar(seed * EACH + number)
        facts = spoken(liar, ("gpus", "cpus")[number % 2], ("tasks", "processes")[number % 3 == 0])
        findings = [*judge_ranks(facts, {}), *judge_launch(facts)]
        failed = [f for f in findings if f.verdict is Verdict.FAIL and f.subject.nodes]
        assert all("n1" in f.subject.nodes for f in failed), failed


def test_times_that_no_float_can_sum():
    facts = rank_facts.ranks(2, 2)
    rank_facts.of(facts, 3, "reduced")["s"] = [1e308, 1e308]
    found = {(f.code, f.verdict, f.subject.nodes) for f in judge_ranks(facts, {}) if f.verdict is not Verdict.PASS}
    assert ("preflight/rank-words", Verdict.UNKNOWN, ("n1",)) in found
    assert not any(verdict is Verdict.FAIL for _, verdict, _ in found)


@pytest.mark.parametrize("cpus", ["0-999999999999999", "n2 /shared/x.sbatch", "9" * 4000, "³", "8-3", "-,-", "1-2-3"])
def test_cpus_that_no_machine_has(cpus):
    facts = rank_facts.ranks(2, 2)
    rank_facts.of(facts, 3, "start")["cpus"] = cpus
    assert {f.subject.nodes for f in judge_launch(facts) if f.subject.kind == "rank"} <= {("n1",)}


# ---- files and outputs -----------------------------------------------------------------------------------------------

SHOWN = (
    "NodeName=n1 Arch=x86_64 CPUTot=8 Gres=gpu:8(S:0-1) State=IDLE+DRAIN Reason=fairlead gpu/count [root@2026-01-01T00:"
    "00:00]\nNodeName=n2 NodeAddr=n2 State=DOWN*\n"
)


@pytest.mark.parametrize("seed", SEEDS)
def test_files_of_a_run_and_what_slurm_says(seed):
    plan = Plan(nodes=NODES, paths=("eth",), addresses=tuple((f"10.0.0.{i}",) for i in range(len(NODES))))
    facts = Driver(Agents(NODES, 1, {}), NODES, lost_s=0.0).run(pair_phase(plan))
    document = json.loads(to_json(facts))
    document["bursts"] = [[0, 1, 0, 3, 0, 0, 0, 0], [2, 1, 0, 0, 0, 0, 8, 0]]
    num_judged = 0
    for number in range(10 * EACH):
        liar = Liar(seed * 10 * EACH + number)
        parse_nodes(liar.torn(SHOWN.encode()).decode("utf-8", "backslashreplace"))
        try:
            altered = from_json(liar.json(document), PairFacts)
        except ValueError:
            continue
        num_judged += 1
        judge_pairs(altered, plan.limits)
    assert num_judged > 5


def test_bursts_of_nothing():
    """As a file of a run says it that somebody altered: no packet was sent, so no share of them was lost."""
    plan = Plan(nodes=NODES, paths=("eth",), addresses=tuple((f"10.0.0.{i}",) for i in range(len(NODES))))
    facts = Driver(Agents(NODES, 1, {}), NODES, lost_s=0.0).run(pair_phase(plan))
    document = json.loads(to_json(facts)) | {"small": 0, "full": 0, "again_small": 0}
    document["bursts"] = [[2, 1, 0, 0, 0, 0, 8, 0]]
    check(judge_pairs(from_json(json.dumps(document).encode(), PairFacts), plan.limits))


@pytest.mark.parametrize("name", ["wanted", "per_node"])
def test_a_file_that_says_more_ranks_than_there_can_be_is_refused(name):
    """Found by the search of coverage: as many names were made as it says."""
    document = json.loads(to_json(rank_facts.ranks(2, 1))) | {name: 10**40}
    with pytest.raises(ValueError, match=name):
        from_json(json.dumps(document).encode(), RankFacts)
