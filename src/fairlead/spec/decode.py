"""Any TOML file into any tree of msgspec Structs, strictly, and with every problem told at once.

    decoded = decode_file(Path("run.toml"), Scenario, checks=[no_dead_planes])
    decoded.value           # a Scenario
    decoded.places          # {("topology", "t0"): Place(...)}: what the file itself said, and where

msgspec stops at the first fault and knows no lines, so the walk over the types is done here. A field that is refused
is filled with its default, or with an empty value of its type, and the walk goes on; `checks` then see a whole value,
and Problems drops what they say about a field that was refused before.

Types understood: str, int, float, bool, Literal of strings, datetime.date, tuple[X, ...], dict[str, X], Struct, Any and
X | None, with the bounds and patterns of msgspec.Meta; and any class that is built from one text, takes "", and raises
UsageError for a text it refuses (NodeSet).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from msgspec import inspect

from fairlead.base.nodeset import MAX_NODES, NodeSet
from fairlead.base.suggest import did_you_mean
from fairlead.errors import FairleadError, Problem
from fairlead.spec.locate import KeyPath, Place, locate
from fairlead.spec.problems import Problems
from fairlead.spec.text import SECRET_NAME, holds_secret, parse, read_text, whole_file

T = TypeVar("T")
Check = Callable[[T, Problems], None]
"""Looks at a whole value and reports what does not fit together."""


@dataclass(frozen=True, kw_only=True)
class Decoded(Generic[T]):
    """A file that could be read."""

    value: T
    file: str
    text: str
    places: dict[KeyPath, Place]
    """Every path the file holds, in file order."""
    warnings: tuple[Problem, ...] = ()
    """What stops nobody."""


class Reading(Generic[T]):
    """A file half way: decoded, perhaps with problems not yet told, so that more can be found before they are."""

    def __init__(self, text: str, kind: type[T], *, file: str, hint: str = "") -> None:
        """Raises SpecError at once where the text is not TOML or is empty; `hint` says then what to type next."""
        self.text, self.file = text, file
        tree = parse(text, file=file)
        try:
            self.places = locate(text.replace("\r\n", "\n"))
        except RecursionError:
            raise whole_file("spec/syntax", "tables or lists are nested too deeply", file, hint) from None
        if not tree:
            raise whole_file("spec/empty", f"{file} is empty", file, hint)
        self.report = Problems(file, text, self.places)
        self.value: T = _Walk(self.report).value(tree, (), type_of(kind))

    def run(self, checks: Iterable[Check[T]]) -> None:
        """Let checks see the value. Where fields are missing, a check that stumbles over that has nothing to add."""
        was_clean = self.report.is_clean
        for check in checks:
            try:
                check(self.value, self.report)
            except (ArithmeticError, LookupError, ValueError, FairleadError):
                if was_clean:
                    raise

    def done(self) -> Decoded[T]:
        """The value; raises SpecError with every problem found so far."""
        self.report.raise_if_any()
        return Decoded(
            value=self.value, file=self.file, text=self.text, places=self.places, warnings=self.report.warnings()
        )


def decode_text(text: str, kind: type[T], *, file: str, checks: Iterable[Check[T]] = (), hint: str = "") -> Decoded[T]:
    """TOML text as `kind`. Raises SpecError with every problem."""
    reading = Reading(text, kind, file=file, hint=hint)
    reading.run(checks)
    return reading.done()


def decode_file(path: Path, kind: type[T], *, checks: Iterable[Check[T]] = (), what: str = "file") -> Decoded[T]:
    """A TOML file as `kind`. Raises SpecError with every problem; `what` is the file's name in sentences."""
    return decode_text(read_text(path, what=what), kind, file=str(path), checks=checks)


def decode_value(raw: Any, kind: inspect.Type, path: KeyPath, report: Problems, *, is_text: bool = False) -> Any:
    """One value by the same rules; `is_text`: from a variable, where numbers are written as text."""
    if is_text:
        raw = _from_text(raw, _plain(kind))
    return _Walk(report).value(raw, path, kind)


def type_of(kind: Any) -> inspect.Type:
    """A type as msgspec describes it."""
    return _type_info(kind)


@functools.cache
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


class _Walk:
    """Down the tree and the types together."""

    def __init__(self, report: Problems) -> None:
        self.report = report
        self.num_names = 0
        """Names in all sets of the file so far: a short text can stand for very many, and say so often."""

    def value(self, raw: Any, path: KeyPath, kind: inspect.Type) -> Any:
        says = _says(kind)
        kind = _plain(kind)
        if isinstance(kind, inspect.StructType):
            return self._struct(raw, path, kind)
        if isinstance(kind, inspect.VarTupleType | inspect.ListType):
            return self._list(raw, path, kind)
        if isinstance(kind, inspect.DictType):
            return self._dict(raw, path, kind)
        if self.num_names > MAX_NODES and isinstance(kind, inspect.CustomType):
            text = f"`{_name(path)}` is one set too many: the file names more than {MAX_NODES} nodes"
            self.report(path, "nodes/too-many", text)
            return _blank(kind)
        try:
            found = _leaf(raw, kind, says)
        except _Refusal as refusal:
            self.report(path, refusal.code, f"`{_name(path)}` {refusal.message}", hint=refusal.hint)
            return _blank(kind)
        self.num_names += len(found) if isinstance(found, NodeSet) else 0
        return found

    def _struct(self, raw: Any, path: KeyPath, kind: inspect.StructType) -> Any:
        if not isinstance(raw, dict):
            self.report(path, "spec/wrong-type", f"`{_name(path)}` must be a table, not {_said(raw)}")
            return _blank(kind)
        fields = {f.encode_name: f for f in kind.fields}
        misspelt = {self._unknown(name, path, fields) for name in raw if name not in fields}
        values: dict[str, Any] = {}
        for name, field in fields.items():
            here = (*path, name)
            if name in raw:
                given = self.value(raw[name], here, field.type)
                if not field.required and self.report.is_refused_itself(here):
                    continue
                values[field.name] = given
            elif field.required:
                if name in misspelt:
                    self.report.refuse(here)
                what = f"[{name}]" if isinstance(_plain(field.type), inspect.StructType) else f"`{name}`"
                self.report(here, "spec/missing-key", f"{what} is missing{_in(path)}", on="key")
                values[field.name] = _blank(field.type)
        return kind.cls(**values)

    def _unknown(self, name: str, path: KeyPath, fields: Mapping[str, object]) -> str:
        """Refuse a key; returns the known one it was probably meant to be, else nothing."""
        shown = name if name.isprintable() else ascii(name)
        if SECRET_NAME.match(name):
            self.report(
                (*path, name),
                "spec/secret",
                f"`{shown}`{_in(path)} looks like a secret; this file holds none",
                hint="keep it in ssh-agent, a managed identity or an environment variable",
                on="key",
            )
        else:
            hint = did_you_mean(name, fields)
            self.report((*path, name), "spec/unknown-key", f"unknown key `{shown}`{_in(path)}", hint=hint, on="key")
        return next(iter(get_close_matches(name, fields, n=1)), "")

    def _list(self, raw: Any, path: KeyPath, kind: inspect.VarTupleType | inspect.ListType) -> Any:
        holds_tables = isinstance(_plain(kind.item_type), inspect.StructType)
        if not isinstance(raw, list):
            name = _name(path)
            hint = f"write [[{name}]] instead of [{name}]" if holds_tables and isinstance(raw, dict) else ""
            self.report(path, "spec/wrong-type", f"`{name}` must be a list, not {_said(raw)}", hint=hint)
            return _blank(kind)
        least = kind.min_length or 0
        if len(raw) < least:
            self.report(path, "spec/out-of-range", f"`{_name(path)}` must hold at least {least}, not {len(raw)}")
        items = [self.value(item, (*path, i), kind.item_type) for i, item in enumerate(raw)]
        return tuple(items) if isinstance(kind, inspect.VarTupleType) else items

    def _dict(self, raw: Any, path: KeyPath, kind: inspect.DictType) -> Any:
        if not isinstance(raw, dict):
            self.report(path, "spec/wrong-type", f"`{_name(path)}` must be a table, not {_said(raw)}")
            return {}
        return {name: self.value(item, (*path, name), kind.value_type) for name, item in raw.items()}


class _Refusal(Exception):
    def __init__(self, code: str, message: str, hint: str = "") -> None:
        self.code, self.message, self.hint = code, message, hint


def _leaf(raw: Any, kind: inspect.Type, says: str) -> Any:
    """One plain value; raises _Refusal."""
    if isinstance(raw, str):
        _no_secret(raw)
    if isinstance(kind, inspect.LiteralType):
        if not isinstance(raw, str):
            _wrong(raw, "one of " + ", ".join(f'"{v}"' for v in kind.values))
        if raw not in kind.values:
            raise _Refusal("spec/bad-choice", f"cannot be {raw!a}", did_you_mean(raw, map(str, kind.values)))
        return raw
    if isinstance(kind, inspect.StrType):
        return _text(raw, kind, says)
    if isinstance(kind, inspect.BoolType):
        return raw if isinstance(raw, bool) else _wrong(raw, "true or false")
    if isinstance(kind, inspect.IntType):
        if isinstance(raw, bool) or not isinstance(raw, int):
            _wrong(raw, "a whole number")
        return _bounded(raw, kind)
    if isinstance(kind, inspect.FloatType):
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            _wrong(raw, "a number")
        if not math.isfinite(raw):
            raise _Refusal("spec/out-of-range", f"is {raw}; it must be a finite number")
        return float(_bounded(raw, kind))
    if isinstance(kind, inspect.DateType):
        if isinstance(raw, dt.datetime) or not isinstance(raw, dt.date):
            _wrong(raw, "a date such as 2027-01-31, without quotes")
        return raw
    if isinstance(kind, inspect.CustomType):
        if not isinstance(raw, str):
            _wrong(raw, "text")
        try:
            return kind.cls(raw)
        except FairleadError as error:
            raise _Refusal(error.code, f"is wrong: {error.message}", error.hint) from None
    assert isinstance(kind, inspect.AnyType), f"decode.py does not read {kind}"
    return tuple(raw) if isinstance(raw, list) else raw


def _text(raw: Any, kind: inspect.StrType, says: str) -> str:
    if not isinstance(raw, str):
        _wrong(raw, "text in quotes")
    assert isinstance(raw, str)
    if any(not c.isprintable() and c not in "\n\t" for c in raw):
        raise _Refusal("spec/bad-text", "holds control characters")
    if kind.pattern is not None and ("\n" in raw or not re.search(kind.pattern, raw)):
        raise _Refusal("spec/bad-text", f"cannot be {raw!r}; it must be {says or kind.pattern}")
    if (kind.min_length is not None and len(raw) < kind.min_length) or (
        kind.max_length is not None and len(raw) > kind.max_length
    ):
        raise _Refusal("spec/bad-text", "must not be empty" if not raw else f"is {len(raw)} characters long")
    return raw


def _no_secret(raw: str) -> None:
    if holds_secret(raw):
        raise _Refusal(
            "spec/secret",
            "holds a secret; this file holds none",
            "keep it in ssh-agent, a managed identity or an environment variable",
        )


def _bounded(raw: Any, kind: inspect.IntType | inspect.FloatType) -> Any:
    for limit, is_outside, words in (
        (kind.ge, operator.lt, "at least"),
        (kind.gt, operator.le, "more than"),
        (kind.le, operator.gt, "at most"),
        (kind.lt, operator.ge, "less than"),
    ):
        if limit is not None and is_outside(raw, limit):
            raise _Refusal("spec/out-of-range", f"is {_short(raw)}; it must be {words} {limit}")
    if isinstance(kind, inspect.IntType) and not -(2**63) <= raw < 2**63:
        raise _Refusal("spec/out-of-range", "is beyond 64 bits")
    return raw


def _wrong(raw: Any, wanted: str) -> NoReturn:
    raise _Refusal("spec/wrong-type", f"must be {wanted}, not {_said(raw)}")


def _short(raw: Any) -> str:
    text = str(raw) if not isinstance(raw, int) or raw.bit_length() < 256 else "a very large number"
    return text if len(text) <= 40 else text[:37] + "..."


def _said(raw: Any) -> str:
    """A value in words."""
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, int | float):
        return f"the number {_short(raw)}"
    if isinstance(raw, str):
        return f"the text {_short(ascii(raw))}"
    if isinstance(raw, list | dict):
        return "a list" if isinstance(raw, list) else "a table"
    return "a date or time"


def _plain(kind: inspect.Type) -> inspect.Type:
    """Without metadata, and without `| None`: TOML cannot say None."""
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        (only,) = (t for t in kind.types if not isinstance(t, inspect.NoneType))
        return _plain(only)
    return kind


def _says(kind: inspect.Type) -> str:
    """What Meta(description=...) says of a type, also of one that may be None: the words for its pattern."""
    if isinstance(kind, inspect.UnionType):
        return next(filter(None, map(_says, kind.types)), "")
    return str((kind.extra_json_schema or {}).get("description", "")) if isinstance(kind, inspect.Metadata) else ""


def _blank(kind: inspect.Type) -> Any:
    """A harmless value of a type, in the place of a refused one."""
    kind = _plain(kind)
    if isinstance(kind, inspect.StructType):
        return kind.cls(**{f.name: _blank(f.type) for f in kind.fields if f.required})
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.CustomType):
        return kind.cls("")
    blanks: dict[type, Any] = {
        inspect.StrType: "",
        inspect.IntType: 0,
        inspect.FloatType: 0.0,
        inspect.BoolType: False,
        inspect.DateType: dt.date.max,
        inspect.VarTupleType: (),
        inspect.ListType: [],
        inspect.DictType: {},
    }
    return blanks.get(type(kind))


def _from_text(raw: str, kind: inspect.Type) -> Any:
    """What a variable's text means where a number is due; the text itself where it means none."""
    with contextlib.suppress(ValueError):
        if isinstance(kind, inspect.IntType):
            return int(raw)
        if isinstance(kind, inspect.FloatType):
            return float(raw)
    return raw


def _name(path: KeyPath) -> str:
    """The last name of a path: `nodes`, `message_bytes[1]`."""
    names = [i for i, part in enumerate(path) if isinstance(part, str)]
    last = names[-1]
    return str(path[last]) + "".join(f"[{i}]" for i in path[last + 1 :])


def _in(path: KeyPath) -> str:
    """Which table a key is in, as its header is written."""
    if not path:
        return ""
    names = ".".join(str(p) for p in path if isinstance(p, str))
    return f" in [[{names}]]" if isinstance(path[-1], int) else f" in [{names}]"
