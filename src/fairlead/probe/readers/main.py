"""The probe program: which readers run, and the one document they make together.

    python3 -I - [--root DIR] [--imds] [--dcgm] [--capture] [--limit SECONDS] [--only READER] < program

prints one line of JSON and exits 0. What could not be read is a hole in the document, never an error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable

from fairlead.probe.readers.accelnet import read_accelnet, read_bound
from fairlead.probe.readers.amd import read_amd
from fairlead.probe.readers.crew import Job, Reader, gather
from fairlead.probe.readers.dcgm import ask_dcgm, read_dcgm
from fairlead.probe.readers.host import read_host
from fairlead.probe.readers.imds import ask_imds, read_imds
from fairlead.probe.readers.infiniband import hca_names, read_device_files, read_hca
from fairlead.probe.readers.kernel_log import read_kernel_log
from fairlead.probe.readers.kmodules import read_kernel_modules
from fairlead.probe.readers.net import read_net
from fairlead.probe.readers.netconf import read_netconf
from fairlead.probe.readers.netlog import read_netlog
from fairlead.probe.readers.nvidia import read_driver, read_nvlink, read_smi
from fairlead.probe.readers.pci import read_pci
from fairlead.probe.readers.processes import read_processes
from fairlead.probe.readers.slurmconf import read_slurm
from fairlead.probe.readers.storage import read_mounts, read_nvme, read_remote_mount, remote_mounts
from fairlead.probe.readers.system import read_clock, read_modules, read_services
from fairlead.probe.readers.tree import Hole, Tree, fact_path, hole
from fairlead.probe.readers.versions import read_versions

SCHEMA = "fairlead.facts/1"
LIMIT_S = 20.0
MAX_ITEMS = 512

READERS = (
    # slow commands first, so that file readers run while they wait
    Reader("nvidia.smi", read_smi, 15.0, at=("nvidia", "smi")),
    Reader("nvidia.nvlink", read_nvlink, 15.0, at=("nvidia", "nvlink")),
    Reader("dcgm", read_dcgm, 18.0, at=("dcgm",)),
    Reader("amd", read_amd, 15.0, at=("amd",)),
    Reader("services", read_services, 8.0, at=("services",)),
    Reader("clock", read_clock, 5.0, at=("clock",)),
    Reader("host", read_host, 5.0, at=("host",)),
    Reader("modules", read_modules, 3.0, at=("modules",)),
    Reader("nvidia.driver", read_driver, 3.0, at=("nvidia", "driver")),
    Reader("pci", read_pci, 5.0, at=("pci",)),
    Reader("ib.devices", read_hca, 5.0, each=hca_names, at=("ib", "devices")),
    Reader("ib.files", read_device_files, 3.0, at=("ib", "files")),
    Reader("net", read_net, 5.0, at=("net",)),
    Reader("accelnet", read_accelnet, 5.0, at=("accelnet",)),
    Reader("netconf", read_netconf, 5.0, at=("netconf",)),
    Reader("bound", read_bound, 6.0, at=("bound",)),
    Reader("kernel_modules", read_kernel_modules, 3.0, at=("kernel_modules",)),
    Reader("nvme", read_nvme, 3.0, at=("nvme",)),
    Reader("mounts", read_mounts, 5.0, at=("mounts", "local")),
    Reader("mounts.remote", read_remote_mount, 5.0, each=remote_mounts, at=("mounts", "remote")),
    Reader("kernel_log", read_kernel_log, 10.0, at=("kernel_log",)),
    Reader("netlog", read_netlog, 8.0, at=("netlog",)),
    Reader("processes", read_processes, 5.0, at=("processes",)),
    Reader("versions", read_versions, 5.0, at=("versions",)),
    Reader("slurm", read_slurm, 3.0, at=("slurm",)),
    Reader("imds", read_imds, 6.0, at=("imds",)),
)
ON_REQUEST = {
    "imds": Reader("imds", ask_imds, 6.0, at=("imds",)),
    "dcgm": Reader("dcgm", ask_dcgm, 18.0, at=("dcgm",)),
}
"""Readers of the same name that do not wait to be shown a reason."""


def read_machine(tree: Tree, readers: list[Reader], limit_s: float, run: Callable[..., Any] = gather) -> dict[str, Any]:
    """Everything the readers find, as one document: in the order of READERS, whichever of them answered first."""
    myself = tree.myself()
    facts: dict[str, Any] = {}
    sources: dict[str, str] = {}
    took: dict[str, float] = {}
    jobs = [job for reader in readers for job in _jobs(tree, reader, facts, sources)]
    kept = tree.kept
    answers = {job.title: (answer, seconds) for job, answer, seconds in run(tree, jobs, limit_s)}
    for job in jobs:
        answer, seconds = answers[job.title]
        found = answer.get("facts")
        put(facts, job.keys, answer["hole"] if found is None else found)
        for path, where in answer.get("sources", {}).items():
            sources[join_paths(job.keys, path)] = where
        if kept is not None:
            kept.update(answer.get("kept") or {})
        if tree.live:  # how long a captured tree took to read is no fact of the machine
            took[job.title] = round(seconds * 1000, 1)
    document = {
        "schema": SCHEMA,
        "taken_at_ns": myself.get("taken_at_ns", 0),
        "probe": globals().get("PROGRAM_DIGEST", ""),
        "facts": facts,
        "sources": sources,
        "took_ms": took,
    }
    if kept is not None:
        document["tree"] = kept
    return document


def _jobs(tree: Tree, reader: Reader, facts: dict[str, Any], sources: dict[str, str]) -> list[Job]:
    """One job, or one per item. Listing the items only reads a directory or a table the kernel keeps in memory."""
    if reader.each is None:
        return [Job(reader, reader.at, ())]
    tree.sources = {}
    try:
        items = reader.each(tree)
    except Hole as missing:
        put(facts, reader.at, hole(missing.why, missing.source))
        items = []
    else:
        put(facts, reader.at, {})
    for path, where in tree.sources.items():
        sources[join_paths(reader.at, path)] = where
    return [Job(reader, (*reader.at, item), (item,)) for item in items[:MAX_ITEMS]]


def put(facts: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    """Place a value in the tree of facts."""
    for key in keys[:-1]:
        facts = facts.setdefault(key, {})
    facts[keys[-1]] = value


def join_paths(keys: tuple[str, ...], path: str) -> str:
    """A reader's own path below the place its answer has in the document."""
    from_root = fact_path(*keys)
    if not path:
        return from_root
    return from_root + path if path.startswith("[") else from_root + "." + path


def main(words: list[str]) -> int:
    """Read and print. The flags are for programs: fairlead passes them."""
    options = {"--root": "/", "--limit": str(LIMIT_S), "--only": ""}
    flags = set()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in options and rest:
            options[word] = rest.pop(0)
        else:
            flags.add(word)
    tree = Tree(options["--root"], keep="--capture" in flags)
    asked = {name: reader for name, reader in ON_REQUEST.items() if "--" + name in flags}
    readers = [asked.get(r.name, r) for r in READERS if r.name in asked or r.name.startswith(options["--only"])]
    document = read_machine(tree, readers, float(options["--limit"]))
    data = memoryview((json.dumps(document, separators=(",", ":")) + "\n").encode("ascii"))
    while data:
        data = data[os.write(1, data) :]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
