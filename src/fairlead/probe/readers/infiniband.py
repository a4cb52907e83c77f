"""RDMA devices below /sys/class/infiniband: every device, every port, read one by one.

A device counts whether or not it has a network interface: virtual functions that carry InfiniBand alone have none.
Names of facts are names of files: `ib.devices.mlx5_ib0.ports.1.rate` stands in
/sys/class/infiniband/mlx5_ib0/ports/1/rate (linux Documentation/ABI/stable/sysfs-class-infiniband).
"""

from __future__ import annotations

from typing import Any

from fairlead.probe.readers.tree import Hole, Tree, hole, read_or_hole, safe_name

SYS_IB = "/sys/class/infiniband"
SYS_VERBS = "/sys/class/infiniband_verbs"
TABLE = 16
"""Entries read of the P_Key and GID tables; a device may have hundreds, and the ones in use come first."""

UNUSED_GID = ":".join(["0000"] * 8)

COUNTERS = {
    # name: the value at which the port's own register stands still (IBTA PortCounters, widths in bits: 8, 16, 4, 32);
    # None where the kernel reports the 64-bit extended counter
    "link_downed": 0xFF,
    "link_error_recovery": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "port_xmit_wait": 0xFFFFFFFF,
    "port_rcv_data": None,
    "port_xmit_data": None,
}


HW_COUNTERS = (
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "rx_icrc_encapsulated",
    "req_cqe_error",
    "resp_cqe_error",
)
"""Of the device's own counters, those that tell of trouble (docs.nvidia.com: mlx5 counters). A VF may have none."""


def hca_names(tree: Tree) -> list[str]:
    """RDMA devices of this kernel; none where the kernel has no RDMA part."""
    tree.source((), SYS_IB + "/")
    return tree.optional_names(SYS_IB)


def read_hca(tree: Tree, name: str) -> dict[str, Any]:
    """One device and its ports. What fails is a hole in its place; the rest stands."""
    base = SYS_IB + "/" + name
    found: dict[str, Any] = {
        key: tree.attr(base + "/" + key)
        for key in ("node_type", "node_guid", "sys_image_guid", "fw_ver", "board_id", "hca_type")
    }
    found["pci"] = tree.linked_name(base + "/device")
    found["driver"] = tree.linked_name(base + "/device/driver")
    found["numa_node"] = tree.number(base + "/device/numa_node")
    found["netdevs"] = read_or_hole(lambda: [safe_name(n) for n in tree.optional_names(base + "/device/net")])
    found["uverbs"] = read_or_hole(
        lambda: [safe_name(n) for n in tree.optional_names(base + "/device/infiniband_verbs")]
    )
    tree.source(("pci",), base + "/device")
    tree.source(("driver",), base + "/device/driver")
    tree.source(("numa_node",), base + "/device/numa_node")
    tree.source(("netdevs",), base + "/device/net")
    tree.source(("uverbs",), base + "/device/infiniband_verbs")
    found["ports"] = read_or_hole(lambda: {n: _port(tree, base + "/ports/" + n) for n in tree.names(base + "/ports")})
    return found


def _port(tree: Tree, base: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        key: tree.attr(base + "/" + key)
        for key in ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid", "cap_mask")
    }
    found["pkeys"] = _numbered(tree, base + "/pkeys", "0x[0-9a-f]{4}", unused="0x0000")
    found["gids"] = _numbered(tree, base + "/gids", "([0-9a-f]{4}:){7}[0-9a-f]{4}", unused=UNUSED_GID)
    # asking for the type of an unused entry is an error, so only those in use are asked
    gids = found["gids"]
    found["gid_attrs"] = {
        "types": gids if "unread" in gids else {n: tree.attr(base + "/gid_attrs/types/" + n) for n in gids}
    }
    counters = found["counters"] = read_or_hole(_counters, tree, base + "/counters")
    found["hw_counters"] = read_or_hole(_hw_counters, tree, base + "/hw_counters")
    found["saturated"] = counters if "unread" in counters else _saturated(counters)
    return found


def _numbered(tree: Tree, base: str, form: str, *, unused: str) -> dict[str, Any]:
    """The entries in use of a table of files numbered from 0. One that is not there is a hole, not an unused entry."""
    try:
        last = max([int(n) for n in tree.names(base) if n.isdigit()], default=-1)
    except Hole as missing:
        return hole(missing.why, missing.source)
    values = {str(n): tree.attr(base + "/" + str(n), form) for n in range(min(last + 1, TABLE))}
    return {name: value for name, value in values.items() if value != unused}


def _counters(tree: Tree, base: str) -> dict[str, Any]:
    """Only these: each file can cost a firmware command."""
    there = set(tree.names(base))
    return {name: tree.number(base + "/" + name) for name in COUNTERS if name in there}


def _hw_counters(tree: Tree, base: str) -> dict[str, Any]:
    there = set(tree.optional_names(base))
    return {name: tree.number(base + "/" + name) for name in HW_COUNTERS if name in there}


def _saturated(counters: dict[str, Any]) -> list[str]:
    """Counters that stand at the end of their register: they say `at least`."""
    return [name for name, value in counters.items() if COUNTERS.get(name) and value == COUNTERS[name]]


def read_device_files(tree: Tree) -> dict[str, Any]:
    """Character devices. umad and issm are optional; verbs need a uverbs file each."""
    tree.source(("dev",), "/dev/infiniband")
    tree.source(("uverbs",), SYS_VERBS + "/")
    return {
        "dev": read_or_hole(lambda: [safe_name(n) for n in tree.optional_names("/dev/infiniband")]),
        "uverbs": read_or_hole(
            lambda: {safe_name(n): _owner(tree, n) for n in tree.optional_names(SYS_VERBS, "uverbs")}
        ),
    }


def _owner(tree: Tree, name: str) -> Any:
    """The device a uverbs file belongs to."""
    path = SYS_VERBS + "/" + name + "/ibdev"
    tree.source(("uverbs", safe_name(name)), path)
    return tree.attr(path)
