"""`az`, `helm` and `kubectl` calls in shell scripts: words and options with their line. A reader, not a shell.

Variables that the script itself gives a plain value are filled in; anything else stays as it is written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from msgspec import Struct

from fairlead.plan.lint.read import Place

PROGRAMS = ("az", "helm", "kubectl")
_ENDS = set(";&|()")
_ASSIGN = re.compile(r"^(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(\"[^\"$`]*\"|'[^']*'|[^\s\"'$`;&|]+)$")
_DEFAULT = re.compile(r"^:\s+\"?\$\{([A-Za-z_]\w*):=([^}\"$`]+)\}\"?$")
_USE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


class Command(Struct, frozen=True, kw_only=True):
    """One call."""

    place: Place
    program: str
    words: tuple[str, ...]
    """What is no option: `aks nodepool add`."""
    options: Mapping[str, tuple[str, ...]]
    """`--node-vm-size` -> its values; a flag has none. Short forms are kept as they are written."""

    def get(self, *names: str) -> str | None:
        """The first value of an option under any of its names; empty for a flag, None where it is not given."""
        for name in names:
            if name in self.options:
                return next(iter(self.options[name]), "")
        return None

    @property
    def is_whole(self) -> bool:
        """Whether all its options stand there: `"$@"` and arrays may bring any more."""
        every = [*self.words, *(v for values in self.options.values() for v in values)]
        return not any("$@" in word or "[@]" in word or "[*]" in word or "$*" in word for word in every)

    def starts(self, *words: str) -> bool:
        """Whether its words begin like this."""
        return self.words[: len(words)] == words


def commands(text: str, *, file: str) -> Iterator[Command]:
    """Every call of a program of interest."""
    known: dict[str, str] = {}
    for line, whole in _lines(text):
        stripped = whole.strip()
        found = _ASSIGN.match(stripped) or _DEFAULT.match(stripped)
        if found:
            known[found[1]] = found[2].strip("\"'")
        for words in _calls(whole):
            filled = [_USE.sub(lambda m: known.get(m[1], m[0]), word) for word in words]
            yield _command(filled, Place(file, line, 1))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) with continued lines joined; a line that is a comment within them is left out."""
    first, parts = 0, list[str]()
    for number, raw in enumerate(text.splitlines(), 1):
        if parts and raw.lstrip().startswith("#"):
            continue
        first = first or number
        if raw.endswith("\\"):
            parts.append(raw[:-1])
            continue
        yield first, " ".join([*parts, raw])
        first, parts = 0, []
    if parts:
        yield first, " ".join(parts)


def _calls(line: str) -> Iterator[list[str]]:
    try:
        lexer = shlex.shlex(line.replace("$(", " ( "), posix=True, punctuation_chars=";&|()")
        lexer.commenters = "#"
        lexer.wordchars += "$={}[],:@%+^!?"
        tokens = list(lexer)
    except ValueError:  # a quote that ends on another line
        return
    call: list[str] = []
    for token in [*tokens, ";"]:
        if set(token) <= _ENDS:
            if call and call[0] in PROGRAMS:
                yield call
            call = []
        elif call or token in PROGRAMS:
            call.append(token)


def _command(words: list[str], place: Place) -> Command:
    plain: list[str] = []
    options: dict[str, list[str]] = {}
    last = ""
    for word in words[1:]:
        if re.match(r"^--?[A-Za-z]", word):
            name, eq, value = word.partition("=")
            last = name
            options.setdefault(name, []).extend([value] if eq else [])
        elif last:
            options[last].append(word)
        else:
            plain.append(word)
    return Command(
        place=place,
        program=words[0],
        words=tuple(plain),
        options={name: tuple(values) for name, values in options.items()},
    )
