"""Switch ports that trim: a program for the kernel's BPF machine, made here word by word, and the calls that start it.

Knows: BPF's instructions, `bpf(2)`, what a packet of MRC looks like from outside. Must not know: labs, plans, faults.

No compiler is asked for: the program is some seventy instructions. It stands at a port's egress, before its queue, and
keeps a virtual queue: bytes that came, less what the port's rate has carried away since. A data packet that may be
trimmed (its DSCP says so) and would make that queue longer than the limit loses its payload, gets the DSCP of a trimmed
packet, and goes ahead of all others, as do those that a switch before has trimmed (HTB's class, by `skb->priority`).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

TRIMMABLE, TRIMMABLE_RETX, TRIMMED, TRIMMED_LASTHOP = 0x61, 0x62, 0x63, 0x64
"""First byte of an IPv6 header by DSCP 4, 8, 12 and 16: its lower half is the upper half of the traffic class."""
FIRST_CLASS = 0x1_0010
"""`skb->priority` of HTB's class 1:10."""
KEPT = 64
"""Bytes of the UDP payload that stay: more than all headers of a Write."""

_ETHERNET, _IPV6, _UDP = 14, 40, 8
_HEADERS = _ETHERNET + _IPV6 + _UDP
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _PROG_LOAD, _LINK_CREATE = 0, 5, 28
_ARRAY, _SCHED_CLS, _TCX_EGRESS = 2, 3, 47
_STATE = struct.Struct("=QQQ")
"""When a packet came last, the virtual queue's bytes, packets trimmed."""
_SECOND_NS = 1_000_000_000
_LOG = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)

_LOAD, _STORE, _STORE_NOW = 0x61, 0x63, 0x62  # of words of 32 bits; sizes are added
_BYTE, _HALF, _DOUBLE = 0x10, 0x08, 0x18
_JUMPS = {"": 0x05, "==": 0x15, "!=": 0x55, "<=": 0xB5, ">": 0x25, "> reg": 0x2D}
_LOOKUP, _NOW, _STORE_BYTES, _REDIRECT, _LOAD_BYTES, _CHANGE_TAIL = 1, 5, 9, 23, 26, 38
_LEN, _PROTOCOL, _PRIORITY, _IFINDEX = 0, 16, 32, 40
"""Places in struct __sk_buff."""


class _Program:
    """Instructions, with jumps to names that come later."""

    def __init__(self) -> None:
        self._words: list[tuple[int, int, int, int, int]] = []
        self._names: dict[str, int] = {}
        self._jumps: dict[int, str] = {}

    def put(self, op: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> None:
        self._words.append((op, dst, src, off, imm))

    def jump(self, how: str, to: str, dst: int = 0, value: int = 0) -> None:
        """To a name, where `dst` compares to a number (or, `> reg`, to a register) like that."""
        self._jumps[len(self._words)] = to
        is_register = how.endswith("reg")
        self.put(_JUMPS[how], dst, value if is_register else 0, 0, 0 if is_register else value)

    def name(self, name: str) -> None:
        self._names[name] = len(self._words)

    def call(self, helper: int, *arguments: int | str) -> None:
        """A helper of the kernel: numbers, `packet`, or a place on the stack as `fp-16`."""
        for number, value in enumerate(arguments, 1):
            if isinstance(value, int):
                self.put(0xB7, number, imm=value)
            elif value == "packet":
                self.put(0xBF, number, 6)
            else:
                self.put(0xBF, number, 10)
                self.put(0x07, number, imm=int(value.removeprefix("fp")))
        self.put(0x85, imm=helper)

    def code(self) -> bytes:
        out = bytearray()
        for at, (op, dst, src, own, imm) in enumerate(self._words):
            off = self._names[self._jumps[at]] - at - 1 if at in self._jumps else own
            out += struct.pack("=BBhi", op, src << 4 | dst, off, imm)
        return bytes(out)


def program(state: int, *, rate_mbps: int, limit: int, full: int, last_hop: bool) -> bytes:
    """The instructions for one port. `state` is its map's descriptor; `limit` and `full` are bytes of its queue.

    Registers: 6 the packet, 7 its length, 8 the port's state, 9 the virtual queue.
    """
    p = _Program()
    p.put(0xBF, 6, 1)
    p.put(_LOAD, 7, 6, _LEN)
    p.put(_STORE_NOW, 10, 0, -4, 0)
    p.put(0xBF, 2, 10)
    p.put(0x07, 2, imm=-4)
    p.put(0x18, 1, 1, 0, state)  # the map, of two words
    p.put(0)
    p.put(0x85, imm=_LOOKUP)
    p.jump("==", "out", 0, 0)
    p.put(0xBF, 8, 0)
    # what the port has carried since
    p.call(_NOW)
    p.put(_LOAD | _DOUBLE, 1, 8, 0)
    p.put(_STORE | _DOUBLE, 8, 0, 0)
    p.put(0x1F, 0, 1)
    p.jump("<=", "carried", 0, _SECOND_NS)
    p.put(0xB7, 0, imm=_SECOND_NS)  # it was idle: more would only overflow
    p.name("carried")
    p.put(0x27, 0, imm=rate_mbps)
    p.put(0x37, 0, imm=8000)
    p.put(_LOAD | _DOUBLE, 9, 8, 8)
    p.jump("> reg", "waits", 9, 0)
    p.put(0xBF, 9, 0)
    p.name("waits")
    p.put(0x1F, 9, 0)
    # which packets may be trimmed, and which have been
    p.put(_LOAD, 1, 6, _PROTOCOL)
    p.jump("!=", "add", 1, socket.htons(0x86DD))
    p.call(_LOAD_BYTES, "packet", _ETHERNET, "fp-16", 8)
    p.jump("!=", "add", 0, 0)
    p.put(_LOAD | _BYTE, 2, 10, -10)
    p.jump("!=", "add", 2, socket.IPPROTO_UDP)
    p.put(_LOAD | _BYTE, 1, 10, -16)
    p.jump("==", "first", 1, TRIMMED)
    p.jump("==", "first", 1, TRIMMED_LASTHOP)
    p.jump("==", "may", 1, TRIMMABLE)
    p.jump("!=", "add", 1, TRIMMABLE_RETX)
    p.name("may")
    p.jump("<=", "add", 7, _HEADERS + KEPT)
    p.put(0xBF, 1, 9)
    p.put(0x0F, 1, 7)
    p.jump("<=", "add", 1, limit)
    # trimmed: shorter, told so in both lengths, and marked
    p.call(_CHANGE_TAIL, "packet", _HEADERS + KEPT, 0)
    p.jump("!=", "add", 0, 0)
    p.put(_STORE_NOW | _BYTE, 10, 0, -16, TRIMMED_LASTHOP if last_hop else TRIMMED)
    p.call(_STORE_BYTES, "packet", _ETHERNET, "fp-16", 1, 0)
    p.put(_STORE_NOW | _HALF, 10, 0, -16, socket.htons(_UDP + KEPT))
    p.call(_STORE_BYTES, "packet", _ETHERNET + 4, "fp-16", 2, 0)
    p.call(_STORE_BYTES, "packet", _ETHERNET + _IPV6 + 4, "fp-16", 2, 0)
    p.put(_LOAD | _DOUBLE, 1, 8, 16)
    p.put(0x07, 1, imm=1)
    p.put(_STORE | _DOUBLE, 8, 1, 16)
    # once more to this port, now as a trimmed packet: the kernel has measured it for the shaper before it was cut
    p.put(_STORE | _DOUBLE, 8, 9, 8)
    p.put(_LOAD, 1, 6, _IFINDEX)
    p.put(0xB7, 2, imm=0)
    p.put(0x85, imm=_REDIRECT)
    p.put(0x95)
    p.name("first")
    p.put(0xB7, 1, imm=FIRST_CLASS)
    p.put(_STORE, 6, 1, _PRIORITY)
    p.name("add")
    p.put(0x0F, 9, 7)
    p.jump("<=", "kept", 9, full)
    p.put(0xB7, 9, imm=full)  # what a full queue drops does not wait in it
    p.name("kept")
    p.put(_STORE | _DOUBLE, 8, 9, 8)
    p.name("out")
    p.put(0xB7, 0, imm=-1)  # go on
    p.put(0x95)
    return p.code()


def trim(device: str, *, rate_mbps: int, limit: int, full: int, last_hop: bool) -> None:
    """Let a device of this namespace trim, for as long as this process lives. OSError where the kernel refuses."""
    state = _bpf(_MAP_CREATE, struct.pack("=IIII", _ARRAY, 4, _STATE.size, 1))
    loaded = _load(program(state, rate_mbps=rate_mbps, limit=limit, full=full, last_hop=last_hop))
    os.close(state)  # the program has it
    _bpf(_LINK_CREATE, struct.pack("=IIII", loaded, socket.if_nametoindex(device), _TCX_EGRESS, 0))
    os.close(loaded)  # the link has it


def _load(code: bytes) -> int:
    licence, text = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(code, len(code))
    log = ctypes.create_string_buffer(_LOG)
    at = [ctypes.addressof(one) for one in (text, licence, log)]
    asked = struct.pack("=IIQQIIQII", _SCHED_CLS, len(code) // 8, at[0], at[1], 1, _LOG, at[2], 0, 0)
    try:
        return _bpf(_PROG_LOAD, asked)
    except OSError as error:
        said = log.value.decode(errors="replace").strip().splitlines()
        raise OSError(error.errno, f"{error.strerror} {said[-2:]}", "bpf") from error


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYS_BPF.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"no bpf(2) is known for {os.uname().machine}", "bpf")
    buffer = ctypes.create_string_buffer(attributes, max(len(attributes), 128))
    result = int(_libc.syscall(number, command, buffer, len(buffer)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "bpf")
    return result
