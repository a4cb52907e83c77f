"""NVIDIA GPUs: what the kernel driver says in /proc and /dev, and what nvidia-smi says.

`nvidia.smi.gpus` keeps nvidia-smi's own names and texts (`92 C`, `N/A`): whether `N/A` matters, a rule says.
"""

from __future__ import annotations

import re
from typing import Any

from fairlead.probe.readers.tree import Hole, Tree, hole, key_values, read_or_hole, safe_name

PROC = "/proc/driver/nvidia"
SMI = ["nvidia-smi", "-q", "-x"]
SMI_LIMIT_S = 12.0
LAST = "</nvidia_smi_log>"

KEEP = {
    "product_name",
    "product_architecture",
    "persistence_mode",
    "mig_mode",
    "serial",
    "uuid",
    "minor_number",
    "vbios_version",
    "gpu_reset_status",
    "gpu_recovery_action",
    "pci",
    "clocks_event_reasons",
    "clocks_throttle_reasons",
    "fb_memory_usage",
    "ecc_mode",
    "ecc_errors",
    "retired_pages",
    "remapped_rows",
    "temperature",
    "fabric",
    "processes",
}
"""Parts of a GPU's element that are kept. The rest, supported clocks above all, is most of the output."""


def read_driver(tree: Tree) -> dict[str, Any]:
    """The kernel driver: its version, the GPUs it holds, the device files."""
    tree.source(("version",), PROC + "/version")
    tree.source(("open",), PROC + "/version")
    tree.source(("gpus",), PROC + "/gpus/")
    tree.source(("dev",), "/dev")
    text = read_or_hole(lambda: tree.read(PROC + "/version").split("\n")[0])
    # `NVIDIA UNIX x86_64 Kernel Module  535.129.03`, or `NVIDIA UNIX Open Kernel Module for aarch64  580.95.05`
    match = None if isinstance(text, dict) else re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    missing = text if isinstance(text, dict) else hole("names no version", PROC + "/version")
    return {
        "version": match.group(1) if match else missing,
        "open": "Open Kernel Module" in text if match else missing,
        "gpus": read_or_hole(lambda: {safe_name(n): _proc_gpu(tree, n) for n in tree.optional_names(PROC + "/gpus")}),
        "dev": read_or_hole(lambda: [n for n in tree.names("/dev", "nvidia") if re.match(r"nvidia\d+\Z", n)]),
    }


def _proc_gpu(tree: Tree, address: str) -> Any:
    """`Model: 		 NVIDIA H100 80GB HBM3` and so on, one field a line."""
    path = PROC + "/gpus/" + address + "/information"
    tree.source(("gpus", address), path)
    try:
        fields = key_values(tree.read(path), ":")
    except Hole as missing:
        return hole(missing.why, missing.source)
    wanted = {
        "model": "Model",
        "uuid": "GPU UUID",
        "minor": "Device Minor",
        "video_bios": "Video BIOS",
        "excluded": "GPU Excluded",
    }
    return {key: fields.get(label) or hole("has no line " + label, path) for key, label in wanted.items()}


def read_smi(tree: Tree) -> dict[str, Any]:
    """`nvidia-smi -q -x`: one XML element a GPU."""
    source = " ".join(SMI)
    tree.source((), source)
    # it fails with a status of its own for each trouble of the driver, and says on stdout which
    text, took_s = tree.timed(SMI, SMI_LIMIT_S, fine=tuple(range(128)))
    text, warnings = _document(text)
    if "<!ENTITY" in text:
        raise Hole("is not what nvidia-smi prints: it declares entities", source)
    if text.strip() and not text.lstrip().startswith("<"):
        raise Hole("says: " + text.strip().split("\n")[0][:200], source)
    root = _parse(text, source)
    gpus = {}
    for element in root.get("gpu", []):
        address = bus_address(str(element.get("@id", "")))
        if address:
            gpus[address] = {k: v for k, v in element.items() if k in KEEP}
    return {
        "took_s": took_s,
        "driver_version": root.get("driver_version") or hole("is not in the output", source),
        "cuda_version": root.get("cuda_version") or hole("is not in the output", source),
        "attached_gpus": root.get("attached_gpus") or hole("is not in the output", source),
        "warnings": warnings,
        "gpus": gpus,
    }


def _document(text: str) -> tuple[str, list[str]]:
    """The document, and warnings around it: `WARNING: infoROM is corrupted at gpu 0002:00:00.0` stands behind it."""
    begin, end = max(text.find("<?xml"), 0), text.rfind(LAST)
    around = [line.strip() for line in (text[:begin] + text[end + len(LAST) :]).split("\n") if line.strip()]
    if end < 0 or not all(line.startswith("WARNING") for line in around):
        return text, []
    return text[begin : end + len(LAST)], [line[:200] for line in around[:32]]


def _parse(text: str, source: str) -> dict[str, Any]:
    """The document as nested dicts; `gpu`, `process_info` and the like become lists where they repeat by nature."""
    from xml.parsers import expat

    lists = {"gpu", "process_info", "mig_device"}
    root: dict[str, Any] = {}
    stack: list[tuple[str, dict[str, Any], list[str]]] = [("", root, [])]

    def start(name: str, attrs: dict[str, str]) -> None:
        stack.append((name, {"@" + k: v for k, v in attrs.items()}, []))

    def end(name: str) -> None:
        _, children, texts = stack.pop()
        value: Any = children or "".join(texts).strip()
        parent = stack[-1][1]
        if name in ("supported_clocks", "accounted_processes"):
            return
        if name in lists:
            parent.setdefault(name, []).append(value)
        else:
            parent[name] = value

    def words(text: str) -> None:
        stack[-1][2].append(text)

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = words
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise Hole("is not whole XML: %s" % error, source) from None
    log = root.get("nvidia_smi_log")
    if not isinstance(log, dict):
        raise Hole("is not an nvidia_smi_log document", source)
    return log


def bus_address(text: str) -> str:
    """A PCI address as the kernel writes it: nvidia-smi prints eight digits of domain, in capitals.

    >>> bus_address("00000101:00:00.0")
    '0101:00:00.0'
    """
    match = re.match(r"(?:0000)?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\Z", text.lower())
    return match.group(1) if match else ""


def read_nvlink(tree: Tree) -> dict[str, Any]:
    """`nvidia-smi nvlink -s`: a line a GPU, below it a line a link: `Link 3: 26.562 GB/s` or `Link 3: <inactive>`."""
    argv = ["nvidia-smi", "nvlink", "-s"]
    tree.source((), " ".join(argv))
    found: dict[str, Any] = {}
    links: dict[str, str] = {}
    for line in tree.run(argv, SMI_LIMIT_S).split("\n"):
        gpu = re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line)
        link = re.match(r"\s+Link (\d+): (.+)", line)
        if gpu:
            links = found.setdefault(gpu.group(1), {})
        elif link:
            links[link.group(1)] = link.group(2).strip()
    return {"links": found}
