"""Short ways from a machine in the making to findings."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fairlead.base.nodeset import NodeSet
from fairlead.checks import Expect, expect_of, judge_node
from fairlead.checks.node import Node
from fairlead.records.facts import Facts, NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict, aggregate
from fairlead.spec.model import Access, Fabric, Pool, Spec
from support import trees

SHM = "/dev/shm"


def spec_of(
    size: str, *, nodes: str = "n0", link: str = "infiniband", rdma: str = "ib", via: str = "ssh", **more: object
) -> Spec:
    return Spec(
        schema=1,
        access=Access(via=via),  # type: ignore[arg-type]
        pools=(Pool(name="p", size=size, nodes=NodeSet(nodes)),),
        fabric=Fabric(link=link, rdma=rdma),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


def expect(size: str, **values: object) -> Expect:
    """The contract of a VM size on InfiniBand, with some of its numbers changed; None takes one away."""
    spec = spec_of(size)
    base = expect_of(spec, spec.pools[0])
    merged = {k: v for k, v in {**base.values, **values}.items() if v is not None}
    return dataclasses.replace(base, values=merged)


SMALL = expect("Standard_ND96isr_H100_v5", gpus=2, hca_ports=2, gpus_per_numa=(1, 1), hcas_per_numa=(1, 1))


def small(hostname: str = "n0") -> trees.Machine:
    """An H100 node with two GPUs and two InfiniBand ports: everything there is, once per NUMA node."""
    return trees.nd_h100_v5(hostname, gpus=2, hcas=2)


def facts_of(machine: trees.Machine, node: str = "n0") -> NodeFacts:
    """What the real readers find in it. The tree is written to memory where there is such a place: it is many files."""
    with tempfile.TemporaryDirectory(dir=SHM if os.access(SHM, os.W_OK) else None, prefix="fairlead-tree-") as folder:
        record: NodeFacts = trees.read(machine, Path(folder), node)
    return record


def judged(machine: trees.Machine, expected: Expect = SMALL) -> list[Finding]:
    return judge_node(Node(Facts(facts_of(machine)), expected))


def of(findings: Iterable[Finding], code: str) -> list[Finding]:
    return [f for f in findings if f.code == code]


def verdict(findings: Iterable[Finding], code: str) -> Verdict:
    return aggregate(f.verdict for f in of(findings, code))


def troubles(findings: Iterable[Finding]) -> list[str]:
    """Everything that is neither pass nor skip, as text: an empty list is a clean bill."""
    return [str(f) for f in findings if f.verdict not in (Verdict.PASS, Verdict.SKIP)]
