"""The catalogue of functions: what each takes, what it gives, and what computes it. Rows of one table, in families.

A signature reads `string long? -> long`: kinds of parameters, `?` may be left out, `*` any number, `+` at least one.
Besides the kinds of values: `any`; `text`, anything as `tostring` has it; `number`, `whole`; `array` and `bag`,
dynamic. The result is a kind, `same` (as the first argument), `widest` (of all numbers) or `common` (of all
arguments).

Must not know: the functions themselves, syntax trees, tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairlead.logs.kql.kinds import Kind


class Param(NamedTuple):
    """What a function takes at one place."""

    sort: str
    few: int
    many: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A function of values."""

    name: str
    run: Callable[..., Any]
    params: tuple[Param, ...]
    gives: str
    family: str
    strict: bool = True
    """A null argument makes the answer null, unseen by `run`."""
    kinds: bool = False
    """`run` takes the kinds of the arguments first."""
    pure: bool = True
    naming: str = ""
    """How a column of it is called: `first` (as its first argument), `prefix_first`, or not at all."""
    prefix: str = ""

    def bounds(self) -> tuple[int, int]:
        """How many arguments it takes."""
        return sum(p.few for p in self.params), sum(p.many for p in self.params)

    def param(self, place: int) -> str:
        """What it takes at that place."""
        return _param(self.params, place)


def _param(params: tuple[Param, ...], place: int) -> str:
    for param in params:
        if place < param.many:
            return param.sort
        place -= param.many
    return params[-1].sort


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of many rows. `make` gives an object with `add(*values)` and `result()`."""

    name: str
    make: Callable[..., Any]
    params: tuple[Param, ...]
    gives: str
    prefix: str
    constants: int = 0
    """So many last arguments are constants, given to `make`."""

    def bounds(self) -> tuple[int, int]:
        """How many arguments it takes."""
        return sum(p.few for p in self.params), sum(p.many for p in self.params)

    def param(self, place: int) -> str:
        """What it takes at that place."""
        return _param(self.params, place)


MANY = 64
SCALARS: dict[str, Scalar] = {}
AGGREGATES: dict[str, Aggregate] = {}

_FIRST = frozenset(
    [
        "split",
        "tostring",
        "tohex",
        "todynamic",
        "toobject",
        "tolong",
        "toint",
        "toreal",
        "todouble",
        "todatetime",
        "totimespan",
        "totime",
        "tobool",
        "toboolean",
        "todecimal",
        "toguid",
        "parse_csv",
        "parsejson",
        "parse_json",
        "parse_xml",
        "format_datetime",
        "format_timespan",
        "startofday",
        "bin",
        "floor",
        "bin_at",
        "binary_and",
        "binary_or",
        "binary_xor",
        "binary_not",
        "binary_shift_right",
        "binary_shift_left",
        "bitset_count_ones",
        "series_fir",
        "series_outliers",
        "series_iir",
        "series_fill_backward",
        "series_fill_forward",
        "series_fill_const",
        "series_fill_linear",
        "round",
        "ceiling",
        "pow",
        "sqrt",
        "log",
        "log2",
        "log10",
        "exp",
        "exp2",
        "exp10",
        "cos",
        "sin",
        "tan",
        "acos",
        "asin",
        "atan",
        "atan2",
        "abs",
        "rand",
        "gamma",
        "loggamma",
        "erf",
        "erfc",
        "format_bytes",
        "make_datetime",
        "make_timespan",
    ]
)
"""Their columns are called as their first argument; as the official language service has it."""
_NAME_FIRST = {
    "strlen": "strlen",
    "string_size": "string_size",
    "gettype": "type",
    "treepath": "tree",
    "repeat": "repeat",
}


def params_of(words: str) -> tuple[Param, ...]:
    """`string long? any*`"""
    found = []
    for word in words.split():
        mark = word[-1] if word[-1] in "?*+" else ""
        few, many = {"": (1, 1), "?": (0, 1), "*": (0, MANY), "+": (1, MANY)}[mark]
        found.append(Param(word.rstrip("?*+"), few, many))
    return tuple(found)


def family(of: str) -> Callable[..., Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """A decorator for the functions of one family: `@fn("strlen", "text -> long")`; it may have several names."""

    def fn(
        names: str, signature: str, *, strict: bool = True, kinds: bool = False, pure: bool = True
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        takes, _, gives = signature.partition("->")

        def add(run: Callable[..., Any]) -> Callable[..., Any]:
            for name in names.split():
                assert name not in SCALARS, name
                naming = "first" if name in _FIRST else "prefix_first" if name in _NAME_FIRST else ""
                SCALARS[name] = Scalar(
                    name,
                    run,
                    params_of(takes),
                    gives.strip(),
                    of,
                    strict,
                    kinds,
                    pure,
                    naming,
                    _NAME_FIRST.get(name, ""),
                )
            return run

        return add

    return fn


def aggregate(
    names: str, signature: str, prefix: str = "", constants: int = 0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for aggregates; their columns are called `prefix_argument`."""
    takes, _, gives = signature.partition("->")

    def add(make: Callable[..., Any]) -> Callable[..., Any]:
        for name in names.split():
            AGGREGATES[name] = Aggregate(name, make, params_of(takes), gives.strip(), prefix or name, constants)
        return make

    return add


def load() -> None:
    """Fill the catalogue."""
    import fairlead.logs.kql.functions  # noqa: F401


Kinds = tuple[Kind, ...]
