"""What waits goes to the owner of the store: batches over HTTP, one at a time, until the owner says that it has them.

A batch is sent again until it was answered, so the owner may see a byte twice and knows it by its place. The owner says
for each source how far it has it, which is less than what was sent where a record is not whole.

Must not know: where bytes come from.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.parse
import zlib

from fairlead.logs.onnode.sources import Source, Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BATCH_BYTES, MAX_IN_BATCH = 4 << 20, 256
SOURCE_BYTES = 2 << 20
"""Of one source in one batch: more than the longest record."""
LINE_BYTES = 1 << 20
"""So much of a line is sent; how long it was in all is said."""
SETTLED_S, WHOLE_S = 1.0, 60.0
"""A source that rests so long has no more lines for its last record; so long, no more bytes for its last line."""
LIMIT_S = 60.0
REPLY_BYTES = 1 << 20
WAIT_S, MOST_WAIT_S = 0.5, 15.0


class Refused(Exception):
    """The owner does not take it now, or there is none: why, and after how many seconds to ask again."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class Shipper:
    """The way to the owner."""

    def __init__(self, server: str, token: bytes, node: str, authority: str = "") -> None:
        """Raises ValueError for a server that is no URL."""
        found = urllib.parse.urlsplit(server)
        if found.scheme not in ("http", "https") or not found.hostname or found.username or found.query:
            raise ValueError("`%s` is no URL such as http://127.0.0.1:8470" % server[:200])
        self.host, self.port = found.hostname, found.port or (443 if found.scheme == "https" else 8470)
        self.prefix = found.path.rstrip("/")
        self.context = _trust(authority) if found.scheme == "https" else None
        self.token, self.node = token.decode("ascii"), node
        self.connection: http.client.HTTPConnection | None = None

    def once(self, sources: list[tuple[Source, dict[str, Any], bytes]], lost_bytes: int) -> dict[str, Any]:
        """Send one batch; the answer. Raises Refused."""
        header = {"node": self.node, "lost": lost_bytes, "sources": [said for _, said, _ in sources]}
        body = json.dumps(header).encode() + b"\n" + b"".join(data for _, _, data in sources)
        packed = zlib.compress(body, 1)
        try:
            return self._post(packed)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise Refused(str(error) or type(error).__name__) from None

    def _post(self, body: bytes) -> dict[str, Any]:
        if self.connection is None:
            if self.context is not None:
                self.connection = http.client.HTTPSConnection(self.host, self.port, timeout=LIMIT_S,
                                                              context=self.context)  # fmt: skip
            else:
                self.connection = http.client.HTTPConnection(self.host, self.port, timeout=LIMIT_S)
        headers = {"Authorization": "Bearer " + self.token, "Content-Type": "application/x-fairlead-batch",
                   "X-Fairlead-Node": urllib.parse.quote(self.node)}  # fmt: skip
        self.connection.request("POST", self.prefix + "/v1/batch", body, headers)
        answer = self.connection.getresponse()
        said = answer.read(REPLY_BYTES)
        if answer.status != 200:
            after = answer.getheader("Retry-After", "")
            wait = min(float(after), MOST_WAIT_S) if after.isdigit() else 0.0
            self.close()
            raise Refused("%d %s" % (answer.status, said[:200].decode("utf-8", "replace").strip()), wait)
        found = json.loads(said)
        if not isinstance(found, dict) or not isinstance(found.get("ends"), dict):
            raise ValueError("the server's answer is none")  # noqa: TRY004 - it is what was read
        return found

    def close(self) -> None:
        """Begin with a new connection the next time."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def _trust(authority: str) -> ssl.SSLContext:
    """Whom to believe: who has a certificate of this file, or of one that the system trusts. Raises ValueError."""
    try:
        return ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise ValueError("%s holds no certificates: %s" % (authority, error)) from None


def batch(sources: Sources, now: float) -> list[tuple[Source, dict[str, Any], bytes]]:
    """What to send next: of every source a part, those that waited longest first. Raises OSError."""
    made: list[tuple[Source, dict[str, Any], bytes]] = []
    size = 0
    for source in sorted(sources.waiting(), key=lambda each: each.grew):
        if size >= BATCH_BYTES or len(made) >= MAX_IN_BATCH:
            break
        one = _part(sources, source, now)
        if one is not None:
            made.append((source, *one))
            size += len(one[1])
    return made


def _part(sources: Sources, source: Source, now: float) -> tuple[dict[str, Any], bytes] | None:
    start, data = sources.spool.read(source.number, source.acked, SOURCE_BYTES)
    rests_s = now - source.grew
    is_all = start + len(data) >= source.pos
    whole = is_all and (source.finished or (rests_s > WHOLE_S and source.kind == "file"))
    end, cut = start + len(data), 0
    if len(data) > LINE_BYTES and b"\n" not in data[: LINE_BYTES + 1]:
        end = _line_end(sources, source, start)
        if not end and not (source.finished or rests_s > WHOLE_S):
            return None  # its line goes on
        data, whole = data[:LINE_BYTES], True
        cut = (end - 1 if end else source.pos) - start - LINE_BYTES
        end = end or source.pos
    elif not whole and b"\n" not in data:
        return None
    said: dict[str, Any] = {
        "id": source.number, "path": _path_of(source), "start": start, "end": end, "size": len(data),
        "cut": cut, "settled": is_all and (rests_s > SETTLED_S or source.finished), "whole": whole,
        "written_ns": _within(source.written_ns, 62), "boot_ns": _within(source.boot_ns, 62),
        "inode": source.inode & ((1 << 63) - 1),
    }  # fmt: skip
    if not source.head_sent:
        said["head"] = base64.b64encode(source.head or data[:4096]).decode()
    return said, data


def _path_of(source: Source) -> str:
    """Its path as text: a name on a disk is bytes, and one that is no UTF-8 must not stop a whole batch."""
    path = source.path.partition("#")[0] if source.kind == "kmsg" else source.path
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _within(number: int, bits: int) -> int:
    """A time of a file, which its owner may set to any; the owner of the store takes what is from 0 on."""
    return min(max(number, 0), 1 << bits)


def _line_end(sources: Sources, source: Source, start: int) -> int:
    """Where the line ends that begins at `start`; 0 where it has no end yet."""
    at = start
    while at < source.pos:
        at, data = sources.spool.read(source.number, at, LINE_BYTES)
        if not data:
            return 0
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
    return 0


def settle(sources: Sources, sent: list[tuple[Source, dict[str, Any], bytes]], answer: dict[str, Any]) -> int:
    """Believe what the owner has; how many bytes that are."""
    num_bytes = 0
    unknown = answer.get("unknown")
    for source, _, _ in sent:
        if isinstance(unknown, list) and source.number in unknown:
            source.head_sent = False
            continue
        end = answer["ends"].get(str(source.number))
        if type(end) is int:
            source.head_sent = True
            before = source.acked
            sources.acknowledge(source, end)
            num_bytes += source.acked - before
    return num_bytes


def next_wait(wait_s: float, after_s: float) -> float:
    """How long to leave the owner alone after it refused: twice as long each time, or as long as it asked for."""
    return after_s or min(MOST_WAIT_S, max(WAIT_S, wait_s * 2))


def clock_s() -> float:
    """The clock that nobody sets."""
    return time.monotonic()
