"""A node's files: what is there already, where chunks are written, what was written for good, and how files appear.

Everything under way lies in DEST/.fairlead, on the file system it is meant for. A file gets its name by one rename,
when all of it was verified and is on the disk; names are followed step by step from DEST and never over a link. The
journal says which chunks are on the disk: it is written after they are, so a run that goes on after a kill knows
exactly what it has.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import mmap
import os
import shutil
import struct
import threading
import zlib
from collections import OrderedDict

from fairlead.base.trust import beneath, read_file
from fairlead.weights.onnode.layout import bytes_of
from fairlead.weights.onnode.stored import digest_of_file
from fairlead.weights.onnode.tensors import odd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

    from fairlead.weights.onnode.layout import Pieces

OWN_FOLDER = ".fairlead"
RECORD, RECORD_SCHEMA = "record.json", "fairlead.weights-record/1"
MAX_RECORD_BYTES = 1 << 28
ENTRY = struct.Struct(">I32sI")
"""Of the journal: chunk, digest, CRC-32 of both: an entry that a crash cut is left out."""
DIGEST_BYTES = 32
MAX_OPEN = 128
ALIGNED = 4096
MAX_UNSYNCED = 1 << 30
"""Bytes that may wait in the page cache to be on the disk for good: a disk that is slower than the network must not put
off the moment at which anything counts, nor fill the node's memory.
"""


class Unusable(Exception):
    """This node cannot go on: a code, one sentence, and what to do."""

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.hint = code, text, hint


def hasher(algorithm: str) -> Callable[[Any], bytes]:
    """The function that makes a digest of 32 bytes. Raises ImportError where it is not there."""
    if algorithm == "blake3":
        from blake3 import blake3

        return lambda data: blake3(data).digest()  # type: ignore[no-any-return,unused-ignore]
    return lambda data: hashlib.sha256(data).digest()


def has_blake3() -> bool:
    """Whether this Python has the package."""
    try:
        hasher("blake3")(b"")
    except ImportError:
        return False
    return True


class Buffers:
    """A fixed number of chunks in memory: those under way, and of the others the latest, to be passed on without a
    read.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.free = [mmap.mmap(-1, self.size) for _ in range(count)]
        self.kept: OrderedDict[int, tuple[mmap.mmap, int]] = OrderedDict()
        self.pins: dict[int, int] = {}
        self.moved = threading.Condition()

    def take(self, count: int = 1) -> list[mmap.mmap]:
        """So many empty ones, all or none: two that hold some and wait for more would wait for each other. Of what is
        kept the oldest go. Waits while too many are under way.
        """
        with self.moved:
            while True:
                lacks = max(0, count - len(self.free))
                oldest = list(itertools.islice((c for c in self.kept if not self.pins.get(c)), lacks))
                if len(oldest) == lacks:
                    self.free += [self.kept.pop(c)[0] for c in oldest]
                    return [self.free.pop() for _ in range(count)]
                self.moved.wait()

    def keep(self, chunk: int, buffer: mmap.mmap, length: int) -> None:
        """It holds this chunk now, and stays at least until it is let go."""
        with self.moved:
            self.kept[chunk] = (buffer, length)
            self.pins[chunk] = self.pins.get(chunk, 0) + 1

    def pin(self, chunk: int) -> memoryview | None:
        """The bytes of a chunk that is kept; to be let go."""
        with self.moved:
            found = self.kept.get(chunk)
            if found is None:
                return None
            self.kept.move_to_end(chunk)
            self.pins[chunk] = self.pins.get(chunk, 0) + 1
            return memoryview(found[0])[: found[1]]

    def let_go(self, chunk: int) -> None:
        """Nobody of ours looks at it any more."""
        with self.moved:
            self.pins[chunk] -= 1
            if not self.pins[chunk]:
                del self.pins[chunk]
                self.moved.notify_all()

    def give(self, buffer: mmap.mmap) -> None:
        """It is empty again."""
        with self.moved:
            self.free.append(buffer)
            self.moved.notify_all()


class Disk:
    """The files of one run on this node. Threads may read and write at once; one publishes."""

    def __init__(
        self, dest: str, files: list[dict[str, Any]], chunks: list[Pieces], chunk_bytes: int, key: str, algorithm: str
    ) -> None:
        """`files` have path, size and tag; `key` names what is spread: another key is another stage."""
        self.dest, self.files, self.chunks, self.chunk_bytes = dest, files, chunks, chunk_bytes
        self.algorithm, self.digest_of = algorithm, hasher(algorithm)
        self.top = open_dest(dest)
        self.own = open_own(self.top, dest)
        self.lock_file = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self.own)
        try:
            fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable("weights/busy", f"another run writes to {dest}", "wait for it, or stop it") from None
        self.stage_name = f"stage-{key}"
        for name in os.listdir(self.own):
            if name.startswith("stage-") and name != self.stage_name:
                shutil.rmtree(self._path(name), ignore_errors=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.stage_name, 0o700, dir_fd=self.own)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.stage = os.open(self.stage_name, flags, dir_fd=self.own)
        self.digests: list[bytes] = [b""] * len(chunks)
        self.parts: dict[int, list[bytes]] = {}
        """Of packed chunks, the digest of each file."""
        self.published, self.trusted = bytearray(len(files)), bytearray(len(files))
        self.skips = bytearray(len(chunks))
        self.left = [0] * len(files)
        """Of each file, how many of its chunks are not on the disk."""
        self.of_file: list[list[int]] = [[] for _ in files]
        for number, chunk in enumerate(chunks):
            for file, _, _ in chunk:
                self.of_file[file].append(number)
                self.left[file] += 1
        self.guard = threading.Lock()
        self.open_files: OrderedDict[tuple[int, bool], int] = OrderedDict()
        self.is_direct = True
        self.unsynced: list[int] = []
        self.unsynced_bytes = 0
        self.synced = threading.Condition()
        self.journal = os.open("journal", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=self.stage)

    # ---- what is there already ---------------------------------------------------------------------------------------

    def present(self) -> bytearray:
        """Flags of the chunks that are here: published by an earlier run and not touched since, or in the journal.

        A file with `trust` is also left alone where it has the right size, whoever wrote it: its chunks are in `skips`.
        They are never passed on, as nobody knows what is in them.
        """
        has = bytearray(len(self.chunks))
        record = read_record(self.own)
        same = record.get("algorithm") == self.algorithm and record.get("chunk_bytes") == self.chunk_bytes
        known = record.get("files", {}) if same else {}
        kept: dict[int, list[bytes]] = {}
        for number, file in enumerate(self.files):
            found, was = self._stat(file["path"]), known.get(file["path"])
            if found is None or found.st_size != file["size"]:
                continue
            if was and was["mtime_ns"] == found.st_mtime_ns and file["tag"] and was["tag"] == file["tag"]:
                digests = bytes.fromhex(was["digests"])
                kept[number] = [digests[i : i + DIGEST_BYTES] for i in range(0, len(digests), DIGEST_BYTES)]
                self.published[number] = 1
        for number, chunk in enumerate(self.chunks):
            if not all(file in kept for file, _, _ in chunk):
                continue
            if len(chunk) == 1:
                only, at, _ = chunk[0]
                self._known(number, kept[only][at // self.chunk_bytes], None)
            else:
                parts = [kept[one][0] for one, _, _ in chunk]
                self._known(number, self.digest_of(b"".join(parts)), parts)
            has[number] = 1
        for number, file in enumerate(self.files):
            found = self._stat(file["path"]) if file.get("trust") else None
            if found is not None and found.st_size == file["size"]:
                self.trusted[number] = self.published[number] = 1
            elif not all(has[c] for c in self.of_file[number]):  # of a pack with one new file, all are fetched
                self.published[number] = 0
        for number, chunk in enumerate(self.chunks):
            self.skips[number] = not has[number] and all(self.trusted[file] for file, _, _ in chunk)
        for number, digest, parts_of in self._journaled():
            if not has[number] and not self.skips[number]:
                has[number] = 1
                self._known(number, digest, parts_of)
        for number, flag in enumerate(has):
            if flag or self.skips[number]:
                self._written(number)
        return has

    def _journaled(self) -> Iterable[tuple[int, bytes, list[bytes] | None]]:
        """The chunks of the journal that are whole in their files."""
        data = os.pread(self.journal, ENTRY.size * (4 * len(self.chunks) + 1024), 0)
        latest: dict[int, bytes] = {}
        for at in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
            number, digest, crc = ENTRY.unpack_from(data, at)
            if zlib.crc32(data[at : at + ENTRY.size - 4]) == crc and number < len(self.chunks):
                latest[number] = digest
        for number, digest in latest.items():
            chunk = self.chunks[number]
            if not any(digest):  # it was dropped
                continue
            try:
                if any(self.published[file] for file, _, _ in chunk):  # it has its name already
                    found = [
                        os.stat(self.files[f]["path"], dir_fd=self.top, follow_symlinks=False) for f, _, _ in chunk
                    ]
                else:
                    found = [
                        os.stat(stage_file(file), dir_fd=self.stage, follow_symlinks=False) for file, _, _ in chunk
                    ]
            except OSError:
                continue
            if any(stat.st_size < at_ + length for stat, (_, at_, length) in zip(found, chunk)):
                continue
            parts = None
            if len(chunk) > 1:  # the journal has the digest of all; what each file's is, is in the files
                data_of = bytearray(bytes_of(chunk))
                self.read(number, memoryview(data_of))
                digest_now, parts = self.digest_chunk(number, memoryview(data_of))
                if digest_now != digest:
                    continue
            yield number, digest, parts

    def _stat(self, path: str) -> os.stat_result | None:
        """What lies under a final name, if it is a regular file."""
        import stat

        try:
            with beneath(self.top, path) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, ValueError):
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    # ---- chunks ------------------------------------------------------------------------------------------------------

    def digest_chunk(self, number: int, data: memoryview) -> tuple[bytes, list[bytes] | None]:
        """(its digest, those of its files where it is packed): of the files' digests then, so that each is known."""
        chunk = self.chunks[number]
        if len(chunk) == 1:
            return self.digest_of(data), None
        parts, at = [], 0
        for _, _, length in chunk:
            parts.append(self.digest_of(data[at : at + length]))
            at += length
        return self.digest_of(b"".join(parts)), parts

    def write(self, number: int, data: memoryview, digest: bytes, parts: list[bytes] | None) -> None:
        """Write a verified chunk. Waits while much is not yet on the disk for good. Raises Unusable where the disk does
        not take it.
        """
        with self.synced:
            while self.unsynced_bytes >= MAX_UNSYNCED:
                self.synced.wait()
            self.unsynced_bytes += len(data)
        try:
            if len(self.chunks[number]) == 1:
                file, at, length = self.chunks[number][0]
                direct = self.is_direct and length % ALIGNED == 0 and at % ALIGNED == 0
                fd = self._open(file, direct=direct)
                write_all(fd, data, at)
            else:
                start = 0
                for file, _, length in self.chunks[number]:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                    fd = os.open(stage_file(file), flags, 0o644, dir_fd=self.stage)
                    try:
                        write_all(fd, data[start : start + length], 0)
                    finally:
                        os.close(fd)
                    start += length
        except OSError as error:
            raise disk_trouble(error, self.dest) from None
        self._known(number, digest, parts)
        with self.guard:
            self.unsynced.append(number)

    def read(self, number: int, into: memoryview) -> int:
        """The bytes of a chunk from the disk; returns how many. Raises Unusable where they cannot be read."""
        at = 0
        try:
            for file, offset, length in self.chunks[number]:
                if self.published[file]:
                    with beneath(self.top, self.files[file]["path"]) as (folder, name):
                        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                else:
                    fd = os.open(stage_file(file), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.stage)
                try:
                    end = at + length
                    while at < end:
                        num = os.preadv(fd, [into[at:end]], offset + length - (end - at))
                        if not num:
                            raise OSError(errno.EIO, "the file is shorter than it was")
                        at += num
                finally:
                    os.close(fd)
        except OSError as error:
            raise disk_trouble(error, self.dest) from None
        return at

    def stored_digest(self, file: int, said: str) -> str:
        """The digest that a file has, of the kind that its store gives. Raises Unusable."""
        try:
            if self.published[file]:
                with beneath(self.top, self.files[file]["path"]) as (folder, name):
                    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            else:
                fd = os.open(stage_file(file), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.stage)
            try:
                return digest_of_file(fd, self.files[file]["size"], said)
            finally:
                os.close(fd)
        except OSError as error:
            raise disk_trouble(error, self.dest) from None

    def drop(self, chunks: Iterable[int]) -> None:
        """Say in the journal that these are not here after all."""
        self._entries((number, bytes(DIGEST_BYTES)) for number in sorted(chunks))

    def _entries(self, entries: Iterable[tuple[int, bytes]]) -> None:
        lines = []
        for number, digest in entries:
            head = ENTRY.pack(number, digest, 0)[:-4]
            lines.append(head + zlib.crc32(head).to_bytes(4, "big"))
        write_all(self.journal, memoryview(b"".join(lines)), None)
        os.fdatasync(self.journal)

    def sync(self) -> list[int]:
        """Have what was written on the disk, and say so in the journal; returns those chunks."""
        with self.guard:
            numbers, self.unsynced = self.unsynced, []
        if numbers:
            try:
                sync_all(self.stage)
                self._entries((number, self.digests[number]) for number in numbers)
            except OSError as error:
                raise disk_trouble(error, self.dest) from None
            for number in numbers:
                self._written(number)
            with self.synced:
                self.unsynced_bytes -= sum(bytes_of(self.chunks[n]) for n in numbers)
                self.synced.notify_all()
        return numbers

    def _known(self, number: int, digest: bytes, parts: list[bytes] | None) -> None:
        self.digests[number] = digest
        if parts is not None:
            self.parts[number] = parts

    def _written(self, number: int) -> None:
        for file, _, _ in self.chunks[number]:
            self.left[file] -= 1

    def _open(self, file: int, *, direct: bool) -> int:
        """A file of the stage, made at its full length at first; the latest ones stay open."""
        with self.guard:
            fd = self.open_files.get((file, direct))
            if fd is not None:
                self.open_files.move_to_end((file, direct))
                return fd
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                fd = os.open(stage_file(file), flags | (os.O_DIRECT if direct else 0), 0o644, dir_fd=self.stage)
            except OSError as error:
                if not direct or error.errno != errno.EINVAL:
                    raise
                self.is_direct = False  # the file system has no direct writes
                fd = os.open(stage_file(file), flags, 0o644, dir_fd=self.stage)
                direct = False
            if os.fstat(fd).st_size < self.files[file]["size"]:
                os.posix_fallocate(fd, 0, self.files[file]["size"])
            self.open_files[file, direct] = fd
            if len(self.open_files) > MAX_OPEN:
                os.close(self.open_files.popitem(last=False)[1])
            return fd

    # ---- names -------------------------------------------------------------------------------------------------------

    def needed_bytes(self, has: bytearray) -> int:
        """Of the disk, beyond what the stage has taken already."""
        allocated = 0
        for name in os.listdir(self.stage):
            allocated += os.stat(name, dir_fd=self.stage, follow_symlinks=False).st_blocks * 512
        wanted: int = sum(file["size"] for number, file in enumerate(self.files) if not self.published[number])
        return max(0, wanted - allocated)

    def free_bytes(self) -> int:
        """Of the file system, for this user."""
        found = os.statvfs(self.top)
        return found.f_bavail * found.f_frsize

    def publish(self, number: int) -> bool:
        """Give a file its name, if it is whole on the disk and has none yet. Raises Unusable."""
        file = self.files[number]
        if self.published[number] or self.left[number]:
            return False  # one that is trusted in a pack with others that are not was written again, and stays as it is
        try:
            if not file["size"]:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(stage_file(number), flags, 0o644, dir_fd=self.stage))
            with beneath(self.top, file["path"], make=True) as (folder, name), self.guard:
                for direct in (False, True):
                    fd = self.open_files.pop((number, direct), None)
                    if fd is not None:
                        os.close(fd)
                os.rename(stage_file(number), name, src_dir_fd=self.stage, dst_dir_fd=folder)
                self.published[number] = 1
        except NotADirectoryError:
            text = f"a link or a file stands in the way of {file['path']} below {self.dest}"
            raise Unusable("weights/in-the-way", text, f"ls -l {self.dest}") from None
        except IsADirectoryError:
            text = f"a folder stands where {file['path']} is to be, below {self.dest}"
            raise Unusable("weights/in-the-way", text, f"ls -l {self.dest}") from None
        except OSError as error:
            raise disk_trouble(error, self.dest) from None
        return True

    def finish(self) -> str:
        """All files have their names: write the record, drop the stage; returns the root of all digests."""
        try:
            sync_all(self.top)
            files = {}
            for number, file in enumerate(self.files):
                found = self._stat(file["path"])
                if found is not None and (digests := self.file_digests(number)) is not None:
                    what = {"size": file["size"], "mtime_ns": found.st_mtime_ns, "tag": file["tag"]}
                    files[file["path"]] = {**what, "digests": digests.hex()}
            record = {
                "schema": RECORD_SCHEMA,
                "algorithm": self.algorithm,
                "chunk_bytes": self.chunk_bytes,
                "root": self.root(),
                "files": files,
            }
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(RECORD + ".new", flags, 0o644, dir_fd=self.own)
            try:
                write_all(fd, memoryview(json.dumps(record).encode()), None)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(RECORD + ".new", RECORD, src_dir_fd=self.own, dst_dir_fd=self.own)
            shutil.rmtree(self._path(self.stage_name), ignore_errors=True)
            os.fsync(self.own)
            os.fsync(self.top)
        except OSError as error:
            raise disk_trouble(error, self.dest) from None
        return self.root()

    def odd(self, number: int, paths: Collection[str]) -> str:
        """Why no loader would take a published file; empty where nothing is odd."""
        path = self.files[number]["path"]

        def read(at: int, length: int) -> bytes:
            with beneath(self.top, path) as (folder, name):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                return os.pread(fd, length, at)
            finally:
                os.close(fd)

        try:
            return odd(path, self.files[number]["size"], read, paths)
        except OSError as error:
            raise disk_trouble(error, self.dest) from None

    def leave(self) -> None:
        """Nothing was to be done: what was made for looking is removed, if nothing else is in it."""
        with contextlib.suppress(OSError):
            if not os.fstat(self.journal).st_size:
                shutil.rmtree(self._path(self.stage_name), ignore_errors=True)
            if os.listdir(self.own) == ["lock"]:
                os.unlink("lock", dir_fd=self.own)
                os.rmdir(OWN_FOLDER, dir_fd=self.top)
                os.rmdir(self.dest)

    def file_digests(self, number: int) -> bytes | None:
        """The digests of a file's chunks, one after the other; None where they are not known."""
        out = []
        for chunk in self.of_file[number]:
            pieces = self.chunks[chunk]
            if len(pieces) == 1:
                out.append(self.digests[chunk])
            elif chunk in self.parts:
                out.append(self.parts[chunk][[file for file, _, _ in pieces].index(number)])
        known = len(out) == len(self.of_file[number]) and all(out)
        return b"".join(out) if known else None

    def root(self) -> str:
        """One digest of all chunks in their order: nodes that have the same bytes have the same root."""
        return self.digest_of(b"".join(self.digests)).hex()

    def _path(self, name: str) -> str:
        return f"/proc/self/fd/{self.own}/{name}"


def open_dest(dest: str) -> int:
    """DEST itself, made if need be; it may be a link, as its owner says where it is. Raises Unusable."""
    try:
        os.makedirs(dest, exist_ok=True)
        return os.open(dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileExistsError, NotADirectoryError):
        raise Unusable("weights/not-a-folder", f"{dest} is not a folder", f"ls -ld {dest}") from None
    except OSError as error:
        raise disk_trouble(error, dest) from None


def open_own(top: int, dest: str, *, make: bool = True) -> int:
    """Our own folder in DEST: a folder of this user, and no link. Raises Unusable, or FileNotFoundError."""
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(OWN_FOLDER, 0o700, dir_fd=top)
        own = os.open(OWN_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_trouble(error, f"{dest}/{OWN_FOLDER}") from None
    found = os.fstat(own)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        os.close(own)
        text = f"{dest}/{OWN_FOLDER} is not a folder that only this user can write to"
        raise Unusable("weights/not-ours", text, f"ls -ld {dest}/{OWN_FOLDER}")
    return own


def read_record(own: int) -> dict[str, Any]:
    """What an earlier run published; empty where there is nothing that reads."""
    try:
        record = json.loads(read_file(RECORD, MAX_RECORD_BYTES, dir_fd=own, follow=False))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and record.get("schema") == RECORD_SCHEMA else {}


def stage_file(number: int) -> str:
    """The name of a file under way: nothing that came from outside."""
    return f"{number:07d}"


def write_all(fd: int, data: memoryview, at: int | None) -> None:
    """All of it, at an offset; None: at the end."""
    while data:
        num = os.write(fd, data) if at is None else os.pwrite(fd, data, at)
        data = data[num:]
        at = None if at is None else at + num


def sync_all(fd: int) -> None:
    """Everything of this file system is on the disk: one call for many small files."""
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    except AttributeError:
        os.sync()


def disk_trouble(error: OSError, place: str) -> Unusable:
    """What a disk refuses, in words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unusable("weights/disk-full", f"{place} has no room left", f"df -h {place}")
    if error.errno == errno.EROFS:
        return Unusable("weights/read-only", f"{place} is on a read-only file system", f"findmnt -T {place}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Unusable("weights/not-permitted", f"no right to write to {place}", f"ls -ld {place}")
    return Unusable("weights/disk-error", f"{place}: {error.strerror or error}", "dmesg | tail")
