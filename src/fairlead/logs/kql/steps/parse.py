"""Operators that take texts apart: parse, parse-where, parse-kv."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairlead.logs.kql.kinds import NAMES, Column, Kind
from fairlead.logs.kql.problems import unsupported, wrong
from fairlead.logs.kql.regexes import pattern
from fairlead.logs.kql.relation import Relation, Row
from fairlead.logs.kql.tree import Step
from fairlead.logs.kql.typed import Col, compiled, convert

Env = Mapping[str, Any]

_NUMBERS = {
    Kind.LONG: r"\s*[+-]?\d+",
    Kind.INT: r"\s*[+-]?\d+",
    Kind.REAL: r"\s*[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)",
    Kind.DECIMAL: r"\s*[+-]?(?:\d+\.?\d*|\.\d+)",
    Kind.GUID: r"[{(]?[0-9A-Fa-f-]{32,36}[)}]?",
    Kind.BOOL: r"(?i:true|false|0|1)",
}


def parse(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    return _parsed(ev, table, step, names, only=False)


def parse_where(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    return _parsed(ev, table, step, names, only=True)


def expression(parts: list[Any], kind: str, flags: str = "") -> tuple[str, list[tuple[str, Kind]]]:
    """The pattern as a regular expression, and its columns."""
    out, columns, loose = "", [], False
    some = ".*" if kind == "regex" and "U" not in flags else ".*?"
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if part is None:
            loose = True
            if last:
                out += ".*"
        elif isinstance(part, str):
            text = f"(?:{part})" if kind == "regex" else re.escape(part)
            out += (some if loose else "") + text
            loose = False
        else:
            name, kind_name = part
            column = NAMES[kind_name]
            columns.append((name, column))
            typed = _NUMBERS.get(column)
            if kind == "relaxed" and typed:
                typed += "|.*?"
            out += (some if loose else "") + f"({typed or ('.*' if last else some)})"
            loose = False
    flags = flags.replace("U", "")
    lead = f"(?{flags})" if flags else ""
    return f"{lead}(?s:^{out}" + ("$)" if not isinstance(parts[-1], str) else ")"), columns


def _parsed(ev: Any, table: Relation, step: Step, names: Env, *, only: bool) -> Relation:
    kind = step.has.get("kind", "simple")
    if kind not in {"simple", "regex", "relaxed"}:
        raise wrong("parse is simple, relaxed or regex", step.at)
    flags = step.has.get("flags", "")
    if "U" in flags and any(isinstance(part, str) and set(part) & set("*+?{") for part in step.has["parts"]):
        raise unsupported("the flag `U` is not supported beside patterns that repeat", step.at, "write `.*?` for `.*`")
    binder = ev.binder(table.columns, names)
    value = compiled(convert(binder.bind(step.has["value"]), Kind.STRING))
    text, columns = expression(step.has["parts"], kind, flags.replace("s", ""))
    found = pattern(text)
    casts = [None if k is Kind.STRING else compiled(convert(Col(Kind.STRING, 0, ""), k)) for _, k in columns]
    shown = list(table.columns)
    places: list[int] = []
    for name, column_kind in columns:
        place = next((i for i, c in enumerate(shown) if c.name == name), None)
        if place is None:
            place = len(shown)
            shown.append(Column(name, column_kind))
        else:
            shown[place] = Column(name, column_kind)
        places.append(place)
    empty = ["" if k is Kind.STRING else None for _, k in columns]
    groups = _capture_groups(step.has["parts"], kind)

    def values(text: str) -> tuple[bool, list[Any]]:
        match = found.search(text)
        if not match:
            return False, empty
        made = []
        for group, cast in zip(groups, casts, strict=True):
            raw = match[group] or ""
            made.append(raw if cast is None else cast((raw.strip(),)))
        if kind == "simple" and any(m is None for m in made):
            return False, empty
        return True, made

    width = len(shown)

    def rows() -> Iterator[Row]:
        for row in table.rows():
            good, made = values(value(row) or "")
            if only and (not good or any(m is None for m in made)):
                continue
            out = [*row, *([None] * (width - len(row)))]
            for place, item in zip(places, made, strict=True):
                out[place] = item
            yield tuple(out)

    return table.with_rows(shown, rows)


def _capture_groups(parts: list[Any], kind: str) -> list[int]:
    """Which group of the expression each column is: groups in a user's own patterns count."""
    found, num = [], 1
    for part in parts:
        if isinstance(part, tuple):
            found.append(num)
            num += 1
        elif isinstance(part, str) and kind == "regex":
            num += pattern(part).groups
    return found


def parse_kv(ev: Any, table: Relation, step: Step, names: Env) -> Relation:
    binder = ev.binder(table.columns, names)
    value = compiled(convert(binder.bind(step.has["value"]), Kind.STRING))
    columns = [(name, NAMES[kind]) for name, kind in step.has["columns"]]
    casts = [compiled(convert(Col(Kind.STRING, 0, ""), kind)) for _, kind in columns]
    split = _splitter(step.has["options"], [name for name, _ in columns], step)
    kept = [i for i, c in enumerate(table.columns) if c.name not in {n for n, _ in columns}]
    shown = [table.columns[i] for i in kept] + [Column(n, k) for n, k in columns]

    def rows() -> Iterator[Row]:
        for row in table.rows():
            found = split(value(row) or "")
            made = tuple(
                (found.get(n, "") if k is Kind.STRING else cast((found[n],)) if n in found else None)
                for (n, k), cast in zip(columns, casts, strict=True)
            )
            yield tuple(row[i] for i in kept) + made

    return table.with_rows(shown, rows)


def _splitter(options: Mapping[str, Any], keys: list[str], step: Step) -> Callable[[str], dict[str, str]]:
    if "regex" in options:
        found = pattern(str(options["regex"]))
        if found.groups < 2:
            raise wrong("the regex of parse-kv has a group for the key and one for the value", step.at)
        return lambda text: {m[1]: m[2] or "" for m in reversed(list(found.finditer(text)))}
    pair = str(options.get("pair_delimiter", ""))
    between = str(options.get("kv_delimiter", ""))
    quotes = str(options.get("quote", ""))
    escape = str(options.get("escape", ""))
    greedy = options.get("greedy") in {True, "true"}
    if not between and not pair:
        return _by_terms(keys, quotes, escape)
    if not between:
        raise wrong("parse-kv needs a kv_delimiter or a regex", step.at, 'with (pair_delimiter=",", kv_delimiter="=")')
    return lambda text: _pairs(text, pair or " ", between, quotes, escape, greedy)


def _by_terms(keys: list[str], quotes: str, escape: str) -> Callable[[str], dict[str, str]]:
    """Without delimiters: a key is a term, and its value the next term, or what stands in quotes behind it."""
    shut = re.escape(quotes[-1]) if quotes else ""
    skip = re.escape(escape) + "." if escape else "(?!)"
    value = rf"[^\w{re.escape(quotes)}]*{re.escape(quotes[0])}((?:{skip}|[^{shut}])*){shut}|" if quotes else ""
    found = {key: re.compile(rf"(?<!\w){re.escape(key)}(?:{value}\W+(\w+))") for key in keys}

    def split(text: str) -> dict[str, str]:
        made = {}
        for key, regex in found.items():
            match = regex.search(text)
            if match:
                raw = next((group for group in match.groups() if group is not None), "")
                made[key] = re.sub(re.escape(escape) + "(.)", r"\1", raw) if escape else raw
        return made

    return split


def _pairs(text: str, pair: str, between: str, quotes: str, escape: str, greedy: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        if quotes and text[at] == quotes[0] and text.find(quotes[-1] + between, at + 1) >= 0:
            cut = text.find(quotes[-1] + between, at + 1) + 1
            key = text[at + 1 : cut - 1]
        else:
            cut = text.find(between, at)
            key = text[at:cut]
        if cut < 0:
            break
        if pair in key and text[at] not in quotes[:1]:
            key = key[key.rfind(pair) + len(pair) :]
        at = cut + len(between)
        if quotes and text[at : at + 1] == quotes[0]:
            end, value = at + 1, ""
            closing = quotes[-1]
            while end < len(text) and text[end] != closing:
                if escape and text[end] == escape and end + 1 < len(text):
                    end += 1
                value += text[end]
                end += 1
            at = end + 1
        elif greedy:
            after = text.find(between, at)
            end = text.rfind(pair, at, after) if after >= 0 else len(text)
            end = len(text) if end < 0 else end
            value, at = text[at:end], end
        else:
            end = text.find(pair, at)
            end = len(text) if end < 0 else end
            value, at = text[at:end], end
        if text.startswith(pair, at):
            at += len(pair)
        found.setdefault(key.strip().strip(quotes) if quotes else key.strip(), value)
    return found
