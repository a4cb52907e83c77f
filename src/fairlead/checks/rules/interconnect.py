"""Rules about how GPUs reach each other, the network and the processors: NVLink, its fabric, GPUDirect, NUMA."""

from __future__ import annotations

from fairlead.checks.node import Node, Outcome, bad, ok, skip, unknown, warn
from fairlead.checks.rules.gpu import SMI, on_pci, vendor
from fairlead.records.facts import Unread


def nvlink(n: Node, part: str) -> Outcome:
    """As many NVLinks are up as the VM size has; without a number, as many as on the node's best GPU.

    Where no GPU has one up, or all have equally few, that may be how the board is wired: no number, no verdict.
    """
    number = n.expect.get("nvlinks_per_gpu")
    if number == 0:
        return skip("these GPUs have no NVLink")
    links = n.table("nvidia.nvlink.links", n.text(SMI, part, "uuid"))
    up = _up(links)
    expected = number if number is not None else n.once("best NVLinks", _best)
    down = sorted((name for name in links if name not in up), key=int)
    data = {"value": len(up), "expected": expected, "inactive": down}
    if number is None and len(up) == expected and down:
        return skip(f"{len(up)} of {len(links)} NVLinks up on every GPU; nothing says how many of them are wired")
    if number is None and not expected:
        return skip("no GPU of this node shows an NVLink")
    if len(up) >= expected:
        return ok(f"{len(up)} NVLinks up", **data)
    named = f"; inactive: {', '.join(down)}" if down else ""
    whose = "" if number is not None else " that other GPUs of the node have"
    return bad(f"{len(up)} of {expected} NVLinks{whose} up{named}", **data)


def _up(links: dict[str, str]) -> list[str]:
    return [name for name, state in links.items() if "inactive" not in state]


def _best(n: Node) -> int:
    return max((len(_up(n.get("nvidia.nvlink.links", uuid))) for uuid in n.get("nvidia.nvlink.links")), default=0)


def fabric(n: Node, part: str) -> Outcome:
    """The GPU has joined its NVLink fabric. Whether IMEX is idle plays no part: it is only needed across nodes."""
    gpu = n.table(SMI, part)
    if "fabric" not in gpu:
        return skip("this driver does not report the fabric")
    state, status = n.text(SMI, part, "fabric", "state"), n.text(SMI, part, "fabric", "status")
    if state == "N/A":
        return skip("this GPU registers with no fabric")
    data: dict[str, object] = {"state": state, "status": status}
    if state != "Completed" or status not in ("Success", "N/A"):
        return bad(f"not in the NVLink fabric: {state}, {status}", **data)
    return _fabric_health(gpu["fabric"].get("health"), data)


FABRIC_WRONG = {
    # nvidia-smi's name below health: (the word that says it is not well, what it means, whether jobs feel it for good)
    "route_unhealthy": ("True", "a route is unhealthy", True),
    "bandwidth": ("Degraded", "its bandwidth is degraded", True),
    "summary": ("Unhealthy", "unhealthy", True),
    "route_recovery_in_progress": ("True", "routes are being recovered", False),
    "access_timeout_recovery": ("True", "recovers from accesses that timed out", False),
}
"""nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: drivers from 550 on, values N/A where the GPU has no such fabric."""
WELL_CONFIGURED = ("None", "N/A", "Not Supported", "False", "No")


def _fabric_health(health: object, data: dict[str, object]) -> Outcome:
    """What the fabric says of the GPU once it has joined."""
    said = health if isinstance(health, dict) else {}
    wrong = [row for name, row in FABRIC_WRONG.items() if said.get(name) == row[0]]
    words = [what for _, what, _ in wrong]
    is_hard = any(hard for _, _, hard in wrong)
    if said.get("incorrect_configuration", "None") not in WELL_CONFIGURED:
        words.append(f"set up wrongly: {said['incorrect_configuration']}")
        is_hard = True
    if not words:
        return ok("registered with the NVLink fabric", **data)
    return (bad if is_hard else warn)("in the NVLink fabric, and " + "; ".join(words), **data, health=said)


def fabric_manager(n: Node, part: str) -> Outcome:
    """The fabric manager runs where the VM itself must run it."""
    if n.expect.get("fabric_manager") != "guest":
        return skip("the fabric manager does not run inside this VM size")
    if n.get("services.manager") == "none":
        return skip("systemd does not run here; see gpu/fabric")
    unit = n.get("services.units").get("nvidia-fabricmanager")
    if unit is None:  # systemctl answers for each unit it is asked about, installed or not
        raise Unread("services.units.nvidia-fabricmanager", "systemctl says nothing of it")
    if unit["active"] == "active":
        return ok("active")
    return bad(
        f"nvidia-fabricmanager is {unit['active']}" + (" (not installed)" if unit["load"] == "not-found" else ""),
        **unit,
    )


DMABUF_SINCE = (5, 12)


def gpudirect(n: Node, part: str) -> Outcome:
    """One way for an HCA to reach GPU memory is open: nvidia-peermem, or dma-buf with the open kernel module."""
    modules = n.get("modules.loaded")
    peer = next((m for m in ("nvidia_peermem", "nv_peer_mem") if m in modules), "")
    if peer:
        return ok(f"by {peer}", path=peer)
    if n.get("nvidia.driver.open") and _version(n.get("host.os.kernel")) >= DMABUF_SINCE:
        return ok("by dma-buf", path="dma-buf")
    return bad("neither nvidia-peermem nor dma-buf (open driver, Linux 5.12) is there: RDMA goes through host memory")


def _version(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(p) for p in text.split("-", maxsplit=1)[0].split(".")[:2])
    except ValueError:
        raise Unread("host.os.kernel", f"`{text[:40]}` is not a version") from None


MAX_NUMA_NODES = 1 << 10
"""The most that Linux can be built for (CONFIG_NODES_SHIFT is at most 10)."""


def numa(n: Node, part: str) -> Outcome:
    """The GPUs are spread over the NUMA nodes as the VM size spreads them."""
    return spread(n, on_pci(n, vendor(n)), n.expect.get("gpus_per_numa"), "GPUs")


def spread(n: Node, addresses: list[str], expected: tuple[int, ...], what: str) -> Outcome:
    """How PCI functions lie on NUMA nodes, against how they should. The numbering of the nodes does not matter."""
    where = [n.get("pci.devices", address, "numa_node") for address in addresses]
    # functions all on one node are only misplaced where the machine has more: nobody else need know the others
    there = len(n.get("host.cpu.numa"))
    if not where or all(node < 0 for node in where):
        return unknown(
            f"the kernel does not know the NUMA node of any of the {what}" if where else f"PCI shows no {what}"
        )
    if max(where) >= MAX_NUMA_NODES:
        raise Unread("pci.devices.numa_node", f"{max(where)} is not the number of a NUMA node", "numa_node")
    if there < len(expected):
        return bad(f"the kernel shows {there} NUMA nodes; {what} should lie on {len(expected)}", value=there)
    nodes = range(max(*where, len(expected) - 1) + 1)
    found = [where.count(node) for node in nodes]
    data = {"value": found, "expected": list(expected)}
    text = f"{what} per NUMA node: {', '.join(map(str, found))}"
    is_right = sorted(found, reverse=True)[: len(expected)] == sorted(expected, reverse=True) and sum(found) == sum(
        expected
    )
    return ok(text, **data) if is_right else bad(f"{text}; expected {', '.join(map(str, expected))}", **data)
