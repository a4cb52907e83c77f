"""A hub that lies: a token leaves for no other host, and no list leads to files of this machine."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fairlead.errors import FairleadError
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
