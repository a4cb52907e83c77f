"""From a path to TOML text, and from text to a tree: every way this can fail is one sentence with its place.

Knows files, encodings and TOML syntax; must not know what the keys mean.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from fairlead.base import trust
from fairlead.errors import Problem, SpecError

MAX_BYTES = 1 << 20
"""A cluster file of thousands of pools is still far smaller; something larger is not a file somebody wrote."""

_SECRET = r"(?:password|passwd|passphrase|secret|token|sas|key|apikey|credentials?|connectionstring)"  # noqa: S105
SECRET_NAME = re.compile(rf"(?:.*[_-])?{_SECRET}(?:[_-].*)?\Z", re.IGNORECASE)
"""Names of keys whose values never belong into a file: `password`, `sas_token`, `account-key`, ..."""

_SECRET_VALUE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY|[?&]sig=[A-Za-z0-9%+/=]{16,}|AccountKey=")
_SHORTEST = 13
"""Characters of the shortest form that a maker gives a secret: `hf_` and ten more."""
_SECRET_IN_LINE = re.compile(
    rf"((?:^|[\s{{,.\"'])(?:[\w-]*[_-])?{_SECRET}(?:[_-][\w-]*)?[\"']?\s*=\s*).+", re.IGNORECASE
)
MAX_PARTS = 64
"""Parts of one dotted key."""
_PART = r"""(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{1,4000}|"[^"\n]{0,4000}"|'[^'\n]{0,4000}')[ \t]{0,80}\.[ \t]{0,80}"""
_LONG_KEY = re.compile(rf"(?:{_PART}){{{MAX_PARTS}}}")
MAX_SOURCE = 200
"""Characters of a line that are shown: around the problem, where it is longer."""
_POSITION = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\Z")


def read_text(path: Path, *, what: str = "file", hint: str = "", named: bool = True) -> str:
    """The text of a file; one that nobody named must be ours (base/trust.py), and no other may all be free to write.

    Raises SpecError: `spec/missing-file`, `-/unreadable`, `-/not-ours`, `-/too-large`, `-/not-text`.
    """
    try:
        raw = _read_named(path) if named else trust.read_file(path, MAX_BYTES, ours=True)
    except trust.NotOurs as error:
        what_to_do = f"if it is as it should be, name it: -f {path}" if not named else f"chmod o-w {path}"
        raise whole_file("spec/not-ours", f"{path} is not read: {error.strerror}", path, what_to_do) from None
    except trust.TooLarge:
        raise whole_file("spec/too-large", f"{path} is larger than {MAX_BYTES >> 20} MiB", path, hint) from None
    except FileNotFoundError:
        raise whole_file("spec/missing-file", f"there is no {what} {path}", path, hint) from None
    except IsADirectoryError:
        raise whole_file("spec/unreadable", f"{path} is a directory, not a {what}", path, "name a file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise whole_file("spec/unreadable", f"cannot read {path}: {reason}", path, f"ls -l {path}") from None
    return decode_bytes(raw, file=str(path))


def _read_named(path: Path) -> bytes:
    """What somebody named, which may be a pipe (`-f <(generate)`)."""
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
        mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        raise trust.NotOurs(str(path), "everybody may write to it")
    if len(raw) > MAX_BYTES:
        raise trust.TooLarge(str(path), MAX_BYTES)
    return raw


def decode_bytes(raw: bytes, *, file: str) -> str:
    """UTF-8 bytes as text, without a byte order mark. Raises SpecError (`spec/not-text`) with the line."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        raise SpecError(
            [Problem("spec/not-text", message, file, line)], hint="save the file as UTF-8 text in TOML"
        ) from None


def parse(text: str, *, file: str) -> dict[str, Any]:
    """The tree tomllib builds. Raises SpecError (`spec/syntax`) with line and caret."""
    try:
        if long := _LONG_KEY.search(text):  # tomllib and locate.py take memory by the square of its parts
            raise SpecError([_at(text, long.start(), f"a key has more than {MAX_PARTS} parts", file)])
        return tomllib.loads(text)
    except RecursionError:
        problem = Problem("spec/syntax", "tables or lists are nested too deeply", file)
    except ValueError as error:  # TOMLDecodeError, and numbers beyond what Python reads
        problem = _syntax(str(error), text, file)
    raise SpecError([problem])


def whole_file(code: str, message: str, file: Path | str, hint: str = "") -> SpecError:
    """A problem that no line can be named for."""
    return SpecError([Problem(code, message, str(file))], hint=hint)


def printable(line: str) -> str:
    """A line of a file as it may be shown: no control characters, no secret, columns kept."""
    shown = "".join(c if c.isprintable() else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
    if holds_secret(shown):
        return ""
    return _SECRET_IN_LINE.sub(r"\1***", shown)


def holds_secret(value: str) -> bool:
    """Whether a text is, or holds, a private key, a signed URL or what has the form of somebody's access token."""
    if _SECRET_VALUE.search(value):
        return True
    if len(value) < _SHORTEST and "://" not in value:
        return False  # as nearly all are: the forms are many, and reading them in takes its time
    from fairlead.base import confidential

    return confidential.holds_secret(value)


def excerpt(line: str, column: int) -> tuple[str, int]:
    """(what is shown of a line, the column in that): all of it, or what stands around the column."""
    if len(line) <= MAX_SOURCE:
        return line, column
    start = max(0, min(column - 1 - MAX_SOURCE // 2, len(line) - MAX_SOURCE))
    return line[start : start + MAX_SOURCE], column - start


def _at(text: str, offset: int, message: str, file: str) -> Problem:
    line, start = text.count("\n", 0, offset) + 1, text.rfind("\n", 0, offset) + 1
    source, column = excerpt(printable(text[start:].split("\n", 1)[0]), offset - start + 1)
    return Problem("spec/syntax", message, file, line, column, 1, source)


def _syntax(message: str, text: str, file: str) -> Problem:
    lines = text.split("\n")
    found = _POSITION.search(message)
    if found and found[1]:
        line, column = int(found[1]), int(found[2])
    else:
        line, column = (len(lines), len(lines[-1]) + 1) if found else (0, 0)
    why = _POSITION.sub("", message) if found else "a number is too large"
    why = "".join(c if c.isprintable() else " " for c in why)
    source, column = excerpt(printable(lines[line - 1].rstrip("\r")), column) if line else ("", column)
    return Problem("spec/syntax", f"not TOML: {why[:1].lower()}{why[1:200]}", file, line, column, 1, source)
