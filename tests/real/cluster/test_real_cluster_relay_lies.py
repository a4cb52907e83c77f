"""A node of a push that lies to the nodes beside it: as the source of others, and as one that takes from them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.cluster import relay
from fairlead.cluster.relay import CHUNK_BYTES, CHUNK_HEAD, NONCE_BYTES, PROOF_BYTES, Relay, digest_of, proof
from support.processes import until

pytestmark = pytest.mark.real
HERE, TOKEN = "127.0.0.1", bytes(32)
CONTENT = os.urandom(6 * CHUNK_BYTES)
CHUNKS = [CONTENT[at : at + CHUNK_BYTES] for at in range(0, len(CONTENT), CHUNK_BYTES)]


class Mute:
    """A channel to nobody."""

    def __init__(self) -> None:
        self.said: list[dict] = []

    def say(self, text: str) -> None:
        self.said.append(json.loads(text))


def node(tmp_path: Path, name: str, limit_s: float = 600.0) -> Relay:
    order = {"target": str(tmp_path / name), "token": TOKEN.hex(), "is_folder": False, "limit_s": limit_s}
    return Relay(Mute(), order, [["", len(CONTENT), 0o644]])


@contextlib.contextmanager
def source(say: Callable[[socket.socket], None]) -> Iterator[int]:
    """A source that greets as it should, and then says what it likes; its port."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                link, _ = server.accept()
                with link:
                    link.sendall(bytes(NONCE_BYTES))
                    link.recv(PROOF_BYTES + 8)
                    say(link)

    with socket.create_server((HERE, 0)) as server:
        server.settimeout(0.1)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        over.set()
        thread.join()


def whole(data: bytes) -> bytes:
    return CHUNK_HEAD.pack(len(data), digest_of(data)) + data


def alive_for_ever(link):
    while True:
        link.sendall(CHUNK_HEAD.pack(0, b""))
        time.sleep(0.05)


def one_and_alive_for_ever(link):
    link.sendall(whole(CHUNKS[0]))
    alive_for_ever(link)


def drop_by_drop(link):
    for byte in whole(CHUNKS[0]):
        link.sendall(bytes([byte]))
        time.sleep(0.05)


def a_chunk_that_is_too_long(link):
    link.sendall(struct.pack(">I16s", 1 << 31, b"") + bytes(1 << 20))


def a_chunk_that_is_not_what_it_says(link):
    link.sendall(CHUNK_HEAD.pack(CHUNK_BYTES, bytes(16)) + CHUNKS[0])


@pytest.mark.parametrize(
    "say",
    [alive_for_ever, one_and_alive_for_ever, drop_by_drop, a_chunk_that_is_too_long, a_chunk_that_is_not_what_it_says],
)
def test_a_source_that_brings_nothing_is_lost(tmp_path, monkeypatch, say):
    monkeypatch.setattr(relay, "BARREN_S", 1.0)
    mine, started = node(tmp_path, "mine"), time.monotonic()
    with source(say) as port:
        mine.ask("liar", HERE, port)
    assert time.monotonic() - started < 8
    assert len(mine.digests) == (say is one_and_alive_for_ever)


def test_a_source_that_is_too_slow_is_left_while_there_is_time_for_another(tmp_path):
    """A chunk now and then, so that it never is without one for long."""

    def slowly(link):
        for chunk in CHUNKS:
            link.sendall(whole(chunk))
            for _ in range(30):
                link.sendall(CHUNK_HEAD.pack(0, b""))
                time.sleep(0.1)

    mine, started = node(tmp_path, "mine", limit_s=6.0), time.monotonic()
    with source(slowly) as port:
        mine.ask("liar", HERE, port)
    assert time.monotonic() - started < 5
    assert 0 < len(mine.digests) < len(CHUNKS) / 2
    with source(lambda link: [link.sendall(whole(c)) for c in CHUNKS[len(mine.digests) :]]) as port:
        mine.ask("honest", HERE, port)
    assert mine.is_whole()
    mine.whole.finish()
    assert (tmp_path / "mine").read_bytes() == CONTENT


def asked(port: int, *, token: bytes = TOKEN, chunk: int = 0, at: str = HERE) -> socket.socket:
    link = socket.create_connection((HERE, port), 5, (at, 0))
    link.settimeout(10)
    nonce = link.recv(NONCE_BYTES)
    with contextlib.suppress(OSError):
        link.sendall(proof(token, nonce, chunk) + struct.pack(">Q", chunk))
    return link


def test_who_only_holds_links_keeps_nobody_out(tmp_path):
    """Links without a word, with another token, and one node's own that takes nothing: an honest node is served."""
    mine = node(tmp_path, "mine")
    for chunk in CHUNKS[:3]:  # so that whoever is served stays
        assert mine.take(chunk, digest_of(chunk))
    port = mine.listen(HERE)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection((HERE, port), 5))
        for _ in range(20):
            stack.enter_context(asked(port, token=bytes(31) + b"x"))
        for _ in range(20):
            stack.enter_context(asked(port, at="127.0.0.7"))
        assert until(lambda: sum(mine.served.values()) == relay.SERVED_EACH, 10)
        link = stack.enter_context(asked(port, at="127.0.0.8"))
        assert relay.received(link, CHUNK_HEAD.size, time.monotonic() + 5) == whole(CHUNKS[0])[: CHUNK_HEAD.size]


def test_a_neighbours_pipe_beside_the_target_is_not_waited_for(tmp_path):
    """The names of temporary files begin alike, so that leftovers can be found."""
    os.mkfifo(tmp_path / ".mine.fairlead-1")
    (tmp_path / ".mine.fairlead-2").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").write_text("kept")
    mine = node(tmp_path, "mine")
    assert (tmp_path / "kept").read_text() == "kept"
    assert Path(mine.whole.root).stat().st_mode & 0o777 == 0o600
    mine.whole.drop()
