"""Rules about GPUs: how many, which, in what health, reachable how (ids U in `fairlead explain`)."""

from __future__ import annotations

import re

from fairlead.base.units import whole
from fairlead.checks.expect import Expect
from fairlead.checks.messages import judge_xids
from fairlead.checks.node import Node, Outcome, bad, number_of, ok, skip, unknown, warn
from fairlead.records.facts import Facts, NodeFacts, Unread
from fairlead.records.verdict import Verdict

SMI = "nvidia.smi.gpus"
VENDORS = {"nvidia": "0x10de", "amd": "0x1002"}


def vendor(n: Node) -> str:
    """Whose GPUs the node has: as declared, else as PCI shows; empty where PCI shows none."""
    declared = n.expect.get("gpu_vendor")
    if declared:
        return str(declared)
    on_bus = next((name for name in VENDORS if on_pci(n, name)), "")
    # a container or an unusual virtual GPU may hide the bus, and the driver still has them
    return on_bus or ("nvidia" if n.peek(SMI) else "")


def shown(n: Node) -> int:
    """GPUs the node shows in any place that could be read. Raises Unread where none shows one and PCI is not known."""
    places = (n.peek(SMI), n.peek("nvidia.driver.gpus"), n.peek("amd.kfd") if n.peek("amd.loaded") else None)
    most = max((len(place) for place in places if isinstance(place, dict)), default=0)
    try:
        return max(most, len(on_pci(n, "")))
    except Unread:
        if not most:
            raise
        return most


def gpu_count(record: NodeFacts) -> int:
    """How many GPUs a node has, declared or not: the most that any place shows, so that all can be tested.

    Where places disagree, gpu/count says so. Raises Unread where nothing shows a GPU and PCI could not be read: that is
    not none.
    """
    return shown(Node(Facts(record), Expect()))


def on_pci(n: Node, name: str) -> list[str]:
    """Addresses of a vendor's GPUs; of any, without a name: display controllers (0x03) and accelerators (0x12)."""
    found = []
    wanted = (VENDORS[name],) if name else tuple(VENDORS.values())
    for address in n.get("pci.devices"):
        kind = n.get("pci.devices", address, "class")
        if kind.startswith(("0x03", "0x12")) and n.get("pci.devices", address, "vendor") in wanted:
            found.append(address)
    return found


def smi_gpus(n: Node) -> list[str]:
    """GPUs by PCI address, as nvidia-smi lists them."""
    return list(n.get(SMI))


# ---- how many, and which -------------------------------------------------------------------------------------------


def counters(n: Node) -> list[str]:
    """The places that count GPUs, each judged by itself: they disagree exactly when something is wrong."""
    places = {"nvidia": ["PCI", "kernel driver", "nvidia-smi", "device files"], "amd": ["PCI", "kernel driver"]}
    return places.get(vendor(n), ["PCI"])


def count(n: Node, part: str) -> Outcome:
    """Every place that counts GPUs counts as many as there should be; without a number, as the one that shows most."""
    expected = n.expect.get("gpus")
    limit = expected if expected is not None else shown(n)
    source = n.expect.origin("gpus") if expected is not None else "the place that shows most"
    said = _refusal(n) if part == "nvidia-smi" else ""
    found = 0 if said else _counted(n, part)
    data = {"value": found, "expected": limit, "limit_source": source}
    if found == limit:
        return ok(f"{found} GPUs", **data)
    if part == "nvidia-smi" and found and found == held(n) < limit:
        return skip(f"nvidia-smi shows the {found} GPUs that this job of Slurm holds, of {limit}")
    return (
        bad(f"{part} shows {found} of {limit} GPUs" + (f": {said}" if said else ""), **data)
        if found < limit
        else warn(f"{part} shows {found} GPUs, expected {limit}", **data)
    )


def held(n: Node) -> int:
    """GPUs of this node that the job of Slurm holds in which it was looked at; 0 where it is none, or nobody says.

    Where Slurm constrains devices (cgroup.conf(5)), the others cannot be seen.
    """
    return whole((n.peek("host.environment") or {}).get("SLURM_GPUS_ON_NODE")) or 0


def held_gpus(record: NodeFacts) -> int:
    """The same, of a node's facts; 0 where they could not be read."""
    return held(Node(Facts(record), Expect()))


REFUSALS = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
    "Failed to initialize NVML",
    "No devices were found",
    "Unable to determine the device handle",
)
"""What nvidia-smi says of a driver that gives it no GPU: evidence, and no mere failure to read."""


def _refusal(n: Node) -> str:
    """What nvidia-smi says where the driver gives it nothing; empty where it lists GPUs or fails for other reasons."""
    hole = n.hole("nvidia.smi")
    return hole.why if hole is not None and any(text in hole.why for text in REFUSALS) else ""


def _counted(n: Node, part: str) -> int:
    if part == "PCI":
        return len(on_pci(n, vendor(n)))
    if part == "kernel driver":
        if vendor(n) == "nvidia":
            return len(n.get("nvidia.driver.gpus"))
        return len(n.get("amd.kfd")) if n.get("amd.loaded") else 0
    return len(n.get("nvidia.driver.dev")) if part == "device files" else len(n.get(SMI))


def model(n: Node, part: str) -> Outcome:
    """The product is the VM size's."""
    found, expected = n.text(SMI, part, "product_name"), n.expect.get("gpu_model")
    data = {"value": found, "expected": expected}
    is_right = expected.casefold().replace(" ", "") in found.casefold().replace(" ", "")
    return ok(found, **data) if is_right else bad(f"{found}, expected {expected}", **data)


def excluded(n: Node, part: str) -> Outcome:
    """The driver does not exclude the GPU. It does so for a GPU that fails its own tests at start."""
    found = n.get("nvidia.driver.gpus", part, "excluded")
    return ok("in use") if found == "No" else bad("the driver excludes this GPU", value=found)


def driver_gpus(n: Node) -> list[str]:
    """GPUs by PCI address, as the kernel driver lists them."""
    return list(n.get("nvidia.driver.gpus"))


def driver(n: Node, part: str) -> Outcome:
    """The GPUs' kernel driver runs. That it does not is only said where the list of modules shows so."""
    if vendor(n) == "amd":
        if n.get("amd.loaded"):
            return ok("amdgpu is loaded", value=n.get("amd.version"))
        return bad("the module amdgpu is not loaded")
    if "nvidia" not in n.get("modules.loaded"):
        return bad("the module nvidia is not loaded")
    return ok(f"driver {n.get('nvidia.driver.version')}", value=n.get("nvidia.driver.version"))


def nouveau(n: Node, part: str) -> Outcome:
    """The open driver nouveau has not taken the GPUs."""
    return bad("the module nouveau is loaded") if "nouveau" in n.get("modules.loaded") else ok("nouveau is not loaded")


def mig(n: Node, part: str) -> Outcome:
    """The GPU is whole: a job over several nodes expects no slices."""
    mode = n.text(SMI, part, "mig_mode", "current_mig")
    return (
        bad("MIG is enabled: the GPU is cut into slices", value=mode)
        if mode == "Enabled"
        else ok("not cut into slices", value=mode)
    )


# ---- health --------------------------------------------------------------------------------------------------------


def ecc(n: Node, part: str) -> Outcome:
    """No uncorrectable memory error since the driver started, and no threshold crossed over the GPU's life."""
    mode = n.get(SMI, part, "ecc_mode", "current_ecc")
    if mode in ("N/A", "Disabled"):
        return skip("this GPU has no ECC to report" if mode == "N/A" else "ECC is switched off on this GPU")
    volatile, aggregate = n.table(SMI, part, "ecc_errors", "volatile"), n.table(SMI, part, "ecc_errors", "aggregate")
    path = f"{SMI}.ecc_errors"
    counted = {k: number_of(v, path) for k, v in volatile.items() if "uncorrectable" in k and v != "N/A"}
    if not counted:
        raise Unread(path, "nvidia-smi names no uncorrectable errors", "nvidia-smi -q -x")
    wrong = [f"{k.replace('_', ' ')} {v:.0f}" for k, v in counted.items() if v]
    if wrong:
        return bad("uncorrectable ECC errors since the driver started: " + ", ".join(wrong), **counted)
    if aggregate.get("sram_threshold_exceeded") == "Yes":
        return bad("more SRAM errors over its life than allowed; the GPU is due for replacement")
    return ok("no uncorrectable ECC error", **counted)


def row_remap(n: Node, part: str) -> Outcome:
    """No memory row waits for a remap, none failed, and few were needed."""
    errors = n.table(SMI, part).get("ecc_errors")
    if isinstance(errors, dict) and errors.get("unrepairable_memory") == "Yes":
        return bad("memory that nothing can repair; the GPU is due for replacement", unrepairable="Yes")
    rows = n.get(SMI, part, "remapped_rows")
    if rows == "N/A":
        return skip("this GPU does not remap rows, or is cut into slices")
    pending, failure = (
        n.get(SMI, part, "remapped_rows", "remapped_row_pending"),
        n.get(SMI, part, "remapped_rows", "remapped_row_failure"),
    )
    num = number_of(n.get(SMI, part, "remapped_rows", "remapped_row_unc"), f"{SMI}.remapped_rows.remapped_row_unc")
    data = {"pending": pending, "failure": failure, "uncorrectable": num}
    if failure == "Yes":
        return bad("remapping a memory row failed", **data)
    if pending == "Yes":
        return bad("a memory row waits to be remapped; the GPU needs a reset", **data)
    limit = n.expect.get("max_remapped_rows")
    if num > limit:
        return bad(f"{num:.0f} rows were remapped after uncorrectable errors, more than {limit:g}", **data)
    return ok("no row is waiting", **data)


def xid(n: Node, part: str) -> Outcome:
    """The driver has logged no Xid that is the GPU's own fault."""
    return judge_xids(n)


def needs_reset(n: Node, part: str) -> Outcome:
    """The driver asks neither for a reset nor for a reboot."""
    gpu = n.table(SMI, part)
    action = gpu.get("gpu_recovery_action", "None")
    required = (
        gpu.get("gpu_reset_status", {}).get("reset_required", "No")
        if isinstance(gpu.get("gpu_reset_status"), dict)
        else "No"
    )
    if action not in ("None", "N/A"):
        return bad(f"the driver asks for: {action}", action=action)
    if required == "Yes":
        return bad("the driver asks for a reset", reset_required=required)
    # an answer other than a plain No is `Yes`, or `GPU requires reset`
    errors = gpu.get("ecc_errors")
    waits = {k: v for k in REPAIRS if isinstance(errors, dict) and (v := errors.get(k, "No")) not in ("No", "N/A")}
    if waits:
        return bad(f"{' and '.join(REPAIRS[k] for k in waits)} to be repaired by the next reset", **waits)
    return ok("nothing is asked for")


REPAIRS = {"channel_repair_pending": "a memory channel is", "tpc_repair_pending": "a TPC is"}
"""Of Blackwell and later: nvidia-smi's name below ecc_errors -> what it means."""


INFOROM = re.compile(r"infoROM is corrupted at gpu (?:0000)?(\S+)", re.IGNORECASE)


def inforom(n: Node, part: str) -> Outcome:
    """The GPU's own record of what it is and of its errors is whole: nvidia-smi warns of one that is not."""
    if part not in n.get(SMI):
        return unknown("nvidia-smi does not list this GPU")
    said = n.peek("nvidia.smi.warnings")
    if said is None:
        return skip("what nvidia-smi warned of was not kept")
    line = next((w for w in said if (found := INFOROM.search(w)) and found[1].lower() == part), "")
    return bad("its infoROM is corrupted", line=line) if line else ok("nvidia-smi warns of none")


SLOWED = {
    # nvidia-smi's name, without its prefix: (what it means, whether the hardware itself has stepped in)
    "hw_slowdown": ("hardware slowdown", True),
    "hw_thermal_slowdown": ("hardware thermal slowdown", True),
    "hw_power_brake_slowdown": ("power brake", True),
    "sw_thermal_slowdown": ("software thermal slowdown", False),
}
"""The reasons that a healthy GPU has neither idle nor under load (NVML mask 0xE8)."""


def throttle(n: Node, part: str) -> Outcome:
    """The clocks are not held down by heat or lack of power. Drivers before 535 call the same list throttle reasons."""
    gpu = n.table(SMI, part)
    key = "clocks_event_reasons" if "clocks_event_reasons" in gpu else "clocks_throttle_reasons"
    if n.get(SMI, part, key) == "N/A":
        return skip("this GPU does not report why its clocks are low")
    reasons = n.table(SMI, part, key)
    active = {name for name, value in reasons.items() if value == "Active"}
    found = [
        SLOWED[s] for s in SLOWED if f"clocks_event_reason_{s}" in active or f"clocks_throttle_reason_{s}" in active
    ]
    if not found:
        return ok("no slowdown")
    text = ", ".join(what for what, _ in found)
    return (bad if any(hard for _, hard in found) else warn)(text, value=sorted(active))


def temperature(n: Node, part: str) -> Outcome:
    """The GPU is not too hot."""
    found = number_of(n.get(SMI, part, "temperature", "gpu_temp"), f"{SMI}.temperature.gpu_temp", "nvidia-smi -q -x")
    limit = n.expect.get("max_gpu_temperature_c")
    data = {"value": found, "unit": "C", "limit": limit}
    return bad(f"{found:.0f} C, more than {limit:g}", **data) if found > limit else ok("not too hot", **data)


def persistence(n: Node, part: str) -> Outcome:
    """The driver stays loaded between jobs; else each job pays seconds to start it, and counters restart."""
    mode = n.text(SMI, part, "persistence_mode")
    if mode == "N/A":
        return skip("the driver does not report persistence on this GPU")
    return ok("on") if mode == "Enabled" else bad(f"persistence mode is {mode.lower()}", value=mode)


def pcie_width(n: Node, part: str) -> Outcome:
    """The PCIe link has all its lanes. Its generation is no evidence: an idle GPU lowers it.

    NVSwitch boards are wired whole. Elsewhere half of the lanes may be how a slot is wired (T4, A10), so a GPU is held
    against the widest link of the node, and against the other nodes of its pool (skew/pcie-width).
    """
    now, most = _width(n, part)
    if now is None or most is None:
        return skip("the driver does not report the width of this link")
    is_whole = n.expect.get("fabric_manager") is not None
    limit = most if is_whole else min(most, n.once("widest PCIe link", _widest))
    data = {"value": now, "expected": limit, "can": most}
    if now < limit:
        whose = "" if is_whole or limit == most else " as another GPU of the node has"
        return bad(f"PCIe link at {now}x, expected {limit}x{whose}", **data)
    if now < most:
        return skip(f"PCIe link at {now}x of {most}x on every GPU; nothing says how many lanes are wired")
    return ok(f"PCIe link at {now}x", **data)


def _width(n: Node, part: str) -> tuple[int | None, int | None]:
    """Lanes now and at most; None where the driver does not say."""
    widths = n.table(SMI, part, "pci", "pci_gpu_link_info", "link_widths")
    texts = [widths.get(key, "N/A") for key in ("current_link_width", "max_link_width")]
    path = f"{SMI}.pci.pci_gpu_link_info.link_widths"
    now, most = (None if text == "N/A" else int(number_of(text, path)) for text in texts)
    return now, most


def _widest(n: Node) -> int:
    return max((now for part in n.get(SMI) if (now := _width(n, part)[0]) is not None), default=0)


def busy(n: Node, part: str) -> Outcome:
    """Nobody else computes on the GPU."""
    listed = n.get(SMI, part, "processes")
    found = listed.get("process_info", []) if isinstance(listed, dict) else []
    used = [p for p in found if "C" in str(p.get("type", ""))]
    if not used:
        return ok("free")
    names = ", ".join(f"{p.get('process_name', '?')} ({p.get('pid', '?')})" for p in used[:3])
    return bad(f"in use by {names}", num=len(used))


SEVERE = {2: "ISOLATE", 6: "RESET"}
"""DCGM's severities after which a GPU takes no job (docs.nvidia.com/datacenter/dcgm, Diagnostic Errors)."""
DONE = {"pass": Verdict.PASS, "skip": Verdict.SKIP, "skipped": Verdict.SKIP, "warn": Verdict.WARN, "fail": Verdict.FAIL}


def diagnostic(n: Node, part: str) -> Outcome:
    """DCGM's quick checks. Only what it calls ISOLATE or RESET fails a node: most others are settings of the node."""
    found: dict[Verdict | None, list[str]] = {}
    severe = []
    for result in n.get("dcgm.results"):
        verdict = DONE.get(result["status"].lower())
        names = [SEVERE[code] for code in result["severities"] if code in SEVERE and verdict is not Verdict.PASS]
        text = f"{result['test']} on {result['on']}: {result['text'] or result['status']}"
        found.setdefault(verdict, []).append(text)
        if names:
            severe.append(f"{'/'.join(names)}: {text}")
    troubled = [*found.get(Verdict.FAIL, ()), *found.get(Verdict.WARN, ())]
    if severe:
        return bad("; ".join(severe[:3]), results=severe[:32])
    if None in found:
        return unknown(f"no status of a test: {found[None][0]}")
    if troubled:
        return warn("; ".join(troubled[:3]), results=troubled[:32])
    passed = len(found.get(Verdict.PASS, ()))
    return ok(f"{passed} results of dcgmi diag pass") if passed else unknown("no test of dcgmi diag ran")
