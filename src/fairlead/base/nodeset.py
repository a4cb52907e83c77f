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
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from fairlead.errors import UsageError

MAX_NODES = 1_000_000
"""A typing slip such as `n[0-999999999]` is refused here, before it fills memory."""

_NAME = re.compile(r"[A-Za-z0-9._:@-]+\Z")
_LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)\Z")


class NodeSet:
    """An immutable set of node names, kept in natural order."""

    __slots__ = ("_names",)

    def __init__(self, text: str | Iterable[str] = ()) -> None:
        """Parse folded text, or take names. Raises UsageError (`nodes/syntax`, `nodes/too-many`)."""
        names = expand(text) if isinstance(text, str) else text
        self._names: tuple[str, ...] = tuple(sorted(set(names), key=_natural))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in set(self._names)

    def __getitem__(self, index: int) -> str:
        return self._names[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeSet) and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)

    def __or__(self, other: NodeSet) -> NodeSet:
        return NodeSet((*self._names, *other._names))

    def __and__(self, other: NodeSet) -> NodeSet:
        keep = set(other._names)
        return NodeSet(n for n in self._names if n in keep)

    def __sub__(self, other: NodeSet) -> NodeSet:
        drop = set(other._names)
        return NodeSet(n for n in self._names if n not in drop)

    def __le__(self, other: NodeSet) -> bool:
        return set(self._names) <= set(other._names)

    def __str__(self) -> str:
        return fold(self._names)

    def __repr__(self) -> str:
        return f"NodeSet({str(self)!r})"


def expand(text: str) -> list[str]:
    """The names a folded text stands for, in the order written.

    >>> expand("a[1-3],b")
    ['a1', 'a2', 'a3', 'b']
    """
    names: list[str] = []
    for part in _split(text):
        names.extend(_expand_one(part, text))
        if len(names) > MAX_NODES:
            raise UsageError("nodes/too-many", f"node set `{text}` names more than {MAX_NODES} nodes")
    return names


def fold(names: Iterable[str]) -> str:
    """The shortest common writing of a set of names, in natural order.

    >>> fold(["n3", "n1", "n2", "x"])
    'n[1-3],x'
    """

    def shape(name: str) -> tuple[str, str]:
        match = _LAST_NUMBER.match(name)
        return (match[1], match[3]) if match else (name, "")

    out: list[str] = []
    for (prefix, suffix), group in groupby(sorted(set(names), key=_natural), key=shape):
        members = list(group)
        digits = [m[len(prefix) : len(m) - len(suffix)] for m in members]
        if len(members) == 1:
            out.append(members[0])
        else:
            out.append(f"{prefix}[{','.join(_ranges(digits))}]{suffix}")
    return ",".join(out)


def _ranges(digits: list[str]) -> Iterator[str]:
    """Runs of consecutive numbers of one width: 000, 001, 002, 7 -> `000-002`, `7`."""
    start = last = digits[0]
    for text in [*digits[1:], ""]:
        if text and int(text) == int(last) + 1 and _same_padding(last, text):
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


def _expand_one(part: str, text: str) -> list[str]:
    names = [""]
    for literal, body in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
        choices = [literal] if literal else _numbers(body, text)
        if len(names) * len(choices) > MAX_NODES:
            raise UsageError("nodes/too-many", f"node set `{text}` names more than {MAX_NODES} nodes")
        names = [n + c for n in names for c in choices]
    for name in names[:1]:
        if not _NAME.match(name):
            raise _syntax(text, f"`{name}` is not a node name")
    return names


def _numbers(body: str, text: str) -> list[str]:
    out: list[str] = []
    for piece in body.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", piece.strip())
        if not match:
            raise _syntax(text, f"`[{body}]` is not a list of numbers and ranges")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise _syntax(text, f"the range {low}-{high} runs backwards")
        if int(high) - int(low) >= MAX_NODES:
            raise UsageError("nodes/too-many", f"node set `{text}` names more than {MAX_NODES} nodes")
        width = len(low) if low.startswith("0") else 0
        out.extend(str(i).zfill(width) for i in range(int(low), int(high) + 1))
    return out


def _syntax(text: str, why: str) -> UsageError:
    return UsageError("nodes/syntax", f"node set `{text}`: {why}", hint="write names like h200-[000-127],login1")


def _natural(name: str) -> tuple[tuple[int, str, int], ...]:
    """Sort key: digits by value, then by padding; the rest as text."""
    parts = ((1, "", int(p)) if p.isdigit() else (0, p, 0) for p in re.split(r"(\d+)", name) if p)
    return (*parts, (0, name, len(name)))
