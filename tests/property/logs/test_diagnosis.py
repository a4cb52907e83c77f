"""What must not change a diagnosis: the order in which files are read, clocks within what is known of them, noise."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.logs.diagnose.choose import diagnose
from fairlead.logs.diagnose.model import Evidence, Line
from fairlead.logs.diagnose.table import table
from support.depth import cases
from support.wrecks import Wreck, ns

ROOTS = {
    "gpu-bus": (
        "kernel",
        "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ),
    "gpu-memory": ("kernel", "NVRM: Xid (PCI:0000:4e:00): 95, pid=5171, Uncontained: FBHUB. RST: Yes, D-RST: No"),
    "node-crash": ("kernel", "Kernel panic - not syncing: Fatal exception in interrupt"),
    "nic": (
        "kernel",
        "mlx5_core 0000:41:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
    ),
    "link": ("networkd", "ib1: Lost carrier"),
}
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")


def wrecked(cls: str, node: str, skew: dict[str, float] | None = None) -> Wreck:
    """A root on a node, and what all other ranks say of it."""
    wreck = Wreck(skew=skew or {})
    kind, text = ROOTS[cls]
    getattr(wreck, kind)(node, 3000, text)
    for number, name in enumerate(NODES, 1):
        wreck.out(f"{name}:10:11 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{number}<0>", 1)
        if name != node:
            wreck.out(
                f"{name}:10:11 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.{NODES.index(node) + 1}<44206> "
                "with status=12 opcode=1 len=0 vendor err 129 (Send)", 3010,
            )  # fmt: skip
    for rank in range(16):
        if NODES[rank // 4] != node:
            wreck.watchdog(rank, 3600)
    wreck.slurmctld(3500, f"error: Nodes {node} not responding")
    return wreck


@settings(max_examples=cases(20), deadline=None)
@given(st.sampled_from(sorted(ROOTS)), st.sampled_from(NODES), st.integers(0, 2**32))
def test_the_order_of_lines_says_nothing(cls: str, node: str, seed: int) -> None:
    wreck = wrecked(cls, node)
    lines: list[Line] = list(wreck.lines())
    expected = wreck.diagnosed()
    assert (expected.what, expected.nodes) == (cls, (node,))
    random.Random(seed).shuffle(lines)
    assert diagnose(Evidence(wreck.job, tuple(lines)), ns(wreck.end)) == expected


@settings(max_examples=cases(20), deadline=None)
@given(st.sampled_from(sorted(ROOTS)), st.sampled_from(NODES), st.lists(st.floats(-1, 1), min_size=4, max_size=4))
def test_clocks_within_what_is_known_of_them_change_nobody_who_is_blamed(
    cls: str, node: str, parts: list[float]
) -> None:
    clock_s = table().limits.clock_s
    skew = {name: part * clock_s for name, part in zip(NODES, parts, strict=True)}
    found = wrecked(cls, node, skew).diagnosed()
    assert (found.what, found.nodes) == (cls, (node,))


@settings(max_examples=cases(15), deadline=None)
@given(st.sampled_from(sorted(ROOTS)), st.sampled_from(NODES), st.sampled_from(NODES), st.integers(100, 2000))
def test_what_healed_elsewhere_takes_no_blame(cls: str, node: str, elsewhere: str, at: int) -> None:
    wreck = wrecked(cls, node)
    if elsewhere != node:
        wreck.networkd(elsewhere, at, "ib3: Lost carrier")
        wreck.networkd(elsewhere, at + 2, "ib3: Gained carrier")
        wreck.kernel(elsewhere, at, "NVRM: Xid (PCI:0000:11:00): 43, pid=1, name=x, Ch 00000008")
    found = wreck.diagnosed()
    assert (found.what, found.nodes) == (cls, (node,))


@settings(max_examples=cases(15), deadline=None)
@given(st.sampled_from(NODES), st.sampled_from(NODES), st.floats(-1, 1))
def test_of_two_alike_within_their_clocks_none_is_singled_out(first: str, second: str, part: float) -> None:
    wreck = Wreck(skew={second: part * table().limits.clock_s / 2})
    for node in {first, second}:
        wreck.kernel(node, 3000, ROOTS["gpu-bus"][1])
    found = wreck.diagnosed()
    assert set(found.nodes) == {first, second}
    assert (found.confidence == "high") == (first == second)
