"""The Prometheus endpoint: GET /metrics on one address, for who has the token. One connection at a time, bounded.

Loopback unless it is told an address. The token comes from a file of our own and is compared in constant time; a Host
that is not the address we listen on is refused, so that no page in a browser can reach it by a name of its own.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
import threading
import time

from fairlead.base.trust import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

MAX_REQUEST, LIMIT_S = 8192, 2.0
MIN_TOKEN = 16


class BadEndpoint(ValueError):
    """Why there can be no endpoint, in one sentence."""


def address_of(text: str) -> tuple[str, int]:
    """`127.0.0.1:9464` or `[::1]:9464`. Raises BadEndpoint for a name, or for all addresses at once."""
    host, _, port = text.rpartition(":")
    try:
        found = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        raise BadEndpoint("`%s` is no address and port, such as 127.0.0.1:9464" % text[:80]) from None
    if found.is_unspecified or not 0 <= number < 65536:
        raise BadEndpoint("`%s` would listen on every network: name one address" % text[:80])
    return str(found), number


def read_token(path: str) -> bytes:
    """The token of a file that nobody else could have written or read. Raises BadEndpoint."""
    import os

    try:
        token = read_file(path, 4096, ours=True).strip()
        if os.stat(path).st_mode & 0o077:
            raise BadEndpoint("%s can be read by others: chmod 600 %s" % (path, path))
    except OSError as error:
        raise BadEndpoint("%s: %s" % (path, error.strerror or error)) from None
    if len(token) < MIN_TOKEN:
        raise BadEndpoint("%s holds a token of %d characters, less than %d" % (path, len(token), MIN_TOKEN))
    return token


def answer_to(request: bytes, token: bytes, hosts: frozenset[str], text: Callable[[], str]) -> bytes:
    """The answer to a request, whole. Pure but for `text`."""
    lines = request.decode("latin-1").split("\r\n")
    words, headers = lines[0].split(" "), {}
    for line in lines[1:]:
        name, mark, value = line.partition(":")
        key = name.strip().lower()
        if mark and key in headers:
            return _reply("400 Bad Request", "a header twice\n")
        if mark:
            headers[key] = value.strip()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return _reply("400 Bad Request", "this is no HTTP\n")
    if headers.get("host", "").lower() not in hosts or "origin" in headers:
        return _reply("403 Forbidden", "not by this name\n")
    said = headers.get("authorization", "").encode("latin-1")
    if not hmac.compare_digest(said, b"Bearer " + token):
        return _reply("401 Unauthorized", "a token, please\n", "WWW-Authenticate: Bearer\r\n")
    if words[0] != "GET":
        return _reply("405 Method Not Allowed", "GET alone\n", "Allow: GET\r\n")
    if words[1] != "/metrics":
        return _reply("404 Not Found", "/metrics is here\n")
    return _reply("200 OK", text(), kind="text/plain; version=0.0.4; charset=utf-8")


def _reply(status: str, text: str, more: str = "", kind: str = "text/plain; charset=utf-8") -> bytes:
    body = text.encode("utf-8", "backslashreplace")
    head = "HTTP/1.1 %s\r\n%sContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return (head % (status, more, kind, len(body))).encode() + body


class Endpoint(threading.Thread):
    """Serves until the program ends."""

    def __init__(self, listen: str, token_file: str, text: Callable[[], str]) -> None:
        """Raises BadEndpoint."""
        super().__init__(name="endpoint", daemon=True)
        host, port = address_of(listen)
        self.token, self.text = read_token(token_file), text
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((host, port))
        except OSError as error:
            raise BadEndpoint("%s: %s" % (listen, error.strerror)) from None
        self.socket.listen(8)
        self.port: int = self.socket.getsockname()[1]
        shown = "[%s]" % host if ":" in host else host
        names = [shown, "localhost"] if ipaddress.ip_address(host).is_loopback else [shown]
        self.hosts = frozenset("%s:%d" % (name, self.port) for name in names)

    def run(self) -> None:
        """One after the other; whoever is slow is let go."""
        while True:
            try:
                one, _ = self.socket.accept()
            except OSError:
                time.sleep(0.1)  # out of files, say
                continue
            try:
                with one:
                    self.serve(one)
            except OSError:
                continue

    def serve(self, one: socket.socket) -> None:
        """One request, within a time limit for all of it."""
        deadline, request = time.monotonic() + LIMIT_S, b""
        while b"\r\n\r\n" not in request:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or len(request) > MAX_REQUEST:
                return
            one.settimeout(left_s)
            part = one.recv(MAX_REQUEST)
            if not part:
                return
            request += part
        one.settimeout(max(0.1, deadline - time.monotonic()))
        one.sendall(answer_to(request.partition(b"\r\n\r\n")[0], self.token, self.hosts, self.text))
