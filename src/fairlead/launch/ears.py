"""Lines of ranks as messages: put together where they came in pieces, bounded in size, depth and sum. Pure.

What a stage's ranks may say is the stage's own (preflight: ranks/said.py holds each word to its type). Here is what
holds for all: a message is an object with a word; a rank says no more than its share; who says it is known by the
connection; and only rank 0 may say where it listens, once, at a port that can be one.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.records.border import Border, Breach, PortOrNone, Text

MAX_SAID_BYTES = 4 << 20
"""Of all lines of one rank; a rank of preflight says some 100 KiB."""
MAX_OPEN = 8
"""Messages of one rank that are not whole yet: one of its task and of its body each, as a rule."""
MAX_PIECES = 2048
MAX_DEPTH = 12
_MANY_BRACKETS = 64


class Store(msgspec.Struct, kw_only=True):
    """Where rank 0 listens."""

    port: PortOrNone
    host: Text = ""


_message = Border(dict[str, Any], "a message")
_store = Border(Store, "a place of the rendezvous")


class Ears:
    """What a group of ranks says. `host`: where rank 0 must be; empty where the scheduler chooses its node."""

    def __init__(self, host: str = "") -> None:
        self.host = host
        self.has_store = False
        self._open: dict[int, dict[str, dict[int, str]]] = {}
        self._num_bytes: defaultdict[int, int] = defaultdict(int)

    def message(self, rank: int, text: str, *, is_out: bool) -> tuple[str, dict[str, Any] | None]:
        """A line: its text (nothing where it is a piece of one that is not whole), and the message it is, if it is one.

        `is_out`: it came on standard output. Raises Breach.
        """
        self._num_bytes[rank] = size = self._num_bytes[rank] + len(text) + 1
        if size > MAX_SAID_BYTES:
            raise Breach(f"more than {MAX_SAID_BYTES} bytes", text)
        if not is_out:
            return text, None
        if text.startswith("~"):
            text = self._whole(rank, text)
        return text, self._parsed(rank, text) if text.startswith("{") else None

    def _parsed(self, rank: int, text: str) -> dict[str, Any] | None:
        try:
            said = _message(text)
        except Breach as breach:
            if "too deep" in breach.what:
                raise
            return None  # mere words: a library printed them
        what = said.get("say")
        if not isinstance(what, str):
            return None
        if text.count("[") + text.count("{") > _MANY_BRACKETS and _is_deep(said):
            raise Breach(f"a message more than {MAX_DEPTH} levels deep", text)
        if what == "store":
            self._store(rank, text)
        return said

    def _store(self, rank: int, text: str) -> None:
        found = _store(text)
        try:
            is_host = not found.host or not ipaddress.ip_address(found.host).is_multicast
        except ValueError:
            is_host = False
        if rank or self.has_store or not found.port or not is_host or (self.host and found.host not in ("", self.host)):
            raise Breach("a place of the rendezvous that cannot be", text)
        self.has_store = True

    def _whole(self, rank: int, text: str) -> str:
        """The line, or the whole of which this was the last piece, or nothing yet. `~number i n text`."""
        number, at, num, rest = [*text[1:].split(" ", 3), "", "", ""][:4]
        if not (at.isdecimal() and num.isdecimal() and len(at) < 5 and len(num) < 5):
            return text
        held = self._open.setdefault(rank, {}).setdefault(number, {})
        held[int(at)] = rest
        if not int(at) < int(num) <= MAX_PIECES or len(self._open[rank]) > MAX_OPEN:
            raise Breach("pieces of messages that are never whole", text)
        if len(held) < int(num):
            return ""
        del self._open[rank][number]
        return "".join(held[i] for i in sorted(held))


def _is_deep(said: Mapping[str, Any]) -> bool:
    level: list[Any] = [said]
    for _ in range(MAX_DEPTH):
        level = [v for own in level for v in (own.values() if type(own) is dict else own) if type(v) in (dict, list)]
        if not level:
            return False
    return True
