"""Aggregates of a `summarize`: bound once each, their results columns of their own.

Must not know: how rows are grouped, what an aggregate computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlead.logs.kql.kinds import NUMERIC, WHOLE, Kind
from fairlead.logs.kql.problems import wrong
from fairlead.logs.kql.registry import AGGREGATES, Aggregate
from fairlead.logs.kql.tree import Call
from fairlead.logs.kql.typed import Col, Typed, accepts, const_of, fitted

if TYPE_CHECKING:
    from fairlead.logs.kql.binding import Binder


@dataclass(slots=True)
class Gathered:
    """The aggregates inside of the items of a `summarize`, each once."""

    start: int
    rows: Binder
    """Of what is computed of each row, before it is gathered."""
    found: list[tuple[Aggregate, tuple[Typed, ...], tuple[Any, ...]]] = field(default_factory=list)

    def bound(self, node: Call) -> Col:
        """An aggregate: where its result will stand. Raises Refused."""
        if node.name == "percentile":
            return self._percentile(node)
        found = AGGREGATES[node.name]
        few, many = found.bounds()
        if not few <= len(node.args) <= many:
            raise wrong(f"{node.name}() takes {few} to {many} arguments, and these are {len(node.args)}", node.at)
        args: list[Typed] = []
        constants: list[Any] = []
        plain = many - found.constants
        for place, arg in enumerate(node.args):
            value = self.rows.bind(arg)
            if place >= plain:
                constants.append(const_of(value, arg.at, "this argument"))
                continue
            sort = found.param(place)
            takes = (
                value.kind in {*NUMERIC, Kind.TIMESPAN, Kind.DATETIME, Kind.DYNAMIC, Kind.BOOL}
                if sort == "summing"
                else accepts(sort, value.kind)
            )
            if not takes:
                raise wrong(f"{node.name}() does not take {value.kind}", arg.at, "tolong(...) or todouble(...)")
            args.append(value if sort == "summing" else fitted(sort, value))
        return self.column(found, tuple(args), tuple(constants), _gives(found, args))

    def _percentile(self, node: Call) -> Col:
        from fairlead.logs.kql.functions.aggregates import Percentiles

        if len(node.args) != 2:
            raise wrong("percentile() takes an expression and a percentile", node.at)
        value = self.rows.bind(node.args[0])
        percent = self.rows.constant(node.args[1], "the percentile")
        found = Aggregate("percentile", lambda kinds, p: _First(Percentiles(kinds, p)), (), "same", "percentile", 1)
        return self.column(found, (value,), (percent,), value.kind)

    def column(self, aggregate: Aggregate, args: tuple[Typed, ...], constants: tuple[Any, ...], kind: Kind) -> Col:
        """Where its result will stand."""
        self.found.append((aggregate, args, constants))
        return Col(kind, self.start + len(self.found) - 1, aggregate.name)


def _gives(found: Aggregate, args: list[Typed]) -> Kind:
    match found.gives:
        case "same":
            return args[0].kind
        case "sum":
            kind = args[0].kind
            return Kind.LONG if kind in WHOLE or kind is Kind.BOOL else Kind.REAL if kind is Kind.DYNAMIC else kind
        case "avg":
            kind = args[0].kind
            return kind if kind in {Kind.DATETIME, Kind.TIMESPAN, Kind.DECIMAL} else Kind.REAL
        case kind:
            return Kind(kind)


class _First:
    """The only percentile of one."""

    def __init__(self, all_of_them: Any) -> None:
        self.all = all_of_them
        self.add = all_of_them.add

    def result(self) -> Any:
        return self.all.result()[0]
