"""RE2's patterns, which Kusto takes, as Python's. What one of them lacks is refused, never guessed.

Syntax: https://github.com/google/re2/wiki/Syntax.
"""

from __future__ import annotations

import re
from functools import lru_cache

from fairlead.logs.kql.problems import Refused

_POSIX = {
    "alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
    "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "word": r"\w", "blank": r" \t",
}  # fmt: skip
_BAD = re.compile(r"\(\?(?:<?[=!]|>|\()")


@lru_cache(maxsize=512)
def pattern(text: str) -> re.Pattern[str]:
    """A compiled pattern. Raises Refused."""
    try:
        return re.compile(_translated(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise Refused("kql/types", f"`{text}` is no regular expression: {error}", None) from None


def _translated(text: str) -> str:
    out, at, in_class, opened = "", 0, False, [0]
    while at < len(text):
        char = text[at]
        if char == "\\":
            follow = text[at + 1 : at + 2]
            if follow.isdigit() and follow != "0" and not in_class:
                raise Refused("kql/types", f"`{text}` refers back to a group, which RE2 does not", None)
            if follow in {"p", "P", "C"}:
                raise Refused("kql/unsupported", rf"`\{follow}` in regular expressions is not supported", None)
            if follow == "Q":
                end = text.find(r"\E", at)
                end = len(text) if end < 0 else end
                out += re.escape(text[at + 2 : end])
                at = end + 2
                continue
            out += r"\Z" if follow == "z" else text[at : at + 2]
            at += 2
            continue
        if in_class:
            if text.startswith("[:", at) and ":]" in text[at:]:
                end = text.index(":]", at)
                name = text[at + 2 : end]
                if name.lstrip("^") not in _POSIX or name.startswith("^"):
                    raise Refused("kql/unsupported", f"`[:{name}:]` in regular expressions is not supported", None)
                out += _POSIX[name]
                at = end + 2
                continue
            in_class = char != "]" or out.endswith(("[", "[^"))
            out += "\\[" if char == "[" else char
        elif char == "[":
            in_class = True
            out += char
        elif char == "(":
            at, more = _group(text, at, opened)
            out += more
            continue
        elif char == ")":
            out += ")" * (opened.pop() if len(opened) > 1 else 0) + ")"
        elif char == "$":
            out += r"\Z" if "m" not in _flags(text) else "$"
        else:
            out += char
        at += 1
    return out + ")" * opened[0]


def _flags(text: str) -> str:
    return "".join(re.findall(r"\(\?([a-zA-Z]+)[:)]", text))


def _group(text: str, at: int, opened: list[int]) -> tuple[int, str]:
    if _BAD.match(text, at):
        raise Refused("kql/types", f"`{text}` looks around, which RE2 does not", None)
    flags = re.match(r"\(\?([a-zA-Z]*(?:-[a-zA-Z]+)?)\)", text[at:])
    if flags:  # they hold to the end of the group they stand in
        if "U" in flags[1]:
            raise Refused("kql/unsupported", "`(?U)` in regular expressions is not supported", None)
        opened[-1] += 1
        return at + len(flags[0]), f"(?{flags[1]}:"
    opened.append(0)
    named = re.match(r"\(\?P?<(\w+)>", text[at:])
    if named:
        return at + len(named[0]), f"(?P<{named[1]}>"
    return at + 1, "("
