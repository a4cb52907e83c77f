"""Counters between two readings: exact over wrap and reset, unknown where a value tells nothing."""

from __future__ import annotations

import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.checks.node import Node
from fairlead.checks.rates import Pair, judge_rates
from fairlead.records.facts import NodeFacts, Unread
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import guests
from support.judging import SMALL, facts_of, of

PORT = ("ib", "devices", "mlx5_ib0", "ports", "1", "counters")
NIC = ("accelnet", "nics", "eth0")
FIRST = facts_of(guests.h100())


def later(seconds: float = 60, **counters: int) -> NodeFacts:
    """The same node after a while, with some counters at other values."""
    facts = copy.deepcopy(FIRST.facts)
    facts["host"]["os"]["uptime_s"] += seconds
    for name, value in counters.items():
        put(facts, (*PORT, name), value)
    return msgspec.structs.replace(FIRST, facts=facts)


def put(facts: dict, path: tuple[str, ...], value: object) -> None:
    for key in path[:-1]:
        facts = facts[key]
    facts[path[-1]] = value


def rated(after: NodeFacts, before: NodeFacts = FIRST) -> list[Finding]:
    return judge_rates(before, after, SMALL)


def about(found: list[Finding], code: str) -> list[tuple[Verdict, str]]:
    return [(f.verdict, f.subject.name) for f in of(found, code) if f.verdict is not Verdict.PASS]


def test_nothing_grew() -> None:
    found = rated(later())
    assert {f.verdict for f in found} == {Verdict.PASS, Verdict.SKIP}
    assert "2 ports" in of(found, "ib/counter-rates")[0].message


@pytest.mark.parametrize(
    ("name", "value", "seconds", "expected"),
    [
        ("link_downed", 1, 60, Verdict.FAIL),
        ("symbol_error", 1, 10, Verdict.PASS),
        ("symbol_error", 121, 60, Verdict.FAIL),
        ("symbol_error", 121, 7200, Verdict.PASS),
        ("symbol_error", 241, 7200, Verdict.FAIL),
        ("link_error_recovery", 6, 60, Verdict.WARN),
        ("port_xmit_discards", 5000, 60, Verdict.PASS),
        ("port_xmit_discards", 7000, 60, Verdict.WARN),
    ],
)
def test_limits_hold_for_a_window(name: str, value: int, seconds: float, expected: Verdict) -> None:
    found = about(rated(later(seconds, **{name: value})), "ib/counter-rates")
    assert found == ([] if expected is Verdict.PASS else [(expected, "mlx5_ib0/1")])


@pytest.mark.parametrize(("before", "after"), [(255, 255), (0, 255), (200, 3)])
def test_a_saturated_counter_and_one_that_went_back_tell_nothing(before: int, after: int) -> None:
    first = later(0, link_downed=before)
    assert about(rated(later(link_downed=after), first), "ib/counter-rates") == [(Verdict.UNKNOWN, "mlx5_ib0/1")]


def test_another_device_of_the_name_tells_nothing() -> None:
    after = later()
    put(after.facts, ("ib", "devices", "mlx5_ib0", "node_guid"), "0015:5dff:fe00:9999")
    assert (Verdict.UNKNOWN, "mlx5_ib0/1") in about(rated(after), "ib/counter-rates")


def test_a_restart_in_between_leaves_no_window() -> None:
    after = later()
    put(after.facts, ("host", "identity", "boot_id"), "another")
    assert [(f.verdict, "restarted" in f.message) for f in rated(after)] == [(Verdict.UNKNOWN, True)]


def test_a_clock_that_jumps_changes_nothing() -> None:
    after = msgspec.structs.replace(later(link_downed=1), taken_at_ns=1)
    assert about(rated(after), "ib/counter-rates") == [(Verdict.FAIL, "mlx5_ib0/1")]


@pytest.mark.parametrize("seconds", [0, -30])
def test_a_second_reading_that_is_not_later_has_no_rate(seconds: int) -> None:
    assert {f.verdict for f in rated(later(seconds, link_downed=1))} == {Verdict.UNKNOWN}


def test_symbol_errors_by_the_bits_received() -> None:
    """port_rcv_data counts words of 32 bits (linux Documentation/ABI/stable/sysfs-class-infiniband)."""
    words = FIRST.facts["ib"]["devices"]["mlx5_ib0"]["ports"]["1"]["counters"]["port_rcv_data"]
    few = rated(later(symbol_error=100, port_rcv_data=words + 10**9))
    many = rated(later(symbol_error=100, port_rcv_data=words + 10**7 * 32))
    assert about(few, "ib/symbol-errors") == [(Verdict.SKIP, "mlx5_ib1/1")]
    assert about(many, "ib/symbol-errors") == [(Verdict.SKIP, "mlx5_ib1/1")]
    assert (Verdict.WARN, "mlx5_ib0/1") in about(
        rated(later(symbol_error=9999, port_rcv_data=words + 10**9)), "ib/symbol-errors"
    )


def test_traffic_past_the_vf() -> None:
    after = later()
    put(after.facts, (*NIC, "tx_bytes"), FIRST.facts["accelnet"]["nics"]["eth0"]["tx_bytes"] + 10**9)
    assert about(rated(after), "net/vf-share") == [(Verdict.WARN, "eth0")]
    put(
        after.facts,
        (*NIC, "stats", "vf_tx_bytes"),
        FIRST.facts["accelnet"]["nics"]["eth0"]["stats"]["vf_tx_bytes"] + 10**9,
    )
    assert about(rated(after), "net/vf-share") == []


def test_reading_that_floods_the_log() -> None:
    """node_exporter#3434: each scrape of a function that may not read a register leaves a line."""
    after = later()
    line = "mlx5_core 0101:00:00.0: mlx5_cmd_out_err:839:(pid 77): ACCESS_REG(0x805) op_mod(0x1) failed"
    after.facts["kernel_log"]["lines"].append([FIRST.facts["host"]["os"]["uptime_s"] + 1, 3, line])
    assert about(rated(after), "ib/counter-reads") == [(Verdict.WARN, "")]


@given(old=st.integers(0, (1 << 64) - 1), grown=st.integers(0, (1 << 31) - 1))
def test_a_counter_that_wraps_at_32_bits_is_exact(old: int, grown: int) -> None:
    """Read through a register of 32 bits; nothing that is not exact is told."""
    old %= 1 << 32
    new = (old + grown) % (1 << 32)
    pair = Pair.__new__(Pair)
    pair.before, pair.after = (_node(value) for value in (old, new))
    try:
        assert pair.grown("x", "c") == grown
    except Unread:
        assert new < old, "only a value that went back may be left open"


def _node(value: int) -> Node:
    from fairlead.records.facts import Facts

    return Node(Facts(NodeFacts(facts={"x": {"c": value}})), SMALL)
