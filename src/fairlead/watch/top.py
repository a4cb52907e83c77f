"""Many nodes' looks as one page of a terminal: ports and rates, top talkers by job, findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.nodeset import fold
from fairlead.base.table import table
from fairlead.base.units import counted, rate
from fairlead.records.finding import verdict_of
from fairlead.report.text import Paint, counts_line, findings_text
from fairlead.watch.control import Look, PortNow, findings_of, known_looks

MAX_TALKERS = 10


def page(looks: Mapping[str, Look], paint: Paint, *, max_ports: int = 0) -> str:
    """Everything; with `max_ports`, the ports that move most, those that have a finding first."""
    known = known_looks(looks)
    findings = findings_of(looks)
    parts = [_talkers(looks), _ports(looks, max_ports), _links(looks), findings_text(findings, paint)]
    used = [look.self.rss_bytes for _, look in known]
    head = f"{counted(len(known), 'node')} of {len(looks)}"
    if known:
        head += f", {sum(len(look.ports) for _, look in known)} ports"
        head += f", {sum(look.num_qps or 0 for _, look in known)} queue pairs"
        head += f", watch uses up to {max(used) / 1e6:.0f} MB"
    return (
        "\n\n".join(part for part in [head, *parts] if part)
        + f"\n\n{counts_line(findings)}\nverdict  "
        + verdict_of(findings)
    )


def screen(looks: Mapping[str, Look], paint: Paint, *, rows: int, columns: int, clock: str) -> str:
    """The page, cut to a terminal of so many rows and columns."""
    lines = [f"fairlead watch  {clock}  (Ctrl-C ends)", *page(looks, paint, max_ports=max(4, rows // 3)).split("\n")]
    if len(lines) > rows - 1:
        lines = [*lines[: rows - 2], f"... {counted(len(lines) - rows + 2, 'line')} more: fairlead watch"]
    return "\n".join(line[: columns + 40] if "\x1b" in line else line[:columns] for line in lines)


def _ports(looks: Mapping[str, Look], most: int) -> str:
    """One line a port; those that are alike and idle in one."""
    rows, idle = [], dict[tuple[str, str, str], list[str]]()
    for node, look in known_looks(looks):
        bad = {finding.part for finding in look.findings}
        for name, port in look.ports.items():
            moves = (port.rx_bps or 0) + (port.tx_bps or 0)
            if not moves and not port.owners and name not in bad:
                idle.setdefault((name, _state(port), port.rate), []).append(node)
                continue
            rows.append((name in bad, moves, [node, name, _state(port), port.rate or "-", _bits(port.rx_bps),
                                              _bits(port.tx_bps), ", ".join(port.owners) or "-"]))  # fmt: skip
    rows.sort(key=lambda row: (not row[0], -row[1], row[2][:2]))
    cells = [row[2] for row in rows][: most or None]
    room = max(0, most - len(cells)) if most else len(idle)
    cells += [[fold(nodes), name, state, rate_ or "-", "0", "0", "-"]
              for (name, state, rate_), nodes in sorted(idle.items())[:room]]  # fmt: skip
    if not cells:
        return ""
    return table(["NODE", "PORT", "STATE", "RATE", "RECEIVES", "SENDS", "OWNERS"], cells)


def _links(looks: Mapping[str, Look]) -> str:
    """Links whose path matters: those with a virtual function."""
    rows = [
        [node, name, link.path or "-", "-" if link.vf_share is None else f"{100 * link.vf_share:.0f} %",
         _bits(link.rx_bps), _bits(link.tx_bps)]
        for node, look in known_looks(looks) for name, link in look.links.items()
        if link.path or link.vf_share is not None
    ]  # fmt: skip
    return table(["NODE", "NIC", "PATH", "BY VF", "RECEIVES", "SENDS"], rows) if rows else ""


def _talkers(looks: Mapping[str, Look]) -> str:
    """Jobs and users over all nodes, the busiest first."""
    sums: dict[str, list[float]] = {}
    where: dict[str, set[str]] = {}
    for node, look in known_looks(looks):
        for one in look.talkers:
            row = sums.setdefault(one.who, [0.0, 0.0])
            row[0], row[1] = row[0] + one.alone_bps, row[1] + one.shared_bps
            where.setdefault(one.who, set()).add(node)
    busiest = sorted(sums, key=lambda who: (-sum(sums[who]), who))[:MAX_TALKERS]
    rows = [[who, fold(where[who]), _bits(sums[who][0]), _bits(sums[who][1])] for who in busiest]
    return table(["WHO", "NODES", "ALONE", "SHARED WITH OTHERS"], rows) if rows else ""


def _state(port: PortNow) -> str:
    return port.state.partition(": ")[2] or port.state or "?"


def _bits(bytes_per_s: float | None) -> str:
    return "?" if bytes_per_s is None else "0" if not bytes_per_s else rate(8 * bytes_per_s)
