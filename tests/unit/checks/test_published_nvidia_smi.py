# ruff: noqa: E501 - one line a link, as nvidia-smi prints it
"""nvidia-smi's words across drivers 470 to 580 and GPUs from A100 to GB300, from the tool's text to the verdict.

Written from nvsmi_device_v11.dtd and v12.dtd, the nvidia-smi manual (ECC Errors, Remapped Rows, GPU Recovery Action, Fabric,
Clocks Event Reasons) and nvml.h (NVML_GPU_FABRIC_HEALTH_*); outputs quoted in leptonai/gpud (nvlink, fabric-manager, issue
1085), NVIDIA/open-gpu-kernel-modules issue 1150 and in tools that imitate nvidia-smi for tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fairlead.checks import Expect
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import SMALL, expect, judged, small
from support.trees import Machine

FAIL, WARN = Verdict.FAIL, Verdict.WARN
Found = set[tuple[str, Verdict]]
Edit = Callable[[Machine], None]
GB300 = expect("Standard_ND128isr_GB300_v6")
A100 = expect("Standard_ND96asr_v4")


def told(m: Machine, expected: Expect = SMALL) -> Found:
    return {(f.code, f.verdict) for f in judged(m, expected) if f.verdict not in (Verdict.PASS, Verdict.SKIP)}


def sub(old: str, new: str, count: int = 1) -> Edit:
    """Another text for the first GPU's element, or for several GPUs'."""
    return lambda m: m.edit(trees.SMI, old, new, count=count)


def after(tag: str, more: str, count: int = 1) -> Edit:
    return lambda m: m.edit(trees.SMI, f"</{tag}>", f"</{tag}>\n{more}", count=count)


def within(tag: str, more: str, count: int = 1) -> Edit:
    """At the end of an element."""
    return lambda m: m.edit(trees.SMI, f"</{tag}>", f"{more}\n</{tag}>", count=count)


def both(first: Edit, second: Edit) -> Edit:
    def apply(m: Machine) -> None:
        first(m)
        second(m)

    return apply


HEALTH = {"summary": "Healthy", "bandwidth": "Full", "route_recovery_in_progress": "False", "route_unhealthy": "False",
          "access_timeout_recovery": "False", "incorrect_configuration": "None"}  # fmt: skip


def health(**other: str) -> str:
    return f"<health>{''.join(f'<{k}>{v}</{k}>' for k, v in (HEALTH | other).items())}</health>"


def process(kind: str, name: str, memory: str = "512 MiB") -> str:
    return (
        f"<process_info><gpu_instance_id>N/A</gpu_instance_id><compute_instance_id>N/A</compute_instance_id><pid>4711</pid>"
        f"<type>{kind}</type><process_name>{name}</process_name><used_memory>{memory}</used_memory></process_info>"
    )


def cut_in_slices(m: Machine) -> None:
    """MIG on every GPU: one instance each, and what belongs to instances is N/A for the whole."""
    m.edit(trees.SMI, "<current_mig>Disabled", "<current_mig>Enabled")
    m.edit(trees.SMI, "<pending_mig>Disabled", "<pending_mig>Enabled")
    text = re.sub(r"<mig_devices>\s*None\s*</mig_devices>", "<mig_devices><mig_device><index>0</index><gpu_instance_id>0</gpu_instance_id><compute_instance_id>0</compute_instance_id><device_attributes><shared><multiprocessor_count>132</multiprocessor_count></shared></device_attributes><ecc_error_count><volatile_count><sram_uncorrectable>0</sram_uncorrectable></volatile_count></ecc_error_count><fb_memory_usage><total>81008 MiB</total><reserved>0 MiB</reserved><used>37 MiB</used><free>80970 MiB</free></fb_memory_usage></mig_device></mig_devices>", m.text(trees.SMI))  # fmt: skip
    m.put(trees.SMI, text)


def driver_470(m: Machine) -> None:
    """Nothing is known yet of a reset, of the fabric, of bandwidth; reasons are called throttle reasons."""
    text = m.text(trees.SMI).replace("nvsmi_device_v12.dtd", "nvsmi_device_v11.dtd")
    for tag in ("gpu_reset_status", "fabric", "addressing_mode", "product_architecture", "gpu_recovery_action"):
        text = re.sub(rf"\s*<{tag}>.*?</{tag}>", "", text, flags=re.DOTALL)
    text = text.replace("clocks_event_reason", "clocks_throttle_reason")
    text = re.sub(r"<sram_uncorrectable_parity>.*?</sram_uncorrectable_secded>", "<sram_uncorrectable>0</sram_uncorrectable>", text, flags=re.DOTALL)  # fmt: skip
    text = re.sub(r"<sram_threshold_exceeded>.*?</sram_threshold_exceeded>", "", text)
    m.put(trees.SMI, text)


def links(rate: str, *, inactive: dict[int, set[int]] | None = None, num: int = 18) -> Edit:
    def apply(m: Machine) -> None:
        heads = re.findall(r"GPU \d+: .*\n", m.text(trees.NVLINK))
        out = ""
        for gpu, head in enumerate(heads):
            gone = (inactive or {}).get(gpu, set())
            out += head + "".join(f"\t Link {i}: {'<inactive>' if i in gone else rate}\n" for i in range(num))
        m.put(trees.NVLINK, out)

    return apply


def none_up(*gpus: int, words: str = "NVML: Unable to retrieve Nvlink information as all links are inActive") -> Edit:
    """One line in place of a GPU's links."""

    def apply(m: Machine) -> None:
        blocks = re.split(r"(?=GPU \d+: )", m.text(trees.NVLINK))[1:]
        m.put(
            trees.NVLINK,
            "".join(f"{b.splitlines()[0]}\n\t {words}\n" if i in gpus else b for i, b in enumerate(blocks)),
        )

    return apply


HEALTHY: dict[str, tuple[Callable[[], Machine], Edit, Expect]] = {
    "driver 470, A100": (trees.nd_a100_v4, driver_470, A100),
    "driver 580 counts how long each reason held": (small, after("clocks_event_reasons", "<clocks_event_reasons_counters><clocks_event_reasons_counters_sw_power_cap>1200340 us</clocks_event_reasons_counters_sw_power_cap><clocks_event_reasons_counters_sync_boost>0 us</clocks_event_reasons_counters_sync_boost><clocks_event_reasons_counters_sw_therm_slowdown>88000 us</clocks_event_reasons_counters_sw_therm_slowdown><clocks_event_reasons_counters_hw_therm_slowdown>0 us</clocks_event_reasons_counters_hw_therm_slowdown><clocks_event_reasons_counters_hw_power_brake>0 us</clocks_event_reasons_counters_hw_power_brake></clocks_event_reasons_counters>", 2), SMALL),
    "held back by its power cap": (small, sub("<clocks_event_reason_sw_power_cap>Not Active", "<clocks_event_reason_sw_power_cap>Active"), SMALL),
    "no repair pending": (small, within("ecc_errors", "<channel_repair_pending>No</channel_repair_pending><tpc_repair_pending>No</tpc_repair_pending><unrepairable_memory>No</unrepairable_memory>", 2), SMALL),
    "rows remapped after corrected errors": (small, sub("<remapped_row_corr>0", "<remapped_row_corr>7"), SMALL),
    "a histogram of spare rows": (small, within("remapped_rows", "<row_remapper_histogram><row_remapper_histogram_max>640 bank(s)</row_remapper_histogram_max><row_remapper_histogram_high>0 bank(s)</row_remapper_histogram_high><row_remapper_histogram_partial>0 bank(s)</row_remapper_histogram_partial><row_remapper_histogram_low>0 bank(s)</row_remapper_histogram_low><row_remapper_histogram_none>0 bank(s)</row_remapper_histogram_none></row_remapper_histogram>", 2), SMALL),
    "errors of earlier boots": (small, sub("<sram_correctable>2</sram_correctable>\n\t\t\t\t<sram_uncorrectable_parity>0", "<sram_correctable>2</sram_correctable>\n\t\t\t\t<sram_uncorrectable_parity>3"), SMALL),
    "a display server": (small, within("processes", process("G", "/usr/lib/xorg/Xorg", "4 MiB")), SMALL),
    "the fabric's health, H100": (small, within("fabric", health(**dict.fromkeys(HEALTH, "N/A")), 2), SMALL),
    "the fabric's health, GB300": (trees.nd_gb300_v6, within("fabric", health(), 4), GB300),
    "the fabric's health, before a summary": (trees.nd_gb300_v6, within("fabric", re.sub(r"<(summary|incorrect_configuration)>.*?</\1>", "", health()), 4), GB300),
    "NVLink 5": (trees.nd_gb300_v6, links("50 GB/s"), GB300),
    "NVLink 5, by another driver": (trees.nd_gb300_v6, links("53.125 GB/s"), GB300),
    "NVLink 3": (trees.nd_a100_v4, links("25 GB/s", num=12), A100),
    "temperature of memory unknown": (small, sub("<memory_temp>41 C", "<memory_temp>N/A", 2), SMALL),
}  # fmt: skip

FAULTS: dict[str, tuple[Callable[[], Machine], Edit, Expect, Found]] = {
    "driver 470, heat": (trees.nd_a100_v4, both(driver_470, sub("<clocks_throttle_reason_hw_thermal_slowdown>Not Active", "<clocks_throttle_reason_hw_thermal_slowdown>Active")), A100, {("gpu/throttle", FAIL)}),
    "driver 470, uncorrected": (trees.nd_a100_v4, both(driver_470, sub("<sram_uncorrectable>0", "<sram_uncorrectable>1")), A100, {("gpu/ecc", FAIL)}),
    "power brake": (small, sub("<clocks_event_reason_hw_power_brake_slowdown>Not Active", "<clocks_event_reason_hw_power_brake_slowdown>Active"), SMALL, {("gpu/throttle", FAIL)}),
    "cut in slices": (small, cut_in_slices, SMALL, {("gpu/mig", WARN)}),
    "uncorrected in memory": (small, sub("<dram_uncorrectable>0", "<dram_uncorrectable>2"), SMALL, {("gpu/ecc", FAIL)}),
    "parity in SRAM": (small, sub("<sram_uncorrectable_parity>0", "<sram_uncorrectable_parity>1"), SMALL, {("gpu/ecc", FAIL)}),
    "more than SRAM may have": (small, sub("<sram_threshold_exceeded>No", "<sram_threshold_exceeded>Yes"), SMALL, {("gpu/ecc", FAIL)}),
    "a row to be remapped": (small, sub("<remapped_row_pending>No", "<remapped_row_pending>Yes"), SMALL, {("gpu/row-remap", FAIL)}),
    "a row that could not be": (small, sub("<remapped_row_failure>No", "<remapped_row_failure>Yes"), SMALL, {("gpu/row-remap", FAIL)}),
    # nvidia-smi's manual, ECC errors: the repair takes place at the next reset; unrepairable memory has the GPU replaced
    "a channel to be repaired": (small, within("ecc_errors", "<channel_repair_pending>Yes</channel_repair_pending><tpc_repair_pending>No</tpc_repair_pending>"), SMALL, {("gpu/needs-reset", FAIL)}),
    "a channel to be repaired, in the words of 580": (small, within("ecc_errors", "<channel_repair_pending>GPU requires reset</channel_repair_pending><tpc_repair_pending>GPU requires reset</tpc_repair_pending>"), SMALL, {("gpu/needs-reset", FAIL)}),
    "the fabric recovers": (trees.nd_gb300_v6, within("fabric", health(route_recovery_in_progress="True")), GB300, {("gpu/fabric", WARN)}),
    "a TPC to be repaired": (small, within("ecc_errors", "<channel_repair_pending>No</channel_repair_pending><tpc_repair_pending>Yes</tpc_repair_pending>"), SMALL, {("gpu/needs-reset", FAIL)}),
    "memory beyond repair": (small, within("ecc_errors", "<unrepairable_memory>Yes</unrepairable_memory>"), SMALL, {("gpu/row-remap", FAIL)}),
    **{f"recovery action {word}": (small, sub("<gpu_recovery_action>None", f"<gpu_recovery_action>{word}"), SMALL, {("gpu/needs-reset", FAIL)}) for word in ("Reset", "Reboot", "Drain P2P", "Drain and Reset", "GPU Reset", "Node Reboot")},
    "persistence off": (small, sub("<persistence_mode>Enabled", "<persistence_mode>Disabled", 2), SMALL, {("gpu/persistence", WARN)}),
    "somebody computes": (small, within("processes", process("C", "/usr/bin/python3", "70000 MiB")), SMALL, {("gpu/busy", WARN)}),
    "somebody computes through MPS": (small, within("processes", process("M+C", "python3", "Insufficient Permissions")), SMALL, {("gpu/busy", WARN)}),
    "not joined yet": (small, sub("<state>Completed</state>\n\t\t\t<status>Success", "<state>In Progress</state>\n\t\t\t<status>N/A"), SMALL, {("gpu/fabric", FAIL)}),
    "joined with an error": (small, sub("<status>Success", "<status>Insufficient Resources"), SMALL, {("gpu/fabric", FAIL)}),
    "the fabric is slow": (trees.nd_gb300_v6, within("fabric", health(summary="Limited Capacity", bandwidth="Degraded")), GB300, {("gpu/fabric", FAIL)}),
    "the fabric's route is bad": (trees.nd_gb300_v6, within("fabric", health(summary="Unhealthy", route_unhealthy="True")), GB300, {("gpu/fabric", FAIL)}),
    "the fabric's route is bad, before a summary": (trees.nd_gb300_v6, within("fabric", re.sub(r"<(summary|incorrect_configuration)>.*?</\1>", "", health(route_unhealthy="True"))), GB300, {("gpu/fabric", FAIL)}),
    "the fabric is set up wrongly": (trees.nd_gb300_v6, within("fabric", health(summary="Unhealthy", incorrect_configuration="Insufficient Nvlinks")), GB300, {("gpu/fabric", FAIL)}),
    "one GPU without any link": (small, none_up(1), SMALL, {("gpu/nvlink", FAIL)}),
    "no GPU with a link": (small, none_up(0, 1), SMALL, {("gpu/nvlink", FAIL)}),
    "two links of one GPU": (small, links("26.562 GB/s", inactive={0: {4, 17}}), SMALL, {("gpu/nvlink", FAIL)}),
    "one link on GB300": (trees.nd_gb300_v6, links("53.125 GB/s", inactive={3: {9}}), GB300, {("gpu/nvlink", FAIL)}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_what_a_good_gpu_prints(name: str) -> None:
    make, edit, expected = HEALTHY[name]
    m = make()
    edit(m)
    assert told(m, expected) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_bad_gpu_prints(name: str) -> None:
    make, edit, expected, label = FAULTS[name]
    m = make()
    edit(m)
    assert told(m, expected) == label


# ---- sizes without NVLink -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "NVML: Unable to retrieve NVLink information: Not Supported",
        "NVML: Unable to retrieve Nvlink information as all links are inActive",
    ],
)
def test_a_size_without_nvlink_says_so_for_each_gpu(words: str) -> None:
    m = trees.ncv6()
    none_up(0, words=words)(m)
    assert told(m, expect("Standard_NC72ds_xl_RTXPRO6000BSE_v6")) == told(
        trees.ncv6(), expect("Standard_NC72ds_xl_RTXPRO6000BSE_v6")
    )


# ---- what stands around the document: NVIDIA's GPU operator, "infoROM is corrupted (nvidia-smi return code 14)", and
# ---- Azure/azhpc-diagnostics, which reports it


@pytest.mark.parametrize("address", ["0002:00:00.0", "00000002:00:00.0"])
def test_a_corrupted_inforom_is_told_and_hides_nothing_else(address: str) -> None:
    m = small()
    sub("<remapped_row_failure>No", "<remapped_row_failure>Yes")(m)
    m.cmd("nvidia-smi -q -x", m.text(trees.SMI) + f"\nWARNING: infoROM is corrupted at gpu {address}\n", 14)
    assert told(m) == {("gpu/inforom", WARN), ("gpu/row-remap", FAIL)}
    assert [f.subject.name for f in judged(m) if f.code == "gpu/inforom" and f.verdict is WARN] == ["0002:00:00.0"]


def test_a_warning_may_stand_before_the_document() -> None:
    m = small()
    m.put(trees.SMI, "WARNING: infoROM is corrupted at gpu 000A:00:00.0\n" + m.text(trees.SMI))
    assert told(m) == set()


# ---- a GPU that answers with errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["GPU requires reset", "[GPU requires reset]", "GPU is lost", "[GPU is lost]"])
def test_a_gpu_whose_every_value_is_an_error_is_no_good_gpu(word: str) -> None:
    """Published of GPUs after Xid 62, 119 and 154: the values of one GPU are that text, those of the others are well."""
    m = small()
    first, gpu, rest = re.split(r"(?=\t<gpu id=)", m.text(trees.SMI), maxsplit=2)
    for tag in ("gpu_temp", "memory_temp", "dram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded",
                "remapped_row_pending", "remapped_row_failure", "performance_state", "reset_required", "gpu_recovery_action"):  # fmt: skip
        gpu = re.sub(rf"<{tag}>[^<]*</{tag}>", f"<{tag}>{word}</{tag}>", gpu)
    m.put(trees.SMI, first + gpu + rest)
    assert ("gpu/needs-reset", FAIL) in told(m)
    assert {code for code, _ in told(m)} <= {"gpu/needs-reset", "gpu/ecc", "gpu/row-remap", "gpu/temperature"}
    assert {v for code, v in told(m) if code != "gpu/needs-reset"} <= {Verdict.UNKNOWN}


def test_a_value_that_the_driver_could_not_read_is_left_open() -> None:
    m = small()
    m.edit(trees.SMI, "<gpu_temp>33 C", "<gpu_temp>Unknown Error", count=1)
    assert told(m) == {("gpu/temperature", Verdict.UNKNOWN)}
