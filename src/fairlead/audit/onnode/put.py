"""One small file of a node: shown, or put in the place of what was shown. Runs there, in Python 3.9.

    python3 - show|write ROOT PATH DIGEST     the new content follows on standard input

prints one line of JSON: `old`, what stands there (null for nothing) and its `digest`; `done` once written, or `error`.
Nothing is written where the file is no longer what was shown, where its folder is somebody else's, or through a link.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from typing import Any

from fairlead.base.trust import beneath, read_file, why_not_ours

MAX_CONTENT = 1 << 16


def digest_of(data: bytes | None) -> str:
    """Of what stands there; empty for nothing."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def put(mode: str, root: str, path: str, digest: str, content: bytes) -> dict[str, Any]:
    """Show or write; whatever happens is an answer."""
    try:
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return {"error": f"{root}: {error.strerror}"}
    try:
        if mode == "write":
            why = why_not_ours(root if root != "/" else path.rpartition("/")[0])
            if why:
                return {"error": why}
        with beneath(top, path, make=mode == "write") as (folder, name):
            return _put(mode, folder, name, digest, content)
    except FileNotFoundError:
        return {"old": None, "digest": ""}  # a folder on the way is not there yet
    except (OSError, ValueError) as error:
        return {"error": f"{path}: {getattr(error, 'strerror', None) or error}"}
    finally:
        os.close(top)


def _put(mode: str, folder: int, name: str, digest: str, content: bytes) -> dict[str, Any]:
    try:
        old: bytes | None = read_file(name, MAX_CONTENT, dir_fd=folder, follow=False)
    except FileNotFoundError:
        old = None
    found = {"old": None if old is None else old.decode("utf-8", "backslashreplace"), "digest": digest_of(old)}
    if mode != "write":
        return found
    if digest_of(old) != digest:
        return {**found, "error": f"{name} has changed since it was read"}
    coming = f".{name[:100]}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(coming, flags, 0o644, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.rename(coming, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(coming, dir_fd=folder)
        raise
    return {**found, "done": True}


def put_main(words: list[str]) -> None:
    """Read what follows the program and answer."""
    content = b""
    while len(content) <= MAX_CONTENT:
        part = os.read(0, MAX_CONTENT)
        if not part:
            break
        content += part
    mode, root, path, digest = words
    os.write(1, (json.dumps(put(mode, root, path, digest, content)) + "\n").encode("ascii"))


if __name__ == "__main__":
    put_main(sys.argv[1:])
