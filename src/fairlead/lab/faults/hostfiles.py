"""Single files of a lab host: changed, hidden, and given back as they were.

Knows: which files are a host's own, by the mount they are on, and where it keeps what they held. Must not know: faults.

A host shares the machine's programs and home directories. What lies there, and the kernel's own files, is not the
host's to change: an injected fault must never reach the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from fairlead.errors import LabError
from fairlead.lab import hosttree, inside
from fairlead.lab.anchor import MOUNT_SOURCE
from fairlead.records.labstate import HostState

_KEPT = "run/fairlead/kept"


def change(host: HostState, path: str, content: bytes | None, own: bytes | None) -> None:
    """Give a file other content; None hides it.

    `own` is what the lab gave it; where that is None, what the file holds now is kept for `restore`. Raises LabError:
    `lab/not-its-own` where the file is the machine's, `lab/refused` where it cannot be written.
    """
    place = inside.host_path(host, path)
    with _refusals(host, path):
        _check_own(host, place, path)
        if own is None:
            _keep(place, _kept(host, path))
        if content is None:
            _remove(place, inside.host_path(host, ""))
        else:
            _write(place, content)


def restore(host: HostState, path: str, own: bytes | None) -> None:
    """Make a file again what it was before the first `change`. Raises LabError as that does."""
    place, kept = inside.host_path(host, path), _kept(host, path)
    with _refusals(host, path):
        _check_own(host, place, path)
        if own is not None:
            _write(place, own)
        elif kept.is_dir():
            _remove(place, inside.host_path(host, ""))
            kept.rmdir()
        elif os.path.lexists(kept):
            place.unlink(missing_ok=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(kept, place, follow_symlinks=False)
            kept.unlink()


def _kept(host: HostState, path: str) -> Path:
    return inside.host_path(host, f"{_KEPT}/{hashlib.sha256(path.encode()).hexdigest()}")


def _keep(place: Path, kept: Path) -> None:
    """Keep what a file holds, once; an empty directory says that it was not there."""
    if os.path.lexists(kept):
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(place):
        shutil.copy2(place, kept, follow_symlinks=False)
    else:
        kept.mkdir()


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    link = hosttree.LINK.encode()
    if place.is_symlink() or content.startswith(link):
        place.unlink(missing_ok=True)  # never through a link: from out here an absolute one leads to the machine
    if content.startswith(link):
        place.symlink_to(content.removeprefix(link).decode())
    else:
        # written in place: some files are bound over the kernel's, and a new file would not be seen
        place.write_bytes(content)


def _remove(place: Path, root: Path) -> None:
    """Remove a file, and the directories that only it kept, though none of the first two levels."""
    place.unlink(missing_ok=True)
    for folder in place.parents:
        if len(folder.relative_to(root).parts) < 3:
            return
        try:
            folder.rmdir()
        except OSError:
            return


def _check_own(host: HostState, place: Path, path: str) -> None:
    """Raise `lab/not-its-own` unless the file, or what is nearest above it, is on a mount made for this host."""
    assert host.anchor is not None
    near = next(p for p in (place, *place.parents) if os.path.lexists(p))
    fd = os.open(near, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = re.search(r"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.MULTILINE)
    finally:
        os.close(fd)
    assert found, "every open file is on a mount"
    for line in Path(f"/proc/{host.anchor.pid}/mountinfo").read_text().splitlines():
        if line.split(" ", 1)[0] == found[1] and line.split(" - ", 1)[1].split()[1] == MOUNT_SOURCE:
            if near == place and place.is_dir() and not place.is_symlink():
                raise LabError("lab/not-its-own", f"/{path} on {host.name} is a directory", hint="name one file in it")
            return
    raise LabError(
        "lab/not-its-own",
        f"/{path} is not a file of {host.name} alone: it is the machine's, or the kernel's",
        hint="a host's own are files below /etc, /tmp, /run, /mnt, /var/log, /usr/local/bin and those of its facts",
    )


@contextlib.contextmanager
def _refusals(host: HostState, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabError(
            "lab/refused",
            f"/{path} on {host.name} cannot be changed: {error.strerror or error}",
            hint=f"fairlead lab exec {host.name} -- ls -l /{path}",
        ) from error
