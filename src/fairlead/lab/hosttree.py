"""The hardware a lab host shows: files below /sys and /proc, and what its vendors' tools print.

Knows: the layout that the kernel and the tools of real GPU nodes use, written out for a made-up machine. Must not know:
mounts, or who reads the files. Pure, except for `captured`, which reads a directory.

A tree is a mapping from a path on the host to its content; a content that starts with LINK is a symbolic link. What a
command prints lies below CMD, as `<words joined by _>`; a small program of the command's name prints it and hands every
other call to the real command.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any

from fairlead.base.trust import read_file

LINK = "\0-> "
TREE_OVERLAYS = ("sys/class", "sys/bus/pci/devices", "sys/module", "sys/block", "usr/local/bin")
"""Where a host's tree can add or change directories; only those that the tree holds are mounted."""

TREE_BINDS = ("proc/driver",)
"""Directories that the tree replaces whole: nothing can be laid over procfs."""

TOPS = (*TREE_OVERLAYS, *TREE_BINDS, "etc", "tmp", "run", "mnt", "var/tmp", "var/log")
"""What a host has for itself, and the lab writes below."""

MAX_FILE = 64 << 20
"""The largest file of a captured tree."""

CMD = "run/fairlead/cmd"
BIN = "usr/local/bin"

DRIVER_VERSION = "570.86.15"
CUDA_VERSION = "12.8"
GPU_NAME = "NVIDIA Lab GPU 16GB"
HCA_FIRMWARE = "28.43.2026"
HCA_BOARD = "FLD0000000001"
OFED_VERSION = "25.01-0.6.0"

_SHIM = """#!/bin/sh
# prints what the lab recorded for this command; any other call goes to the real one
name=${0##*/}
words=$(printf '%s' "$name${*:+ $*}" | sed 's|/|%2F|g; s| |_|g')
file=/run/fairlead/cmd/$words
if [ -e "$file" ]; then
    cat "$file"
    if [ -e "$file.rc" ]; then exit "$(cat "$file.rc")"; fi
    exit 0
fi
PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
command -v "$name" >/dev/null || { echo "$name: nothing is recorded for: $*" >&2; exit 127; }
exec "$name" "$@"
"""

Tree = Mapping[str, str | bytes]


def shows(node: str, number: int, *, gpus: int, ports: list[dict[str, Any]]) -> dict[str, Any]:
    """The argument of `generated`: what one host has. `ports` lists {"device", "mac", "address", "gbps"} per HCA."""
    return {"node": node, "number": number, "gpus": gpus, "ports": ports}


def device_names(what: Mapping[str, Any]) -> list[str]:
    """The device files a host shows below /dev."""
    gpus = [f"nvidia{i}" for i in range(what["gpus"])]
    hcas = [f"infiniband/{kind}{i}" for i in range(len(what["ports"])) for kind in ("uverbs", "umad")]
    return [*gpus, *(["nvidiactl", "nvidia-uvm"] if gpus else []), *hcas, *(["infiniband/rdma_cm"] if hcas else [])]


def generated(what: Mapping[str, Any]) -> dict[str, str | bytes]:
    """The tree of a host with GPUs and one HCA per plane."""
    files: dict[str, str | bytes] = {}
    if what["gpus"]:
        files |= _gpus(what)
    for number, port in enumerate(what["ports"]):
        files |= _hca(what, number, port)
    return files | shims(files)


def captured(folder: str) -> dict[str, str | bytes]:
    """The tree in a directory: paths as on the node it was taken from, and what commands printed below `cmd`.

    Raises OSError for what is neither a file, a link nor a directory, for a file larger than MAX_FILE, and for a link
    at or above a place where the lab writes: there, it would lead out of the host.
    """
    root, files = Path(folder), dict[str, str | bytes]()
    for base, folders, names in os.walk(root):
        for name in [*names, *(f for f in folders if Path(base, f).is_symlink())]:
            place = Path(base, name)
            path = place.relative_to(root).as_posix()
            path = path.replace("cmd/", f"{CMD}/", 1) if path.startswith("cmd/") else path
            files[path] = LINK + str(place.readlink()) if place.is_symlink() else read_file(place, MAX_FILE)
    files |= shims(files)
    links = {path for path, content in files.items() if isinstance(content, str) and content.startswith(LINK)}
    for path in [*files, *(f"{top}/any" for top in TOPS)]:
        above = next((str(step) for step in PurePosixPath(path).parents if str(step) in links), "")
        if above:
            why = "the captured tree has a link where the lab writes below it, which would land elsewhere"
            raise OSError(errno.ELOOP, why, str(root / above))
    return files


def shims(files: Tree) -> dict[str, str | bytes]:
    """A program for every command that has something recorded."""
    commands = {path.removeprefix(f"{CMD}/").split("_")[0] for path in files if path.startswith(f"{CMD}/")}
    return {f"{BIN}/{command}": _SHIM for command in commands}


def gpu_bus(number: int) -> str:
    """The PCI address of a GPU."""
    return f"{number + 1:04x}:00:00.0"


def hca_bus(number: int) -> str:
    """The PCI address of an HCA."""
    return f"{number + 0x101:04x}:00:00.0"


def _gpus(what: Mapping[str, Any]) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
        f"{DRIVER_VERSION}  Release Build\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
        "sys/module/nvidia/version": f"{DRIVER_VERSION}\n",
    }
    for i in range(what["gpus"]):
        bus = gpu_bus(i)
        files[f"proc/driver/nvidia/gpus/{bus}/information"] = (
            f"Model: \t\t {GPU_NAME}\nIRQ:   \t\t {64 + i}\nGPU UUID: \t {_uuid(what, i)}\n"
            f"Video BIOS: \t 96.00.a5.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t {bus}\n"
            f"Device Minor: \t {i}\nGPU Excluded:\t No\n"
        )
        files |= _pci(
            bus, vendor=0x10DE, device=0x2330, kind=0x030200, driver="nvidia", speed="32.0 GT/s PCIe", width=16
        )
    files[f"{CMD}/nvidia-smi_-q_-x"] = smi_xml(what)
    listed = "".join(f"GPU {i}: {GPU_NAME} (UUID: {_uuid(what, i)})\n" for i in range(what["gpus"]))
    files[f"{CMD}/nvidia-smi_-L"] = listed
    files[f"{CMD}/nvidia-smi_nvlink_-s"] = listed  # a line a GPU, and below it none: no NVLinks
    return files


def _hca(what: Mapping[str, Any], number: int, port: Mapping[str, Any]) -> dict[str, str | bytes]:
    name, bus, mac = f"mlx5_{number}", hca_bus(number), port["mac"].split(":")
    guid = f"{mac[0]}{mac[1]}:{mac[2]}ff:fe{mac[3]}:{mac[4]}{mac[5]}"
    base, one = f"sys/class/infiniband/{name}", f"sys/class/infiniband/{name}/ports/1"
    files: dict[str, str | bytes] = {
        f"{base}/device": f"{LINK}../../../bus/pci/devices/{bus}",
        f"sys/class/infiniband_verbs/uverbs{number}/ibdev": f"{name}\n",
        f"sys/class/infiniband_verbs/uverbs{number}/abi_version": "1\n",
        f"sys/class/infiniband_verbs/uverbs{number}/device": f"{LINK}../../../bus/pci/devices/{bus}",
        f"sys/bus/pci/devices/{bus}/infiniband_verbs/uverbs{number}/ibdev": f"{name}\n",
        f"sys/bus/pci/devices/{bus}/net/{port['device']}/address": f"{port['mac']}\n",
        f"{base}/node_type": "1: CA\n",
        f"{base}/node_guid": f"{guid}\n",
        f"{base}/sys_image_guid": f"{guid}\n",
        f"{base}/node_desc": f"{what['node']} {name}\n",
        f"{base}/fw_ver": f"{HCA_FIRMWARE}\n",
        f"{base}/hw_rev": "0\n",
        f"{base}/board_id": f"{HCA_BOARD}\n",
        f"{base}/hca_type": "MT4129\n",
        f"{one}/state": "4: ACTIVE\n",
        f"{one}/phys_state": "5: LinkUp\n",
        f"{one}/rate": f"{port['gbps']} Gb/sec (1X HDR)\n",
        f"{one}/link_layer": "Ethernet\n",
        f"{one}/lid": "0x0\n",
        f"{one}/lid_mask_count": "0\n",
        f"{one}/sm_lid": "0x0\n",
        f"{one}/sm_sl": "0\n",
        f"{one}/cap_mask": "0x04010000\n",
        f"{one}/pkeys/0": "0xffff\n",
        f"{one}/gids/0": f"{port['address']}\n",
        f"{one}/gid_attrs/types/0": "RoCE v2\n",
        f"{one}/gid_attrs/ndevs/0": f"{port['device']}\n",
        "sys/module/mlx5_core/version": f"{OFED_VERSION}\n",
        "sys/module/ib_core/version": f"{OFED_VERSION}\n",
    }
    for counter in _COUNTERS.split():
        files[f"{one}/counters/{counter}"] = "0\n"
    for counter in _HW_COUNTERS.split():
        files[f"{one}/hw_counters/{counter}"] = "0\n"
    return files | _pci(
        bus, vendor=0x15B3, device=0x101E, kind=0x020000, driver="mlx5_core", speed="16.0 GT/s PCIe", width=16
    )


_COUNTERS = """
    port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets port_xmit_wait port_xmit_discards port_rcv_errors
    port_rcv_remote_physical_errors port_rcv_switch_relay_errors symbol_error link_error_recovery link_downed
    local_link_integrity_errors excessive_buffer_overrun_errors VL15_dropped unicast_xmit_packets unicast_rcv_packets
"""
_HW_COUNTERS = """
    out_of_sequence out_of_buffer packet_seq_err local_ack_timeout_err rnr_nak_retry_err implied_nak_seq_err
    np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored
"""


def _pci(
    bus: str, *, vendor: int, device: int, kind: int, driver: str, speed: str, width: int
) -> dict[str, str | bytes]:
    base = f"sys/bus/pci/devices/{bus}"
    return {
        f"{base}/vendor": f"0x{vendor:04x}\n",
        f"{base}/device": f"0x{device:04x}\n",
        f"{base}/subsystem_vendor": f"0x{vendor:04x}\n",
        f"{base}/class": f"0x{kind:06x}\n",
        f"{base}/numa_node": "0\n",
        f"{base}/current_link_speed": f"{speed}\n",
        f"{base}/max_link_speed": f"{speed}\n",
        f"{base}/current_link_width": f"{width}\n",
        f"{base}/max_link_width": f"{width}\n",
        f"{base}/driver": f"{LINK}../../drivers/{driver}",
    }


def _uuid(what: Mapping[str, Any], gpu: int) -> str:
    return f"GPU-fa1b1ead-{what['number']:04x}-4{gpu:03x}-8000-{what['number'] + 1:012x}"


def smi_xml(what: Mapping[str, Any], *, driver: str = DRIVER_VERSION) -> str:
    """What `nvidia-smi -q -x` prints on the host: the elements that health checks read, all of them healthy."""
    form = Template(resources.files("fairlead.lab").joinpath("gpu.xml").read_text())
    gpus = "".join(
        form.substitute(
            bus=f"0000{gpu_bus(i).upper()}",
            domain=gpu_bus(i).split(":")[0],
            name=GPU_NAME,
            serial=f"{what['number']:05d}{i:02d}",
            uuid=_uuid(what, i),
            minor=i,
        )
        for i in range(what["gpus"])
    )
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"\t<driver_version>{driver}</driver_version>\n\t<cuda_version>{CUDA_VERSION}</cuda_version>\n"
        f"\t<attached_gpus>{what['gpus']}</attached_gpus>\n{gpus}</nvidia_smi_log>\n"
    )
