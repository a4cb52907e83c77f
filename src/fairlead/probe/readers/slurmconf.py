"""What Slurm's own files on this node say: the settings that bear on a job's network and devices, and no other line.

slurm.conf also holds the names of accounts and may hold a password of the database, so lines are chosen by name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from fairlead.probe.readers.tree import Absent, Hole, Tree, hole, read_or_hole, safe_name

SLURM_PLACES = ("/etc/slurm", "/run/slurm/conf", "/var/spool/slurmd/conf-cache")
"""Where slurmd has its configuration; the last two where slurmctld sends it (man 5 slurm.conf, configless)."""

SLURM_KEYS = (
    "ClusterName",
    "GresTypes",
    "HealthCheckProgram",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "Prolog",
    "Epilog",
    "TopologyPlugin",
    "TopologyParam",
    "PropagateResourceLimits",
    "PropagateResourceLimitsExcept",
    "TaskPlugin",
)
SLURM_MAX = 4 << 20
MAX_NODE_LINES = 512


def read_slurm(tree: Tree) -> dict[str, Any]:
    """`files`: what lies in /etc/slurm; `conf`, `nodes`, `gres`, `topology`: settings, and lines word by word."""
    tree.source(("files",), "/etc/slurm")
    tree.source(("hostname",), "/proc/sys/kernel/hostname")
    files = read_or_hole(lambda: [safe_name(n) for n in tree.optional_names("/etc/slurm")])
    found: dict[str, Any] = {"files": files}
    conf = read_or_hole(_slurm_file, tree, "slurm.conf", "conf")
    if conf is None or "unread" in conf:
        return {**found, "conf": conf or {}, "nodes": [], "gres": [], "topology": []}
    where, text = conf["where"], conf["text"]
    settings = _slurm_settings(text)
    if "clustername" not in settings:  # slurmd does not start without it
        missing = hole("names no cluster", where + "/slurm.conf")
        return {**found, "conf": missing, "nodes": missing, "gres": [], "topology": []}
    found["conf"] = settings
    found["digest"] = hashlib.sha256("\n".join(_slurm_lines(text)).encode()).hexdigest()[:16]
    tree.source(("conf",), where + "/slurm.conf")
    tree.source(("digest",), where + "/slurm.conf")
    tree.source(("nodes",), where + "/slurm.conf")
    found["nodes"] = [line[:1000] for line in _slurm_lines(text) if line.lower().startswith("nodename=")][
        :MAX_NODE_LINES
    ]
    for key, name in (("gres", "gres.conf"), ("topology", "topology.conf")):
        tree.source((key,), where + "/" + name)
        found[key] = read_or_hole(_slurm_list, tree, where + "/" + name)
    program = settings.get("healthcheckprogram", "").split(" ")[0]
    if program.startswith("/"):
        tree.source(("health_program",), program)
        found["health_program"] = read_or_hole(_is_there, tree, program)
    return found


def _slurm_file(tree: Tree, name: str, key: str) -> dict[str, str] | None:
    """A file of the first place that has it; None where it is known that none does."""
    for place in SLURM_PLACES:
        tree.source((key,), place + "/" + name)
        try:
            data = tree.read_bytes(place + "/" + name, SLURM_MAX, used=_slurm_used)
        except Absent:
            continue
        return {"where": place, "text": data.decode("utf-8", "replace")}
    return None


def _slurm_used(data: bytes) -> bytes:
    """What a capture holds of slurm.conf: the lines that are facts."""
    names = tuple(key.lower() for key in (*SLURM_KEYS, "NodeName"))
    lines = _slurm_lines(data.decode("utf-8", "replace"))
    return "\n".join(line for line in lines if line.split("=")[0].strip().lower() in names).encode()


def _slurm_lines(text: str) -> list[str]:
    """Lines without comments and joined where one goes on (man 5 slurm.conf: a backslash at the end)."""
    whole = re.sub(r"\\\s*\n", " ", text)
    lines = (re.sub(r"(?<!\\)#.*", "", line).strip() for line in whole.split("\n"))
    return [line for line in lines if line]


def _slurm_settings(text: str) -> dict[str, str]:
    names = {key.lower() for key in SLURM_KEYS}
    found = {}
    for line in _slurm_lines(text):
        key, mark, value = line.partition("=")
        if mark and key.strip().lower() in names:
            found[key.strip().lower()] = value.strip()[:500]
    return found


def _slurm_list(tree: Tree, path: str) -> list[str]:
    text = tree.optional(path)
    return [line[:1000] for line in _slurm_lines(text or "")][:MAX_NODE_LINES]


def _is_there(tree: Tree, path: str) -> bool:
    """Whether a program is there; of it, no more than its first bytes are read."""
    try:
        tree.read_bytes(path, 64 << 20, used=lambda data: data[:2])
    except Absent:
        return False
    except Hole:
        raise
    return True
