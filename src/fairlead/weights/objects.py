"""What lies at a source: objects with a name, a size and a tag; which of them are wanted, and which names may become
files.

Pure, but for the two functions that read and write a list of files. A name comes from outside: it is judged here once,
before anything is written anywhere, and nodes follow it step by step from the destination, never over a link.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from fairlead.base.trust import read_file
from fairlead.base.units import whole
from fairlead.errors import UsageError
from fairlead.records.border import shown
from fairlead.weights.onnode.place import OWN_FOLDER

MAX_NAME_BYTES, MAX_PART_BYTES, MAX_DEPTH = 1024, 255, 64
MAX_OBJECTS = 1 << 20
MAX_SIZE = 1 << 53
"""More than any store keeps as one object; the arithmetic of JSON is exact up to here."""
MAX_LIST_BYTES = 1 << 28


class Object(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object at a source."""

    path: str
    """Its name below the source, with `/` between folders."""
    size: int
    """Bytes."""
    tag: str = ""
    """What changes with its content: an ETag, a digest, or time and size of a file. Empty: nobody says."""
    digest: str = ""
    """What the source says of its bytes, as onnode/stored.py writes it. Empty: nothing, or only with the bytes."""
    modified: str = ""
    """UTC, as RFC 3339, where the source says it."""


def wanted(objects: Iterable[Object], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[Object]:
    """The objects that the patterns leave, by name; shell patterns, in which `*` also matches `/`."""
    return sorted(
        (
            o
            for o in objects
            if (not include or any(fnmatchcase(o.path, p) for p in include))
            and not any(fnmatchcase(o.path, p) for p in exclude)
        ),
        key=lambda o: o.path,
    )


def without_folders(objects: Sequence[Object]) -> list[Object]:
    """Without the markers that some stores keep for folders: names that end with `/`, and empty ones above others."""
    above = {part for o in objects for part in _parents(o.path)}
    return [o for o in objects if not o.path.endswith("/") and not (o.size == 0 and o.path in above)]


def bad_names(objects: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """(name, why it cannot become a file) for each that cannot."""
    seen: dict[str, str] = {}
    paths = {o.path for o in objects}
    for one in objects:
        why = _why_not(one.path)
        if not why and (file := next((p for p in _parents(one.path) if p in paths), None)):
            why = f"it lies below {shown(file)}, which is a file itself"
        if not why and not 0 <= one.size <= MAX_SIZE:
            why = f"its size, {one.size} bytes, cannot be"
        if why:
            yield one.path, why
            continue
        alike = unicodedata.normalize("NFC", one.path).casefold()
        if alike in seen:
            yield one.path, f"it differs from {shown(seen[alike])} in case or Unicode form alone"
        seen.setdefault(alike, one.path)


def _why_not(path: str) -> str:
    parts = path.split("/")
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        return "it is no Unicode text"
    if not path or path.startswith("/"):
        return "it is absolute" if path else "it is empty"
    if any(part in ("", ".", "..") for part in parts):
        return "it has a part that is empty, `.` or `..`"
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in path):
        return "it holds a control character"
    if length > MAX_NAME_BYTES or len(parts) > MAX_DEPTH or any(len(p.encode()) > MAX_PART_BYTES for p in parts):
        return "it is too long or too deep"
    if parts[0] == OWN_FOLDER:
        return f"{OWN_FOLDER} is our own folder there"
    return ""


def _parents(path: str) -> Iterator[str]:
    at = path.find("/")
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)


def in_order(objects: Sequence[Object], first: Sequence[str]) -> tuple[list[Object], int]:
    """The objects, those that match a pattern of `first` at the beginning, in the patterns' order; and how many."""
    rank = {o.path: next((i for i, p in enumerate(first) if fnmatchcase(o.path, p)), len(first)) for o in objects}
    out = sorted(objects, key=lambda o: (rank[o.path], o.path))
    return out, sum(rank[o.path] < len(first) for o in objects)


def read_tsv(path: Path) -> list[Object]:
    """A list of files, a line each: name, bytes and when it was changed, with tabs between. Raises UsageError."""
    hint = "a line each: NAME, tab, BYTES, tab, TIME"
    try:
        text = read_file(path, MAX_LIST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("cli/usage", f"{path} cannot be read: {error}", hint=hint) from None
    out = []
    for number, line in enumerate(text.split("\n"), 1):
        row = line.rstrip("\r").split("\t") if line.strip() else []
        if not row or row[0].startswith("#") or (number == 1 and len(row) > 1 and not row[1].isdigit()):
            continue
        size = whole(row[1]) if len(row) > 1 else None
        if size is None:
            raise UsageError(
                "cli/usage", f"{path}:{number}: `{shown(' '.join(row))}` names no file and size", hint=hint
            )
        out.append(Object(path=row[0], size=size, modified=row[2] if len(row) > 2 else ""))
    return out


def tsv(objects: Iterable[Object]) -> str:
    """The same as text: names with a tab or a line break in them are refused long before."""
    return "".join(f"{o.path}\t{o.size}\t{o.modified}\n" for o in objects)
