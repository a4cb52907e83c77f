"""Where each key and value of a TOML text stands, so that a problem can point at it.

Knows the shape of TOML, not its meaning: it runs only on text that tomllib has already taken, so it checks nothing and
decodes no value. Paths are those of the tree tomllib builds: names for tables, numbers for lists.
"""

from __future__ import annotations

import re
import tomllib
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""For example ("pool", 0, "nodes")."""


class Span(NamedTuple):
    """A piece of one line; line and column count from 1. A value of several lines is cut at the end of its first."""

    line: int
    column: int
    length: int


class Place(NamedTuple):
    """Where a key was written and where its value; a table header is both, an element of a list is its own key."""

    key: Span
    value: Span


def locate(text: str) -> dict[KeyPath, Place]:
    """The place of every path of a valid TOML text, in file order. RecursionError where it is nested too deeply.

    >>> locate('[pool]' + chr(10) + 'nodes = "n[1-2]"')["pool", "nodes"]
    Place(key=Span(line=2, column=1, length=5), value=Span(line=2, column=9, length=8))
    """
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.places


def dotted(path: KeyPath) -> str:
    """A path as people read it.

    >>> dotted(("pool", 0, "nodes"))
    'pool[0].nodes'
    """
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


_Range = tuple[int, int]
_Key = tuple[str, _Range]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\r\n]+")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{1,2})?', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{1,2})?", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.pos = text, 0
        self.places: dict[KeyPath, Place] = {}
        self.num_elements: dict[KeyPath, int] = {}
        """How often `[[path]]` was written."""
        self.line, self.line_start = 1, 0
        self.counted = 0
        """Up to where line breaks were counted."""

    def scan(self) -> None:
        table: KeyPath = ()
        while self._skip(_BLANK) < len(self.text):
            if self.text[self.pos] == "[":
                is_array = self.text.startswith("[[", self.pos)
                self.pos += 2 if is_array else 1
                table = self._header(self._keys(), is_array=is_array)
                self.pos += 2 if is_array else 1
            else:
                self._key_value(table)

    def _header(self, keys: list[_Key], *, is_array: bool) -> KeyPath:
        path: KeyPath = ()
        for name, where in keys[:-1]:
            path = (*path, name)
            self.places.setdefault(path, self._place(where, where))
            if path in self.num_elements:
                path = (*path, self.num_elements[path] - 1)
        name, where = keys[-1]
        path, place = (*path, name), self._place(where, where)
        if not is_array:
            self.places[path] = place
            return path
        self.places.setdefault(path, place)
        number = self.num_elements.get(path, 0)
        self.num_elements[path] = number + 1
        path = (*path, number)
        self.places[path] = place
        return path

    def _key_value(self, table: KeyPath) -> None:
        keys = self._keys()
        self.pos += 1  # the equals sign
        self._skip(_SPACE)
        path = table
        for name, where in keys[:-1]:
            path = (*path, name)
            self.places.setdefault(path, self._place(where, where))
        name, where = keys[-1]
        path = (*path, name)
        self.places[path] = place = self._place(where, where)
        self.places[path] = Place(place.key, self._value(path))

    def _keys(self) -> list[_Key]:
        keys: list[_Key] = []
        while True:
            start = self._skip(_SPACE)
            if self.text[start] in "\"'":
                raw = self._take_string()
                name: str = tomllib.loads(f"key = {raw}")["key"]
            else:
                self._skip(_BARE)
                name = self.text[start : self.pos]
            keys.append((name, (start, self.pos)))
            if self.text[self._skip(_SPACE)] != ".":
                return keys
            self.pos += 1

    def _value(self, path: KeyPath) -> Span:
        start, first = self.pos, self.text[self.pos]
        # the line of the start is settled before children move past it
        opening = self._span((start, start + 1))
        if first == "[":
            self._elements(path)
        elif first == "{":
            self.pos += 1
            while self.text[self._skip(_BLANK)] != "}":
                self._key_value(path)
                if self.text[self._skip(_BLANK)] == ",":
                    self.pos += 1
            self.pos += 1
        elif first in "\"'":
            self._take_string()
        else:
            self._skip(_SCALAR)
        written = self.text[start : self.pos].split("\n", 1)[0].rstrip()
        return opening._replace(length=max(1, len(written)))

    def _elements(self, path: KeyPath) -> None:
        self.pos += 1
        number = 0
        while self.text[self._skip(_BLANK)] != "]":
            element = (*path, number)
            # set before the children, to keep file order
            self.places[element] = Place(Span(0, 0, 0), Span(0, 0, 0))
            span = self._value(element)
            self.places[element] = Place(span, span)
            number += 1
            if self.text[self._skip(_BLANK)] == ",":
                self.pos += 1
        self.pos += 1

    def _take_string(self) -> str:
        for pattern in _STRINGS:
            if found := pattern.match(self.text, self.pos):
                self.pos = found.end()
                return found[0]
        raise AssertionError("locate() runs on valid TOML only")

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.pos)
        if found:
            self.pos = found.end()
        return self.pos

    def _place(self, key: _Range, value: _Range) -> Place:
        return Place(self._span(key), self._span(value))

    def _span(self, where: _Range) -> Span:
        """Offsets to line and column. Calls come in the order of the text, so each newline is counted once."""
        start, end = where
        assert start >= self.counted, "a place is asked for before the next begins"
        num = self.text.count("\n", self.counted, start)
        if num:
            self.line, self.line_start = self.line + num, self.text.rfind("\n", self.counted, start) + 1
        self.counted = start
        return Span(self.line, start - self.line_start + 1, max(1, end - start))
