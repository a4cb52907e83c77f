"""Reading ranges from the origin: HTTP as the stores speak it, or a file that this node sees. Python 3.9.

A broken answer is taken up where it broke. An origin that is busy (429, 503 and their like) is asked again after what
it says (Retry-After), or after growing pauses with chance in them, and by fewer at a time. One that refuses is not
asked again: credentials do not mend themselves.
"""

from __future__ import annotations

import os
import re
import socket
import time

from fairlead.weights.onnode.gate import Gate
from fairlead.weights.onnode.stored import said_digest

# what HTTP takes is imported where it is used: a node that has everything starts in half the time without
TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client
    from collections.abc import Callable, Iterator

BUSY = {408, 425, 429, 500, 502, 503, 504}
PAUSE_S, MAX_PAUSE_S, MAX_AFTER_S = 0.3, 20.0, 60.0
ANSWER_S = 30.0
"""How long an answer, or more of it, may be waited for."""
MAX_REDIRECTS = 5
RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)\Z")


class Refused(Exception):
    """The origin does not give it. `final`: it would give it to nobody; `stale`: a fresh address may help; `kind`: what
    is to be done about it (report.py has the words).
    """

    def __init__(self, text: str, *, final: bool = False, stale: bool = False, kind: str = "") -> None:
        super().__init__(text)
        self.final, self.stale, self.kind = final, stale, kind
        self.file: int | None = None
        """Of which file, where chunks have several."""


class Origin:
    """One thread's way to the origin."""

    def __init__(
        self,
        gate: Gate,
        headers: dict[str, str],
        *,
        give_up_s: float,
        stopped: Callable[[], bool],
        has_md5_tags: bool = False,
    ) -> None:
        self.gate, self.headers, self.give_up_s, self.stopped = gate, headers, give_up_s, stopped
        self.has_md5_tags = has_md5_tags
        self.ways: dict[tuple[str, str], http.client.HTTPConnection] = {}
        self.asked = self.retried = self.done = 0
        self.digest = ""
        """Of the whole object that was read last, where its store says it."""

    def read(
        self, url: str, size: int, tag: str, start: int, views: list[memoryview], full: Callable[[int], None]
    ) -> None:
        """Fill the buffers, one after the other, with the bytes from `start` on; `full` is told of each. Raises
        Refused.

        `size` is the file's; `tag` its ETag, which must still be so.
        """
        import http.client
        import random

        self.full, self.num_full, self.digest = full, 0, ""
        total, done, pause_s, since = sum(len(v) for v in views), 0, PAUSE_S, time.monotonic()
        while done < total:
            before = done
            try:
                with self.gate:
                    self._wait()
                    done = self._some(url, size, tag, start, views, done)
                self.gate.went_well()
                why = "the answer ended too soon"
            except _Busy as busy:
                self.forget()
                self.gate.is_busy(busy.after_s)
                why = str(busy)
            except Refused:
                self.forget()
                raise
            except (OSError, http.client.HTTPException) as error:
                self.forget()
                why = str(error) or type(error).__name__
                done = self.done
            if done >= total:
                return
            if done > before:
                since, pause_s = time.monotonic(), PAUSE_S
            if self.stopped() or time.monotonic() - since > self.give_up_s:
                raise Refused(f"nothing came for {self.give_up_s:g} s: {why}")
            self.retried += 1
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - so that many do not ask at once
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    def _wait(self) -> None:
        while (left := self.gate.until - time.monotonic()) > 0 and not self.stopped():
            time.sleep(min(left, 0.2))

    def _some(self, url: str, size: int, tag: str, start: int, views: list[memoryview], done: int) -> int:
        """One request: as much as comes of it. `self.done` is right also where it fails."""
        self.done = done
        total = sum(len(v) for v in views)
        if url.startswith("file:"):
            return self._file(url, size, start, views)
        answer = self._ask(url, start + done, start + total - 1, tag)
        self.asked += 1
        check(answer, start + done, size)
        self.digest = said_digest(answer.headers, has_md5_tags=self.has_md5_tags)
        for view in rest_of(views, done):
            while view:
                num = answer.readinto(view[: 1 << 20])
                if not num:
                    return self.done
                self.gate.pace(num)
                self.done += num
                view = view[num:]  # noqa: PLW2901
            self.is_full()
        if answer.read(1):  # its end, so that the connection can be asked again; more than was asked for is not read
            self.forget()
        return self.done

    def _file(self, url: str, size: int, start: int, views: list[memoryview]) -> int:
        import urllib.parse

        path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}; every node that fetches must see it", kind="unseen") from None
        try:
            if os.fstat(fd).st_size != size:
                raise Refused(f"{path} has another size than it was listed with", final=True, kind="changed")
            for view in rest_of(views, self.done):
                while view:
                    num = os.preadv(fd, [view], start + self.done)
                    if not num:
                        raise Refused(f"{path} became shorter", final=True, kind="changed")
                    self.gate.pace(num)
                    self.done += num
                    view = view[num:]  # noqa: PLW2901
                self.is_full()
        finally:
            os.close(fd)
        self.asked += 1
        return self.done

    def is_full(self) -> None:
        """The next buffer holds what it should."""
        self.num_full += 1
        self.full(self.num_full - 1)

    def _ask(self, url: str, first: int, last: int, tag: str) -> http.client.HTTPResponse:
        import urllib.parse

        headers = {
            "Range": f"bytes={first}-{last}",
            "Accept-Encoding": "identity",
            "User-Agent": "fairlead",
            **self.headers,
        }
        if tag:
            headers["If-Match"] = tag if tag.startswith('"') else f'"{tag}"'  # lists of Blob storage have them bare
        for _ in range(MAX_REDIRECTS):
            parts = urllib.parse.urlsplit(url)
            way = self._way(parts.scheme, parts.netloc)
            way.request("GET", urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, "")), headers=headers)
            answer = way.getresponse()
            place = answer.getheader("Location")
            if answer.status not in (301, 302, 303, 307, 308) or not place:
                return answer
            answer.read(1 << 16)
            url = urllib.parse.urljoin(url, place)
            if urllib.parse.urlsplit(url).netloc != parts.netloc:
                headers = {k: v for k, v in headers.items() if k.lower() not in ("authorization", "if-match", "cookie")}
        raise Refused("the origin sends us in circles", final=True)

    def _way(self, scheme: str, host: str) -> http.client.HTTPConnection:
        import http.client
        import ssl

        way = self.ways.get((scheme, host))
        if way is None:
            if scheme == "https":
                way = http.client.HTTPSConnection(host, timeout=ANSWER_S, context=ssl.create_default_context())
            else:
                way = http.client.HTTPConnection(host, timeout=ANSWER_S)
            self.ways[scheme, host] = way
        if way.sock is None:
            way.connect()
            assert way.sock is not None
            way.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return way

    def forget(self) -> None:
        """A connection that broke is not used again."""
        for way in self.ways.values():
            way.close()
        self.ways.clear()


class _Busy(Exception):
    def __init__(self, text: str, after_s: float) -> None:
        super().__init__(text)
        self.after_s = after_s


def check(answer: http.client.HTTPResponse, first: int, size: int) -> None:
    """Whether this is what was asked for. Raises Refused, or _Busy."""
    status = answer.status
    if status == 206:
        found = RANGE.match(answer.getheader("Content-Range") or "")
        if found is None or int(found[1]) != first:
            raise Refused("the origin answers with another range than it was asked for")
        if found[3] != "*" and int(found[3]) != size:
            raise Refused("the object has another size than it was listed with", final=True, kind="changed")
        return
    if status == 200 and first == 0:
        length = answer.getheader("Content-Length")
        if length is not None and int(length) != size:
            raise Refused("the object has another size than it was listed with", final=True, kind="changed")
        return
    why = " ".join(f"{status} {answer.reason}".split())[:120]
    if status == 200:
        raise Refused("the origin does not give ranges", final=True, kind="ranges")
    if status in BUSY:
        raise _Busy(why, after(answer.getheader("Retry-After") or ""))
    answer.close()
    if status == 412:
        raise Refused("the object has changed since it was listed", final=True, kind="changed")
    if status in (401, 403):
        raise Refused(f"the origin refuses: {why}", stale=True, kind="denied")
    is_gone = status in (404, 410, 416)
    raise Refused(f"the origin answers {why}", final=is_gone, kind="gone" if is_gone else "")


def after(said: str) -> float:
    """Seconds of a Retry-After (RFC 9110): a number, or a date; bounded.

    >>> after("7"), after("1000000"), after("soon")
    (7.0, 60.0, 0.0)
    """
    from email.utils import parsedate_to_datetime

    try:
        wait_s = float(said) if said.strip().isdigit() else parsedate_to_datetime(said).timestamp() - time.time()
    except (TypeError, ValueError):
        return 0.0
    return min(MAX_AFTER_S, max(0.0, wait_s))


def rest_of(views: list[memoryview], done: int) -> Iterator[memoryview]:
    """What of the buffers is still empty."""
    for view in views:
        if done >= len(view):
            done -= len(view)
            continue
        yield view[done:]
        done = 0
