"""The reference pages of the cluster file and of the VM sizes, as Markdown made from the model and the data.

`make docs` writes what `pages` returns into docs/reference; a test holds it fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import NODEFAULT, inspect

from fairlead.spec.contract import SITE_FACTS, Contract
from fairlead.spec.decode import type_of
from fairlead.spec.docs import sentences
from fairlead.spec.limits import held_for, not_judged, source_of
from fairlead.spec.loader import preset_names, preset_text
from fairlead.spec.resolve import OVERRIDES
from fairlead.spec.tables import spec_type
from fairlead.spec.vmsize import EXPECTED, FACTS, Expected, Source, VmSize, sizes, storage
from fairlead.spec.write import toml_value

_MADE = "<!-- made by `make docs`; do not edit -->"

_CLUSTER_FILE = """\
One TOML file, `cluster.toml`, says what the cluster is meant to be. `fairlead init` writes one, `fairlead check`
validates it. It is looked for at `-f FILE`, then at `$FAIRLEAD_SPEC`, then at `./cluster.toml`. Unknown keys are
refused, every problem is told at once with its line, and the file holds no secret."""

_VM_SIZES = """\
Checks compare nodes with these facts. Where a cell is empty no source says anything, and nothing is concluded from it.
Numbers in brackets are the sources below. A site overrides a fact with [`[[expect]]`](cluster-file.md#expect)."""

_NOT_JUDGED = """\
No source has these numbers. Facts are then compared between the nodes of a pool; quantities are measured and reported.
`[[expect]]` gives one."""

_COLUMNS = [
    *(
        "size",
        "vCPUs",
        "memory GiB",
        "GPUs",
        "RDMA ports",
        "Ethernet Gb/s",
        "NUMA nodes",
        "NVMe disks",
        "temp disk GiB",
    ),
    *("more", "sources"),
]
_MORE = ("cpu_arch", "nvlinks_per_gpu", "fabric_manager", "ipoib", "accelerated_networking")
"""Facts without a column of their own."""


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    return {"cluster-file.md": cluster_file(), "vm-sizes.md": vm_sizes()}


def cluster_file() -> str:
    """Every table and key of the cluster file."""
    kind = type_of(spec_type())
    assert isinstance(kind, inspect.StructType)
    top = [f for f in kind.fields if not _inner(f.type)]
    out = [
        _MADE,
        "# The cluster file",
        _CLUSTER_FILE,
        _markdown(["key", "type", "default", "meaning"], _rows(top, sentences(spec_type()).fields)),
    ]
    for field in kind.fields:
        inner = _inner(field.type)
        if inner is None:
            continue
        said, name = sentences(inner.cls), field.encode_name
        is_list = isinstance(field.type, inspect.VarTupleType)
        out += [f"## `[[{name}]]`" if is_list else f"## `[{name}]`", said.whole]
        out.append(_markdown(["key", "type", "default", "meaning"], _rows(inner.fields, said.fields)))
    out += ["## Flags and variables", "For one run these win over the file: the flag first, then the variable."]
    out.append(
        _markdown(
            ["key", "flag", "variable"],
            ((f"`{'.'.join(o.path)}`", f"`{o.flag}`", f"`{o.variable}`") for o in OVERRIDES),
        )
    )
    out += ["## Facts `[[expect]]` may set", "What a VM size has is in [VM sizes](vm-sizes.md); a site can add:"]
    fields = sentences(Contract).fields
    out.append(_markdown(["fact", "meaning"], ((f"`{f}`", fields[f]) for f in SITE_FACTS)))
    out += ["## Presets", "`fairlead init --preset NAME` starts from one of these."]
    rows = ((f"`{n}`", preset_text(n).splitlines()[0].removeprefix("# ")) for n in preset_names())
    out.append(_markdown(["preset", "what it is"], rows))
    return "\n\n".join(out) + "\n"


def vm_sizes() -> str:
    """Every VM size with its facts, the quantities it should reach, the storage tiers, and every source."""
    numbers: dict[str, int] = {}

    def mark(source: Source | None) -> str:
        return f"[{numbers.setdefault(_cite(source), len(numbers) + 1)}]" if source else ""

    out = [
        _MADE,
        "# VM sizes and storage",
        _VM_SIZES,
    ]
    for family in dict.fromkeys(s.family for s in sizes().values()):
        members = [s for s in sizes().values() if s.family == family]
        out += [f"## {family}", _markdown(_COLUMNS, (_row(s, mark) for s in members))]
        limits: dict[tuple[str, ...], list[str]] = {}
        for member in members:
            for quantity, rows in member.reached.items():
                for row in rows:
                    said = (f"`{quantity}`", _limit(row), EXPECTED[quantity][0], held_for(row), source_of(row))
                    limits.setdefault(said, []).append(f"`{member.name}`")
        if limits:
            lines = (("<br>".join(names), *said) for said, names in limits.items())
            out.append(_markdown(["size", "quantity", "limits", "unit", "holds for", "source"], lines))
    real = [s for s in sizes().values() if s.family != "none"]
    alike: dict[str, list[str]] = {}
    for member in real:
        alike.setdefault(", ".join(f"`{name}`" for name in not_judged(member)), []).append(f"`{member.name}`")
    out += ["## What is not judged for lack of a number", _NOT_JUDGED]
    out.append(_markdown(["size", "no number for"], (("<br>".join(names), said) for said, names in alike.items())))
    meanings = sentences(VmSize).fields
    out += ["## Facts", _markdown(["fact", "meaning"], ((f"`{f}`", meanings[f]) for f in FACTS))]
    out += ["## Quantities"]
    out.append(_markdown(["quantity", "unit", "meaning"], ((f"`{q}`", u, text) for q, (u, text) in EXPECTED.items())))
    tiers = (
        (t.name, t.kind, _plain(t.mbs_per_tib), _plain(t.max_mbs), _plain(t.max_iops), _span(t), t.note, mark(t.source))
        for t in storage()
    )
    header = ["tier", "kind", "MB/s per TiB", "most MB/s", "most IOPS", "TiB", "note", "source"]
    out += ["## Storage", _markdown(header, tiers)]
    out += ["## Sources", "\n".join(f"{number}. {text}" for text, number in numbers.items())]
    return "\n\n".join(out) + "\n"


def _rows(fields: Iterable[inspect.Field], said: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for field in fields:
        if field.required:
            default = "required"
        elif field.default in (None, NODEFAULT):
            default = ""
        else:
            default = f"`{toml_value(field.default)}`"
        yield f"`{field.encode_name}`", _type(field.type), default, said[field.name]


def _type(kind: inspect.Type) -> str:
    """A type in words, with its bounds."""
    if isinstance(kind, inspect.Metadata):
        described = (kind.extra_json_schema or {}).get("description")
        return str(described) if described else _type(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _type(kind.types[0])
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f'"{v}"' for v in kind.values)
    if isinstance(kind, inspect.VarTupleType):
        return f"list: {_type(kind.item_type)}"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        word = "whole number" if isinstance(kind, inspect.IntType) else "number"
        low = f"{kind.ge}" if kind.ge is not None else f"more than {kind.gt}" if kind.gt is not None else ""
        return f"{word}, {low} to {kind.le}" if low and kind.le is not None else word
    names: dict[type, str] = {
        inspect.StrType: "text",
        inspect.BoolType: "true or false",
        inspect.DateType: "date",
        inspect.CustomType: "node set",
    }
    return names.get(type(kind), "any value")


def _inner(kind: inspect.Type) -> inspect.StructType | None:
    inner = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind
    return inner if isinstance(inner, inspect.StructType) else None


def _names(size: VmSize) -> str:
    return "<br>".join(f"`{n}`" for n in (size.name, *size.aliases))


def _row(size: VmSize, mark: Callable[[Source | None], str]) -> tuple[str, ...]:
    gpus = (
        f"{size.gpus if size.gpu_share == '1' else size.gpu_share} x {size.gpu_model} {_plain(size.gpu_memory_gb)} GB"
    )
    rdma = f"{size.hca_ports} x {_value(size.hca_rates_gbps)} Gb/s {size.link_layer}"
    spread = [f"{what} {_value(n)}" for what, n in (("GPUs", size.gpus_per_numa), ("HCAs", size.hcas_per_numa)) if n]
    nvme = ", ".join(
        f"{_plain(n)}{unit}" for n, unit in ((size.nvme_disks, ""), (size.nvme_gib, " GiB")) if n is not None
    )
    return (
        _names(size),
        _plain(size.vcpus),
        _plain(size.memory_gib),
        gpus if size.gpus and size.gpu_model else _plain(size.gpus),
        rdma if size.hca_ports else "none" if size.rdma is False else "",
        _plain(size.ethernet_gbps),
        ": ".join(p for p in (_plain(size.numa_nodes), ", ".join(spread)) if p),
        nvme,
        _plain(size.temp_disk_gib),
        ", ".join(f"{fact} {_value(v)}" for fact in _MORE if (v := getattr(size, fact)) is not None),
        _sources(size, mark) + (f"; {size.note}" if size.note else ""),
    )


def _sources(size: VmSize, mark: Callable[[Source | None], str]) -> str:
    """The source of most facts, and by name the facts of every other one."""
    facts: dict[str, list[str]] = {}
    for fact in FACTS:
        if source := size.source(fact):
            facts.setdefault(mark(source), []).append(fact)
    main = max(facts, key=lambda number: len(facts[number]), default="")
    return "; ".join([main, *(f"{', '.join(names)} {number}" for number, names in facts.items() if number != main)])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "/".join(_plain(v) for v in value)
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else f"{value:.0f}"
    return "" if value is None else str(value)


def _limit(expected: Expected) -> str:
    words = (
        ("typical", expected.typical),
        ("warn below", expected.warn_below),
        ("fail below", expected.fail_below),
        ("fail above", expected.fail_above),
    )
    return ", ".join(f"{word} {value:g}" for word, value in words if value is not None)


def _span(tier: Any) -> str:
    if tier.max_tib is None:
        return ""
    low = f"{tier.min_tib:g} to " if tier.min_tib else "to "
    return f"{low}{tier.max_tib:g}" + (f", in steps of {tier.step_tib:g}" if tier.step_tib else "")


def _cite(source: Source) -> str:
    where = source.where if source.where.startswith("http") else f"`{source.where}`"
    return f"{source.name}; {where}; {source.date}; {source.confidence}"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *([c.replace("|", "\\|") for c in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
