"""Trees that were broken on purpose: what was not read whole is unknown, never a verdict of good or bad."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from fairlead.checks import judge_node
from fairlead.checks.audits import EVERY
from fairlead.checks.node import Node
from fairlead.records.facts import Facts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import guests, trees
from support.judging import SMALL, facts_of, of
from support.trees import Machine

RANDOM = random.Random(5)

BREAKS: dict[str, Callable[[bytes], bytes]] = {
    "junk": lambda _: RANDOM.randbytes(300),
    "nothing": lambda _: b"",
    "another code page before it": lambda data: b"\xe4\xf6\xfc" + data,
    "NULs": lambda data: b"\0" * len(data),
}

BY_NAMES = {
    "gpu/count",
    "net/managers",
    "ib/driver",
    "ib/char-devices",
    "gpu/gpudirect",
    "gpu/nouveau",
    "host/failed-services",
}
"""What may pass all the same: it rests on names and links, or on a list that is empty where all is well."""
BY_LINES = {"gpu/xid", "host/clock", "host/kernel-faults", "host/stuck-processes", "ib/kernel-messages",
            "slurm/health-program", "host/swap"}  # fmt: skip
"""What rests on many lines, of which the first alone is spoilt."""


def judged(m: Machine) -> list[Finding]:
    return judge_node(Node(Facts(facts_of(m)), SMALL), EVERY)


@pytest.mark.parametrize("name", BREAKS)
def test_a_tree_that_is_broken_everywhere_is_neither_good_nor_bad(name: str) -> None:
    m = guests.h100()
    for path in m.files:
        m.files[path] = BREAKS[name](m.files[path])
    findings = judged(m)
    told = {(f.code, f.message) for f in findings if f.verdict in (Verdict.FAIL, Verdict.WARN)}
    assert told == set()
    passed = {f.code for f in findings if f.verdict is Verdict.PASS}
    assert passed <= BY_NAMES | (BY_LINES if "before" in name else set())
    assert sum(f.verdict is Verdict.UNKNOWN for f in findings) > 50


@pytest.mark.parametrize(
    ("path", "text", "code"),
    [
        (trees.cmd_path(["uname", "-m"]), "x86", "host/arch"),
        (trees.cmd_path(["uname", "-m"]), "", "host/arch"),
        (trees.cmd_path(trees.SYSTEMCTL_FAILED), "\x1b[0m Failed to connect to bus\n", "host/failed-services"),
        (trees.cmd_path(trees.SYSTEMCTL_SHOW), "", "gpu/fabric-manager"),
        ("/proc/self/mounts", "", "host/shm"),
        ("/sys/class/infiniband/mlx5_ib0/ports/1/link_layer", "Infin", "ib/naming"),
        ("/sys/class/net/eth0/type", "-1\n", "net/synthetic"),
        (trees.EVENTS, json.dumps({"DocumentIncarnation": 1, "Events": {"a": 1}}), "host/scheduled-event"),
        (trees.EVENTS, json.dumps({"DocumentIncarnation": 1, "Events": [{}]}), "host/scheduled-event"),
        (trees.EVENTS, "<html><body>504 Gateway Time-out</body></html>", "host/scheduled-event"),
        (trees.IMDS, "[]", "host/vm-size"),
    ],
)
def test_one_file_that_is_half_there_is_unknown(path: str, text: str, code: str) -> None:
    m = guests.h100()
    assert path in m.files
    m.put(path, text)
    assert {f.verdict for f in of(judged(m), code)} == {Verdict.UNKNOWN}
