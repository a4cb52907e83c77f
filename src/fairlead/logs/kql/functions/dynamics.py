"""Values inside of values: arrays, bags, JSON, sets."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

from fairlead.logs.kql.kinds import MAX_DIGITS, MAX_LONG, MIN_LONG, Kind, boxed, kind_of
from fairlead.logs.kql.problems import too_much
from fairlead.logs.kql.registry import family
from fairlead.logs.kql.texts import json_text, scalar_text
from fairlead.logs.kql.typed import hashable

fn = family("dynamic")

MAX_ITEMS = 1_048_576
"""Of an array that a function makes, as Kusto has it."""


def _number(text: str) -> Any:
    value = int(text) if len(text) <= MAX_DIGITS else None
    return float(text) if value is None or not MIN_LONG <= value <= MAX_LONG else value


def parsed(text: str) -> Any:
    """What a JSON text says; a text that is no JSON is itself."""
    if not text:
        return None
    try:
        return json.loads(text, parse_int=_number)
    except (ValueError, RecursionError):
        return text


@fn("parse_json parsejson todynamic toobject", "any -> dynamic", kinds=True)
def parse_json(kinds: tuple[Kind, ...], value: Any) -> Any:
    if kinds[0] is Kind.STRING or (kinds[0] is Kind.DYNAMIC and isinstance(value, str)):
        return parsed(value)
    return boxed(value, kinds[0])


@fn("dynamic_to_json", "any -> string", strict=False, kinds=True)
def dynamic_to_json(kinds: tuple[Kind, ...], value: Any) -> str:
    """Keys in order, so that equal bags are equal texts."""
    return json_text(_ordered(boxed(value, kinds[0])))


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


@fn("array_length arraylength", "array -> long")
def array_length(items: Any) -> int | None:
    return len(items) if isinstance(items, list) else None


@fn("array_concat", "array+ -> dynamic", strict=False)
def array_concat(*arrays: Any) -> Any:
    known = [a for a in arrays if isinstance(a, list)]
    return list(itertools.chain.from_iterable(known)) if known else None


@fn("array_slice", "array long long -> dynamic")
def array_slice(items: Any, start: int, end: int) -> Any:
    """Both ends inclusive; negative ones count from the end."""
    if not isinstance(items, list):
        return None
    num = len(items)
    begin = max(start + num, 0) if start < 0 else start
    last = end + num if end < 0 else end
    return items[begin : last + 1] if last >= begin else []


@fn("array_split", "array any -> dynamic")
def array_split(items: Any, places: Any) -> Any:
    if not isinstance(items, list):
        return None
    cuts = sorted(p + len(items) if p < 0 else p for p in (places if isinstance(places, list) else [places]))
    edges = [0, *(min(max(c, 0), len(items)) for c in cuts), len(items)]
    return [items[a:b] for a, b in itertools.pairwise(edges)]


def _shifted(items: Any, num: int, fill: Any) -> Any:
    if not isinstance(items, list):
        return None
    size = len(items)
    return [items[i + num] if 0 <= i + num < size else fill for i in range(size)]


@fn("array_shift_left", "array long any? -> dynamic", kinds=True, strict=False)
def shift_left(kinds: tuple[Kind, ...], items: Any, num: int, fill: Any = None) -> Any:
    return _shifted(items, num, boxed(fill, kinds[2]) if len(kinds) > 2 else None)


@fn("array_shift_right", "array long any? -> dynamic", kinds=True, strict=False)
def shift_right(kinds: tuple[Kind, ...], items: Any, num: int, fill: Any = None) -> Any:
    return _shifted(items, -num, boxed(fill, kinds[2]) if len(kinds) > 2 else None)


@fn("array_rotate_left", "array long -> dynamic")
def rotate_left(items: Any, num: int) -> Any:
    if not isinstance(items, list) or not items:
        return items if isinstance(items, list) else None
    cut = num % len(items)
    return items[cut:] + items[:cut]


@fn("array_rotate_right", "array long -> dynamic")
def rotate_right(items: Any, num: int) -> Any:
    return rotate_left(items, -num)


@fn("array_reverse", "array -> dynamic")
def array_reverse(items: Any) -> Any:
    return items[::-1] if isinstance(items, list) else None


@fn("array_index_of", "array any long? long? long? -> long", kinds=True)
def array_index_of(
    kinds: tuple[Kind, ...], items: Any, value: Any, start: int = 0, length: int = -1, occurrence: int = 1
) -> int | None:
    if not isinstance(items, list) or occurrence < 1:
        return None
    begin = max(len(items) + start, 0) if start < 0 else start
    end = len(items) if length == -1 else min(len(items), begin + length)
    wanted = hashable(boxed(value, kinds[1]))
    places = (at for at in range(begin, end) if hashable(items[at]) == wanted)
    return next(itertools.islice(places, occurrence - 1, None), -1)


@fn("array_sum", "array -> real")
def array_sum(items: Any) -> float | None:
    if not isinstance(items, list) or not items:
        return None
    numbers = [item for item in items if isinstance(item, int | float) and not isinstance(item, bool)]
    return float(sum(numbers))


@fn("array_iff array_iif", "array any any -> dynamic", kinds=True)
def array_iff(kinds: tuple[Kind, ...], tests: Any, yes: Any, no: Any) -> Any:
    if not isinstance(tests, list):
        return None

    def at(values: Any, kind: Kind, place: int) -> Any:
        if isinstance(values, list):
            return values[place] if place < len(values) else None
        return boxed(values, kind)

    return [
        None if test is None else at(yes, kinds[1], i) if test else at(no, kinds[2], i) for i, test in enumerate(tests)
    ]


_RANKS = {Kind.BOOL: 1, Kind.LONG: 0, Kind.REAL: 0, Kind.DATETIME: 2, Kind.TIMESPAN: 3, Kind.STRING: 4}


def sort_key(value: Any) -> tuple[Any, ...]:
    """Orders what a dynamic array may hold: numbers, then the other kinds by themselves."""
    kind = kind_of(value)
    rank = _RANKS.get(kind, 5) if kind else 6
    return (rank, value if rank < 5 else json_text(value))


def _sorted(args: tuple[Any, ...], reverse: bool) -> Any:
    nulls_last = True
    arrays = list(args)
    if arrays and isinstance(arrays[-1], bool):
        nulls_last = arrays.pop()
    first = arrays[0] if arrays else None
    if not isinstance(first, list):
        return None
    known = sorted((i for i, v in enumerate(first) if v is not None), key=lambda i: sort_key(first[i]), reverse=reverse)
    if reverse:  # equal ones keep their order
        known = sorted((i for i, v in enumerate(first) if v is not None), key=lambda i: sort_key(first[i]))
        grouped = [list(group) for _, group in itertools.groupby(known, key=lambda i: sort_key(first[i]))]
        known = [i for group in reversed(grouped) for i in group]
    nulls = [i for i, v in enumerate(first) if v is None]
    order = known + nulls if nulls_last else nulls + known
    return [
        [array[i] for i in order] if isinstance(array, list) and len(array) == len(first) else None for array in arrays
    ]


@fn("array_sort_asc", "any+ -> dynamic", strict=False)
def sort_asc(*args: Any) -> Any:
    """Several arrays are ordered by the first, and come as an array of them."""
    made = _sorted(args, reverse=False)
    return made if made and len(made) > 1 else made[0] if made else None


@fn("array_sort_desc", "any+ -> dynamic", strict=False)
def sort_desc(*args: Any) -> Any:
    made = _sorted(args, reverse=True)
    return made if made and len(made) > 1 else made[0] if made else None


def sorted_arrays(name: str, args: tuple[Any, ...]) -> Any:
    """All arrays of `array_sort_...`, each a column of its own."""
    return _sorted(args, reverse=name.endswith("desc"))


@fn("bag_keys", "bag -> dynamic")
def bag_keys(bag: Any) -> Any:
    return list(bag) if isinstance(bag, dict) else None


@fn("bag_has_key", "bag string -> bool")
def bag_has_key(bag: Any, key: str) -> bool | None:
    if not isinstance(bag, dict):
        return None
    if key.startswith("$"):
        return at_path(bag, key) is not None
    return key in bag


@fn("bag_merge", "bag bag+ -> dynamic", strict=False)
def bag_merge(*bags: Any) -> Any:
    """Of equal keys the leftmost counts."""
    made: dict[str, Any] = {}
    for bag in bags:
        if isinstance(bag, dict):
            for key, value in bag.items():
                made.setdefault(key, value)
    return made if any(isinstance(bag, dict) for bag in bags) else None


@fn("bag_remove_keys", "bag array -> dynamic")
def bag_remove_keys(bag: Any, keys: Any) -> Any:
    if not isinstance(bag, dict):
        return None
    made = json.loads(json.dumps(bag, default=str)) if any("." in str(k) for k in keys) else dict(bag)
    for key in keys:
        path = _steps(key) if str(key).startswith("$") else [key]
        inner = made
        for step in path[:-1]:
            inner = inner.get(step) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(path[-1], None)
    return made


@fn("bag_set_key", "bag string any -> dynamic", kinds=True, strict=False)
def bag_set_key(kinds: tuple[Kind, ...], bag: Any, key: str, value: Any) -> Any:
    if not isinstance(bag, dict):
        return None
    path = _steps(key) if key.startswith("$") else [key]
    made = dict(bag)
    inner = made
    for step in path[:-1]:
        below = inner.get(step)
        inner[step] = dict(below) if isinstance(below, dict) else {}
        inner = inner[step]
    inner[path[-1]] = boxed(value, kinds[2])
    return made


@fn("bag_zip", "array array -> dynamic")
def bag_zip(keys: Any, values: Any) -> Any:
    if not isinstance(keys, list) or not isinstance(values, list):
        return None
    return {key: values[i] if i < len(values) else None for i, key in enumerate(keys) if isinstance(key, str)}


@fn("bag_pack pack pack_dictionary", "any* -> dynamic", strict=False, kinds=True)
def bag_pack(kinds: tuple[Kind, ...], *args: Any) -> dict[str, Any]:
    return {scalar_text(args[i]): boxed(args[i + 1], kinds[i + 1]) for i in range(0, len(args) - 1, 2)}


@fn("pack_array", "any* -> dynamic", strict=False, kinds=True)
def pack_array(kinds: tuple[Kind, ...], *args: Any) -> list[Any]:
    return [boxed(arg, kind) for arg, kind in zip(args, kinds, strict=True)]


@fn("zip", "array array+ -> dynamic", strict=False)
def zipped(*arrays: Any) -> Any:
    known = [a if isinstance(a, list) else [] for a in arrays]
    return [list(group) for group in itertools.zip_longest(*known)]


@fn("repeat", "any long -> dynamic", kinds=True, strict=False)
def repeat(kinds: tuple[Kind, ...], value: Any, num: int | None) -> Any:
    if num is None or num > MAX_ITEMS:
        return None
    return [boxed(value, kinds[0])] * max(num, 0)


@fn("range", "summable summable summable? -> dynamic", kinds=True)
def range_array(kinds: tuple[Kind, ...], start: Any, stop: Any, step: Any = None) -> Any:
    if step is None:
        step = 3600 * 10_000_000 if kinds[0] in {Kind.DATETIME, Kind.TIMESPAN} else 1
    if step == 0:
        return None
    made: list[Any] = []
    for place in range(MAX_ITEMS):
        value = start + place * step
        if value > stop if step > 0 else value < stop:
            break
        made.append(boxed(value, kinds[0]))
    return made


def _unique(items: Iterable[Any]) -> dict[Any, Any]:
    return {hashable(item): item for item in reversed(list(items))}


def _set(items: Iterable[Any]) -> list[Any]:
    seen: dict[Any, Any] = {}
    for item in items:
        seen.setdefault(hashable(item), item)
    return list(seen.values())


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


@fn("set_union", "array array+ -> dynamic", strict=False)
def set_union(*arrays: Any) -> Any:
    if any(not isinstance(a, list) for a in arrays):
        return None
    return _set(itertools.chain.from_iterable(_list(a) for a in arrays))


@fn("set_intersect", "array array+ -> dynamic", strict=False)
def set_intersect(*arrays: Any) -> Any:
    if any(not isinstance(a, list) for a in arrays):
        return None
    others = [_unique(_list(a)) for a in arrays[1:]]
    return [item for item in _set(_list(arrays[0])) if all(hashable(item) in other for other in others)]


@fn("set_difference", "array array+ -> dynamic", strict=False)
def set_difference(*arrays: Any) -> Any:
    if any(not isinstance(a, list) for a in arrays):
        return None
    others = [_unique(_list(a)) for a in arrays[1:]]
    return [item for item in _set(_list(arrays[0])) if not any(hashable(item) in other for other in others)]


@fn("set_equals", "array array -> bool")
def set_equals(a: Any, b: Any) -> bool:
    return set(_unique(_list(a))) == set(_unique(_list(b)))


@fn("set_has_element", "array any -> bool", kinds=True)
def set_has_element(kinds: tuple[Kind, ...], items: Any, value: Any) -> bool | None:
    if not isinstance(items, list):
        return None
    return hashable(boxed(value, kinds[1])) in _unique(items)


@fn("jaccard_index", "array array -> dynamic")
def jaccard_index(a: Any, b: Any) -> float | None:
    one, two = set(_unique(_list(a))), set(_unique(_list(b)))
    return len(one & two) / len(one | two) if one | two else None


_STEP = re.compile(r"\.?(?:([A-Za-z_][\w-]*)|\[(\d+)\]|\[['\"](.*?)['\"]\])")


def _steps(path: str) -> list[Any]:
    body = path.removeprefix("$")
    return [int(found[2]) if found[2] else found[1] or found[3] for found in _STEP.finditer(body)]


def at_path(value: Any, path: str) -> Any:
    """What stands at a JSON path such as `$.a[0]['b']`."""
    for step in _steps(path):
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


@fn("extract_json extractjson", "string any typeof? -> string", strict=False)
def extract_json(path: str, text: Any) -> Any:
    value = at_path(parsed(text) if isinstance(text, str) else text, path)
    return scalar_text(value)


@fn("treepath", "bag -> dynamic")
def treepath(value: Any) -> list[str]:
    found: list[str] = []

    def walk(item: Any, path: str) -> None:
        if len(found) > MAX_ITEMS:
            raise too_much("treepath() found too many paths")
        if isinstance(item, dict):
            for key, inner in item.items():
                below = f"{path}['{key}']"
                found.append(below)
                walk(inner, below)
        elif isinstance(item, list) and item:
            found.append(f"{path}[0]")
            walk(item[0], f"{path}[0]")

    walk(value, "")
    return found
