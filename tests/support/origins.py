"""An origin for weights in tests: a server of byte ranges that counts what it gives and can be told to misbehave.

It serves a folder by itself, or stands before a real store and passes everything on. It listens on one loopback port in
any number of network namespaces, so that a lab's hosts and the control side know it by the same address.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Self

from fairlead.lab import syscalls as sc

RANGE = re.compile(r"bytes=(\d+)-(\d*)\Z")
Fault = Callable[["Request"], bool]


class Request(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    origin: Origin

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        with self.origin.lock:
            self.origin.requests.append(self.path)
        if self.origin.fault is not None and self.origin.fault(self):
            return
        if self.origin.upstream:
            self.pass_on()
        else:
            self.file()

    do_HEAD = do_GET  # noqa: N815 - names of http.server
    do_PUT = do_GET  # noqa: N815
    do_POST = do_GET  # noqa: N815
    do_DELETE = do_GET  # noqa: N815

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        """A short answer."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def give(self, data: bytes) -> None:
        """Bytes of an object, at the origin's rate, counted."""
        data = self.origin.changed(self, data)
        for at in range(0, len(data), 1 << 16):
            piece = data[at : at + (1 << 16)]
            self.origin.pace(len(piece))
            self.wfile.write(piece)
            with self.origin.lock:
                self.origin.given += len(piece)

    def file(self) -> None:
        path = self.origin.folder / urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/")
        if not path.is_file():
            return self.answer(404)
        stat = path.stat()
        tag = self.origin.tag(path)
        if self.headers.get("If-Match", tag) != tag:
            return self.answer(412)
        start, end, status = 0, stat.st_size, 200
        found = RANGE.match(self.headers.get("Range", ""))
        if found and self.origin.ranges:
            start, status = int(found[1]), 206
            end = min(end, int(found[2]) + 1) if found[2] else end
        self.send_response(status)
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", formatdate(stat.st_mtime, usegmt=True))
        self.send_header("Content-Length", str(end - start))
        if self.origin.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{stat.st_size}")
        self.end_headers()
        if self.command == "GET":
            with path.open("rb") as file:
                file.seek(start)
                self.give(file.read(end - start))
        return None

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        way = http.client.HTTPConnection("127.0.0.1", self.origin.upstream, timeout=60)
        try:
            way.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "content-length"):
                    way.putheader(name, value)
            way.putheader("Content-Length", str(len(body)))
            way.endheaders(body)
            answer = way.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            if self.command == "GET" and "Range" in self.headers:
                self.give(data)
            elif self.command != "HEAD":
                self.wfile.write(data)
        finally:
            way.close()


class Origin:
    """Serving, as long as the `with` lasts."""

    def __init__(self, folder: Path | None = None, *, upstream: int = 0, rate: float = 0.0) -> None:
        self.folder, self.upstream, self.rate = folder or Path(os.devnull), upstream, rate
        self.given, self.ranges = 0, True
        self.requests: list[str] = []
        self.fault: Fault | None = None
        self.changed: Callable[[Request, bytes], bytes] = lambda _, data: data
        """What becomes of bytes on their way."""
        self.lock = threading.Lock()
        self.next_s = 0.0
        self.listeners: list[socket.socket] = []
        self.open: set[socket.socket] = set()
        self.handler = type("Bound", (Request,), {"origin": self})
        self.port = 0

    def __enter__(self) -> Self:
        self.listen(socket.socket())
        return self

    def __exit__(self, *_: object) -> None:
        for sock in [*self.listeners, *self.open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @staticmethod
    def tag(path: Path) -> str:
        """A file's ETag: another whenever it is written."""
        return '"' + hashlib.md5(f"{path.stat().st_mtime_ns}".encode()).hexdigest() + '"'

    def pace(self, num_bytes: int) -> None:
        """No more than `rate` bytes a second, of all connections together."""
        if not self.rate:
            return
        with self.lock:
            self.next_s = max(self.next_s, time.monotonic() - 0.05) + num_bytes / self.rate
            wait_s = self.next_s - time.monotonic()
        time.sleep(max(0.0, wait_s))

    def listen(self, sock: socket.socket) -> None:
        """Serve what comes by a socket of any network namespace."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        sock.listen(128)
        self.port = sock.getsockname()[1]
        self.listeners.append(sock)
        threading.Thread(target=self._accept, args=(sock,), daemon=True).start()

    def also_in(self, pid: int) -> None:
        """Also on the loopback of the network namespace that this process is in."""
        made: list[socket.socket] = []

        def make() -> None:
            sc.enter(f"/proc/{pid}/ns/net", sc.CLONE_NEWNET)  # changes this thread; the socket stays where it was made
            made.append(socket.socket())

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        self.listen(made[0])

    def _accept(self, sock: socket.socket) -> None:
        while True:
            try:
                client, address = sock.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, address), daemon=True).start()

    def _serve(self, client: socket.socket, address: object) -> None:
        self.open.add(client)
        with contextlib.suppress(OSError, ValueError):
            self.handler(client, address, None)
        self.open.discard(client)
        client.close()


def throttled(every: int, after_s: str = "0") -> Fault:
    """Each n-th request is answered with 503 and Retry-After."""
    lock, count = threading.Lock(), [0]

    def fault(request: Request) -> bool:
        with lock:
            count[0] += 1
            if count[0] % every:
                return False
        request.answer(503, {"Retry-After": after_s})
        return True

    return fault


def cut_short(every: int) -> Fault:
    """Each n-th answer with a range ends in its middle, and the connection with it."""
    lock, count = threading.Lock(), [0]

    def fault(request: Request) -> bool:
        with lock:
            count[0] += "Range" in request.headers
            if count[0] % every or "Range" not in request.headers or request.origin.upstream:
                return False
        path = request.origin.folder / urllib.parse.unquote(request.path.lstrip("/"))
        found = RANGE.match(request.headers["Range"])
        start, end = int(found[1]), int(found[2]) + 1
        data = path.read_bytes()[start:end]
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{end - 1}/{path.stat().st_size}")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.give(data[: len(data) // 2])
        request.close_connection = True
        request.connection.shutdown(socket.SHUT_RDWR)
        return True

    return fault


def refused(status: int) -> Fault:
    """Every request is answered so."""

    def fault(request: Request) -> bool:
        request.answer(status)
        return True

    return fault


@contextlib.contextmanager
def serving(folder: Path | None = None, **more: object) -> Iterator[Origin]:
    """An origin on this machine's loopback."""
    with Origin(folder, **more) as origin:
        yield origin
