"""What the platform says of nodes: events it has scheduled, and where it has placed them."""

from __future__ import annotations

import json
from email.utils import formatdate

import pytest

from fairlead.checks import judge, judge_node
from fairlead.checks.node import Node
from fairlead.records.facts import Facts, NodeFacts
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import SMALL, expect, facts_of, judged, of, small, spec_of, troubles
from support.trees import Machine

NOW_S = trees.TAKEN_AT_NS / 1e9
FAIL, PASS, SKIP, UNKNOWN, WARN = Verdict.FAIL, Verdict.PASS, Verdict.SKIP, Verdict.UNKNOWN, Verdict.WARN
NO_RDMA = expect("Standard_ND96is_H100_v5")


def events(m: Machine, *said: dict[str, object]) -> Machine:
    whole = {"EventId": "602d9444", "ResourceType": "VirtualMachine", "EventSource": "Platform", "Resources": ["n0"]}
    m.put(trees.EVENTS, json.dumps({"DocumentIncarnation": 7, "Events": [{**whole, **one} for one in said]}))
    return m


def in_(minutes: float) -> str:
    return formatdate(NOW_S + 60 * minutes, usegmt=True)


def found(m: Machine, *, rdma: bool = True) -> Finding:
    import dataclasses

    expected = SMALL if rdma else dataclasses.replace(SMALL, rdma="none", link="ethernet")
    (only,) = of(judged(m, expected), "host/scheduled-event")
    return only


@pytest.mark.parametrize(
    ("kind", "rdma", "verdict"),
    [
        ("Freeze", True, FAIL),  # no queue pair survives it
        ("Freeze", False, WARN),
        ("Reboot", False, FAIL),
        ("Redeploy", False, FAIL),
        ("Preempt", False, FAIL),
        ("Terminate", False, FAIL),
        ("Something new", False, FAIL),
    ],
)
def test_an_event_within_the_time_of_a_job(kind: str, rdma: bool, verdict: Verdict) -> None:
    said = found(events(small(), {"EventType": kind, "NotBefore": in_(15)}), rdma=rdma)
    assert said.verdict is verdict
    assert said.message.startswith(f"{kind} in 15 min (Platform event 602d9444): ")
    assert "drain n0" in said.remedy
    assert said.data["window_min"] == 720


def test_an_event_that_has_begun_has_no_time() -> None:
    said = found(events(small(), {"EventType": "Reboot", "EventStatus": "Started", "NotBefore": ""}))
    assert (said.verdict, said.message.partition("(")[0]) == (FAIL, "Reboot now ")


def test_events_of_other_machines_and_of_next_week() -> None:
    other = found(events(small(), {"EventType": "Reboot", "NotBefore": in_(15), "Resources": ["n7"]}))
    assert (other.verdict, other.message) == (PASS, "nothing is scheduled")
    later = found(events(small(), {"EventType": "Reboot", "NotBefore": in_(60 * 24 * 5)}))
    assert (later.verdict, later.message.partition(" (")[0]) == (PASS, "nothing soon; Reboot in 7200 min")


UNIFORM = "nsgvmss_85"
"""A VM whose computer is called nsgvmss00002D: learn.microsoft.com, virtual-machine-scale-sets-instance-ids."""


@pytest.mark.parametrize(
    ("vm", "node", "resource", "verdict"),
    [
        ("FrontEnd_IN_0", "n0", "frontend_in_0", FAIL),  # Azure takes both for one name
        ("FrontEnd_IN_0", "n0", "FrontEnd_IN_1", PASS),
        (UNIFORM, "n0", "nsgvmss00002D", FAIL),
        ("nsgvmss00002D", "n0", UNIFORM, FAIL),
        (UNIFORM, "n0", "nsgvmss00002E", PASS),
        ("", "nsgvmss00002d", UNIFORM, FAIL),
        ("", "aks-nodepool1-28706398-vmss00000a", "aks-nodepool1-28706398-vmss_10", FAIL),
        ("", "aks-nodepool1-28706398-vmss00000a", "aks-nodepool1-28706398-vmss_11", UNKNOWN),
        ("", "aks-nodepool1-28706398-vmss00000a", "aks-nodepool2-28706398-vmss_10", UNKNOWN),
        ("aks-nodepool1-28706398-vmss_11", "aks-nodepool1-28706398-vmss00000a", "aks-nodepool1-28706398-vmss_10", PASS),
    ],
)
def test_an_event_names_a_vm_and_a_node_may_be_called_otherwise(
    vm: str, node: str, resource: str, verdict: Verdict
) -> None:
    m = events(small(), {"EventType": "Reboot", "NotBefore": in_(15), "Resources": ["other_7", resource]})
    m.put(trees.IMDS, json.dumps({**json.loads(m.text(trees.IMDS)), "name": vm}))
    (said,) = of(judge_node(Node(Facts(facts_of(m, node)), SMALL)), "host/scheduled-event")
    assert said.verdict is verdict


def test_the_window_is_the_sites() -> None:
    m = events(small(), {"EventType": "Reboot", "NotBefore": in_(60 * 24 * 5)})
    week = expect("Standard_ND96isr_H100_v5", **{**SMALL.values, "event_window_min": 10_080})
    assert of(judged(m, week), "host/scheduled-event")[0].verdict is FAIL


def test_what_is_not_asked_and_what_does_not_answer() -> None:
    elsewhere = small()
    elsewhere.remove(trees.IMDS)
    elsewhere.put("/sys/class/dmi/id/chassis_asset_tag", "No Asset Tag\n")
    assert found(elsewhere).message == "the metadata service was not asked: the platform is not Azure"
    blocked = small()
    blocked.remove(trees.EVENTS)
    blocked.put("/refused", f"{trees.EVENTS}\tno answer: timed out\n")
    said = found(blocked)
    assert said.verdict is SKIP
    assert "firewall" in said.message
    broken = small()
    broken.put(trees.EVENTS, "<html>no</html>")
    assert found(broken).verdict is UNKNOWN
    silent = small()
    silent.remove(trees.EVENTS)
    assert found(silent).verdict is UNKNOWN


# ---- placement -----------------------------------------------------------------------------------------------------


def placed(*places: dict[str, object], size: str = "Standard_HB176rs_v4") -> list[NodeFacts]:
    records = []
    for number, place in enumerate(places):
        m = trees.hb176rs_v4(f"n{number}")
        said = json.loads(m.text(trees.IMDS))
        m.put(trees.IMDS, json.dumps({**said, **place}))
        records.append(facts_of(m, f"n{number}"))
    return records


HB = spec_of("Standard_HB176rs_v4", nodes="n[0-2]")


def test_two_nodes_in_two_placement_groups_cannot_reach_each_other() -> None:
    said = [f for f in judge(placed({}, {"placementGroupId": "other"}), HB) if f.verdict is FAIL]
    assert [(f.code, f.subject.nodes) for f in said] == [("skew/placement", ("n0", "n1"))]


def test_without_a_group_the_scale_set_is_the_island() -> None:
    records = placed(*({"placementGroupId": "", "vmScaleSetName": name} for name in ("a", "a", "b")))
    (said,) = [f for f in judge(records, HB) if f.verdict is FAIL]
    assert (said.code, said.subject.nodes) == ("skew/placement", ("n2",))
    assert "in scale set b" in said.message


def test_fault_domains_and_subgroups_may_differ() -> None:
    records = placed({"platformFaultDomain": "0"}, {"platformFaultDomain": "3", "interconnectSubgroupId": "s2"})
    assert troubles(judge(records, HB)) == []


def test_ethernet_reaches_every_group() -> None:
    plain = spec_of("Standard_NC72ds_xl_RTXPRO6000BSE_v6", nodes="n[0-1]", link="ethernet", rdma="none")
    records = []
    for name in ("n0", "n1"):
        m = trees.ncv6(name)
        m.put(trees.IMDS, json.dumps({**json.loads(m.text(trees.IMDS)), "placementGroupId": name}))
        records.append(facts_of(m, name))
    assert troubles(judge(records, plain)) == []


def test_a_node_whose_placement_nobody_knows_is_not_taken_for_placed() -> None:
    records = placed({}, {})
    records[1].facts["imds"]["compute"] = {"unread": "answers with status 500", "source": "http://169.254.169.254/"}
    said = [f for f in of(judge(records, HB), "skew/placement") if f.subject.nodes == ("n1",)]
    assert [f.verdict for f in said] == [UNKNOWN]
