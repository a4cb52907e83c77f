# ruff: noqa: E501 - one line a row, as it is printed
"""RDMA devices as sysfs shows them, and events as the platform writes them, from the tree to the verdict.

Written from linux drivers/infiniband/core/sysfs.c (rate_show, state_show, phys_state_show), the drivers mana_ib, bnxt_re and
irdma below drivers/infiniband/hw, IBTA's port states; learn.microsoft.com, azure/virtual-machines/linux/scheduled-events
and instance-metadata-service.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from email.utils import formatdate

import pytest

from fairlead.checks import Expect
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import SMALL, expect, judged, small
from support.trees import Machine, hca

FAIL, WARN = Verdict.FAIL, Verdict.WARN
Found = set[tuple[str, Verdict]]
Edit = Callable[[Machine], None]
PORT = "/sys/class/infiniband/mlx5_ib0/ports/1"
GB300 = expect("Standard_ND128isr_GB300_v6")
A100 = expect("Standard_ND96asr_v4")


def told(m: Machine, expected: Expect = SMALL) -> Found:
    return {(f.code, f.verdict) for f in judged(m, expected) if f.verdict not in (Verdict.PASS, Verdict.SKIP)}


def port(name: str = "mlx5_ib0", **files: str) -> Edit:
    def apply(m: Machine) -> None:
        for key, text in files.items():
            m.put(f"/sys/class/infiniband/{name}/ports/1/{key.replace('__', '/')}", f"{text}\n")

    return apply


def ethernet(m: Machine, name: str, index: int, *, vendor: str, driver: str, rate: str, firmware: str) -> None:
    """A device of another maker, on Ethernet: a GID of each type, no LID, no partition to speak of."""
    address = f"{0x201 + index:04x}:00:00.0"
    hca(m, name, address=address, numa=index % 2, rate=rate, link="Ethernet", firmware=firmware)
    m.put(f"/sys/bus/pci/devices/{address}/vendor", f"{vendor}\n")
    m.links[f"/sys/bus/pci/devices/{address}/driver"] = f"../../../../../bus/pci/drivers/{driver}"
    m.remove(f"/sys/class/infiniband/{name}/ports/1/counters")


def with_mana(m: Machine) -> None:
    """Azure's own adapter beside the HCAs: `mana_0`, on Ethernet, for the front end."""
    ethernet(m, "mana_0", 0, vendor="0x1414", driver="mana", rate="200 Gb/sec (4X HDR)", firmware="0.0.0")


HEALTHY: dict[str, tuple[Callable[[], Machine], Edit, Expect]] = {
    "a MANA adapter beside them": (small, with_mana, SMALL),
    "400 Gb/s by eight lanes": (small, port(rate="400 Gb/sec (8X HDR)"), SMALL),
    "a speed that the kernel has no name for": (small, port(rate="400 Gb/sec (4X)"), SMALL),
    "the limited partition first": (small, port(pkeys__0="0x7fff", pkeys__1="0x8a55"), SMALL),
    "the default partition, full": (small, port(pkeys__0="0xffff", pkeys__1="0x0000"), SMALL),
    "all ports of a rack at 400": (lambda: trees.nd_gb300_v6(rate="400 Gb/sec (4X NDR)"), lambda _: None, GB300),
    "counters at their end": (small, port(counters__symbol_error="65535", counters__link_downed="255"), SMALL),
    "words of ibstat": (small, port(state="4: ACTIVE", phys_state="5: LinkUp", link_layer="InfiniBand"), SMALL),
}

FAULTS: dict[str, tuple[Callable[[], Machine], Edit, Expect, Found]] = {
    "armed": (small, port(state="3: ARMED"), SMALL, {("ib/port-state", FAIL)}),
    "recovering": (small, port(phys_state="6: LinkErrorRecovery"), SMALL, {("ib/port-state", FAIL)}),
    "training": (small, port(state="1: DOWN", phys_state="4: PortConfigurationTraining"), SMALL, {("ib/port-state", FAIL)}),
    "in test": (small, port(state="1: DOWN", phys_state="7: Phy Test"), SMALL, {("ib/port-state", FAIL)}),
    "half of HDR": (trees.nd_a100_v4, port(rate="100 Gb/sec (2X HDR)"), A100, {("ib/port-rate", FAIL)}),
    "one lane of NDR": (small, port(rate="100 Gb/sec (1X NDR)"), SMALL, {("ib/port-rate", FAIL)}),
    "trained as HDR": (small, port(rate="200 Gb/sec (4X HDR)"), SMALL, {("ib/port-rate", FAIL)}),
    # 400 and 800 Gb/s are both right for the size, and not both at once on one node
    "half of XDR": (trees.nd_gb300_v6, port(rate="400 Gb/sec (2X XDR)"), GB300, {("ib/port-rate", FAIL)}),
    "limited alone": (small, port(pkeys__0="0x7fff", pkeys__1="0x0000"), SMALL, {("ib/pkey", FAIL)}),
    "no address": (small, port(lid="0xffff"), SMALL, {("ib/lid", FAIL)}),
    "no manager": (small, port(sm_lid="0x0"), SMALL, {("ib/lid", FAIL)}),
    "no manager, initialising": (small, port(state="2: INIT", lid="0x0", sm_lid="0x0"), SMALL, {("ib/port-state", FAIL)}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_good_port(name: str) -> None:
    make, edit, expected = HEALTHY[name]
    m = make()
    edit(m)
    assert told(m, expected) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_port(name: str) -> None:
    make, edit, expected, label = FAULTS[name]
    m = make()
    edit(m)
    assert told(m, expected) == label


def test_of_two_right_rates_a_node_has_one() -> None:
    """A port may be slower than it could be, and never faster: the slow one is named, whatever the others are."""
    m = trees.nd_gb300_v6()
    port(rate="400 Gb/sec (2X XDR)")(m)
    found = [f for f in judged(m, GB300) if f.code == "ib/port-rate" and f.verdict is FAIL]
    assert [f.subject.name for f in found] == ["mlx5_ib0/1"]


# ---- RDMA over Ethernet by other makers --------------------------------------------------------------------------------

MAKERS = {
    "Broadcom": ("bnxt_re{}", "0x14e4", "bnxt_en", "400 Gb/sec (4X NDR)", "232.1.132.8"),
    "Intel": ("rocep{}s0", "0x8086", "ice", "100 Gb/sec (4X EDR)", "1.60"),
    "AMD Pensando": ("ionic_{}", "0x1dd8", "ionic", "400 Gb/sec (4X NDR)", "1.117.1-a-63"),
}


def roce(maker: str, num: int = 4) -> Machine:
    name, vendor, driver, rate, firmware = MAKERS[maker]
    m = trees.plain()
    trees.modules(m, "ib_core", "ib_uverbs")
    for index in range(num):
        ethernet(m, name.format(index), index, vendor=vendor, driver=driver, rate=rate, firmware=firmware)
    return m


def over_ethernet(num: int = 4) -> Expect:
    return dataclasses.replace(expect("other", hca_ports=num), link="ethernet", rdma="roce")


def beyond(m: Machine, num: int = 4) -> Found:
    """What is told of such a node, and not of one without any such device."""
    return {t for t in told(m, over_ethernet(num)) if t[0].startswith("ib/")}


@pytest.mark.parametrize("maker", MAKERS)
def test_devices_of_other_makers_count(maker: str) -> None:
    assert beyond(roce(maker)) == set()


@pytest.mark.parametrize("maker", MAKERS)
def test_a_device_of_another_maker_that_is_down(maker: str) -> None:
    m = roce(maker)
    name = MAKERS[maker][0].format(2)
    port(name, state="1: DOWN", phys_state="3: Disabled")(m)
    assert beyond(m) == {("ib/port-state", FAIL)}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_device_of_another_maker_without_a_routable_gid(maker: str) -> None:
    m = roce(maker)
    port(MAKERS[maker][0].format(1), gid_attrs__types__1="IB/RoCE v1")(m)
    assert beyond(m) == {("ib/gid", FAIL)}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_device_of_another_maker_that_is_missing(maker: str) -> None:
    assert beyond(roce(maker, 3)) == {("ib/count", FAIL)}


# ---- scheduled events, in the documentation's own shape ------------------------------------------------------------------

NOW_S = trees.TAKEN_AT_NS / 1e9


def event(
    kind: str, *, minutes: float | None = 15, status: str = "Scheduled", seconds: int = -1, **more: object
) -> str:
    before = "" if minutes is None else formatdate(NOW_S + 60 * minutes, usegmt=True)
    said: dict[str, object] = {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": status,
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["n0"],
        "NotBefore": before,
        "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        "EventSource": "Platform",
        "DurationInSeconds": seconds,
    }
    return json.dumps({"DocumentIncarnation": 4, "Events": [said | more]})


EVENTS: dict[str, tuple[str, Found]] = {
    "none": ('{"DocumentIncarnation":1,"Events":[]}', set()),
    "of another virtual machine": (event("Reboot", Resources=["n1", "n2"]), set()),
    "a live migration within minutes": (event("Freeze", seconds=5), {("host/scheduled-event", FAIL)}),
    "a live migration under way": (event("Freeze", minutes=None, status="Started", seconds=9), {("host/scheduled-event", FAIL)}),
    "a failing host, in a week": (event("Redeploy", minutes=7 * 24 * 60), set()),
    "spot taken back": (event("Preempt", minutes=0.5), {("host/scheduled-event", FAIL)}),
    "several machines, this among them": (event("Reboot", Resources=["n3", "n0"]), {("host/scheduled-event", FAIL)}),
    "a scale set is asked to delete it": (event("Terminate", EventSource="User", minutes=10), {("host/scheduled-event", FAIL)}),
}  # fmt: skip


@pytest.mark.parametrize("name", EVENTS)
def test_events_as_documented(name: str) -> None:
    text, label = EVENTS[name]
    m = small()
    m.put(trees.EVENTS, text)
    assert told(m) == label


@pytest.mark.parametrize(
    ("resource", "label"), [("ccw-gpu_7", {("host/scheduled-event", FAIL)}), ("ccw-gpu_70", set())]
)
def test_an_instance_of_a_scale_set_goes_by_the_platforms_name(resource: str, label: Found) -> None:
    m = small()
    m.put(trees.IMDS, json.dumps({**json.loads(m.text(trees.IMDS)), "name": "ccw-gpu_7"}))
    m.put(trees.EVENTS, event("Redeploy", Resources=[resource]))
    assert told(m) == label
