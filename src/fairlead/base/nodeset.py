"""Sets of node names, folded and unfolded the way Slurm and ClusterShell users write them.

    >>> s = NodeSet("h200-[000-002,7],login")
    >>> len(s), str(s)
    (5, 'h200-[000-002,7],login')
    >>> str(s - NodeSet("h200-001"))
    'h200-[000,002,7],login'
    >>> [str(n) for n in NodeSet("r[1-2]n[1-2]")]
    ['r1n1', 'r1n2', 'r2n1', 'r2n2']

Zero padding is part of a name: `n1` and `n01` are two nodes. Brackets may stand in more than one place of a name;
folding uses one of them, so that the text is always one a scheduler takes.

Every name of a set is a host name or an address, wherever the set came from: a set is printed into command lines and
file names, where `n2 /x.sbatch`, `-oProxyCommand=x` or `../n2` would be something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fairlead.errors import UsageError

MAX_NODES = 250_000
"""A typing slip such as `n[0-999999999]` is refused here, before it fills memory."""

MAX_BRACKETS = 5
"""In one name: as many dimensions as Slurm's names of nodes may have (HIGHEST_DIMENSIONS in slurm.h)."""

_MOST_DIGITS = 18
"""Of a number at the end of a range; longer ones are names, not numbers."""

MAX_NAME = 253
"""Characters of a name: what DNS allows (RFC 1035, section 2.3.4), and a file system for `NODE.json`."""

# RFC 1123, section 2.1, and `_`, which Slurm allows; `:` for IPv6 addresses and `@` for ssh's user@host
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@-]*[A-Za-z0-9_])?")
_NUMBER = re.compile(r"([0-9]+)")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]+)([^0-9]*)\Z", re.DOTALL)


class NodeSet:
    """An immutable set of node names, kept in natural order."""

    __slots__ = ("_known", "_names")

    def __init__(self, text: str | Iterable[str] = ()) -> None:
        """Parse folded text, or take names. Raises UsageError (`nodes/syntax`, `nodes/name`, `nodes/too-many`)."""
        self._known = frozenset(expand(text) if isinstance(text, str) else text)
        if not isinstance(text, str):  # names that a text stands for are good
            for name in self._known:
                if not is_name(name):
                    raise _bad_name(name)
        self._names: tuple[str, ...] = tuple(sorted(self._known, key=_natural))

    @classmethod
    def _of_sorted(cls, names: tuple[str, ...]) -> NodeSet:
        """A set of names that come from other sets: good, and in order."""
        made = cls.__new__(cls)
        made._known, made._names = frozenset(names), names  # noqa: SLF001 - a constructor
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __getitem__(self, index: int) -> str:
        return self._names[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeSet) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    def __or__(self, other: NodeSet) -> NodeSet:
        return self._of_sorted(tuple(sorted(self._known | other._known, key=_natural)))

    def __and__(self, other: NodeSet) -> NodeSet:
        return self._of_sorted(tuple(n for n in self._names if n in other._known))

    def __sub__(self, other: NodeSet) -> NodeSet:
        return self._of_sorted(tuple(n for n in self._names if n not in other._known))

    def __le__(self, other: NodeSet) -> bool:
        return self._known <= other._known

    def __str__(self) -> str:
        return fold(self._names)

    def __repr__(self) -> str:
        return f"NodeSet({str(self)!r})"


def is_name(name: str) -> bool:
    """Whether a word can name a node: a host name or an address, nothing that could be an option, a path or two words.

    >>> [is_name(n) for n in ("h200-001", "10.0.0.1", "n2 /x.sbatch", "-n2", "..", "")]
    [True, True, False, False, False, False]
    """
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def expand(text: str) -> list[str]:
    """The names a folded text stands for, in the order written.

    >>> expand("a[1-3],b")
    ['a1', 'a2', 'a3', 'b']
    """
    names: list[str] = []
    for part in _split(text):
        names.extend(_expand_one(part, text, MAX_NODES - len(names)))
    return names


def fold(names: Iterable[str]) -> str:
    """The short common writing of a set of names: those that differ in their last number become one item.

    >>> fold(["n3", "n1", "n2", "x"])
    'n[1-3],x'
    """
    groups: dict[tuple[str, str | None], list[str]] = {}
    for name in sorted(set(names), key=_natural):
        match = _LAST_NUMBER.match(name)
        groups.setdefault((match[1], match[3]) if match else (name, None), []).append(match[2] if match else "")
    out = []
    for (prefix, suffix), digits in groups.items():
        body = f"[{','.join(_ranges(digits))}]" if len(digits) > 1 else digits[0]
        out.append(f"{prefix}{body}{suffix or ''}")
    return ",".join(out)


def _ranges(digits: list[str]) -> Iterator[str]:
    """Runs of consecutive numbers of one width: 000, 001, 002, 7 -> `000-002`, `7`."""
    start = last = digits[0]
    for text in [*digits[1:], ""]:
        if 0 < len(text) <= _MOST_DIGITS and int(text) == int(last) + 1 and _same_padding(last, text):
            last = text
            continue
        yield start if start == last else f"{start}-{last}"
        start = last = text


def _same_padding(low: str, high: str) -> bool:
    """Whether `low-high` unfolds back to both names: equal width, or no leading zero on either."""
    return len(low) == len(high) or not (low.startswith("0") or high.startswith("0"))


def _split(text: str) -> list[str]:
    """Cut at commas and spaces outside brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        if depth not in (0, 1):
            raise _syntax(text, "brackets do not match")
        if depth == 0 and (char == "," or char.isspace()):
            parts.append(current)
            current = ""
        else:
            current += char
    if depth:
        raise _syntax(text, "a bracket is not closed")
    return [p for p in (*parts, current) if p]


def _expand_one(part: str, text: str, most: int) -> list[str]:
    if part.count("[") > MAX_BRACKETS:
        raise _syntax(text, f"a name has more than {MAX_BRACKETS} brackets")
    names = [""]
    for literal, body in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
        choices = [literal] if literal else _numbers(body, text)
        if len(names) * len(choices) > most:
            raise _too_many(text)
        names = [n + c for n in names for c in choices]
    # brackets add digits alone, so all names are good where those at the ends are
    for name in (names[0], names[-1]):
        if not is_name(name):
            raise _syntax(text, f"`{_quoted(name)}` is not a node name")
    return names


def _numbers(body: str, text: str) -> list[str]:
    out: list[str] = []
    for piece in body.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", piece.strip())
        if not match:
            raise _syntax(text, f"`[{body}]` is not a list of numbers and ranges")
        low, high = match[1], match[2]
        if high is None:
            out.append(low)
            continue
        if max(len(low), len(high)) > _MOST_DIGITS:
            raise _too_many(text)
        if int(high) < int(low):
            raise _syntax(text, f"the range {low}-{high} runs backwards")
        if len(out) + int(high) - int(low) >= MAX_NODES:
            raise _too_many(text)
        width = len(low) if low.startswith("0") else 0
        out.extend(str(i).zfill(width) for i in range(int(low), int(high) + 1))
    return out


def _too_many(text: str) -> UsageError:
    return UsageError("nodes/too-many", f"node set `{_quoted(text)}` names more than {MAX_NODES} nodes")


def _syntax(text: str, why: str) -> UsageError:
    hint = "write names like h200-[000-127],login1"
    return UsageError("nodes/syntax", f"node set `{_quoted(text)}`: {_quoted(why)}", hint=hint)


def _bad_name(name: str) -> UsageError:
    hint = "a name is letters, digits, `.`, `-` and `_`, and begins with a letter or a digit"
    return UsageError("nodes/name", f"{_quoted(ascii(name))} is not a node name", hint=hint)


def _quoted(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."


def _natural(name: str) -> tuple[list[str | int], str]:
    """Sort key: numbers by value, whatever their length; the rest as text; equal values by padding."""
    parts = _NUMBER.split(name)  # text and numbers in turns, text first
    key: list[str | int] = parts[:1]
    for i in range(1, len(parts), 2):
        digits = parts[i].lstrip("0")
        key += (len(digits), digits, parts[i + 1])
    return key, name
