"""Collects what is wrong with one file, and tells all of it at once, in the order of the file.

A rule names the key path it objects to; this file knows the line, draws the caret, and drops what only follows from an
earlier problem: once `pool[0].nodes` is refused, nothing is said about its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from fairlead.errors import Problem, SpecError
from fairlead.spec.locate import KeyPath, Place, Span
from fairlead.spec.text import excerpt, printable

MAX_PROBLEMS = 1000
"""Told of one file; who has more has another kind of file."""


class _Said(NamedTuple):
    path: KeyPath
    code: str
    message: str
    hint: str
    on: Literal["key", "value"]
    is_warning: bool
    file: str


class Problems:
    """Call it to refuse a path: `report(("pool", 0, "count"), "spec/count", "...", needs=[("pool", 0, "nodes")])`."""

    def __init__(self, file: str, text: str, places: Mapping[KeyPath, Place]) -> None:
        self.file, self.places = file, places
        self._lines = text.replace("\r\n", "\n").split("\n")
        self._printable: dict[int, str] = {}
        self._said: list[_Said] = []
        self._refused: set[KeyPath] = set()
        self._around: set[KeyPath] = set()
        """Every path that holds a refused one."""
        self.elsewhere: dict[KeyPath, str] = {}
        """Paths whose value did not come from the file, and the name of the flag or variable it came from."""

    def __call__(
        self,
        path: KeyPath,
        code: str,
        message: str,
        *,
        hint: str = "",
        needs: Sequence[KeyPath] = (),
        on: Literal["key", "value"] = "value",
    ) -> None:
        """Refuse what stands at `path`. Unsaid where `path`, or a path in `needs`, was refused before."""
        self._say(_Said(path, code, message, hint, on, False, self._file_of(path)), needs)

    def warn(
        self,
        path: KeyPath,
        code: str,
        message: str,
        *,
        hint: str = "",
        needs: Sequence[KeyPath] = (),
        on: Literal["key", "value"] = "value",
    ) -> None:
        """Say something about `path` that does not stop anybody."""
        self._say(_Said(path, code, message, hint, on, True, self._file_of(path)), needs)

    def refuse(self, path: KeyPath) -> None:
        """Mark a path as wrong without a word: its problem is told elsewhere."""
        self._refused.add(path)
        self._around.update(path[:end] for end in range(len(path)))

    @property
    def is_clean(self) -> bool:
        """Nothing was refused so far."""
        return not self._refused

    def is_refused(self, path: KeyPath) -> bool:
        """Whether the path, something around it or something inside it was refused."""
        return path in self._around or any(path[:end] in self._refused for end in range(1, len(path) + 1))

    def is_refused_itself(self, path: KeyPath) -> bool:
        """Whether just this path was refused."""
        return path in self._refused

    def warnings(self) -> tuple[Problem, ...]:
        """What was said but stops nobody."""
        return tuple(self._problems(is_warning=True))

    def raise_if_any(self) -> None:
        """Raises SpecError with every problem, in the order of the file."""
        problems = self._problems(is_warning=False)
        if problems:
            raise SpecError(problems)

    def _say(self, said: _Said, needs: Sequence[KeyPath]) -> None:
        if not any(self.is_refused(p) for p in (said.path, *needs)):
            self._said.append(said)
            if not said.is_warning:
                self.refuse(said.path)
            if len(self._said) >= MAX_PROBLEMS:
                self.raise_if_any()

    def _file_of(self, path: KeyPath) -> str:
        return self.elsewhere.get(path, self.file)

    def _problems(self, *, is_warning: bool) -> list[Problem]:
        found = [self._problem(s) for s in self._said if s.is_warning is is_warning]
        return sorted(found, key=lambda p: (p.line == 0, p.line, p.column))

    def _problem(self, said: _Said) -> Problem:
        span = self._span(said) if said.file == self.file else None
        if span is None:
            return Problem(said.code, said.message, said.file, hint=said.hint)
        source, column = excerpt(self._shown(span.line), span.column)
        column = column if source else 0
        length = min(span.length, max(1, len(source) - column + 1))
        return Problem(said.code, said.message, said.file, span.line, column, length, source, said.hint)

    def _shown(self, line: int) -> str:
        """A line as it may be shown; made once, as many problems may stand on it."""
        if line not in self._printable:
            self._printable[line] = printable(self._lines[line - 1])
        return self._printable[line]

    def _span(self, said: _Said) -> Span | None:
        """The place of a path, or of the nearest thing around it that stands in the file."""
        for end in range(len(said.path), 0, -1):
            place = self.places.get(said.path[:end])
            if place:
                whole = end == len(said.path)
                return place.value if whole and said.on == "value" else place.key
        return None
