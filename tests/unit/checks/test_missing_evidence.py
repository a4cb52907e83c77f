"""Generated: for every check and every file its verdict rests on, that file taken away turns the verdict to unknown.

Never to pass, which would be a node let through unseen, and never to fail, which would be a healthy node sent away.
Facts that only bear on which things are judged may be assumed instead, and then every verdict that rests on that says
so.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.checks import Expect, judge_node
from fairlead.checks.audits import EVERY
from fairlead.checks.engine import read_by
from fairlead.checks.node import Node
from fairlead.records.facts import Facts, NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import guests, trees
from support.judging import SMALL, expect, facts_of, of, small, verdict
from support.trees import Machine


def by_nm() -> Machine:
    """NetworkManager, a second NIC, Guest RDMA, a bond: what the first machine of an audit has not."""
    m = guests.h100()
    for path in (f"/run/systemd/netif/links/{guests.VF_INDEX}", guests.NETPLAN):
        del m.files[path]
    for path in ("/run/NetworkManager", f"/run/NetworkManager/devices/{guests.VF_INDEX}"):
        m.absent.discard(path)
    guests.managed_by(m, "NetworkManager")
    guests.mana(m)
    guests.bond(m, up=2)
    return m


CASES: list[tuple[Callable[[], Machine], Expect]] = [
    (small, SMALL),
    (guests.h100, SMALL),
    (by_nm, SMALL),
    (trees.nd_gb300_v6, expect("Standard_ND128isr_GB300_v6")),
    (lambda: trees.nd_mi300x_v5(gpus=2, hcas=1), expect("Standard_ND96isr_MI300X_v5", gpus=2, hca_ports=1)),
]


def rests_on(machine: Machine, expected: Expect) -> dict[str, set[str]]:
    """File or command of the tree -> the checks that read it on their way to a pass or a skip."""
    record = facts_of(machine)
    node = Node(Facts(record), expected)
    found: dict[str, set[str]] = defaultdict(set)
    for check in EVERY:
        for keys in read_by(check, node):
            source = Facts(record).source(keys)
            assert source.startswith(("/", "http://")) or " " in source, f"{check.code}: no source for {keys}"
            found[source].add(check.code)
    return found


def without(machine: Machine, source: str) -> Machine:
    """The machine as a capture that did not take this along."""
    less = copy.deepcopy(machine)
    if source == "/proc/*/stat":
        for path in [p for p in less.files if p.startswith("/proc/") and p.endswith("/stat")]:
            del less.files[path]
        return less
    if source.startswith("http://"):
        source = trees.EVENTS if "scheduledevents" in source else trees.IMDS
    path = resolved(less, source.rstrip("/")) if source.startswith("/") else trees.cmd_path(source.split(" "))
    if path in less.absent:
        less.absent.discard(path)
    else:
        less.remove(path)
    return less


def resolved(machine: Machine, path: str) -> str:
    """Follows the links of the tree above the last step, as opening the file would."""
    parts, here = path.split("/")[1:], ""
    for index, part in enumerate(parts):
        step = f"{here}/{part}"
        if step in machine.links and index < len(parts) - 1:
            step = trees.join(here, machine.links[step])
        here = step
    return here


@pytest.mark.parametrize(("build", "expected"), CASES, ids=["H100", "audited", "NetworkManager", "GB300", "MI300X"])
def test_taking_a_file_away_makes_its_checks_unknown(build: Callable[[], Machine], expected: Expect) -> None:
    machine = build()
    wrong = []
    files = rests_on(machine, expected)
    assert len(files) > 50
    for source, codes in sorted(files.items()):
        record = facts_of(without(machine, source))
        findings = judge_node(Node(Facts(record), expected), [check for check in EVERY if check.code in codes])
        for code in codes:
            found = verdict(findings, code)
            if found is not Verdict.UNKNOWN and not _is_assumed(record, source, of(findings, code)):
                wrong.append(f"{code} without {source}: {found}")
    assert not wrong, "\n".join(wrong)


def _is_assumed(record: NodeFacts, source: str, findings: list[Finding]) -> bool:
    """Whether some verdict names the missing fact among what it assumes, and its message says so too."""
    told = [text for f in findings for text in f.data.get("assumes", ()) if text in f.message]
    missing = [path for path, _ in Facts(record).holes() if source.rstrip("/") in _sources_of(record, path)]
    return any(path in text for path in missing for text in told)


def _sources_of(record: NodeFacts, path: str) -> set[str]:
    """Where a hole comes from: by the table of sources, and by its own word where a whole reader found nothing."""
    keys = tuple(a or b for a, b in re.findall(r"\[([^\]]*)\]|([^.\[\]]+)", path))
    value: Any = record.facts
    for key in keys:
        value = value[key]
    return {Facts(record).source(keys).rstrip("/"), str(value.get("source", "")).rstrip("/")}


def test_an_empty_capture_knows_nothing() -> None:
    """Nothing read, nothing passed: only what the cluster file alone decides is skipped."""
    findings = judge_node(Node(Facts(facts_of(Machine())), SMALL))
    assert {f.verdict for f in findings} <= {Verdict.UNKNOWN, Verdict.SKIP}
    assert {f.code for f in findings if f.verdict is Verdict.SKIP} == {
        "host/vm-size",
        "host/scheduled-event",
        "ib/gid",
    }
