"""The program that takes a push on a node and passes it on: from an earlier node over TCP, to disk, to later nodes.

Orders and reports are JSON lines of its channel; see spread.py for who is told what. What is pushed is a row of chunks,
each with its digest, and no chunk is kept or passed on before it has been checked. A node that loses its source asks
the next one it was told, from the chunk it has reached; with no source left it asks whoever started it, who sends
frames.

Over TCP: the one who serves sends a nonce; the one who asks answers with an HMAC of it under the push's own token, and
the chunk it wants to begin with; then chunks come, each as length, digest, bytes. Length 0 is a sign of life.
"""

# pathlib would cost 8 ms a node
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH108, PTH110, PTH112, PTH118, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import bisect
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from collections import Counter

from fairlead.cluster.channel import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK_BYTES = 1 << 19
DIGEST_BYTES = 16
CHUNK_HEAD = struct.Struct(">I16s")
NONCE_BYTES, PROOF_BYTES = 16, 32
CONNECT_S = 3.0
"""To reach an earlier node and hear its nonce."""
ALIVE_S = 1.0
STALL_S = 5.0
"""A source that says nothing for so long, not even that it is alive, is lost."""
BARREN_S = 30.0
"""And one that is alive for so long, and brings no whole chunk: the slowest that is of use sends 17 KB/s."""
MAX_SERVED = 8
"""Later nodes served at once; one more is turned away and asks elsewhere."""
SERVED_EACH, MAX_GREETED = 4, 32
"""How many of them at one address, and how many links at once that have not shown yet that they know the token."""
OPEN_FILES = 64


def digest_of(data: bytes) -> bytes:
    """Of one chunk."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def chained(before: bytes, digest: bytes) -> bytes:
    """The digest of all chunks up to this one."""
    return hashlib.blake2b(before + digest, digest_size=DIGEST_BYTES).digest()


def proof(token: bytes, nonce: bytes, chunk: int) -> bytes:
    """That whoever asks was started by the same push."""
    return hmac.new(token, nonce + struct.pack(">Q", chunk), hashlib.sha256).digest()


class Whole:
    """Where the bytes go: one file, or the files of a folder one after the other, below a temporary name."""

    def __init__(self, target: str, entries: list[list[Any]], *, is_folder: bool) -> None:
        """`entries`: [path, bytes, mode], or [path, 0, mode, link]. The path of a single file is empty."""
        self.target, self.entries, self.is_folder = target, entries, is_folder
        self.starts, at = [], 0
        for entry in entries:
            self.starts.append(at)
            at += entry[1]
        self.size = at
        self.lock = threading.Lock()
        self.open: dict[int, int] = {}
        """File descriptors, of the files used last."""
        self.root = self.temporary()

    def temporary(self) -> str:
        """A new name beside the target, locked; those of pushes that were killed go."""
        folder, name = os.path.split(self.target)
        os.makedirs(folder, exist_ok=True)
        prefix = f".{name}.fairlead-"
        for leftover in os.listdir(folder):
            if leftover.startswith(prefix):
                path = os.path.join(folder, leftover)
                with contextlib.suppress(OSError):
                    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
                    finally:
                        os.close(fd)
        path = self.locked(os.path.join(folder, prefix))
        for relative, _, _, *link in self.entries if self.is_folder else ():
            place = os.path.join(path, relative)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if link:
                os.symlink(link[0], place)
            elif relative.endswith("/"):
                os.makedirs(place, exist_ok=True)
            else:
                with open(place, "xb"):
                    pass
        return path

    def locked(self, prefix: str) -> str:
        """A new file or folder, held by a lock that ends with this process."""
        while True:
            path = f"{prefix}{os.getpid()}-{time.time_ns()}"
            if self.is_folder:
                os.mkdir(path, 0o700)
            else:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with contextlib.suppress(FileNotFoundError):
                self.held = os.open(path, os.O_RDONLY)
                fcntl.flock(self.held, fcntl.LOCK_EX)
                if os.path.exists(path):
                    return path
                os.close(self.held)  # another push took it for a leftover before it was locked

    def pieces(self, at: int, num: int) -> list[tuple[int, int, int]]:
        """(entry, offset in it, bytes) for a stretch of the whole."""
        out = []
        index = bisect.bisect_right(self.starts, at) - 1
        while num > 0:
            size = self.entries[index][1]
            inside = at - self.starts[index]
            take = min(num, size - inside)
            if take > 0:
                out.append((index, inside, take))
                at, num = at + take, num - take
            index += 1
        return out

    def file(self, index: int) -> int:
        """The descriptor of a file; few are open at once."""
        if index not in self.open:
            if len(self.open) >= OPEN_FILES:
                os.close(self.open.pop(next(iter(self.open))))
            path = os.path.join(self.root, self.entries[index][0]) if self.is_folder else self.root
            self.open[index] = os.open(path, os.O_RDONLY if self.root == self.target else os.O_RDWR)
        return self.open[index]

    def write(self, at: int, data: bytes) -> None:
        """A stretch of the whole, to disk."""
        view = memoryview(data)
        with self.lock:
            for index, inside, num in self.pieces(at, len(data)):
                done = 0
                while done < num:
                    done += os.pwrite(self.file(index), view[done:num], inside + done)
                view = view[num:]

    def read(self, at: int, num: int) -> bytes:
        """A stretch of the whole, from disk."""
        with self.lock:
            return b"".join(os.pread(self.file(i), n, inside) for i, inside, n in self.pieces(at, num))

    def finish(self) -> None:
        """Modes, to the disk, and under its name at once."""
        with self.lock:
            for index, entry in enumerate(self.entries):
                if len(entry) == 3 and not entry[0].endswith("/"):
                    os.fchmod(self.file(index), entry[2])
                    os.fsync(self.file(index))
            for path, _, mode, *link in reversed(self.entries):
                if path.endswith("/") and not link:
                    os.chmod(os.path.join(self.root, path), mode)
            old = ""
            if self.is_folder:
                os.chmod(self.root, 0o755)  # noqa: S103 - as a folder that one makes by hand
                if os.path.isdir(self.target):
                    old = self.root + "-old"
                    os.rename(self.target, old)
            os.rename(self.root, self.target)
            self.root = self.target
            if old:
                shutil.rmtree(old, ignore_errors=True)

    def drop(self) -> None:
        """Leave nothing."""
        if self.root != self.target:
            shutil.rmtree(self.root, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(self.root)


class Relay:
    """One node of a push."""

    def __init__(self, channel: Channel, order: dict[str, Any], entries: list[list[Any]]) -> None:
        self.channel = channel
        self.token = bytes.fromhex(order["token"])
        self.whole = Whole(order["target"], entries, is_folder=order["is_folder"])
        self.num_chunks = -(-self.whole.size // CHUNK_BYTES)
        self.digests: list[bytes] = []
        """Of the chunks that are here and checked."""
        self.more = threading.Condition()
        self.deadline = time.monotonic() + order["limit_s"]
        self.greeted = threading.Semaphore(MAX_GREETED)
        self.served: Counter[str] = Counter()
        """Links by the address they come from."""
        self.num_lost = 0

    def say(self, do: str, **fields: Any) -> None:
        """One report."""
        self.channel.say(json.dumps({"do": do, **fields}))

    def take(self, data: bytes, digest: bytes) -> bool:
        """The next chunk; whether it is whole."""
        if digest_of(data) != digest:
            return False
        self.whole.write(len(self.digests) * CHUNK_BYTES, data)
        with self.more:
            self.digests.append(digest)
            self.more.notify_all()
        return True

    def is_whole(self) -> bool:
        """Whether every chunk is here."""
        return len(self.digests) == self.num_chunks

    # ---- later nodes -------------------------------------------------------------------------------------------------

    def listen(self, address: str) -> int:
        """Serve whoever knows the token; returns the port, 0 where this node has no such address."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            server = socket.socket(family, socket.SOCK_STREAM)
            server.bind((address, 0))
            server.listen(2 * MAX_SERVED)
        except OSError:
            return 0
        threading.Thread(target=self.accept, args=(server,), daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    def accept(self, server: socket.socket) -> None:
        """Each in a thread; one too many is turned away."""
        while True:
            try:
                link, (address, *_) = server.accept()
            except OSError:
                time.sleep(0.05)
                continue
            if not self.greeted.acquire(blocking=False):
                link.close()
                continue
            threading.Thread(target=self.greet, args=(link, address), daemon=True).start()

    def greet(self, link: socket.socket, address: str) -> None:
        """Serve whoever knows the token, as long as there is a place; nobody else takes one."""
        chunk = -1
        with contextlib.suppress(OSError, EOFError):
            link.settimeout(CONNECT_S)
            nonce = os.urandom(NONCE_BYTES)
            link.sendall(nonce)
            asked = received(link, PROOF_BYTES + 8, time.monotonic() + CONNECT_S)
            number = int.from_bytes(asked[PROOF_BYTES:], "big")
            if hmac.compare_digest(asked[:PROOF_BYTES], proof(self.token, nonce, number)):
                chunk = number
        self.greeted.release()
        with self.more:
            has_place = sum(self.served.values()) < MAX_SERVED and self.served[address] < SERVED_EACH
            self.served[address] += has_place and chunk >= 0
        with contextlib.suppress(OSError), link:
            if has_place and chunk >= 0:
                try:
                    self.serve(link, chunk)
                finally:
                    with self.more:
                        self.served[address] -= 1

    def serve(self, link: socket.socket, chunk: int) -> None:
        """All chunks from one on."""
        link.settimeout(6 * STALL_S)  # one that takes nothing must not hold its place for ever
        while chunk < self.num_chunks:
            with self.more:
                if len(self.digests) <= chunk:
                    self.more.wait(ALIVE_S)
                digest = self.digests[chunk] if chunk < len(self.digests) else b""
            if not digest:
                link.sendall(CHUNK_HEAD.pack(0, b""))
                continue
            at = chunk * CHUNK_BYTES
            data = self.whole.read(at, min(CHUNK_BYTES, self.whole.size - at))
            link.sendall(CHUNK_HEAD.pack(len(data), digest))
            link.sendall(data)
            chunk += 1

    # ---- an earlier node ---------------------------------------------------------------------------------------------

    def ask(self, name: str, address: str, port: int) -> None:
        """Take chunks from an earlier node until all are here; returns early when it is lost.

        Lost is, too, who brings nothing for long, or with half of the time that is left less than half of what is
        missing: the next one shall still have the time for it.
        """
        with contextlib.suppress(OSError, EOFError), socket.create_connection((address, port), CONNECT_S) as link:
            now = time.monotonic()
            nonce = received(link, NONCE_BYTES, now + CONNECT_S)
            chunk = len(self.digests)
            link.sendall(proof(self.token, nonce, chunk) + struct.pack(">Q", chunk))
            heard, came_at, turn, half = False, now, now + (self.deadline - now) / 2, (chunk + self.num_chunks) // 2
            while not self.is_whole():
                until = came_at + BARREN_S
                length, digest = CHUNK_HEAD.unpack(received(link, CHUNK_HEAD.size, until))
                if not heard:
                    heard = True
                    self.say("source", name=name, chunk=chunk)
                if length > CHUNK_BYTES or (length and not self.take(received(link, length, until), digest)):
                    return
                now = time.monotonic()
                came_at = now if length else came_at
                if now > turn:
                    if len(self.digests) < half:
                        return
                    turn, half = now + (self.deadline - now) / 2, (len(self.digests) + self.num_chunks) // 2

    def get(self, sources: list[list[Any]]) -> None:
        """Everything: from the sources, one after the other, then from whoever started this."""
        for name, address, port in sources:
            if self.is_whole():
                return
            self.ask(name, address, port)
            self.num_lost += not self.is_whole()
        if not self.is_whole():
            self.fed()

    def fed(self) -> None:
        """The rest by frames: digest, bytes."""
        self.say("need", chunk=len(self.digests))
        while not self.is_whole():
            frame = self.channel.read()
            if isinstance(frame, bytes) and not self.take(frame[DIGEST_BYTES:], frame[:DIGEST_BYTES]):
                raise ValueError("It did not arrive whole")

    def chain(self) -> str:
        """The digest of everything."""
        whole = b""
        for digest in self.digests:
            whole = chained(whole, digest)
        return whole.hex()

    def run(self, address: str) -> None:
        """From first to last."""
        self.say("ready", port=self.listen(address) if address else 0)
        self.get(json.loads(self.channel.read() or "null"))
        self.say("whole")
        want = self.channel.read()
        if self.chain() != want and self.num_chunks:  # an earlier node had it wrong, and digests that fit
            with self.more:
                self.digests.clear()
            self.num_lost += 1
            self.fed()
            self.say("whole")
            want = self.channel.read()
        if self.num_chunks and self.chain() != want:
            raise ValueError("It did not arrive whole")
        self.whole.finish()
        self.say("done", lost=self.num_lost)
        self.channel.read()  # later nodes are served until all have it


def received(link: socket.socket, num: int, until: float) -> bytes:
    """Exactly so many bytes. Raises EOFError, or TimeoutError after a while without any, or past `until`."""
    parts = []
    while num:
        link.settimeout(max(0.001, min(STALL_S, until - time.monotonic())))
        data = link.recv(num)
        if not data:
            raise EOFError
        parts.append(data)
        num -= len(data)
    return b"".join(parts)


def relay() -> None:
    """Take one push."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves nothing half written
    channel = Channel()
    order = json.loads(channel.read() or "{}")
    packed = b""
    for _ in range(order["num_frames"]):
        frame = channel.read()
        assert isinstance(frame, bytes)
        packed += frame
    mine = None
    try:
        mine = Relay(channel, order, json.loads(zlib.decompress(packed)))
        mine.run(order["address"])
    except EOFError:  # nobody is there to ask
        sys.exit(1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        channel.say(json.dumps({"do": "failed", "error": f"{order['target']}: {said}"}))
        sys.exit(1)
    finally:
        if mine:
            mine.whole.drop()


if __name__ == "__main__":
    relay()
