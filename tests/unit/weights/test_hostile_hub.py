"""A hub that lies: a token leaves for no other host, and no list leads to files of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fairlead.errors import FairleadError
from fairlead.weights import sources
from fairlead.weights.sources import source_of


@contextlib.contextmanager
def serving(answer: dict[str, tuple[int, dict[str, str], bytes]]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """(address, what came: path and token)."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            status, headers, body = answer.get(self.path.partition("?")[0], (404, {}, b""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body if self.command == "GET" else b"")

        do_HEAD = do_GET  # noqa: N815 - as http.server names it

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_redirect_to_another_host_has_no_token(monkeypatch):
    monkeypatch.setenv("FAIRLEAD_WEIGHTS_TOKEN", "of-the-origin")
    with (
        serving({"/b": (200, {}, b"abc")}) as (other, there),
        serving({"/a": (302, {"Location": f"{other}/b"}, b"")}) as (origin, here),
    ):
        (one,) = source_of(f"{origin}/a").listed()
    assert one.size == 3
    assert here == [("/a", "Bearer of-the-origin")]
    assert there == [("/b", None)]


@pytest.mark.parametrize("other", ["file:///etc/passwd", "http://127.0.0.1:9/x", "ftp://127.0.0.1:9/x"])
def test_a_list_goes_on_at_the_hub_alone(monkeypatch, other):
    monkeypatch.setenv("HF_TOKEN", "of-the-hub")
    info = json.dumps({"sha": "0" * 40}).encode()
    answers = {
        "/api/models/o/m/revision/main": (200, {}, info),
        f"/api/models/o/m/tree/{'0' * 40}": (200, {"Link": f'<{other}>; rel="next"'}, b"[]"),
    }
    with serving(answers) as (hub, _):
        monkeypatch.setenv("HF_ENDPOINT", hub)
        with pytest.raises(FairleadError, match="another place"):
            source_of("hf://o/m").listed()


REVISION = "/api/models/o/m/revision/main"
TREE = f"/api/models/o/m/tree/{'0' * 40}"
SHA = json.dumps({"sha": "0" * 40}).encode()


@pytest.mark.parametrize(
    "answers",
    [
        {REVISION: (200, {}, b"<html>")},
        {REVISION: (200, {}, b"[" * 100_000)},
        {REVISION: (200, {}, b'{"sha": "../../x?"}')},
        {REVISION: (200, {}, b"[1]")},
        {REVISION: (200, {}, SHA), TREE: (200, {}, b'{"a": 1}')},
        {REVISION: (200, {}, SHA), TREE: (200, {}, b'[{"type": "file", "path": 3}]')},
        {REVISION: (200, {}, SHA), TREE: (200, {}, b"\xff\xfe")},
    ],
)
def test_a_hub_that_answers_junk_is_named(monkeypatch, answers):
    with serving(answers) as (hub, _):
        monkeypatch.setenv("HF_ENDPOINT", hub)
        with pytest.raises(FairleadError, match="something else") as caught:
            source_of("hf://o/m").listed()
    assert caught.value.code == "weights/no-origin"


def test_a_list_without_end_is_left(monkeypatch):
    monkeypatch.setattr(sources, "MAX_PAGES", 5)
    answers = {REVISION: (200, {}, SHA)}
    with serving(answers) as (hub, asked):
        answers[TREE] = (200, {"Link": f'<{hub}{TREE}?again>; rel="next"'}, b"[]")
        monkeypatch.setenv("HF_ENDPOINT", hub)
        with pytest.raises(FairleadError, match="pages"):
            source_of("hf://o/m").listed()
    assert len(asked) == 6


@contextlib.contextmanager
def saying(said: bytes, drip: bytes = b"") -> Iterator[str]:
    """An origin that answers with these bytes to whatever it is asked, and then goes on with drips, or ends."""
    listening = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(said)
                while drip:
                    connection.sendall(drip)
                    time.sleep(0.01)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
        thread.join()


@pytest.mark.parametrize(
    "said",
    [
        b"junk\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 404 \x1b[2J\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_an_origin_that_answers_junk_is_named(said):
    with saying(said) as origin, pytest.raises(FairleadError) as caught:
        source_of(f"{origin}/a").listed()
    assert caught.value.code == "weights/no-origin"
    assert "\x1b" not in str(caught.value)


def test_a_date_that_is_none_costs_the_date_alone():
    with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nLast-Modified: Tue, 99 Foo 0000\r\n\r\n") as origin:
        (one,) = source_of(f"{origin}/a").listed()
    assert (one.size, one.modified) == (3, "")


@pytest.mark.parametrize("head", [b"", b"Content-Length: 1000000\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_an_origin_that_drips_is_left(monkeypatch, head):
    monkeypatch.setattr(sources, "BODY_S", 0.3)
    drip = b"1\r\nx\r\n" if b"chunked" in head else b"x"
    with saying(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n", drip) as origin:
        source = source_of(f"{origin}/a")
        with pytest.raises(FairleadError, match="goes on"):
            sources.read_whole(source, "a", 1 << 20)


def test_an_answer_that_is_cut_off_is_no_answer():
    with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc") as origin:
        source = source_of(f"{origin}/a")
        with pytest.raises(FairleadError, match="too early"):
            sources.read_whole(source, "a", 1 << 20)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/nowhere"), lambda path: path.symlink_to(path)]
)
def test_a_pipe_or_a_broken_link_in_a_folder_is_named(tmp_path, make):
    (tmp_path / "a").write_bytes(b"abc")
    make(tmp_path / "b")
    with pytest.raises(FairleadError, match="/b ") as caught:
        source_of(str(tmp_path)).listed()
    assert caught.value.code == "weights/no-origin"
