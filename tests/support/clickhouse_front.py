"""A ClickHouse server of the smallest kind: HTTP in front of the embedded engine, for the client of `logs/server.py`.

Statements run in chdb, the engine of a server; accounts, versions and lost answers are played. `input()` becomes a file
in memory, as chdb has no body of a request.

    python clickhouse_front.py FOLDER PASSWORD [VERSION]

A file FOLDER/lose makes it do the next INSERT into Logs and close the connection instead of answering.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from chdb import session

FOLDER, PASSWORD, VERSION = Path(sys.argv[1]), sys.argv[2], [*sys.argv, ""][3]
ENGINE = session.Session(str(FOLDER / "engine"))
LOCK = threading.Lock()


def run(body: bytes) -> bytes:
    called = re.search(rb"input\('((?:[^'\\]|\\.)*)'\)", body)
    form = re.search(rb" FORMAT (RawBLOB|ArrowStream)\n", body)
    if not called or not form:
        return ENGINE.query(body.decode()).bytes()
    with os.fdopen(os.memfd_create("body"), "wb") as file:
        file.write(body[form.end() :])
        file.flush()
        source = b"file('/proc/self/fd/%d', '%s', '%s')" % (file.fileno(), form[1], called[1])
        text = body[: called.start()] + source + body[called.end() : form.start()]
        return ENGINE.query(text.decode()).bytes()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        if self.headers.get("X-ClickHouse-Key") != PASSWORD:
            return self.say(403, b"Code: 516. DB::Exception: Authentication failed", "516")
        if b"SELECT version()" in body and VERSION:
            return self.say(200, VERSION.encode() + b"\n")
        if asked.get("readonly") and not body.lstrip().startswith(b"SELECT"):
            return self.say(500, b"Code: 164. DB::Exception: Cannot execute query in readonly mode", "164")
        try:
            with LOCK:
                ENGINE.query(f"USE `{asked['database']}`")
                found = run(body)
        except RuntimeError as error:
            code = re.search(r"Code: (\d+)", str(error))[1]
            return self.say(404 if code == "81" else 500, str(error).encode(), code)
        if body.startswith((b"INSERT INTO Logs", b"INSERT INTO `Logs`")) and (FOLDER / "lose").exists():
            (FOLDER / "lose").unlink()
            self.close_connection = True
            return None
        return self.say(200, found)

    def say(self, status: int, data: bytes, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
