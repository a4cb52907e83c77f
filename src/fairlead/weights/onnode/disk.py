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
import os
import threading
from collections import OrderedDict

from fairlead.base.tensors import odd
from fairlead.base.trust import beneath
from fairlead.weights.onnode.journal import DROPPED, Journal
from fairlead.weights.onnode.layout import bytes_of
from fairlead.weights.onnode.place import (
    DIGEST_BYTES,
    OWN_FOLDER,
    RECORD_SCHEMA,
    Unusable,
    disk_trouble,
    hasher,
    open_dest,
    open_own,
    stage_file,
    sync_all,
    write_all,
    write_record,
)
from fairlead.weights.onnode.stored import digest_of_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Any

    from fairlead.weights.onnode.layout import Pieces

MAX_OPEN = 128
ALIGNED = 4096
MAX_UNSYNCED = 1 << 30
"""Bytes that may wait in the page cache to be on the disk for good: a disk that is slower than the network must not put
off the moment at which anything counts, nor fill the node's memory.
"""


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
                self._remove(name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.stage_name, 0o700, dir_fd=self.own)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.stage = os.open(self.stage_name, flags, dir_fd=self.own)
        self.digests: list[bytes] = [b""] * len(chunks)
        self.said_digests = [bytes.fromhex(file.get("digests", "")) for file in files]
        """Of each file's chunks, one after the other, where a manifest says them."""
        self.parts: dict[int, list[bytes]] = {}
        """Of packed chunks, the digest of each file."""
        self.published, self.trusted = bytearray(len(files)), bytearray(len(files))
        self.skips, self.here = bytearray(len(chunks)), bytearray(len(chunks))
        """Chunks that are left alone; that can be read."""
        self.left = [0] * len(files)
        """Of each file, how many of its chunks are not on the disk."""
        self.of_file: list[list[int]] = [[] for _ in files]
        self.place_in_file = [0] * len(chunks)
        """Of a chunk of one file, the how manieth it is."""
        for number, chunk in enumerate(chunks):
            for file, _, _ in chunk:
                self.place_in_file[number] = len(self.of_file[file])
                self.of_file[file].append(number)
                self.left[file] += 1
        self.wanted = [self._wanted(number) for number in range(len(chunks))]
        """The digests that a publisher's manifest says chunks have; empty where nobody says."""
        self.guard = threading.Lock()
        self.open_files: OrderedDict[tuple[int, bool], int] = OrderedDict()
        self.is_direct = True
        self.unsynced: list[int] = []
        self.unsynced_bytes = 0
        self.synced = threading.Condition()
        self.journal = Journal(self.stage)

    def stat(self, path: str) -> os.stat_result | None:
        """What lies under a final name, if it is a regular file."""
        import stat

        try:
            with beneath(self.top, path) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, ValueError):
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def wanted_parts(self, number: int) -> list[bytes]:
        """The digests that a manifest says the files of a chunk have in it; empty ones where it says nothing."""
        at = self.place_in_file[number] * DIGEST_BYTES if len(self.chunks[number]) == 1 else 0
        return [self.said_digests[file][at : at + DIGEST_BYTES] for file, _, _ in self.chunks[number]]

    def _wanted(self, number: int) -> bytes:
        parts = self.wanted_parts(number)
        return (parts[0] if len(parts) == 1 else self.digest_of(b"".join(parts))) if all(parts) else b""

    def is_right(self, number: int, digest: bytes) -> bool:
        """Whether a chunk is what the manifest says, where there is one."""
        return not self.wanted[number] or digest == self.wanted[number]

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
        self.known(number, digest, parts)
        with self.guard:
            self.unsynced.append(number)
        self.here[number] = 1

    def read(self, number: int, into: memoryview) -> int:
        """The bytes of a chunk from the disk; returns how many. Raises Unusable where they cannot be read."""
        at = 0
        for file, offset, length in self.chunks[number]:
            self.read_piece(file, offset, into[at : at + length])
            at += length
        return at

    def read_piece(self, file: int, offset: int, into: memoryview) -> None:
        """Bytes of a file that are on the disk. Raises Unusable where they cannot be read."""
        at = 0
        try:
            with self._reading(file) as fd:
                while at < len(into) and (num := os.preadv(fd, [into[at:]], offset + at)):
                    at += num
        except OSError as error:
            raise disk_trouble(error, self.dest) from None
        if at < len(into):
            raise disk_trouble(OSError(errno.EIO, "the file is shorter than it was"), self.dest)

    @contextlib.contextmanager
    def _reading(self, file: int) -> Iterator[int]:
        """A file under the name that it has now. Raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with self.guard:  # it may get its own just now
            if self.published[file]:
                with beneath(self.top, self.files[file]["path"]) as (folder, name):
                    fd = os.open(name, flags, dir_fd=folder)
            else:
                fd = os.open(stage_file(file), flags, dir_fd=self.stage)
        try:
            yield fd
        finally:
            os.close(fd)

    def stored_digest(self, file: int, said: str) -> str:
        """The digest that a file has, of the kind that its store gives. Raises Unusable."""
        try:
            with self._reading(file) as fd:
                return digest_of_file(fd, self.files[file]["size"], said)
        except OSError as error:
            raise disk_trouble(error, self.dest) from None

    def drop(self, chunks: Iterable[int]) -> None:
        """Say in the journal that these are not here after all."""
        self.journal.add((number, DROPPED) for number in sorted(chunks))

    def sync(self) -> list[int]:
        """Have what was written on the disk, and say so in the journal; returns those chunks."""
        with self.guard:
            numbers, self.unsynced = self.unsynced, []
        if numbers:
            try:
                sync_all(self.stage)
                self.journal.add((number, self.digests[number]) for number in numbers)
            except OSError as error:
                raise disk_trouble(error, self.dest) from None
            for number in numbers:
                self.written(number)
            with self.synced:
                self.unsynced_bytes -= sum(bytes_of(self.chunks[n]) for n in numbers)
                self.synced.notify_all()
        return numbers

    def known(self, number: int, digest: bytes, parts: list[bytes] | None) -> None:
        """This is the digest of a chunk, and of its files where it is packed."""
        self.digests[number] = digest
        if parts is not None:
            self.parts[number] = parts

    def written(self, number: int) -> None:
        """A chunk is on the disk for good."""
        self.here[number] = 1
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
                found = self.stat(file["path"])
                if found is not None and (digests := self.file_digests(number)) is not None:
                    what = {"size": file["size"], "mtime_ns": found.st_mtime_ns, "tag": file["tag"]}
                    what.update({"lengths": file["lengths"]} if "lengths" in file else {})
                    files[file["path"]] = {**what, "digests": digests.hex()}
            record = {
                "schema": RECORD_SCHEMA,
                "algorithm": self.algorithm,
                "chunk_bytes": self.chunk_bytes,
                "root": self.root(),
                "files": files,
            }
            write_record(self.own, record)
            self._remove(self.stage_name)
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
            if self.journal.is_empty:
                self._remove(self.stage_name)
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

    def _remove(self, name: str) -> None:
        """A stage with its files; we make no folders in it."""
        with contextlib.suppress(OSError):
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.own)
            try:
                for file in os.listdir(folder):
                    os.unlink(file, dir_fd=folder)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=self.own)
