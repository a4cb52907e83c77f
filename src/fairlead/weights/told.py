"""What the program on a node says in a spread (`onnode/node.py`), held to its types and sizes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fairlead.records.border import Border, Count, Index, Port, Text, Word
from fairlead.weights.onnode.layout import MAX_CHUNKS

Chunks = Annotated[list[Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]], Meta(max_length=MAX_CHUNKS)]
Bits = Annotated[str, Meta(max_length=MAX_CHUNKS // 4 + 1)]


class Told(msgspec.Struct, kw_only=True):
    """What a node says; see onnode/node.py."""

    do: Literal["here", "hello", "open", "fetched", "refused", "returned", "survey", "look", "lost", "bad", "ready",
                "whole", "compared", "reader", "dropped", "done", "failed"]  # fmt: skip
    blake3: bool = False
    has: Bits | Count = ""
    skips: Bits = ""
    port: Port = 1
    need_bytes: Count = 0
    free_bytes: Count = 0
    chunks: Chunks = []
    why: Text = ""
    final: bool = False
    stale: bool = False
    kind: Word = ""
    of: Count | None = None
    came: Count = 0
    backlog: dict[Index, Count] = {}
    sent: dict[Index, Count] = {}
    busy: Count = 0
    counts: dict[Word, Count] = {}
    rss_bytes: Count = 0
    cpu_s: float = 0.0
    digests: dict[Index, Word] = {}
    found: Word = ""
    peer: Index = 0
    chunk: Count = 0
    file: Count = 0
    root: Word = ""
    odd: Annotated[list[tuple[Count, Text]], Meta(max_length=100)] = []
    code: Word = ""
    text: Text = ""
    hint: Text = ""


TOLD = Border(Told, "a report of a spread")
