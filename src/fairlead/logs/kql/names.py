"""How columns without a name are called: what Kusto makes of the expression.

`sum(x)` is sum_x, `bin(t, 1h)` is t, `d.a[0]` is d_a_0; what has no name of its own is Column1, Column2, ...

Must not know: kinds, values.
"""

from __future__ import annotations

from fairlead.logs.kql.registry import AGGREGATES, SCALARS
from fairlead.logs.kql.tree import Call, Index, Literal, Member, Name, Named, Node


def own_name(node: Node) -> str:
    """The name that an expression brings; empty where it brings none."""
    match node:
        case Named(names=names):
            return names[0]
        case Name(name=name):
            return name.removeprefix("$left.").removeprefix("$right.")
        case Member(of=Name(name="$left" | "$right"), name=name):
            return name
        case Member(of=of, name=name):
            first = own_name(of)
            return f"{first}_{name}" if first else ""
        case Index(of=of, index=Literal(value=value)):
            first = own_name(of)
            return f"{first}_{value}" if first else ""
        case Call():
            return _of_call(node)
        case _:
            return ""


def _of_call(call: Call) -> str:
    first = own_name(call.args[0]) if call.args else ""
    if call.name in AGGREGATES:
        aggregate = AGGREGATES[call.name]
        if call.name.startswith("covariance") and len(call.args) > 1:
            first = f"{first}_{own_name(call.args[1])}"
        return f"{aggregate.prefix}_{first}" if aggregate.prefix else first
    if call.name == "percentile" and len(call.args) == 2 and isinstance(call.args[1], Literal):
        return f"percentile_{first}_{number_name(call.args[1].value)}"
    if call.name in {"arg_max", "arg_min", "take_any", "any"}:
        return first if call.name != "any" else f"any_{first}"
    if call.name == "column_ifexists":
        return str(call.args[0].value) if call.args and isinstance(call.args[0], Literal) else ""
    if call.name == "ingestion_time":
        return "$IngestionTime"
    scalar = SCALARS.get(call.name)
    if scalar is None:
        return ""
    if scalar.naming == "first":
        return first
    return f"{scalar.prefix}_{first}" if scalar.naming == "prefix_first" and first else ""


def number_name(value: object) -> str:
    """50 of 50, 99_9 of 99.9."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace(".", "_")


class Namer:
    """Gives every column a name that no other has."""

    def __init__(self, taken: list[str] | None = None) -> None:
        self.taken = set(taken or ())
        self.unnamed = 0

    def column(self, wanted: str) -> str:
        """The name wanted, with a number behind it where that is taken; Column1, ... for none."""
        if not wanted:
            self.unnamed += 1
            wanted = f"Column{self.unnamed}"
        name, num = wanted, 0
        while name in self.taken:
            num += 1
            name = f"{wanted}{num}"
        self.taken.add(name)
        return name
