"""What nodes are, in the words of a table: one cell a fact, `?` where it could not be read. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fairlead.base.nodeset import fold
from fairlead.base.table import table
from fairlead.records.facts import Facts, NodeFacts, Unread


def cells(record: NodeFacts, columns: Sequence[str]) -> tuple[str, ...]:
    """A node's row: the columns by name, see COLUMNS."""
    return tuple(_cell(record, COLUMNS[name]) for name in columns)


def inventory(facts: Sequence[NodeFacts], columns: Sequence[str]) -> str:
    """A table of nodes, those that are alike in one line; empty without any."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for record in facts:
        rows.setdefault(cells(record, columns), []).append(record.node)
    lines = [(f"{fold(names)} ({len(names)})", *row) for row, names in rows.items()]
    return table(["NODES", *columns], lines) if lines else ""


def _cell(record: NodeFacts, read: Callable[[Facts], object]) -> str:
    try:
        return str(read(Facts(record)))
    except Unread:
        return "?"


def _gpus(f: Facts) -> str:
    held = f.get("nvidia.driver.gpus")
    if held:
        return f"{len(held)} x {f.get('nvidia.driver.gpus', next(iter(held)), 'model').removeprefix('NVIDIA ')}"
    return f"{len(f.get('amd.kfd'))} x AMD" if f.get("amd.loaded") else "-"


def _ports(f: Facts) -> str:
    """`8 x 400 Gb/sec (4X NDR), 1 x 40 Gb/sec (4X QDR)`."""
    counts: dict[str, int] = {}
    for device in f.get("ib.devices"):
        for port in f.get("ib.devices", device, "ports"):
            rate = f.get("ib.devices", device, "ports", port, "rate")
            counts[rate] = counts.get(rate, 0) + 1
    return ", ".join(f"{num} x {rate}" for rate, num in sorted(counts.items(), key=lambda item: -item[1])) or "-"


COLUMNS: Mapping[str, Callable[[Facts], object]] = {
    "OS": lambda f: f"{f.get('host.os.id')} {f.get('host.os.version_id')}",
    "KERNEL": lambda f: f.get("host.os.kernel"),
    "CPU": lambda f: f.get("host.cpu.model"),
    "CPUS": lambda f: f.get("host.cpu.online"),
    "MEMORY": lambda f: f"{f.get('host.memory.MemTotal') / (1 << 20):.0f} GiB",
    "GPUS": _gpus,
    "DRIVER": lambda f: f.get("nvidia.driver.version") if f.get("nvidia.driver.gpus") else "-",
    "RDMA PORTS": _ports,
}
