"""What a plan would change in a folder, and doing it. A file that somebody changed by hand is kept and named.

`.fairlead-plan.json` in the folder holds the digest of each file as it was written last. What is there and has another
digest, or none, is somebody's own. Files are written below the folder alone, and no link is followed. Nobody else
may write to them, whatever the umask says: root will run some of them.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from fairlead.base.files import disk_errors
from fairlead.base.trust import NotAFile, TooLarge, beneath, read_file
from fairlead.errors import UsageError
from fairlead.plan.wanted import Planned

STATE = ".fairlead-plan.json"
MAX_BYTES = 4 << 20
State = Literal["new", "same", "changed", "by hand"]


class Change(Struct, frozen=True, kw_only=True):
    """One file of a plan against what is there."""

    path: str
    about: str
    state: State
    diff: str = ""
    """Unified; empty where nothing differs."""
    why: str = ""
    """For a file that is somebody's own."""

    @property
    def added(self) -> int:
        """Lines that come."""
        return _count(self.diff, "+")

    @property
    def removed(self) -> int:
        """Lines that go."""
        return _count(self.diff, "-")


def compare(folder: Path, files: Iterable[Planned]) -> list[Change]:
    """Every file against the folder. Raises UsageError where something else stands in a file's place."""
    written, found = _written(folder), []
    for file in files:
        old = _read(folder, file.path)
        new = file.text.encode()
        diff = _diff(old, new, file.path)
        state: State = "same" if old == new else "new" if old is None else "changed"
        why = ""
        if state == "changed" and _digest(old or b"") != written.get(file.path):
            state = "by hand"
            why = "changed since it was written" if file.path in written else "there before, and not written by a plan"
        found.append(Change(path=file.path, about=file.about, state=state, diff=diff, why=why))
    return found


def apply(folder: Path, files: Sequence[Planned], *, force: bool = False) -> list[Change]:
    """Write what is new or changed; with `force`, over what somebody changed by hand, too. Returns what was found."""
    changes = compare(folder, files)
    written = dict(_written(folder))
    with disk_errors(folder, elsewhere="fairlead plan --write ELSEWHERE"):
        folder.mkdir(0o755, parents=True, exist_ok=True)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for change, file in zip(changes, files, strict=True):
                if change.state == "by hand" and not force:
                    continue
                if change.state != "same":
                    _write(root, file.path, file.text.encode(), 0o755 if file.executable else 0o644)
                written[file.path] = _digest(file.text.encode())
            _write(root, STATE, msgspec.json.format(msgspec.json.encode(written)) + b"\n", 0o644)
        finally:
            os.close(root)
    return changes


def _write(root: int, path: str, data: bytes, mode: int) -> None:
    """A whole file or nothing: beside its place, then renamed."""
    with beneath(root, path, make=True) as (here, name):
        coming = f".{name}.{os.urandom(6).hex()}"
        handle = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=here)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(coming, name, src_dir_fd=here, dst_dir_fd=here)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(coming, dir_fd=here)
            raise


def _read(folder: Path, path: str) -> bytes | None:
    """What stands there; None for nothing. Raises UsageError for what is no file of a bearable size."""
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            "plan/folder", f"cannot write to {folder}: {error.strerror}", hint="choose another folder"
        ) from None
    try:
        with beneath(root, path) as (here, name):
            return read_file(name, MAX_BYTES, dir_fd=here, follow=False)
    except FileNotFoundError:
        return None
    except (NotAFile, TooLarge, OSError) as error:
        why = error.strerror or str(error)
        raise UsageError("plan/folder", f"{folder / path} is in the way: {why}", hint="move it away") from None
    finally:
        os.close(root)


def _written(folder: Path) -> Mapping[str, str]:
    """Digest of each file as written last; nothing where that cannot be read: then all there is counts as by hand."""
    try:
        return msgspec.json.decode(_read(folder, STATE) or b"{}", type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _diff(old: bytes | None, new: bytes, path: str) -> str:
    if old == new:
        return ""
    before = [] if old is None else old.decode("utf-8", "backslashreplace").splitlines(keepends=True)
    after = new.decode().splitlines(keepends=True)
    name = "/dev/null" if old is None else f"a/{path}"
    text = "".join(difflib.unified_diff(before, after, name, f"b/{path}"))
    return text if text.endswith("\n") or not text else text + "\n"


def _count(diff: str, sign: str) -> int:
    return sum(1 for line in diff.splitlines()[2:] if line.startswith(sign))
