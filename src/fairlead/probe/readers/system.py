"""Modules, services, clock and the scheduler's files."""

from __future__ import annotations

from typing import Any

from fairlead.probe.readers.tree import Absent, Tree, key_values, read_or_hole

MODULES = (
    "nvidia",
    "nvidia_uvm",
    "nvidia_peermem",
    "nv_peer_mem",
    "nouveau",
    "amdgpu",
    "gdrdrv",
    "ib_core",
    "ib_uverbs",
    "ib_umad",
    "ib_ipoib",
    "rdma_cm",
    "rdma_ucm",
    "mlx4_core",
    "mlx4_ib",
    "mlx5_core",
    "mlx5_ib",
    "mana",
    "mana_ib",
    "hv_netvsc",
    "pci_hyperv",
    "nvme",
    "lustre",
)
"""Modules that may also be built into the kernel, where /proc/modules does not list them."""

UNITS = (
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
    "nvidia-imex.service",
    "openibd.service",
    "waagent.service",
    "walinuxagent.service",
    "slurmd.service",
    "munge.service",
    "chrony.service",
    "chronyd.service",
    "systemd-timesyncd.service",
    "azure_persistent_rdma_naming.service",
    "azure_persistent_rdma_naming_monitor.service",
    "irqbalance.service",
    "containerd.service",
)


def read_modules(tree: Tree) -> dict[str, Any]:
    """`loaded`: name -> its state (man 5 proc), or `builtin`; `versions` where a module gives one."""
    tree.source(("loaded",), "/proc/modules")
    tree.source(("versions",), "/sys/module/")
    loaded = {}
    # a kernel without loadable modules has no such file
    for line in (tree.optional("/proc/modules") or "").split("\n"):
        words = line.split()
        if len(words) >= 5:
            loaded[words[0]] = words[4]
    there = set(tree.optional_names("/sys/module"))
    versions = {}
    for name in MODULES:
        if name in there:
            loaded.setdefault(name, "builtin")
            version = read_or_hole(tree.optional, "/sys/module/" + name + "/version")
            if version is not None:
                versions[name] = version.strip() if isinstance(version, str) else version
    return {"loaded": loaded, "versions": versions}


def read_services(tree: Tree) -> dict[str, Any]:
    """Services that matter, and which have failed, by systemd; `manager` is `none` where systemd does not run."""
    argv = ["systemctl", "show", "--property=Id,LoadState,ActiveState,SubState,Result", *UNITS]
    failed = ["systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--no-pager"]
    tree.source(("units",), " ".join(argv))
    tree.source(("failed",), " ".join(failed))
    tree.source(("manager",), "/run/systemd/system")
    try:
        # how systemd itself tells whether it runs (man 3 sd_booted)
        tree.names("/run/systemd/system")
    except Absent:
        return {"manager": "none", "units": {}, "failed": []}
    return {
        "manager": "systemd",
        "units": read_or_hole(lambda: _units(tree.run(argv, 4.0))),
        "failed": read_or_hole(lambda: _failed_units(tree.run(failed, 4.0))),
    }


def _failed_units(text: str) -> list[str]:
    """Units of a list; the mark that some versions put before a failed one is none of its name."""
    return [line.lstrip("\u25cf\u00d7* ").split()[0] for line in text.split("\n") if line.strip("\u25cf\u00d7* \t")]


def _units(text: str) -> dict[str, Any]:
    found = {}
    for block in text.split("\n\n"):
        fields = key_values(block, "=")
        if "Id" in fields:
            found[fields["Id"].rsplit(".", 1)[0]] = {
                "load": fields.get("LoadState", ""),
                "active": fields.get("ActiveState", ""),
                "sub": fields.get("SubState", ""),
                "result": fields.get("Result", ""),
            }
    return found


def read_clock(tree: Tree) -> dict[str, Any]:
    """Whether the clock is kept: by chrony's own words, and by systemd's."""
    chrony, timedate = ["chronyc", "-n", "-c", "tracking"], ["timedatectl", "show"]
    tree.source(("chrony",), " ".join(chrony))
    tree.source(("timedatectl",), " ".join(timedate))
    return {
        "chrony": read_or_hole(_chrony, tree, chrony),
        "timedatectl": read_or_hole(lambda: key_values(tree.run(timedate, 3.0), "=")),
    }


def _chrony(tree: Tree, argv: list[str]) -> dict[str, str]:
    """Fields of `chronyc -c tracking`, in its documented order (man 1 chronyc); none where chrony is not installed."""
    names = ("reference", "address", "stratum", "ref_time", "offset_s", "last_offset_s", "rms_offset_s")
    fields = _or_nothing(tree, argv).strip().split(",")
    if len(fields) < 14:
        return {}
    return dict(zip(names, fields), leap=fields[13])  # noqa: B905 - strict came with 3.10


def _or_nothing(tree: Tree, argv: list[str]) -> str:
    try:
        return tree.run(argv, 3.0)
    except Absent:
        return ""
