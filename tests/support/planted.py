"""A server with the questions of OpenAI's API, of the standard library alone, that also makes a call of a kind: what
an offline proof is to see. `python planted.py PORT KIND[,KIND...] [ARGUMENT]`; KIND `none` makes no call.

The address of documentation (RFC 5737, RFC 3849) stands for the outside.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OUT4, OUT6 = "192.0.2.7", "2001:db8::7"


def call4():
    with socket.socket() as sock:
        sock.connect_ex((OUT4, 443))


def call6():
    with socket.socket(socket.AF_INET6) as sock:
        sock.connect_ex((OUT6, 443))


def name(what="telemetry.example.com"):
    with contextlib.suppress(OSError):
        socket.getaddrinfo(what, 443)


def hub():
    """As libraries look at the hub when they start: by HTTPS, so a name first."""
    import urllib.request

    with contextlib.suppress(OSError):
        urllib.request.urlopen("https://huggingface.co/api/models/x", timeout=3)


def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.sendto(b"metric:1|c", (OUT4, 8125))


def message():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.sendmsg([b"metric:1|c"], [], 0, (OUT4, 8126))


def late(seconds):
    time.sleep(float(seconds))
    call4()


def at_end():
    import signal

    def leave(*_):
        call4()
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)


def child():
    """A child of a child, in a session of its own."""
    code = f"import socket; socket.socket().connect_ex(({OUT4!r}, 443))"
    subprocess.run(["sh", "-c", f'setsid {sys.executable} -c "{code}"'], check=False)


def unix(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(b"CONNECT telemetry.example.com:443 HTTP/1.1\r\n\r\n")


def inside(path):
    """A clean server's own: a Unix socket, an abstract one, the loopback, datagrams to oneself."""
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind(path)
        one.listen()
        two.connect(path)
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind("\0fairlead-planted")
        one.listen()
        two.connect("\0fairlead-planted")
    with (
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as two,
    ):
        one.bind(("::1", 0))
        two.sendto(b"x", one.getsockname())


KINDS = {
    "none": lambda: None,
    "telemetry": lambda: threading.Thread(target=call4, name="usage-stats", daemon=True).start(),
    "hub": hub,
    "name": name,
    "ipv6": call6,
    "datagram": datagram,
    "message": message,
    "child": child,
    "late": lambda seconds: threading.Thread(target=late, args=(seconds,), daemon=True).start(),
    "at-end": at_end,
    "unix": unix,
    "inside": inside,
    "ends": lambda: sys.exit(3),
}


class Api(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self._answer({"object": "list", "data": [{"id": "planted", "object": "model"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] != "planted":
            self.send_error(404)
            return
        if asked.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b'data: {"choices": [{"delta": {"content": "one"}}]}\n\ndata: [DONE]\n\n')
            return
        self._answer({"choices": [{"text": "one"}]})

    def _answer(self, value):
        raw = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


if __name__ == "__main__":
    port, kinds, *words = sys.argv[1:]
    for kind in kinds.split(","):
        KINDS[kind](*words)
    ThreadingHTTPServer(("127.0.0.1", int(port)), Api).serve_forever()
