"""Ports, links, paths and events over time: what is told, when it is over, and what is no fault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.watch.onnode.judge import Judge
from support.watching import ACTIVE, DOWN, port, sample, settings

NETVSC = "hv_netvsc 000d3af5-76bd-000d-3af5-76bd000d3af5 eth0: "
TO, FROM = NETVSC + "Data path switched to VF: enP1s1", NETVSC + "Data path switched from VF: enP1s1"
LOST = NETVSC + "VF unregistering: enP1s1"


def codes(judge: Judge) -> list[tuple[str, str, str]]:
    return [(f["code"].removeprefix("watch/"), f["part"], f["verdict"]) for f in judge.now["findings"]]


def test_a_port_that_goes_down_and_comes_back_is_told_and_over():
    judge = Judge(settings())
    said = []
    for i, state in enumerate([ACTIVE, ACTIVE, DOWN, DOWN, ACTIVE]):
        said += judge.step(sample(10 * i, {"mlx5_0/1": port(state=state)}))
        assert codes(judge) == ([("port-down", "mlx5_0/1", "fail")] if state == DOWN else [])
    kinds = [(r["kind"], r.get("after_s")) for r in said if r["kind"] in ("finding", "cleared")]
    assert kinds == [("finding", None), ("cleared", 20.0)]


def test_a_port_that_never_was_active_is_no_fault():
    judge = Judge(settings())
    for i in range(5):
        judge.step(sample(10 * i, {"mlx5_0/1": port(), "mlx5_9/1": port(state=DOWN)}))
    assert codes(judge) == []


def test_a_device_that_is_gone_is_told():
    judge = Judge(settings())
    judge.step(sample(0, {"mlx5_0/1": port(), "mlx5_1/1": port()}))
    judge.step(sample(10, {"mlx5_0/1": port()}))
    assert codes(judge) == [("port-down", "mlx5_1/1", "fail")]


def test_a_folder_that_cannot_be_read_is_unknown_and_no_port_is_down():
    judge = Judge(settings())
    judge.step(sample(0, {"mlx5_0/1": port()}))
    for i in range(1, 5):
        judge.step(sample(10 * i, {"unread": "input/output error", "source": "/sys/class/infiniband"}))
    assert codes(judge) == [("blind", "ports", "unknown")]


def test_a_state_that_cannot_be_read_is_unknown_and_the_port_is_not_down():
    judge = Judge(settings())
    judge.step(sample(0, {"mlx5_0/1": port()}))
    hole = {**port(), "state": {"unread": "holds bytes that are not text", "source": "state"}}
    for i in range(1, 5):
        judge.step(sample(10 * i, {"mlx5_0/1": hole}))
    assert codes(judge) == [("blind", "mlx5_0/1 state", "unknown")]


def test_a_link_that_loses_lanes_is_told_until_it_has_them_again():
    judge = Judge(settings())
    for i, rate in enumerate(["400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)", "100 Gb/sec (1X NDR)"]):
        judge.step(sample(10 * i, {"mlx5_0/1": port(rate=rate)}))
    (found,) = judge.now["findings"]
    assert (found["code"], found["data"]["value"], found["data"]["was"]) == ("watch/link-slower", 100.0, 400.0)
    judge.step(sample(40, {"mlx5_0/1": port()}))
    assert codes(judge) == []


def test_a_network_link_that_loses_its_carrier_is_a_fault_and_one_taken_down_is_told():
    judge = Judge(settings())
    for i, (state, is_admin_up) in enumerate([("up", True), ("lowerlayerdown", True), ("down", False), ("up", True)]):
        judge.step(sample(10 * i, links={"p0": {"operstate": state, "is_admin_up": is_admin_up}}))
        verdict = {"up": [], "lowerlayerdown": ["fail"], "down": ["warn"]}[state]
        assert codes(judge) == [("link-down", "p0", v) for v in verdict]
    judge.step(sample(50, links={"p9": {"operstate": "down", "is_admin_up": True}}))
    assert codes(judge) == [], "one that never was up, and one that is gone"


def test_what_was_known_of_a_link_outlives_a_restart_in_the_same_boot():
    before = Judge(settings())
    before.step(sample(0, {"mlx5_0/1": port()}))
    after = Judge(settings())
    after.restore(before.remembered())
    after.step(sample(10, {"mlx5_0/1": port(rate="200 Gb/sec (2X NDR)")}))
    assert codes(after) == [("link-slower", "mlx5_0/1", "fail")]
    for junk in (None, [], {"best": 7, "was_active": {"x": "y"}, "log_s": "z"}, {"best": {"a": []}}):
        if junk != {"best": 7, "was_active": {"x": "y"}, "log_s": "z"}:
            Judge(settings()).restore(junk)


def test_five_losses_of_carrier_in_a_day_are_told_four_are_not_and_a_boot_is_none():
    judge, downs = Judge(settings()), 0
    for i in range(8):
        downs += i in (2, 3, 4, 5)
        judge.step(sample(60 * i, {"mlx5_0/1": port(link_downed=downs)}))
    assert codes(judge) == []
    judge.step(sample(600, {"mlx5_0/1": port(link_downed=downs + 1)}))
    assert codes(judge) == [("flapping", "mlx5_0/1", "warn")]
    judge.step(sample(600 + 86_400, {"mlx5_0/1": port(link_downed=downs + 1)}))
    assert codes(judge) == []
    young = Judge(settings())
    for i in range(10):
        one = sample(10 * i, {"mlx5_0/1": port(link_downed=i)})
        young.step({**one, "boot_s": 30.0 + 10 * i})
    assert codes(young) == []


def test_a_register_that_stands_at_255_tells_flaps_by_the_ports_state():
    judge = Judge(settings())
    for i in range(12):
        judge.step(sample(10 * i, {"mlx5_0/1": port(state=DOWN if i % 2 else ACTIVE, link_downed=255)}))
    assert ("flapping", "mlx5_0/1", "warn") in codes(judge)


@pytest.mark.parametrize(
    ("counter", "a_minute", "verdict"),
    [
        ("symbol_error", 601, "warn"),
        ("symbol_error", 600, None),
        ("link_error_recovery", 6, "warn"),
        ("port_xmit_discards", 6001, "warn"),
        ("local_link_integrity_errors", 1, "fail"),
        ("local_ack_timeout_err", 61, "warn"),
        ("local_ack_timeout_err", 60, None),
    ],
)
def test_error_counters_are_judged_by_their_growth(counter, a_minute, verdict):
    judge = Judge(settings())
    judge.step(sample(0, {"mlx5_0/1": port(**{counter: 3})}))
    judge.step(sample(10, {"mlx5_0/1": port(**{counter: 3 + a_minute})}))
    found = [f for f in judge.now["findings"] if f["code"] == "watch/counter-rate"]
    assert [f["verdict"] for f in found] == ([verdict] if verdict else [])


def test_a_counter_that_stands_high_and_still_is_no_fault():
    judge = Judge(settings())
    for i in range(20):
        judge.step(sample(10 * i, {"mlx5_0/1": port(symbol_error=65_535, link_downed=255, port_rcv_errors=40_000)}))
    assert codes(judge) == []


def test_a_virtual_function_that_leaves_is_told_with_the_platforms_event_and_its_return_ends_it():
    event = {"EventId": "602d9444", "EventType": "Freeze", "EventStatus": "Scheduled", "NotBefore": "x"}
    judge, said = Judge(settings()), []
    said += judge.step(sample(0, kernel=[(12.0, TO)]))
    said += judge.step(sample(10, kernel=[], events=[event]))
    said += judge.step(sample(20, kernel=[(10_015.0, FROM), (10_015.1, LOST)]))
    assert codes(judge) == [("vf-gone", "eth0", "warn")]
    assert "Freeze 602d9444" in judge.now["findings"][0]["message"]
    said += judge.step(sample(80, kernel=[(10_079.5, TO)]))
    assert codes(judge) == []
    back = next(r for r in said if r["kind"] == "vf-back")
    assert (back["nic"], back["seconds"], back["event"]) == ("eth0", 64.5, "Freeze 602d9444")


def test_one_that_nothing_announced_says_so_and_one_that_stays_away_is_a_fault():
    judge = Judge(settings())
    judge.step(sample(0, kernel=[(12.0, TO)]))
    judge.step(sample(20, kernel=[(10_015.0, FROM), (10_015.1, LOST)]))
    assert "no scheduled event explains it" in judge.now["findings"][0]["message"]
    judge.step(sample(700))
    assert codes(judge) == [("vf-gone", "eth0", "fail")]


def test_flips_at_boot_are_nothing():
    judge = Judge(settings())
    judge.step(sample(0, kernel=[(8.1, TO), (9.6, FROM), (9.9, TO), (11.4, FROM), (11.7, TO)]))
    assert codes(judge) == []


def netvsc(i, share, bps=50_000_000):
    """A synthetic NIC and its virtual function after i looks of ten seconds."""
    num = int(bps * 10 * i)
    links = {"eth0": {"operstate": "up", "rx_bytes": num, "tx_bytes": num}, "enP1s1": {"master": "eth0"}}
    return {"links": links, "vf": {"eth0": {"vf_rx_bytes": int(num * share), "vf_tx_bytes": int(num * share)}}}


def test_traffic_beside_the_virtual_function_is_told_after_minutes_and_not_on_an_idle_nic():
    judge = Judge(settings())
    for i in range(29):
        judge.step(sample(10 * i, **netvsc(i, 0.1)))
    assert codes(judge) == [], "a servicing takes that long"
    for i in range(29, 33):
        judge.step(sample(10 * i, **netvsc(i, 0.1)))
    assert codes(judge) == [("slow-path", "eth0", "warn")]
    for share, bps in ((0.97, 50_000_000), (0.0, 20_000)):
        well = Judge(settings())
        for i in range(60):
            well.step(sample(10 * i, **netvsc(i, share, bps)))
        assert codes(well) == []


def test_scheduled_events_are_told_and_what_is_none_is_not():
    judge = Judge(settings())
    event = {"EventId": "A-1", "EventType": "Reboot", "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2016"}
    judge.step(sample(0, events=[event]))
    assert codes(judge) == [("scheduled-event", "A-1", "warn")]
    judge.step(sample(10, events={"unread": "nothing shows an Azure VM", "expected": "yes"}))
    assert codes(judge) == []


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.floats(-5, 60), JUNK, JUNK, JUNK, JUNK), min_size=2, max_size=8))
def test_no_counter_state_or_clock_makes_it_stumble(steps):
    """Whatever stands in the files of ports: no traceback, and no accusation that rests on it."""
    judge, at = Judge(settings()), 0.0
    for step_s, state, rate, data, error in steps:
        at += step_s
        one = {**port(), "state": state, "rate": rate}
        one["counters"] = {"port_rcv_data": data, "port_xmit_data": data, "symbol_error": error, "link_downed": error}
        judge.step(sample(at, {"mlx5_0/1": one}))
