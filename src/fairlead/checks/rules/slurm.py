"""Rules about Slurm's own files on a node (ids S10, S12, S13): do they fit the node they lie on?"""

from __future__ import annotations

import functools
import re

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import whole
from fairlead.checks.node import Node, Outcome, bad, ok, skip, unknown, warn
from fairlead.errors import FairleadError
from fairlead.records.facts import Unread


def is_there(n: Node) -> bool:
    """Whether the node has a configuration of Slurm."""
    return bool(n.get("slurm.conf"))


@functools.lru_cache(maxsize=256)
def _names(text: str) -> NodeSet | None:
    """Node names in Slurm's brackets; None where they are none that is understood here."""
    try:
        return NodeSet(text)
    except FairleadError:
        return None


def _fields(line: str) -> dict[str, str]:
    """`NodeName=n[1-4] Gres=gpu:h100:8` by lower-case names."""
    pairs = re.findall(r"(\w+)\s*=\s*(\"[^\"]*\"|\S+)", line)
    return {key.lower(): value.strip('"') for key, value in pairs}


def _mine(n: Node, lines: list[str], key: str) -> tuple[list[dict[str, str]], bool]:
    """The lines that name this node, and whether every line could be understood. One without names is for all."""
    host = n.get("host.identity.hostname").split(".")[0]
    found, is_clear = [], True
    for line in lines:
        fields = _fields(line)
        if key not in fields:
            found.append(fields)
            continue
        names = _names(fields[key])
        if names is None:
            is_clear = False
        elif host in names or n.facts.node in names:
            found.append(fields)
    return found, is_clear


def declared_gpus(n: Node) -> int:
    """GPUs that slurm.conf says this node has. Raises Unread where its line is not understood."""
    lines, is_clear = _mine(n, n.get("slurm.nodes"), "nodename")
    said = [f["gres"] for f in lines if "gres" in f and "nodename" in f and f["nodename"] != "DEFAULT"]
    if not said and not is_clear:
        raise Unread(
            "slurm.nodes", "no line that is understood here names this node", n.facts.source(("slurm", "nodes"))
        )
    total = 0
    for gres in said[:1]:
        for word in gres.split(","):
            match = re.match(r"gpu(?::[^:(]+)*?(?::(\d+))?(?:\(.*\))?\Z", word)
            if match:
                total += int(match[1] or 1)
    return total


def gres(n: Node, part: str) -> Outcome:
    """As many GPUs as Slurm gives away are there, and gres.conf names their files."""
    declared = declared_gpus(n)
    if not declared:
        return skip("slurm.conf gives this node no GPU")
    lines, is_clear = _mine(n, n.get("slurm.gres"), "nodename")
    mine = [f for f in lines if f.get("name", "").lower() == "gpu" or "autodetect" in f]
    auto = next((f["autodetect"].lower() for f in mine if f.get("autodetect", "off").lower() != "off"), "")
    files = [name for f in mine for name in _files(f.get("file", ""))]
    data = {"declared": declared, "files": files, "autodetect": auto}
    if files:
        there = n.get("nvidia.driver.dev") if all(f.startswith("/dev/nvidia") for f in files) else None
        missing = [f for f in files if there is not None and f.rpartition("/")[2] not in there]
        if missing:
            return bad(f"gres.conf names {', '.join(missing[:4])}, which is not there", missing=missing, **data)
        if len(files) != declared:
            return bad(f"slurm.conf says {declared} GPUs, gres.conf names {len(files)} files", **data)
        return ok(f"{declared} GPUs, each with its file", **data)
    if auto:
        return ok(f"{declared} GPUs, found by {auto}", **data)
    if not is_clear:
        return unknown("gres.conf has names of nodes that are not understood here", **data)
    return warn(f"slurm.conf says {declared} GPUs, and gres.conf neither names files nor looks for them", **data)


def _files(text: str) -> list[str]:
    """`/dev/nvidia[0-7]` as eight names."""
    match = re.match(r"(/[\w/.-]*)\[([\d,-]+)\]\Z", text)
    if not match:
        return [name for name in text.split(",") if name]
    numbers = []
    for piece in match[2].split(","):
        low, _, high = piece.partition("-")
        first, last = whole(low), whole(high or low)
        numbers += list(range(first, min(last, first + 255) + 1)) if first is not None and last is not None else []
    return [f"{match[1]}{number}" for number in numbers]


def health(n: Node, part: str) -> Outcome:
    """The health program that slurm.conf names is on the node, and Slurm calls it."""
    conf = n.get("slurm.conf")
    program, interval = conf.get("healthcheckprogram", ""), conf.get("healthcheckinterval", "0")
    if not program:
        return skip("slurm.conf names no HealthCheckProgram")
    if program.startswith("/") and not n.get("slurm.health_program"):
        return bad(f"HealthCheckProgram={program} is not there", program=program)
    if not whole(interval):
        return bad(f"HealthCheckProgram is set, and HealthCheckInterval is {interval}: it is never called", **conf)
    return ok(f"{program}, each {interval} s")


def topology(n: Node, part: str) -> Outcome:
    """The topology that Slurm places jobs by knows the node."""
    plugin = n.get("slurm.conf").get("topologyplugin", "")
    if plugin not in ("topology/tree", "topology/block"):
        return skip(f"TopologyPlugin is {plugin or 'not set'}")
    lines = n.get("slurm.topology")
    if not lines:
        return unknown(f"TopologyPlugin is {plugin}, and there is no topology.conf beside slurm.conf")
    named = [f["nodes"] for f in map(_fields, lines) if "nodes" in f]
    host = n.get("host.identity.hostname").split(".")[0]
    understood = [names for names in map(_names, named) if names is not None]
    if any(host in names or n.facts.node in names for names in understood):
        return ok(f"{plugin} knows it")
    if len(understood) < len(named):
        return unknown("topology.conf has names of nodes that are not understood here")
    return bad(f"{plugin} is used, and topology.conf does not name {host}", host=host)
