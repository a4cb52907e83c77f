"""Generated: for every check and every file its verdict rests on, that file taken away turns the verdict to unknown.

Never to pass, which would be a node let through unseen, and never to fail, which would be a healthy node sent away.
Facts that only bear on which things are judged may be assumed instead, and then every verdict that rests on that says
so.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import Expect, judge_node
from fairlead.checks.audits import EVERY
from fairlead.checks.engine import read_by
from fairlead.checks.node import Node
from fairlead.records.facts import Facts, NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import guests, trees
from support.judging import SHM, SMALL, expect, facts_of, of, small, verdict
from support.spoiling import Spoiling
from support.trees import Machine


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder in memory where there is such a place: every file of a tree is written and taken away there."""
    with tempfile.TemporaryDirectory(dir=SHM if os.access(SHM, os.W_OK) else None, prefix="fairlead-tree-") as folder:
        yield Path(folder) / "tree"


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


def roce() -> Machine:
    """Ports of RDMA over Ethernet, on a node that is told its place."""
    m = small()
    for number in (0, 1):
        rate, address = "100 Gb/sec (4X EDR)", f"000{number + 3}:00:00.0"
        trees.hca(m, f"mlx5_{number + 2}", address=address, numa=number, rate=rate, link="Ethernet")
    m.put("/etc/fairlead/place.json", '{"address": "10.1.0.7"}')
    return m


ROCE = dataclasses.replace(
    SMALL, link="ethernet", rdma="roce", values={**SMALL.values, "hca_ports": 2, "hca_rates_gbps": (100.0,)}
)
CASES: list[tuple[Callable[[], Machine], Expect]] = [
    (small, SMALL),
    (guests.h100, SMALL),
    (by_nm, SMALL),
    (roce, ROCE),
    (trees.nd_gb300_v6, expect("Standard_ND128isr_GB300_v6")),
    (lambda: trees.nd_mi300x_v5(gpus=2, hcas=1), expect("Standard_ND96isr_MI300X_v5", gpus=2, hca_ports=1)),
]


def rests_on(record: NodeFacts, expected: Expect) -> dict[str, set[str]]:
    """File or command of the tree -> the checks that read it on their way to a pass or a skip."""
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
    path = place_of(less, source)
    if path in less.absent:
        less.absent.discard(path)
    else:
        less.remove(path)
    return less


def place_of(machine: Machine, source: str) -> str:
    """Where a tree holds what a fact says it came from."""
    if source.startswith("http://"):
        return trees.EVENTS if "scheduledevents" in source else trees.IMDS
    return resolved(machine, source.rstrip("/")) if source.startswith("/") else trees.cmd_path(source.split(" "))


def resolved(machine: Machine, path: str) -> str:
    """Follows the links of the tree above the last step, as opening the file would."""
    parts, here = path.split("/")[1:], ""
    for index, part in enumerate(parts):
        step = f"{here}/{part}"
        if step in machine.links and index < len(parts) - 1:
            step = trees.join(here, machine.links[step])
        here = step
    return here


NAMES = ["H100", "audited", "NetworkManager", "RoCE", "GB300", "MI300X"]


@pytest.mark.parametrize(("build", "expected"), CASES, ids=NAMES)
def test_taking_a_file_away_makes_its_checks_unknown(
    build: Callable[[], Machine], expected: Expect, in_memory: Path
) -> None:
    machine = build()
    tree = Spoiling(machine, in_memory)
    wrong = []
    files = rests_on(tree.whole, expected)
    assert len(files) > 50
    for source, codes in sorted(files.items()):
        path = place_of(machine, source)
        alone = path in tree.files()
        record = (tree.spoilt(path, None) or tree.whole) if alone else facts_of(without(machine, source))
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
        "gpu/diagnostic",
        "ib/gid",
    }


def test_every_check_passes_on_one_of_these_machines() -> None:
    """Otherwise taking its files away would show nothing of it."""
    passed = {
        f.code
        for build, expected in CASES
        for f in judge_node(Node(Facts(facts_of(build())), expected), EVERY)
        if f.verdict is Verdict.PASS
    }
    assert {check.code for check in EVERY} - passed == set()


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "junk": lambda data: random.Random(data).randbytes(300).replace(b"=", b"?"),
}
WRITTEN_BY_PEOPLE = ("/etc/", "/run/systemd/network/")
"""Configuration may be empty and may end anywhere: what stands in it is all that it says."""
NOT_SEEN = {
    "/cmd/nvidia-smi_-q_-x.took": "a number of ours",
    "/cmd/dcgmi_diag_-r_1_-j.took": "a number of ours",
    "/proc/self/environ": "a program may have no variables",
    "/sys/class/dmi/id/sys_vendor": "a name of any length",
    f"/sys/class/net/{guests.VF}/flags": "0x1 is as good a number as 0x1843",
    "/var/lib/hyperv/.kvp_pool_3": "empty until the host has written",
}
"""Files whose first half, or nothing of them, has a meaning of its own; junk in them is seen."""


@pytest.mark.parametrize("how", SPOILT)
def test_a_file_that_is_half_there_or_junk_is_no_evidence(how: str, in_memory: Path) -> None:
    """Every file that some reader opens, spoilt one at a time: a check says what it said before, or unknown. It never
    fails for it, and never passes, or lets be, by less than before.
    """
    tree = Spoiling(guests.h100(), in_memory)
    before = said_of(tree.whole)
    wrong, seen = [], 0
    for path in tree.files():
        data = tree.machine.files.get(path)
        if data is None or (how != "junk" and (path.startswith(WRITTEN_BY_PEOPLE) or path in NOT_SEEN)):
            continue
        record = tree.spoilt(path, SPOILT[how](data))
        if record is None:
            continue
        seen += 1
        for code, findings in said_of(record).items():
            verdicts = {f.verdict for f in findings}
            is_open = Verdict.UNKNOWN in verdicts and not verdicts & {Verdict.FAIL, Verdict.WARN}
            if findings != before[code] and not is_open and not any("assumes" in f.data for f in findings):
                wrong.append(f"{code}, {path} {how}: {[f.message for f in findings]}")
    assert seen > 200
    assert not wrong, "\n".join(wrong)


def said_of(record: NodeFacts) -> dict[str, list[Finding]]:
    """Every check's findings, without what was read on the way to them."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in judge_node(Node(Facts(record), SMALL), EVERY):
        found[finding.code].append(replace(finding, evidence=(), remedy=""))
    return found
