"""Being told of every system call that names a destination, before it is made: seccomp user notification (seccomp(2),
seccomp_unotify(2), Linux 5.6). Children inherit it and nobody takes it off; it needs no program and no right.

What is read of a call is what stood in memory then: a program that means to deceive may change it. It cannot get out
either way; the network namespace sees to that. Standard library alone. Must not know what a destination means.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

MAX_ADDRESS = 128
"""sizeof(struct sockaddr_storage)."""
_MAX_MESSAGES = 64
"""Of a sendmmsg that are looked at; the resolver of glibc sends two."""


class _Arch(NamedTuple):
    audit: int
    calls: dict[str, int]


_ARCHES = {
    "x86_64": _Arch(
        0xC000003E, {"connect": 42, "sendto": 44, "sendmsg": 46, "bind": 49, "sendmmsg": 307, "seccomp": 317}
    ),
    "aarch64": _Arch(
        0xC00000B7, {"bind": 200, "connect": 203, "sendto": 206, "sendmsg": 211, "sendmmsg": 269, "seccomp": 277}
    ),
}
"""include/uapi/linux/audit.h, and the tables of system calls."""
_IO_URING_SETUP, _PIDFD_GETFD = 425, 438
_X32 = 0x4000_0000
_LD, _JEQ, _JGE, _RET = 0x20, 0x15, 0x35, 0x06
_ALLOW, _NOTIFY, _NO_CALL = 0x7FFF_0000, 0x7FC0_0000, 0x0005_0000 | errno.ENOSYS
_NR, _AUDIT, _ARGS = 0, 4, 16
_SET_MODE_FILTER, _NEW_LISTENER, _NO_NEW_PRIVS = 1, 8, 38
_RECV, _SEND, _STILL = 0xC050_2100, 0xC018_2101, 0x4008_2102
_CONTINUE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Call(NamedTuple):
    """A call that names a destination."""

    tid: int
    name: str
    """`connect`, `bind`, `sendto`, `sendmsg`, `sendmmsg`."""
    address: bytes
    """A struct sockaddr."""
    type: int
    """SOCK_STREAM, SOCK_DGRAM, ...; 0 where the socket could not be looked at."""


def program(machine: str = "") -> bytes:
    """The filter as instructions of BPF. Raises OSError on a machine whose calls are not known here."""
    arch = _ARCHES.get(machine or platform.machine())
    if arch is None:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine or platform.machine()}")
    nr = arch.calls
    # (code, k, if true, if not), jumps by name; io_uring would make calls that no filter sees
    rows: list[tuple[int, int, str, str]] = [
        (_LD, _AUDIT, "", ""),
        (_JEQ, arch.audit, "", "none"),
        (_LD, _NR, "", ""),
        *([(_JGE, _X32, "none", "")] if arch.audit == _ARCHES["x86_64"].audit else []),
        (_JEQ, _IO_URING_SETUP, "none", ""),
        *((_JEQ, nr[name], "notify", "") for name in ("connect", "sendmsg", "sendmmsg", "bind")),
        (_JEQ, nr["sendto"], "", "allow"),
        (_LD, _ARGS + 4 * 8, "", ""),  # no address: the socket is connected, and that was seen
        (_JEQ, 0, "", "notify"),
        (_LD, _ARGS + 4 * 8 + 4, "", ""),
        (_JEQ, 0, "allow", "notify"),
    ]
    ends = {"allow": len(rows), "notify": len(rows) + 1, "none": len(rows) + 2}
    made = [
        struct.pack("=HBBI", code, *((ends[to] - i - 1) if to else 0 for to in (yes, no)), k)
        for i, (code, k, yes, no) in enumerate(rows)
    ]
    return b"".join([*made, *(struct.pack("=HBBI", _RET, 0, 0, k) for k in (_ALLOW, _NOTIFY, _NO_CALL))])


def install() -> int:
    """From now on this process and all it starts are looked at. The handle that hears of it; the caller gives it away
    and closes it. Raises OSError.
    """
    code = program()
    number = _ARCHES[platform.machine()].calls["seccomp"]
    held = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("H6xP", len(code) // 8, ctypes.addressof(held))
    _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    return _check(_libc.syscall(ctypes.c_long(number), _SET_MODE_FILTER, _NEW_LISTENER, head))


def taken(pid: int, fd: int) -> int:
    """A copy of another process's handle (pidfd_getfd(2)). Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        return _check(_libc.syscall(ctypes.c_long(_PIDFD_GETFD), pidfd, fd, 0))
    finally:
        os.close(pidfd)


def listen(listener: int, said: Callable[[Call], bool]) -> None:
    """Hear of every call, and let it go on or, where `said` returns False, be refused; returns when nobody is left who
    could make one.
    """
    names = {number: name for name, number in _ARCHES[platform.machine()].calls.items()}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        events = poll.poll()
        if not events[0][1] & select.POLLIN:
            return
        raw = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECV, raw)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue  # who called is gone, or was interrupted
            raise
        ident, tid, _, nr, _, _, *args = struct.unpack("=QIIiIQ6Q", raw)
        answer = struct.pack("=QqiI", ident, 0, 0, _CONTINUE)
        try:
            heard = [said(call) for call in _calls(listener, ident, tid, names.get(nr, ""), args)]
            if not all(heard):
                answer = struct.pack("=QqiI", ident, 0, -errno.ECONNREFUSED, 0)
        finally:
            with contextlib.suppress(OSError):
                fcntl.ioctl(listener, _SEND, bytearray(answer))


def _calls(listener: int, ident: int, tid: int, name: str, args: list[int]) -> list[Call]:
    """What a notification says; nothing where it names no destination or its memory is gone."""
    try:
        with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
            found = [a for a in _addresses(memory.fileno(), name, args) if a]
        fcntl.ioctl(listener, _STILL, struct.pack("=Q", ident))  # it was that process's memory, not a later one's
    except (OSError, OverflowError):
        return []
    kind = _type_of(tid, args[0]) if found else 0
    return [Call(tid, name, address, kind) for address in found]


def _addresses(memory: int, name: str, args: list[int]) -> list[bytes]:
    if name in ("connect", "bind"):
        return [_read(memory, args[1], min(args[2] & 0xFFFF_FFFF, MAX_ADDRESS))]
    if name == "sendto":
        return [_read(memory, args[4], min(args[5] & 0xFFFF_FFFF, MAX_ADDRESS))]
    # struct msghdr begins with the address and its length; in struct mmsghdr 56 bytes and a number, 64 in all
    num = min(args[2] & 0xFFFF_FFFF, _MAX_MESSAGES) if name == "sendmmsg" else 1
    heads = (struct.unpack("=QI", _read(memory, args[1] + 64 * i, 12)) for i in range(num))
    return [_read(memory, at, min(length, MAX_ADDRESS)) for at, length in heads if at and length]


def _read(memory: int, at: int, length: int) -> bytes:
    return os.pread(memory, length, at) if at and length else b""


def _type_of(tid: int, fd: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        sock = socket.socket(fileno=taken(group_of(tid), fd & 0x7FFF_FFFF))
        with sock:
            return sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    return 0


def group_of(tid: int) -> int:
    """The process that a thread is of; the thread itself where that cannot be read."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{tid}/status", "rb") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line.split()[1])
    return tid


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
