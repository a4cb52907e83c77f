"""Who the node is and what it is made of: names, kernel, processors, memory, limits, environment."""

from __future__ import annotations

import re
from typing import Any

from fairlead.probe.readers.tree import Hole, Tree, hole, key_values, number, read_or_hole, safe_name

SHOWN = re.compile(
    r"(NCCL|RCCL|TORCH_NCCL|GLOO|UCX|OMPI_MCA|CUDA|ROCR|HIP|OMP|SHARP)_"
    r"|HSA_"  # codespell:ignore hsa
    r"|SLURM_(JOB_ID|NODEID|JOB_PARTITION|CLUSTER_NAME|GPUS_ON_NODE)\Z"
)
"""Environment variables that change how a job communicates. No other variable leaves the node, but one:"""

REACHED_BY = "SSH_CONNECTION"
"""Addresses and ports of both ends, where ssh came here (man 1 ssh)."""

RANGES = r"\d+(-\d+)?(,\d+(-\d+)?)*"
"""A list of processors, as the kernel writes it: `0-47,96-143`."""

UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

MACHINES = ("x86_64", "aarch64", "arm64", "i686", "armv7l", "ppc64le", "s390x", "riscv64", "loongarch64")
"""What `uname -m` prints (linux: UTS_MACHINE of arch/*); anything else was not read whole."""

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""linux include/linux/proc_ns.h: PROC_PID_INIT_INO is 0xEFFFFFFC."""

SECRET = re.compile(r"(?i)TOKEN|SECRET|PASSW|CREDENTIAL|JWT|(_|\A)(KEY|PASS|PWD|SIG|SAS)\Z")


def read_host(tree: Tree) -> dict[str, Any]:
    """Everything that comes from small kernel files."""
    return {
        "identity": _identity(tree),
        "os": _os(tree),
        "cpu": _cpu(tree),
        "memory": _memory(tree),
        "limits": read_or_hole(_limits, tree),
        "pid_namespace": _pid_namespace(tree),
        "environment": read_or_hole(_environment, tree),
        "nccl_conf": read_or_hole(_nccl_conf, tree),
    }


def _identity(tree: Tree) -> dict[str, Any]:
    dmi = "/sys/class/dmi/id/"
    files = {
        "hostname": "/proc/sys/kernel/hostname",
        "boot_id": "/proc/sys/kernel/random/boot_id",
        "machine_id": "/etc/machine-id",
        "vm_id": dmi + "product_uuid",
        "sys_vendor": dmi + "sys_vendor",
        "product_name": dmi + "product_name",
        "asset_tag": dmi + "chassis_asset_tag",
    }
    for key, path in files.items():
        tree.source(("identity", key), path)
    found = {key: tree.attr(path, UUID if key == "vm_id" else "") for key, path in files.items()}
    found["kvp"] = read_or_hole(_kvp, tree)
    tree.source(("identity", "kvp"), "/var/lib/hyperv/.kvp_pool_3")
    return found


def _kvp(tree: Tree) -> dict[str, str]:
    """What the Hyper-V host tells its guest: fixed records of a 512-byte key and a 2,048-byte value, NUL-padded
    (linux include/uapi/linux/hyperv.h: HV_KVP_EXCHANGE_MAX_KEY_SIZE and _VALUE_SIZE).
    """
    data = tree.read_bytes("/var/lib/hyperv/.kvp_pool_3", used=_names_of_machines)
    found = {}
    for start in range(0, len(data), 2560):
        key, value = (part.split(b"\0", 1)[0] for part in (data[start : start + 512], data[start + 512 : start + 2560]))
        found[key.decode("utf-8", "backslashreplace")] = value.decode("utf-8", "backslashreplace")
    return found


def _names_of_machines(data: bytes) -> bytes:
    """The whole records of a pool that name this machine or the one under it."""
    if len(data) % 2560:
        raise Hole("is no file of whole records", "/var/lib/hyperv/.kvp_pool_3")
    records = [data[start : start + 2560] for start in range(0, len(data) - 2559, 2560)]
    return b"".join(r for r in records if r.startswith((b"PhysicalHostName", b"VirtualMachine", b"HostName")))


def _os(tree: Tree) -> dict[str, Any]:
    tree.source(("os",), "/etc/os-release")
    tree.source(("os", "kernel"), "/proc/sys/kernel/osrelease")
    tree.source(("os", "arch"), "uname -m")
    tree.source(("os", "uptime_s"), "/proc/uptime")
    tree.source(("os", "cmdline"), "/proc/cmdline")
    release = read_or_hole(lambda: key_values(tree.read("/etc/os-release"), "="))
    missing = release if "unread" in release else hole("os-release does not say", "/etc/os-release")
    return {
        "id": release.get("ID", "").strip('"') or missing,
        "version_id": release.get("VERSION_ID", "").strip('"') or missing,
        "kernel": tree.attr("/proc/sys/kernel/osrelease"),
        "arch": read_or_hole(_machine, tree),
        "uptime_s": read_or_hole(_seconds, tree, "/proc/uptime"),
        "cmdline": tree.attr("/proc/cmdline"),
    }


def _machine(tree: Tree) -> str:
    name = tree.run(["uname", "-m"], 2.0).strip()
    if name not in MACHINES:
        raise Hole("`%s` is no machine of Linux" % name[:40], "uname -m")
    return name


def _seconds(tree: Tree, path: str) -> float:
    try:
        return float(tree.read(path).split()[0])
    except (ValueError, IndexError):
        raise Hole("is not a number of seconds", path) from None


def _cpu(tree: Tree) -> dict[str, Any]:
    nodes = "/sys/devices/system/node"
    tree.source(("cpu",), "/proc/cpuinfo")
    tree.source(("cpu", "online"), "/sys/devices/system/cpu/online")
    tree.source(("cpu", "allowed"), "/proc/self/status")
    tree.source(("cpu", "numa"), nodes + "/")
    return {
        "model": read_or_hole(_cpu_model, tree),
        "online": tree.attr("/sys/devices/system/cpu/online", RANGES),
        "allowed": read_or_hole(_allowed, tree),
        "numa": read_or_hole(
            lambda: {
                name: {
                    "cpulist": tree.attr(nodes + "/" + name + "/cpulist"),
                    "meminfo": _node_memory(tree, nodes + "/" + name),
                }
                for name in tree.names(nodes)
                if re.match(r"node\d+\Z", name)
            }
        ),
    }


def _cpu_model(tree: Tree) -> str:
    """x86 names the model in cpuinfo; Arm only numbers it."""
    found = key_values(tree.read("/proc/cpuinfo", 8 << 20).split("\n\n")[0], ":")
    if "model name" in found:
        return found["model name"]
    if "CPU implementer" in found:
        return "arm implementer %s part %s" % (found["CPU implementer"], found.get("CPU part", "?"))
    raise Hole("names no model", "/proc/cpuinfo")


def _allowed(tree: Tree) -> str:
    """The processors this program may run on: what a job on this node would get, when run inside one."""
    found = key_values(tree.read("/proc/self/status"), ":").get("Cpus_allowed_list")
    if not found:
        raise Hole("has no line Cpus_allowed_list", "/proc/self/status")
    return found


def _node_memory(tree: Tree, path: str) -> Any:
    """Memory of one NUMA node, in kB: `Node 0 MemTotal:  948000 kB`."""
    try:
        match = re.search(r"MemTotal:\s+(\d+) kB", tree.read(path + "/meminfo"))
    except Hole as missing:
        return hole(missing.why, missing.source)
    return {"total_kb": int(match.group(1))} if match else hole("has no line MemTotal", path + "/meminfo")


def _memory(tree: Tree) -> dict[str, Any]:
    tree.source(("memory",), "/proc/meminfo")
    tree.source(("memory", "swaps"), "/proc/swaps")
    tree.source(("memory", "numa_balancing"), "/proc/sys/kernel/numa_balancing")
    tree.source(("memory", "zone_reclaim_mode"), "/proc/sys/vm/zone_reclaim_mode")
    tree.source(("memory", "transparent_hugepage"), "/sys/kernel/mm/transparent_hugepage/enabled")
    wanted = ("MemTotal", "MemAvailable", "SwapTotal", "HugePages_Total", "HugePages_Free", "Hugepagesize")
    lines = read_or_hole(lambda: key_values(tree.read("/proc/meminfo"), ":"))
    found: dict[str, Any] = {}
    for key in wanted:
        if "unread" in lines:
            found[key] = lines
        elif key in lines:
            found[key] = number(lines[key].replace(" kB", ""), "/proc/meminfo")
        else:
            found[key] = hole("has no line " + key, "/proc/meminfo")
    found["swaps"] = read_or_hole(
        lambda: [line.split()[0] for line in tree.read("/proc/swaps").split("\n")[1:] if line.strip()]
    )
    found["numa_balancing"] = tree.number("/proc/sys/kernel/numa_balancing")
    found["zone_reclaim_mode"] = tree.number("/proc/sys/vm/zone_reclaim_mode")
    found["transparent_hugepage"] = tree.attr("/sys/kernel/mm/transparent_hugepage/enabled")
    return found


def _limits(tree: Tree) -> dict[str, Any]:
    """Resource limits as the kernel prints them: name, soft, hard, unit, in columns (man 5 proc)."""
    path = "/proc/self/limits"
    tree.source(("limits",), path)
    text, found = tree.read(path), {}
    for label, key in (("Max locked memory", "memlock"), ("Max open files", "nofile"), ("Max stack size", "stack")):
        match = re.search(label + r"\s+(\d+|unlimited)\s+(\d+|unlimited)", text)
        values = [v if v == "unlimited" else int(v) for v in match.groups()] if match else []
        found[key] = dict(zip(("soft", "hard"), values)) if values else hole("has no line " + label, path)  # noqa: B905
    return found


def _pid_namespace(tree: Tree) -> Any:
    """`first` where this is the kernel's own, `inner` in a container or another virtual host that shares the kernel."""
    tree.source(("pid_namespace",), "/proc/self/ns/pid")
    found = tree.linked_name("/proc/self/ns/pid")
    return found if isinstance(found, dict) else "first" if found == FIRST_PID_NAMESPACE else "inner"


def _environment(tree: Tree) -> dict[str, str]:
    tree.source(("environment",), "/proc/self/environ")
    found = environment(tree)
    return {name: value for name, value in sorted(found.items()) if name != REACHED_BY}


def environment(tree: Tree) -> dict[str, str]:
    """The variables that are used, and no other: what else stands there stays on the node, also in a capture."""
    data = tree.read_bytes("/proc/self/environ", used=_used_variables)
    pairs = (part.decode("utf-8", "backslashreplace").partition("=") for part in data.split(b"\0") if part)
    return {name: value for name, _, value in pairs}


def _used_variables(data: bytes) -> bytes:
    if data and b"=" not in data:
        raise Hole("is no list of variables", "/proc/self/environ")
    kept = []
    for part in data.split(b"\0"):
        name, mark, value = part.partition(b"=")
        word = name.decode("utf-8", "backslashreplace")
        if mark and (word == REACHED_BY or (SHOWN.match(word) and not SECRET.search(word))):
            kept.append(name + b"=" + value[:1000])
    return b"\0".join(kept)


def _nccl_conf(tree: Tree) -> dict[str, str]:
    """NCCL's own configuration file: `NAME=value` lines, `#` begins a comment. No file, no settings."""
    tree.source(("nccl_conf",), "/etc/nccl.conf")
    lines = (line.split("#")[0] for line in (tree.optional("/etc/nccl.conf") or "").split("\n"))
    return {safe_name(k): safe_name(v) for k, v in key_values("\n".join(lines), "=").items()}
