"""Functions of many rows. Each is an object that rows are added to.

All of them pass over nulls, but count(). dcount() is exact here, where Kusto estimates: its answer lies within the
bounds that Kusto promises. Percentiles are exact by nearest rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from fairlead.logs.kql.kinds import Kind, boxed, wrap_long
from fairlead.logs.kql.problems import too_much
from fairlead.logs.kql.registry import aggregate
from fairlead.logs.kql.typed import hashable

MAX_LIST = 1_048_576
"""Items of make_list() and make_set() where the call does not say less, as Kusto has it."""


class Count:
    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.num = 0

    def add(self, *values: Any) -> None:
        self.num += 1

    def result(self) -> int:
        return self.num


class CountIf(Count):
    def add(self, *values: Any) -> None:
        if values[-1]:
            self.num += 1


aggregate("count cnt", "any? -> long", "count")(Count)
aggregate("countif", "bool -> long")(CountIf)


class Sum:
    """Whole numbers wrap at 64 bits; nothing at all is 0."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.kind = kinds[0]
        self.total: Any = Decimal(0) if self.kind is Kind.DECIMAL else 0.0 if self.kind is Kind.REAL else 0

    def add(self, value: Any, test: bool | None = True) -> None:
        if test and value is not None:
            if self.kind is Kind.DYNAMIC:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    return
                self.total += value
                return
            self.total += value

    def result(self) -> Any:
        return wrap_long(self.total) if isinstance(self.total, int) else self.total


aggregate("sum", "summing -> sum")(Sum)
aggregate("sumif", "summing bool -> sum")(Sum)


class Avg:
    """NaN of nothing, null for a timespan."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.kind = kinds[0]
        self.total: Any = Decimal(0) if self.kind is Kind.DECIMAL else 0
        self.num = 0

    def add(self, value: Any, test: bool | None = True) -> None:
        if test and value is not None and (isinstance(value, int | float | Decimal) and not isinstance(value, bool)):
            self.total += value
            self.num += 1

    def result(self) -> Any:
        if self.kind in {Kind.DATETIME, Kind.TIMESPAN}:
            return self.total // self.num if self.num else None
        if not self.num:
            return None if self.kind is Kind.DECIMAL else math.nan
        return (wrap_long(self.total) if isinstance(self.total, int) else self.total) / self.num


aggregate("avg", "summing -> avg")(Avg)
aggregate("avgif", "summing bool -> avg")(Avg)


class Extreme:
    better: Callable[[Any, Any], bool]

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.best: Any = None
        self.text = kinds[0] is Kind.STRING

    def add(self, value: Any, test: bool | None = True) -> None:
        if test and value is not None and (self.best is None or value != value or self.beats(value)):  # noqa: PLR0124 - NaN wins
            self.best = value

    def beats(self, value: Any) -> bool:
        raise NotImplementedError

    def result(self) -> Any:
        return "" if self.best is None and self.text else self.best


class Min(Extreme):
    def beats(self, value: Any) -> bool:
        return bool(_ordered(value) < _ordered(self.best))


class Max(Extreme):
    def beats(self, value: Any) -> bool:
        return bool(_ordered(value) > _ordered(self.best))


def _ordered(value: Any) -> Any:
    return (1, str(value)) if isinstance(value, dict | list) else value


aggregate("min", "any -> same")(Min)
aggregate("max", "any -> same")(Max)
aggregate("minif", "any bool -> same")(Min)
aggregate("maxif", "any bool -> same")(Max)


class Distinct:
    def __init__(self, kinds: tuple[Kind, ...], accuracy: Any = None) -> None:
        self.seen: set[Any] = set()

    def add(self, value: Any, test: bool | None = True) -> None:
        if test and value is not None:
            self.seen.add(hashable(value))

    def result(self) -> int:
        return len(self.seen)


aggregate("dcount", "any long? -> long", constants=1)(Distinct)
aggregate("dcountif", "any bool long? -> long", constants=1)(Distinct)
aggregate("count_distinct", "any -> long")(Distinct)
aggregate("count_distinctif", "any bool -> long")(Distinct)


class Spread:
    """By Welford's updates: https://doi.org/10.1080/00401706.1962.10490022."""

    less, root = 1, True

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.num, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, value: Any, test: bool | None = True) -> None:
        if test and value is not None:
            self.num += 1
            delta = float(value) - self.mean
            self.mean += delta / self.num
            self.squares += delta * (float(value) - self.mean)

    def result(self) -> float:
        if self.num <= self.less:
            return 0.0
        spread = self.squares / (self.num - self.less)
        return math.sqrt(spread) if self.root else spread


for _name, _less, _root in (("stdev", 1, True), ("stdevp", 0, True), ("variance", 1, False), ("variancep", 0, False)):
    _made = type(_name, (Spread,), {"less": _less, "root": _root})
    aggregate(_name, "number -> real")(_made)
    aggregate(_name + "if", "number bool -> real")(_made)


class Covariance:
    less = 1

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.pairs: list[tuple[float, float]] = []

    def add(self, a: Any, b: Any, test: bool | None = True) -> None:
        if test and a is not None and b is not None:
            self.pairs.append((float(a), float(b)))

    def result(self) -> float:
        num = len(self.pairs)
        if num <= self.less:
            return 0.0
        mean_a, mean_b = (math.fsum(p[i] for p in self.pairs) / num for i in (0, 1))
        return math.fsum((a - mean_a) * (b - mean_b) for a, b in self.pairs) / (num - self.less)


for _name, _less in (("covariance", 1), ("covariancep", 0)):
    _made = type(_name, (Covariance,), {"less": _less})
    aggregate(_name, "number number -> real")(_made)
    aggregate(_name + "if", "number number bool -> real")(_made)


class MakeList:
    nulls = False

    def __init__(self, kinds: tuple[Kind, ...], most: Any = None) -> None:
        self.kind, self.items = kinds[0], list[Any]()
        self.most = MAX_LIST if most is None else most

    def add(self, value: Any, test: bool | None = True) -> None:
        if not test or (value is None and not self.nulls and self.kind is not Kind.DYNAMIC):
            return
        for item in value if isinstance(value, list) else [value]:  # arrays are joined
            if len(self.items) < self.most:
                self.items.append(boxed(item, self.kind))

    def result(self) -> list[Any]:
        return self.items


class MakeListWithNulls(MakeList):
    nulls = True


aggregate("make_list makelist", "any long? -> dynamic", "list", constants=1)(MakeList)
aggregate("make_list_if", "any bool long? -> dynamic", "list", constants=1)(MakeList)
aggregate("make_list_with_nulls", "any -> dynamic", "list")(MakeListWithNulls)


class MakeSet:
    def __init__(self, kinds: tuple[Kind, ...], most: Any = None) -> None:
        self.kind, self.items = kinds[0], dict[Any, Any]()
        self.most = MAX_LIST if most is None else most

    def add(self, value: Any, test: bool | None = True) -> None:
        if not test or value is None:
            return
        for item in value if isinstance(value, list) else [value]:
            key = hashable(item)
            if item is not None and key not in self.items and len(self.items) < self.most:
                self.items[key] = boxed(item, self.kind)

    def result(self) -> list[Any]:
        return list(self.items.values())


aggregate("make_set makeset", "any long? -> dynamic", "set", constants=1)(MakeSet)
aggregate("make_set_if", "any bool long? -> dynamic", "set", constants=1)(MakeSet)


class MakeBag:
    def __init__(self, kinds: tuple[Kind, ...], most: Any = None) -> None:
        self.bag: dict[str, Any] = {}
        self.most = MAX_LIST if most is None else most

    def add(self, value: Any, test: bool | None = True) -> None:
        if test and isinstance(value, dict):
            for key, item in value.items():
                if key not in self.bag and len(self.bag) < self.most:
                    self.bag[key] = item

    def result(self) -> dict[str, Any]:
        return self.bag


aggregate("make_bag make_dictionary", "bag long? -> dynamic", "bag", constants=1)(MakeBag)
aggregate("make_bag_if", "bag bool long? -> dynamic", "bag", constants=1)(MakeBag)


class TakeAny:
    """The first value that is neither null nor empty, if there is one."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.value: Any = "" if kinds[0] is Kind.STRING else None

    def result(self) -> Any:
        return self.value

    def add(self, value: Any, test: bool | None = True) -> None:
        if test and (self.value is None or self.value == "") and value is not None:
            self.value = value


aggregate("take_anyif", "any bool -> same", "")(TakeAny)
aggregate("anyif", "any bool -> same", "any")(TakeAny)


class Percentiles:
    """Nearest rank of the values in order, by weight where there is one."""

    def __init__(self, kinds: tuple[Kind, ...], *percents: Any) -> None:
        self.percents = [p for percent in percents for p in (percent if isinstance(percent, list) else [percent])]
        self.values: list[tuple[Any, int]] = []

    def add(self, value: Any, weight: Any = 1) -> None:
        if value is not None and weight is not None and weight > 0:
            self.values.append((value, int(weight)))
            if len(self.values) > 50_000_000:
                raise too_much("percentile() over more than 50 million values", "summarize by a bin first")

    def result(self) -> list[Any]:
        ordered = sorted(self.values, key=lambda pair: pair[0])
        total = sum(weight for _, weight in ordered)
        return [_ranked(ordered, total, float(p)) for p in self.percents]


def _ranked(ordered: list[tuple[Any, int]], total: int, percent: float) -> Any:
    if not ordered:
        return None
    rank = max(1, math.ceil(percent / 100 * total - 1e-9))
    seen = 0
    for value, weight in ordered:
        seen += weight
        if seen >= rank:
            return value
    return ordered[-1][0]


class Bits:
    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.value: int | None = None

    def add(self, value: Any) -> None:
        if value is not None:
            self.value = value if self.value is None else self.joined(self.value, value)

    def joined(self, a: int, b: int) -> int:
        raise NotImplementedError

    def result(self) -> int | None:
        return self.value


class AllAnd(Bits):
    def joined(self, a: int, b: int) -> int:
        return a & b


class AllOr(Bits):
    def joined(self, a: int, b: int) -> int:
        return a | b


class AllXor(Bits):
    def joined(self, a: int, b: int) -> int:
        return a ^ b


aggregate("binary_all_and", "long -> long", "")(AllAnd)
aggregate("binary_all_or", "long -> long", "")(AllOr)
aggregate("binary_all_xor", "long -> long", "")(AllXor)
