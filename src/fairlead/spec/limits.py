"""Quantities a VM size is known to reach: the number that holds for so many nodes and such a message, and all of them.

    limit_for(contract_of(spec, pool), "job_allreduce_busbw_gbs", nodes=16, message_bytes=16 << 30)

gives the row of the table that holds there, with its source, or None: what has no number is reported, not judged. The
room that judges by a quantity lists it with `quantity_limits`, for `fairlead limits`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fairlead.base.units import counted
from fairlead.base.units import size as bytes_text
from fairlead.records.limit import Judges, Limit
from fairlead.spec.contract import MAX_NODES, contract_of
from fairlead.spec.model import Spec
from fairlead.spec.vmsize import EXPECTED, FACTS, Expected, VmSize, size

_SIDES: tuple[tuple[str, Judges], ...] = (
    ("warn_below", "warn below"),
    ("fail_below", "fail below"),
    ("fail_above", "fail above"),
)


class Reached(Struct, frozen=True, kw_only=True):
    """What a VM size reaches of one quantity, where it holds, and who says so."""

    name: str
    what: str
    unit: str
    typical: float | None
    """What is usual, to print beside what was measured."""
    warn_below: float | None
    fail_below: float | None
    fail_above: float | None
    source: str
    holds_for: str
    """The VM size, numbers of nodes and messages, in words."""

    @property
    def value(self) -> float | None:
        """The number that fails, or warns; None where nothing judges and `typical` is only for comparison."""
        return next((v for v in (self.fail_below, self.fail_above, self.warn_below) if v is not None), None)


def limit_for(of: VmSize | str, name: str, *, nodes: int = 1, message_bytes: int = 0) -> Reached | None:
    """The row that holds for a VM size (or a pool's contract), so many nodes and such a message; None if no row does.

    Of several, the one for the largest message that is no larger than this one; of those, the one for the fewest nodes.
    """
    unit, what = EXPECTED[name]
    table = size(of) if isinstance(of, str) else of
    rows = [row for row in (table.reached.get(name, ()) if table else ()) if _holds(row, nodes, message_bytes)]
    if table is None or not rows:
        return None
    row = max(rows, key=lambda r: (r.message_bytes, -_span(r)))
    return Reached(
        name=name,
        what=what,
        unit=unit,
        typical=row.typical,
        warn_below=row.warn_below,
        fail_below=row.fail_below,
        fail_above=row.fail_above,
        source=source_of(row),
        holds_for=", ".join(filter(None, (table.name, held_for(row)))),
    )


def least_message(of: VmSize | str, name: str, *, nodes: int = 1) -> int | None:
    """The smallest message for which some number judges a quantity; None where none does."""
    table = size(of) if isinstance(of, str) else of
    rows = [r for r in (table.reached.get(name, ()) if table else ()) if _judges(r) and _holds(r, nodes, MAX_BYTES)]
    return min((row.message_bytes for row in rows), default=None)


MAX_BYTES = 1 << 62


COMPARED = {
    "vcpus": "",
    "cpu_arch": "",
    "memory_gib": "",
    "nvme_disks": "",
    "gpu_model": "gpus",
    "nvlinks_per_gpu": "gpus",
    "fabric_manager": "gpus",
    "gpus_per_numa": "gpus",
    "hca_rates_gbps": "hca_ports",
    "hcas_per_numa": "hca_ports",
}
"""The facts that checks compare nodes with -> what a size must have some of for that to make sense."""
assert set(COMPARED) <= set(FACTS)


def not_judged(table: VmSize) -> list[str]:
    """The facts and quantities that make sense on a VM size and that no number judges."""
    facts = [f for f, of in COMPARED.items() if (not of or getattr(table, of)) and getattr(table, f) in (None, "", ())]
    quantities = [name for name in EXPECTED if _applies(table, name)]
    return facts + [name for name in quantities if not any(map(_judges, table.reached.get(name, ())))]


def held_for(row: Expected) -> str:
    """Numbers of nodes and messages a row holds for, in words; empty where for all."""
    said = []
    if row.nodes:
        low, high = row.nodes
        more = f"{low} nodes or more" if high >= MAX_NODES else f"{low}-{high} nodes"
        said.append(counted(low, "node") if low == high else more)
    if row.message_bytes:
        said.append(f"messages from {bytes_text(row.message_bytes)}")
    return ", ".join(said)


def source_of(row: Expected) -> str:
    """Who says a row's number, how it was measured, and on which other VM size."""
    return "; ".join(filter(None, (row.source, row.note, f"found on {row.of}" if row.of else "")))


def _holds(row: Expected, nodes: int, message_bytes: int) -> bool:
    return row.message_bytes <= message_bytes and (row.nodes is None or row.nodes[0] <= nodes <= row.nodes[1])


def _span(row: Expected) -> int:
    return row.nodes[1] - row.nodes[0] if row.nodes else MAX_NODES


def _judges(row: Expected) -> bool:
    return any(getattr(row, side) is not None for side, _ in _SIDES)


def _applies(table: VmSize, name: str) -> bool:
    if name.startswith(("hca_", "job_")):
        is_rdma = bool(table.hca_ports) and (bool(table.gpus) or not name.endswith(("gdr_gbps", "allreduce_busbw_gbs")))
        return is_rdma and not (name == "job_allreduce_ipoib_busbw_gbs" and table.ipoib != "up")
    if name == "rack_allreduce_busbw_gbs":
        return table.fabric_manager == "external"
    if name in ("node_allreduce_busbw_gbs", "gpu_p2p_gbs"):
        return bool(table.gpus and table.gpus > 1)
    return bool(table.gpus) if name.startswith("gpu_") else name != "cpu_stream_gbs" or not table.gpus


def quantity_limits(spec: Spec, quantity: str, *, code: str) -> Iterator[Limit]:
    """The limits of one quantity, pool by pool, where somebody says a number; `code` is the finding it leads to."""
    unit, what = EXPECTED[quantity]
    for pool in spec.pools:
        contract = contract_of(spec, pool)
        for row in contract.reached.get(quantity, ()):
            for side, judges in _SIDES:
                value = getattr(row, side)
                if value is not None:
                    yield Limit(
                        name=quantity,
                        what=what,
                        judges=judges,
                        value=value,
                        unit=unit,
                        source=source_of(row),
                        holds_for=", ".join(filter(None, (f"pool {pool.name}, size {contract.name}", held_for(row)))),
                        key=f"[[expect]] {quantity}",
                        code=code,
                    )
