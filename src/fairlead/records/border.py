"""What comes from outside, held to its type and size before anything else looks at it. Pure; the one place for it.

Outside is whatever this process did not write itself: frames and lines from a node, a probe's document, a file of a run
folder. Each has a Struct with bounds, and a Border made of it:

    REPORT = Border(Report, "an agent's answer")
    report = REPORT(line.text)              # raises Breach: what is wrong, and the bytes

One rule for what nobody asked for: fields without a name in the Struct are passed over unread, as a newer program may
send them; a kind of message that nobody knows is a Breach where the program on the node is our own of this version,
and is kept as mere words where it is a rank's, whose stage may be anybody's. A Breach is its sender's finding
(`cluster/bad-answer`); its sender is heard no more, and nobody else's verdict changes.

Who sent something is never taken from what was sent: it is the connection it came by.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

MAX_BYTES = 1 << 20
"""Of one message, where its Border says nothing else: what a frame or a line can hold (cluster/channel.py)."""
SHOWN_CHARS = 160

Word = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=4096)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
"""Of UDP or TCP (RFC 768, RFC 9293)."""
PortOrNone = Annotated[int, Meta(ge=0, le=65535)]
"""0: there is none."""
Index = Annotated[int, Meta(ge=0, lt=1 << 20)]
"""Into a list this side made; whoever uses it looks whether it lies within."""


class Breach(ValueError):
    """What came is not what may come: what is wrong with it, and its beginning, shortened and escaped."""

    def __init__(self, what: str, said: bytes | str = b"") -> None:
        self.what, self.said = what, shown(said)
        super().__init__(f"{what}: `{self.said}`" if self.said else what)


class Border(Generic[T]):
    """Decodes one kind of message from JSON."""

    def __init__(self, kind: type[T], name: str, *, max_bytes: int = MAX_BYTES) -> None:
        """`name` says in a few words what it should be."""
        self.name, self.max_bytes = name, max_bytes
        self._decode = msgspec.json.Decoder(kind).decode

    def __call__(self, said: bytes | str) -> T:
        """The message. Raises Breach."""
        if len(said) > self.max_bytes:
            raise Breach(f"{self.name} of {len(said)} bytes, where {self.max_bytes} are the most", said[:SHOWN_CHARS])
        try:
            return self._decode(said)
        except RecursionError:
            why = "too deep"
        except ValueError as error:
            why = shown(str(error))
        raise Breach(f"{self.name} that cannot be read ({why})", said)


def shown(said: bytes | str, most: int = SHOWN_CHARS) -> str:
    r"""The beginning of something as text that no terminal obeys.

    >>> print(shown(b"\x1b[2J and more", 8))
    \x1b[2J and...
    """
    text = said[: most + 1]
    text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    cut = text[:most] + ("..." if len(said) > most else "")
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in cut)
