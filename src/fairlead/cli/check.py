"""`fairlead check`: is the cluster file right, and where does each value come from."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from fairlead.base.table import table
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer
from fairlead.records.verdict import Verdict
from fairlead.spec.contract import SITE_FACTS, contract_of
from fairlead.spec.loader import Loaded, read
from fairlead.spec.locate import dotted
from fairlead.spec.resolve import leaves
from fairlead.spec.vmsize import FACTS
from fairlead.spec.write import is_read, toml_value


def check(
    *,
    spec: SpecFile = None,
    origin: Annotated[bool, Parameter(negative=())] = False,
    common: Common = Common(),
) -> Answer:
    """Validate the cluster file; nothing is contacted.

    Parameters
    ----------
    spec
        The cluster file; else FAIRLEAD_SPEC, or ./cluster.toml.
    origin
        Say where each final value came from: flag, variable, file and line, preset, VM size, default.
    """
    loaded = read(spec, flags={"runs.dir": common.runs})
    values, facts = (_values(loaded), _facts(loaded)) if origin else ([], [])
    warnings = [
        {"code": w.code, "file": w.file, "line": w.line, "message": w.message, "hint": w.hint} for w in loaded.warnings
    ]
    body: dict[str, Any] = {"file": loaded.file, "cluster": loaded.spec.cluster.name, "pools": _pools(loaded)}
    body["warnings"] = warnings
    if origin:
        body |= {"values": values, "facts": facts}
    return Answer(
        schema="fairlead.check/1",
        verdict=Verdict.WARN if warnings else Verdict.PASS,
        text=lambda: _page(loaded, values, facts),
        body=body,
        hints=[] if origin else [f"fairlead check --origin{f' -f {spec}' if spec else ''}"],
    )


def _page(loaded: Loaded, values: list[dict[str, Any]], facts: list[dict[str, Any]]) -> str:
    rows = [(p["name"], p["size"], p["nodes"], p["count"], p["gpus"], p["ports"]) for p in _pools(loaded)]
    parts = [table(["POOL", "SIZE", "NODES", "COUNT", "GPUS", "PORTS"], rows)]
    if values:
        parts.append(table(["KEY", "VALUE", "FROM"], [(v["key"], toml_value(v["value"]), v["from"]) for v in values]))
    if facts:
        said = [(f["pool"], f["fact"], toml_value(f["value"]), f["from"], f["confidence"]) for f in facts]
        parts.append(table(["POOL", "EXPECTED", "VALUE", "FROM", "CONFIDENCE"], said))
    parts += [f"warning  {w}" for w in loaded.warnings]
    access, fabric = loaded.spec.access, loaded.spec.fabric
    parts.append(f"{loaded.file}: no problem; via {access.via}, {fabric.link}, rdma {fabric.rdma}")
    return "\n\n".join(parts)


def _pools(loaded: Loaded) -> list[dict[str, Any]]:
    return [
        {"name": p.name, "size": p.size, "nodes": str(p.nodes), "count": p.count, "gpus": p.gpus, "ports": p.ports}
        for p in loaded.spec.pools
    ]


def _values(loaded: Loaded) -> list[dict[str, Any]]:
    """Every final value, as the file writes it, with its origin."""
    found = []
    for path, value in leaves(loaded.spec):
        where = loaded.origins[path]
        if value is not None and is_read(str(path[0]), loaded.spec.access.via):
            plain = str(value) if not isinstance(value, str | int | float | tuple) else value
            found.append(
                {"key": dotted(path), "value": plain, "kind": where.kind, "line": where.line, "from": str(where)}
            )
    return found


def _facts(loaded: Loaded) -> list[dict[str, Any]]:
    """What nodes of each pool must be, with sources."""
    found = []
    for pool in loaded.spec.pools:
        contract = contract_of(loaded.spec, pool)
        for fact in (*FACTS, *SITE_FACTS):
            value, source = getattr(contract, fact), contract.source(fact)
            if value is not None and source is not None:
                row = {"pool": pool.name, "fact": fact, "value": value, "from": str(source)}
                found.append(row | {"confidence": source.confidence})
    return found
