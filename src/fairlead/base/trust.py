"""Who could have written what is about to be used: the one rule for folders and files that are found, not sent.

Ours is what nobody else could have put there: owned by the caller or by root, at every step from the root of the file
system, writable by nobody else. A directory such as /tmp, where all may write and each keeps what is his own, is a step
but no place of ours. Everything is opened step by step, by the handle of the directory before, so that what was looked
at is what is used; a link is followed only where the link itself is ours.

Standard library and Python 3.9 alone: programs for nodes take this file along.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import BufferedReader

MAX_LINKS = 40
MAX_RACES = 100
PRIVATE_DIR, PRIVATE_FILE = 0o700, 0o600
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class NotOurs(PermissionError):
    """Somebody else owns it, or could change it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)


class NotAFile(OSError):
    """A directory, a pipe or a device stands where a file should."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", path)


class TooLarge(OSError):
    """A file is longer than anything that is meant to stand there."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__(errno.EFBIG, f"it is larger than {limit} bytes", path)


# ---- the rule --------------------------------------------------------------------------------------------------------


def trusted_uids(env: Mapping[str, str] = os.environ) -> frozenset[int]:
    """Whose files are as good as our own: root's, the caller's; for root under sudo, also of who called sudo.

    In a user namespace the kernel calls everybody outside by one number, root too: that one counts.
    """
    me = os.geteuid()
    said = env.get("SUDO_UID", "") if me == 0 else ""
    sudo = {int(said)} if said.isascii() and said.isdigit() and len(said) < 11 else set()
    return frozenset({0, me, *sudo, *_outside()})


def may_write(found: os.stat_result) -> str:
    """Who else could change something, in words; empty for nobody.

    A group counts as somebody else unless it is root's, or the owner's own and has no other member.
    """
    if found.st_uid not in trusted_uids():
        return f"it belongs to {user_name(found.st_uid)}"
    if found.st_mode & stat.S_IWOTH:
        return "everybody may write to it"
    if found.st_mode & stat.S_IWGRP and not _is_nobody_else(found.st_gid, found.st_uid):
        return f"the group {_group_name(found.st_gid)} may write to it"
    return ""


def user_name(uid: int) -> str:
    """A user by name, where the number has one."""
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"


@functools.lru_cache(maxsize=1)
def _outside() -> frozenset[int]:
    """The number of users that this user namespace has no number for; nothing where it has one for each."""
    try:
        with open("/proc/self/uid_map") as file:
            if file.read().split() == ["0", "0", "4294967295"]:
                return frozenset()
        with open("/proc/sys/kernel/overflowuid") as file:
            return frozenset({int(file.read())})
    except (OSError, ValueError):
        return frozenset()


@functools.lru_cache(maxsize=64)
def _is_nobody_else(gid: int, uid: int) -> bool:
    """Whether a group is root's, or has but the one user whose own it is."""
    import grp
    import pwd

    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _group_name(gid: int) -> str:
    import grp

    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


# ---- folders ---------------------------------------------------------------------------------------------------------


def own_folder(path: str | os.PathLike[str], *, make: bool = True) -> str:
    """A folder in which nobody else can put, change or exchange anything; made, for the caller alone, where it is not.

    Returns the path. Raises NotOurs, naming the first step that is not; or another OSError.
    """
    os.close(open_folder(path, make=make))
    return os.fspath(path)


def open_folder(path: str | os.PathLike[str], *, make: bool = False) -> int:
    """The same, open: for `dir_fd`. The caller closes it."""
    for _ in range(MAX_RACES if make else 0):
        with contextlib.suppress(FileNotFoundError):  # somebody removes empty folders while we make ours in them
            return _walk(path, make=True)
    return _walk(path, make=make)


def _walk(path: str | os.PathLike[str], *, make: bool) -> int:
    is_sticky = False

    def check(where: str, found: os.stat_result, left: list[str]) -> None:
        nonlocal is_sticky
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), where)
        why = may_write(found)
        is_sticky = bool(found.st_mode & stat.S_ISVTX)
        if why and not (left and is_sticky and found.st_uid in trusted_uids()):
            raise NotOurs(where, why)

    with contextlib.ExitStack() as stack:
        here = _arrive(stack, path, check, make=make)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)


def _arrive(
    stack: contextlib.ExitStack,
    path: str | os.PathLike[str],
    check: Callable[[str, os.stat_result, list[str]], None],
    *,
    make: bool = False,
) -> int:
    """The handle (O_PATH) of what a path leads to, step by step; a link is followed only if it is ours.

    Each step that is no link is given to `check`: its path, what it is, the steps left.
    """
    here = _handle(stack, os.open("/", os.O_PATH | os.O_CLOEXEC))
    whole = os.fspath(path)
    steps = _steps(whole if whole.startswith("/") else os.path.join(os.getcwd(), whole))
    shown, num_links = "/", 0
    while steps:
        name = steps.pop()
        where = os.path.join(shown, name)
        step = _handle(stack, _open_step(name, here, make=make))
        found = os.fstat(step)
        if stat.S_ISLNK(found.st_mode):
            num_links += 1
            if num_links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), where)
            if found.st_uid not in trusted_uids():
                raise NotOurs(where, f"it is a link that belongs to {user_name(found.st_uid)}")
            target = os.readlink("", dir_fd=step)
            if target.startswith("/"):
                here, shown = _handle(stack, os.open("/", os.O_PATH | os.O_CLOEXEC)), "/"
            steps += _steps(target)
            continue
        check(where, found, steps)
        here, shown = step, os.path.normpath(where)
    return here


def why_not_ours(path: str | os.PathLike[str]) -> str:
    """Why a folder is not ours, in words; empty where it is."""
    try:
        own_folder(path, make=False)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror or error}"
    return ""


@contextlib.contextmanager
def beneath(root: int, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """(the open folder, the name in it) of a path below an open folder: no link is followed, and none leads out.

    Raises NotADirectoryError where a step is a link or a file, and ValueError for a path that climbs.
    """
    *steps, name = [part for part in path.split("/") if part not in ("", ".")] or [""]
    if ".." in steps or name in ("", ".."):
        raise ValueError(f"`{path}` names no place below the folder")
    with contextlib.ExitStack() as stack:
        here = root
        for step in steps:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(step, 0o755, dir_fd=here)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            here = _handle(stack, os.open(step, flags, dir_fd=here))
        yield here, name


def _open_step(name: str, here: int, *, make: bool) -> int:
    try:
        return os.open(name, _STEP, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # whoever was quicker is looked at like everybody
        os.mkdir(name, PRIVATE_DIR, dir_fd=here)
    return os.open(name, _STEP, dir_fd=here)


def _steps(path: str) -> list[str]:
    """The names of a path, last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _handle(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


# ---- files -----------------------------------------------------------------------------------------------------------


def read_file(
    path: str | os.PathLike[str], limit: int, *, ours: bool = False, dir_fd: int | None = None, follow: bool = True
) -> bytes:
    """A whole regular file of at most `limit` bytes: a pipe or a device is never waited for.

    With `ours`, only one that nobody else could have written. Raises NotAFile, TooLarge, NotOurs, or another OSError.
    """
    shown = os.fspath(path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    if ours and (link := os.lstat(path)).st_uid not in trusted_uids():
        raise NotOurs(shown, f"it belongs to {user_name(link.st_uid)}")
    with open(os.open(path, flags, dir_fd=dir_fd), "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise (IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown) if stat.S_ISDIR(found.st_mode)
                   else NotAFile(shown))  # fmt: skip
        if ours and (why := may_write(found)):
            raise NotOurs(shown, why)
        parts, size = [], 0
        while size <= limit and (part := file.read(min(1 << 20, limit + 1 - size))):
            parts.append(part)
            size += len(part)
    if size > limit:
        raise TooLarge(shown, limit)
    return b"".join(parts)


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """A regular file of any length, to be read: a pipe or a device is never waited for. Raises NotAFile or OSError."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotAFile(os.fspath(path))
    return file


def open_straight(path: str | os.PathLike[str]) -> int:
    """A regular file, open to be read, in a folder that strangers may write to: no link of theirs is followed.

    A pipe or a device is never waited for. The caller closes the handle. Raises NotOurs, NotAFile or OSError.
    """

    def check(where: str, found: os.stat_result, left: list[str]) -> None:
        if not left and not stat.S_ISREG(found.st_mode):
            raise NotAFile(where)

    with contextlib.ExitStack() as stack:
        # the very file that was looked at, whatever has its name by now
        found = _arrive(stack, path, check)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def private_opener(path: str, flags: int) -> int:
    """An `opener` for `open`: a new file is for the caller alone, and a link in its place is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)


# ---- programs --------------------------------------------------------------------------------------------------------


def search_path(env: Mapping[str, str] = os.environ, *more: str) -> str:
    """PATH without the current directory, which an empty or relative part of it would mean; the usual places if unset.

    >>> search_path({"PATH": ":/usr/bin:bin"}, "/sbin"), search_path({})
    ('/usr/bin:/sbin', '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin')
    """
    said = [part for part in env.get("PATH", "").split(":") if part.startswith("/")]
    usual = [] if said else ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return ":".join(dict.fromkeys([*said, *usual, *more]))
