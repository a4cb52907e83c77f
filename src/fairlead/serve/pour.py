"""Bytes from files into a bundle: read once, digested and written on the way, a few chunks in memory.

A layer is a tar of one or more files that depends on their paths and bytes alone (POSIX pax; times 0, owner 0, no
names of owners; parents before children), so the same shard is the same layer in every bundle, and a registry
holds it once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fairlead.errors import FairleadError
from fairlead.serve.model import ModelFile

CHUNK = 4 << 20
_READ = 1 << 20
_MOST_FILES = 8
"""Digested at once: eight read 10 GB/s and more, which is what one disk gives."""
BLOCK = tarfile.BLOCKSIZE
_AHEAD = 4
"""Chunks in flight, for each of the two digests."""


class Digest:
    """SHA-256 in a thread of its own: hashlib lets go of the interpreter while it works."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()

    def add(self, data: bytes) -> None:
        """More bytes; waits where too many are in flight."""
        self.size += len(data)
        self._waiting.append(self._thread.submit(self._hash.update, data))
        if len(self._waiting) > _AHEAD:
            self._waiting.popleft().result()

    def hex(self) -> str:
        """The digest of all bytes."""
        self._thread.shutdown()
        for update in self._waiting:
            update.result()
        return self._hash.hexdigest()


class Poured(NamedTuple):
    """A layer as it was written."""

    digest: str
    """`sha256:...` of the tar."""
    size: int
    sha256: tuple[str, ...]
    """Of each file in it."""


def pour_layer(
    out: Path, root: Path, files: Sequence[ModelFile], at: str, said: Callable[[int], None] = lambda _num: None
) -> Poured:
    """Write the layer with these files below `at` (`models/llama`); `said` hears of bytes as they are done.

    Raises FairleadError where a file changes meanwhile; OSError as it comes.
    """
    whole, digests = Digest(), list[str]()
    with out.open("wb", buffering=0) as sink:

        def put(data: bytes) -> None:
            whole.add(data)
            _write(sink.fileno(), data)

        for folder in folders(f"{at}/{f.path}" for f in files):
            put(_entry(folder + "/", 0))
        for file in files:
            put(_entry(f"{at}/{file.path}", file.size))
            one = Digest()
            for data in pieces(root, file):
                one.add(data)
                put(data)
                said(len(data))
            put(bytes(-file.size % BLOCK))
            digests.append(one.hex())
        put(bytes(2 * BLOCK))
        os.fsync(sink.fileno())
    return Poured(f"sha256:{whole.hex()}", whole.size, tuple(digests))


def pour_file(out: Path, source: Path, file: ModelFile, said: Callable[[int], None] = lambda _num: None) -> str:
    """Copy one file; its SHA-256."""
    one = Digest()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb", buffering=0) as sink:
        for data in pieces(source, file):
            one.add(data)
            _write(sink.fileno(), data)
            said(len(data))
        os.fsync(sink.fileno())
    return one.hex()


def digest_file(path: Path, said: Callable[[int], None] = lambda _num: None) -> str:
    """SHA-256 of a regular file; a link is not followed."""
    one, buffer = hashlib.sha256(), memoryview(bytearray(_READ))
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb", buffering=0) as source:
        while num := source.readinto(buffer):
            one.update(buffer[:num])
            said(num)
    return one.hexdigest()


def digest_files(paths: Sequence[Path], said: Callable[[int], None] = lambda _num: None) -> Iterator[str | OSError]:
    """SHA-256 of each in turn, or why there is none; several at once, as hashlib lets go of the interpreter."""
    lock = threading.Lock()

    def heard(num: int) -> None:
        with lock:
            said(num)

    def one(path: Path) -> str | OSError:
        try:
            return digest_file(path, heard)
        except OSError as error:
            return error

    with ThreadPoolExecutor(min(_MOST_FILES, len(os.sched_getaffinity(0)))) as pool:
        yield from pool.map(one, paths)


def pieces(root: Path, file: ModelFile) -> Iterator[bytes]:
    """The bytes of a file, as many as were counted. Raises FairleadError where it is another file by now."""
    left = file.size
    with (root / file.path).open("rb", buffering=0) as source:
        while left:
            data = source.read(min(CHUNK, left))
            if not data:
                break
            left -= len(data)
            yield data
        now = os.fstat(source.fileno())
    if left or (now.st_size, now.st_mtime_ns) != (file.size, file.mtime_ns):
        text = f"{file.path} in {root} changed while it was read"
        raise FairleadError("serve/changed", text, hint="let whoever writes there end, then run again: it goes on")


def layer_size(files: Sequence[ModelFile], at: str) -> int:
    """How long the layer with these files is, in bytes."""
    heads = sum(len(_entry(folder + "/", 0)) for folder in folders(f"{at}/{f.path}" for f in files))
    for file in files:
        heads += len(_entry(f"{at}/{file.path}", file.size)) + file.size + -file.size % BLOCK
    return heads + 2 * BLOCK


def folders(paths: Iterable[str]) -> list[str]:
    """Every folder above these, parents first.

    >>> folders(["models/m/a/x", "models/m/y"])
    ['models', 'models/m', 'models/m/a']
    """
    return sorted({str(above) for path in paths for above in PurePosixPath(path).parents} - {".", "/"})


def _entry(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    is_folder = name.endswith("/")
    info.type, info.mode = (tarfile.DIRTYPE, 0o755) if is_folder else (tarfile.REGTYPE, 0o644)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        num = os.write(handle, view)
        if num == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[num:]
