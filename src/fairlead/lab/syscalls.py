"""The few Linux calls a lab is made of: namespaces, mounts, process bonds, device features.

Knows: numbers and argument shapes of the kernel's interface (`unshare(2)`, `setns(2)`, `mount(2)`, `prctl(2)`,
`SIOCETHTOOL`). Must not know: labs, hosts, faults. Python 3.11 has no `os.unshare` yet; these stand in for it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000

_PR_SET_PDEATHSIG = 1
_CAP_SYS_ADMIN = 21
_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM = 0x17

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones. CLONE_NEWPID takes effect for the next child."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int = 0) -> None:
    """Enter the namespace behind an open /proc/PID/ns/* file."""
    _check(_libc.setns(fd, kind), "setns")


def enter(path: str | Path, kind: int) -> None:
    """Enter the namespace behind a path."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(fd, kind)
    finally:
        os.close(fd)


def mount(source: str, target: str | Path, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """Make a mount (mount(2)); the error names its target."""
    result = _libc.mount(source.encode(), os.fsencode(target), fstype.encode(), ctypes.c_ulong(flags), data.encode())
    _check(result, str(target))


def bind(source: str | Path, target: str | Path, *, recursive: bool = False) -> None:
    """Make a file or directory appear at a second place."""
    mount(str(source), target, flags=MS_BIND | (MS_REC if recursive else 0))


def sethostname(name: str) -> None:
    """The name of this UTS namespace."""
    raw = name.encode()
    _check(_libc.sethostname(raw, len(raw)), "sethostname")


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the thread that started this process ends; 0 takes the wish back."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(sig), 0, 0, 0), "prctl")


def has_sys_admin() -> bool:
    """Whether this process may make namespaces without a user namespace."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def set_tx_checksum(device: str, *, on: bool) -> None:
    """Whether a device claims to compute checksums itself (on: they never are, on a veth), in this namespace."""
    value = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_STXCSUM, int(on)))
    request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, request)


def _check(result: int, what: str) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), what)
