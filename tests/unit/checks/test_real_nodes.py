"""What other real nodes print: facts that stand alone are judged, and what follows from a fault is no second one."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fairlead.checks import Expect, gpu_count, judge
from fairlead.records.facts import Unread
from fairlead.records.finding import Finding
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import SMALL, expect, facts_of, judged, of, small, spec_of, troubles
from support.trees import Machine

PORT = "/sys/class/infiniband/mlx5_ib0/ports/1"
FAIL, PASS, SKIP, UNKNOWN, WARN = Verdict.FAIL, Verdict.PASS, Verdict.SKIP, Verdict.UNKNOWN, Verdict.WARN


def port(findings: list[Finding], code: str, name: str = "mlx5_ib0/1") -> Finding | None:
    return next((f for f in of(findings, code) if f.subject.name == name), None)


# ---- evidence that stands alone ------------------------------------------------------------------------------------


def without_settings(m: Machine) -> Machine:
    m.remove("/proc/self/environ")
    m.remove("/etc/nccl.conf")
    return m


def test_a_port_is_judged_where_nobody_could_read_which_ones_jobs_use() -> None:
    m = without_settings(small())
    m.put(f"{PORT}/rate", "200 Gb/sec (2X NDR)\n")
    m.put("/sys/class/infiniband/mlx5_ib1/ports/1/state", "1: DOWN\n")
    findings = judged(m)
    slow, down = port(findings, "ib/port-rate"), port(findings, "ib/port-state", "mlx5_ib1/1")
    assert slow is not None
    assert down is not None
    assert (slow.verdict, down.verdict) == (FAIL, FAIL)
    for found in (slow, down):
        assert (
            "assuming that the environment does not set NCCL_IB_HCA (could not read host.environment" in found.message
        )
        assert len(found.data["assumes"]) == 2
    assert {f.verdict for f in of(findings, "ib/link-layer")} == {PASS}


def test_what_the_environment_sets_needs_no_file() -> None:
    m = small()
    m.put("/proc/self/environ", "NCCL_IB_HCA=mlx5_ib1\0")
    m.remove("/etc/nccl.conf")
    m.put(f"{PORT}/rate", "200 Gb/sec (2X NDR)\n")
    assert {f.verdict for f in of(judged(m), "ib/port-rate")} == {PASS}


def test_a_passing_check_says_what_it_assumes() -> None:
    (found,) = of(judged(without_settings(small())), "ib/port-rate")
    assert found.verdict is PASS
    assert found.message.startswith("2 x 400 Gb/s; assuming that ")


@pytest.mark.parametrize(("gone", "left"), [("state", "Polling"), ("phys_state", "DOWN")])
def test_either_state_alone_shows_a_port_that_is_down(gone: str, left: str) -> None:
    m = small()
    m.put(f"{PORT}/state", "1: DOWN\n")
    m.put(f"{PORT}/phys_state", "2: Polling\n")
    m.remove(f"{PORT}/{gone}")
    found = port(judged(m), "ib/port-state")
    assert found is not None
    assert (found.verdict, found.message.split(";")[0]) == (FAIL, left)


def test_ports_that_are_not_there_are_counted_beside_one_nobody_could_read() -> None:
    m = trees.nd_h100_v5(hcas=6, gpus=2)
    m.remove("/sys/class/infiniband/mlx5_ib0/ports/1/link_layer")
    (found,) = of(judged(m, expect("Standard_ND96isr_H100_v5", gpus=2)), "ib/count")
    assert (found.verdict, found.message) == (FAIL, "at most 6 of 8 RDMA ports")


# ---- one fault, told once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phys_state", ["2: Polling", "3: Disabled", "1: Sleep"])
def test_what_a_port_shows_that_is_down_is_no_second_fault(phys_state: str) -> None:
    """A link that is down shows an idle rate, no address, no partition, and its interface is down as well."""
    m = small()
    for name, text in {
        "state": "1: DOWN",
        "phys_state": phys_state,
        "rate": "10 Gb/sec (4X SDR)",
        "lid": "0xffff",
        "sm_lid": "0x0",
        "pkeys/0": "0x7fff",
    }.items():
        m.put(f"{PORT}/{name}", f"{text}\n")
    m.put("/sys/class/net/ib0/operstate", "down\n")
    told = [f.code for f in judged(m) if f.verdict in (FAIL, WARN)]
    assert told == ["ib/port-state"]


def test_a_port_without_subnet_manager_still_shows_its_rate() -> None:
    """INIT on a link that is up: the rate is real, and the address is what is missing."""
    m = small()
    m.put(f"{PORT}/state", "2: INIT\n")
    m.put(f"{PORT}/lid", "0xffff\n")
    m.put(f"{PORT}/rate", "200 Gb/sec (2X NDR)\n")
    assert [f.code for f in judged(m) if f.verdict is FAIL] == ["ib/port-state", "ib/port-rate"]


def test_down_ports_are_left_out_when_nodes_are_compared() -> None:
    """With two right rates, nodes are compared: a port that is down has none to compare."""
    records = []
    for name in ("n0", "n1", "n2"):
        m = trees.nd_gb300_v6(name)
        if name == "n1":
            m.put("/sys/class/infiniband/mlx5_ib0/ports/1/state", "1: DOWN\n")
            m.put("/sys/class/infiniband/mlx5_ib0/ports/1/phys_state", "2: Polling\n")
            m.put("/sys/class/infiniband/mlx5_ib0/ports/1/rate", "10 Gb/sec (4X SDR)\n")
            m.put("/sys/class/infiniband/mlx5_ib0/ports/1/sm_lid", "0x0\n")
            m.put("/sys/class/infiniband/mlx5_ib0/ports/1/pkeys/0", "0x7fff\n")
        records.append(facts_of(m, name))
    findings = judge(records, spec_of("Standard_ND128isr_GB300_v6", nodes="n[0-2]"))
    assert [f.code for f in findings if f.verdict in (FAIL, WARN)] == ["ib/port-state"]


# ---- the words of other drivers and tools --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "phys_state", "verdict"),
    [
        ("4: ACTIVE", "5: LinkUp", PASS),
        ("ACTIVE", "LinkUp", PASS),
        ("Active", "LinkUp", PASS),
        ("4: ACTIVE ()", "5: LINK_UP", PASS),
        ("4: ACTIVE", "0: <unknown>", PASS),  # Network Direct
        ("1: DOWN", "0: <unknown>", FAIL),
        ("DOWN", "Disabled", FAIL),
        ("4: ACTIVE", "6: LinkErrorRecovery", FAIL),
        ("2: INIT", "5: LinkUp", FAIL),
        ("humming", "5: LinkUp", UNKNOWN),
        ("99: odd", "5: LinkUp", UNKNOWN),
    ],
)
def test_states_in_every_spelling(state: str, phys_state: str, verdict: Verdict) -> None:
    m = small()
    m.put(f"{PORT}/state", f"{state}\n")
    m.put(f"{PORT}/phys_state", f"{phys_state}\n")
    found = port(judged(m), "ib/port-state")
    assert (found.verdict if found else PASS) is verdict
    if found and verdict is FAIL:
        said, _, _ = found.message.partition(";")
        assert said != "ACTIVE"
        assert not re.search(r"\d", said)


def test_network_direct_shows_neither_physical_state_nor_subnet_manager() -> None:
    m = small()
    guid = "3a2c8c70-0f1b-4d5c-9a1e-5d2f3a1b0001"
    m.links["/sys/class/infiniband/mlx5_ib0/device"] = f"../../../bus/vmbus/devices/{guid}"
    m.put(f"/sys/bus/vmbus/devices/{guid}/numa_node", "0\n")
    m.put(f"{PORT}/phys_state", "0: <unknown>\n")
    m.put(f"{PORT}/lid", "0x0\n")
    m.put(f"{PORT}/sm_lid", "0x0\n")
    m.put(f"{PORT}/rate", "5 Gb/sec (4X SDR)\n")
    told = [
        f for f in judged(m) if f.verdict in (FAIL, WARN) and f.code.startswith("ib/") and "mlx5_ib0" in f.subject.name
    ]
    assert told == []


def test_persistence_that_the_driver_does_not_report() -> None:
    m = small()
    m.edit(trees.SMI, "<persistence_mode>Enabled", "<persistence_mode>N/A")
    assert {f.verdict for f in of(judged(m), "gpu/persistence")} == {SKIP}


def test_ecc_that_is_switched_off() -> None:
    """As on many A10 and RTX: the counts are then N/A, which is neither good nor bad."""
    m = small()
    m.edit(trees.SMI, "<current_ecc>Enabled", "<current_ecc>Disabled")
    m.edit(trees.SMI, "<dram_uncorrectable>0", "<dram_uncorrectable>N/A")
    assert {f.verdict for f in of(judged(m), "gpu/ecc")} == {SKIP}


# ---- NVLinks without a number --------------------------------------------------------------------------------------

NO_NUMBER = expect(
    "Standard_ND96isr_H100_v5", gpus=2, hca_ports=2, gpus_per_numa=(1, 1), hcas_per_numa=(1, 1), nvlinks_per_gpu=None
)


def links(*states: str) -> Callable[[Machine], None]:
    """Each GPU's links in turn: `+` up, `-` inactive."""

    def apply(m: Machine) -> None:
        blocks = re.findall(r"GPU \d+: .*\n", m.text(trees.NVLINK))
        rows = (
            head + "".join(f"\t Link {i}: {'26.562 GB/s' if c == '+' else '<inactive>'}\n" for i, c in enumerate(state))
            for head, state in zip(blocks, states, strict=True)
        )
        m.put(trees.NVLINK, "".join(rows))

    return apply


@pytest.mark.parametrize(
    ("states", "verdict", "says"),
    [
        (("++++++", "+-++-+"), FAIL, "4 of 6 NVLinks that other GPUs of the node have up; inactive: 1, 4"),
        (("------", "++++++"), FAIL, "0 of 6 NVLinks"),
        (("++++++", "++++++"), PASS, "2 x 6 NVLinks up"),
        (("------", "------"), SKIP, "0 of 6 NVLinks up on every GPU"),  # one GPU of a pair, bridge not fitted
        (("++----", "++----"), SKIP, "nothing says how many of them are wired"),
        (("", ""), SKIP, "no GPU of this node shows an NVLink"),
    ],
)
def test_nvlinks_of_a_size_that_no_table_describes(states: tuple[str, ...], verdict: Verdict, says: str) -> None:
    m = small()
    links(*states)(m)
    found = [f for f in of(judged(m, NO_NUMBER), "gpu/nvlink") if says in f.message]
    assert [f.verdict for f in found] == [verdict]


def test_gpus_that_have_none_are_not_asked() -> None:
    m = small()
    m.remove(trees.NVLINK)
    none = expect("Standard_ND96isr_H100_v5", **{**SMALL.values, "nvlinks_per_gpu": 0})
    assert {f.verdict for f in of(judged(m, none), "gpu/nvlink")} == {SKIP}


def test_one_gpu_alone_with_inactive_links_is_healthy() -> None:
    """NC24ads_A100_v4: half of a bridged pair, whose twelve links lead to a GPU of another VM."""
    m = small()
    links("------------", "------------")(m)
    assert troubles(judged(m, NO_NUMBER)) == []


# ---- NUMA ----------------------------------------------------------------------------------------------------------


def test_devices_on_one_node_are_not_misplaced_where_the_kernel_may_know_no_other() -> None:
    m = small()
    for address in m.gpus:
        m.put(f"/sys/bus/pci/devices/{address}/numa_node", "0\n")
    assert {f.verdict for f in of(judged(m), "gpu/numa")} == {WARN}
    m.remove("/sys/devices/system/node")
    assert {f.verdict for f in of(judged(m), "gpu/numa")} == {UNKNOWN}


def test_a_kernel_that_sees_one_numa_node_is_told() -> None:
    m = small()
    for address in m.gpus:
        m.put(f"/sys/bus/pci/devices/{address}/numa_node", "0\n")
    m.remove("/sys/devices/system/node/node1")
    (found,) = of(judged(m), "gpu/numa")
    assert (found.verdict, found.message) == (WARN, "the kernel shows 1 NUMA nodes; GPUs should lie on 2")


def test_expectations_are_those_of_the_pool() -> None:
    """A guard for this file: the machine it bends is healthy before that."""
    assert troubles(judged(small())) == []
    assert isinstance(SMALL, Expect)


# ---- GPUs that are there, declared or not --------------------------------------------------------------------------

UNDECLARED = expect("other")


@pytest.mark.parametrize(
    ("said", "rc"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it runs.\n", 9),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n", 18),
        ("No devices were found\n", 6),
        ("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n", 0),
    ],
)
@pytest.mark.parametrize("expected", [SMALL, UNDECLARED], ids=["declared", "undeclared"])
def test_a_driver_that_gives_nvidia_smi_nothing_is_evidence(said: str, rc: int, expected: Expect) -> None:
    m = small()
    m.cmd("nvidia-smi -q -x", said, rc)
    found = [f for f in of(judged(m, expected), "gpu/count") if f.verdict is FAIL]
    assert [f.subject.name for f in found] == ["nvidia-smi"]
    assert found[0].message.startswith("nvidia-smi shows 0 of 2 GPUs: ")


def test_a_tool_that_fails_for_another_reason_says_nothing() -> None:
    m = small()
    m.cmd("nvidia-smi -q -x", "Killed\n", 137)
    assert {f.verdict for f in of(judged(m), "gpu/count") if f.subject.name == "nvidia-smi"} == {UNKNOWN}


def test_declared_gpus_of_which_the_driver_sees_none() -> None:
    m = trees.plain()
    found = of(judged(m, expect("other", gpus=8, gpu_vendor="nvidia")), "gpu/count")
    assert {(f.subject.name, f.message) for f in found if f.verdict is FAIL} >= {
        ("PCI", "PCI shows 0 of 8 GPUs"),
        ("kernel driver", "kernel driver shows 0 of 8 GPUs"),
    }


def test_undeclared_gpus_are_judged_by_the_place_that_shows_most() -> None:
    m = small()
    m.remove(f"/sys/bus/pci/devices/{m.gpus[1]}")
    found = [f for f in of(judged(m, UNDECLARED), "gpu/count") if f.verdict is FAIL]
    assert [f.message for f in found] == ["PCI shows 1 of 2 GPUs"]


def test_the_count_that_others_may_use() -> None:
    assert gpu_count(facts_of(small())) == 2
    assert gpu_count(facts_of(trees.plain())) == 0
    assert gpu_count(facts_of(trees.nd_mi300x_v5())) == 8
    hidden = small()
    for address in hidden.gpus:
        hidden.remove(f"/sys/bus/pci/devices/{address}")
    assert gpu_count(facts_of(hidden)) == 2
    with pytest.raises(Unread, match=r"pci\.devices"):
        gpu_count(facts_of(Machine()))


# ---- PCIe lanes ----------------------------------------------------------------------------------------------------

SLOTS = expect("Standard_NC4as_T4_v3", gpus=2, vcpus=None, memory_gib=None)
HALF = ("<current_link_width>16x", "<current_link_width>8x")


def lanes(m: Machine, num: int, expected: Expect) -> list[Verdict]:
    m.edit(trees.SMI, *HALF, count=num)
    return sorted({f.verdict for f in of(judged(m, expected), "gpu/pcie-width")})


def test_half_of_the_lanes_may_be_how_a_slot_is_wired() -> None:
    """T4 and A10 in clouds: 8 of 16 lanes on every GPU."""
    assert lanes(small(), 2, SLOTS) == [SKIP]
    assert lanes(small(), 1, SLOTS) == [FAIL, PASS]


def test_an_nvswitch_board_is_wired_whole() -> None:
    assert lanes(small(), 2, SMALL) == [FAIL]
