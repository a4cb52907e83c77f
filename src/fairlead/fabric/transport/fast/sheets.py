"""Letters and the kernel's structures beside them: memory for sendmmsg and recvmmsg, by which they are called."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Protocol

import numpy as np

from fairlead.fabric.mrc.packets import Path
from fairlead.fabric.transport.fast import kernels
from fairlead.fabric.transport.fast import layout as at
from fairlead.fabric.transport.fast.desk import MAX_IN, MAX_OUT, Desk, Words, address_of
from fairlead.fabric.transport.ports import (
    DSCP_SHIFT,
    ECN_ECT0,
    IPV6_FLOWINFO,
    Arrival,
    Ports,
    Sockets,
    raise_if_refused,
)

MAX_SOCKETS = 4096
BATCHES_IN = 8
"""Datagrams received at once where each may be a batch."""
_CMSG = struct.Struct("=QiiI4x")
_FAMILY = struct.Struct("=H")


def name_of(host: str, port: int, label: int = 0) -> bytes:
    """A struct sockaddr_in6, or sockaddr_in."""
    address = ip_address(host)
    if address.version == 4:
        return _FAMILY.pack(socket.AF_INET) + struct.pack("!H4s8x", port, address.packed)
    return _FAMILY.pack(socket.AF_INET6) + struct.pack("!HI16sI", port, label, address.packed, 0)


class Sheets:
    """What lies beside the letters of a desk."""

    def __init__(self, desk: Desk, *, gso: bool = False) -> None:
        """With `gso` letters go in batches where they may, and there is room for batches that come."""
        self.desk = desk
        self.num_in = BATCHES_IN if gso else MAX_IN
        self.data_room = at.BATCH_ROOM if gso else at.DATA_ROOM
        max_in = self.num_in
        self._post, self._collect, self._go = kernels.post(), kernels.collect(), kernels.go()
        self.words: Words = np.zeros(at.NUM_POST_WORDS, dtype=np.int64)
        self.address = address_of(self.words)
        self._sockets: dict[tuple[int, int], int] = {}
        self.held: Words = np.zeros(MAX_OUT, dtype=np.int64)
        self._fds: Words = np.zeros(MAX_SOCKETS, dtype=np.int64)
        self._in_hdrs: Words = np.zeros((max_in, at.HDR_ROW), dtype=np.int64)
        self._in_iovs: Words = np.zeros((max_in, at.IOV_ROW), dtype=np.int64)
        self._in_names = np.zeros((max_in, at.NAME_ROOM), dtype=np.uint8)
        self._in_controls = np.zeros((max_in, at.CONTROL_ROOM), dtype=np.uint8)
        self._in_data = np.zeros((max_in, self.data_room), dtype=np.uint8)
        self._kept = {
            at.X_OUT_HDRS: np.zeros((MAX_OUT, at.HDR_ROW), dtype=np.int64),
            at.X_OUT_IOVS: np.zeros((MAX_OUT, 3 * at.IOV_ROW), dtype=np.int64),
            at.X_OUT_CONTROLS: _classes(),
            at.X_ORDER: np.zeros(MAX_OUT, dtype=np.int64),
            at.X_FDS: self._fds,
            at.X_COUNTS: np.zeros(MAX_SOCKETS + 1, dtype=np.int64),
            at.X_HELD: self.held,
            at.X_IN_HDRS: self._in_hdrs,
            at.X_IN_NAMES: self._in_names,
            at.X_IN_CONTROLS: self._in_controls,
            at.X_IN_DATA: self._in_data,
            at.X_FIRST: np.zeros(MAX_OUT + 1, dtype=np.int64),
            at.X_OUT_BATCHES: np.zeros((MAX_OUT, at.BATCH_ROW), dtype=np.uint8),
            at.X_TIME: np.zeros(2, dtype=np.int64),
            at.X_RAILS: np.zeros(MAX_SOCKETS, dtype=np.int64),
        }
        self.words[at.X_GSO], self.words[at.X_DATA_ROOM] = int(gso), self.data_room
        self.words[at.X_MAX_LETTERS], self.words[at.X_MAX_READ] = len(desk.letters), self.num_in
        for place, array in self._kept.items():
            self.words[place] = address_of(array)
        functions = desk.functions
        self.words[at.X_SENDMMSG], self.words[at.X_RECVMMSG] = functions["sendmmsg"], functions["recvmmsg"]
        self.words[at.X_ERRNO], self.words[at.X_CLOCK] = functions["__errno_location"], functions["clock_gettime"]
        for i, hdr in enumerate(self._in_hdrs):
            self._in_iovs[i] = address_of(self._in_data[i]), self.data_room
            hdr[at.HDR_NAME], hdr[at.HDR_CONTROL] = address_of(self._in_names[i]), address_of(self._in_controls[i])
            hdr[at.HDR_IOV], hdr[at.HDR_NUM_IOV] = address_of(self._in_iovs[i]), 1

    def socket(self, rail: int, source: int, fd: int) -> int:
        """The number by which letters name a socket."""
        number = self._sockets.setdefault((rail, source), len(self._sockets))
        self._fds[number] = fd
        self.words[at.X_NUM_SOCKETS] = len(self._sockets)
        return number

    def post(self) -> list[int]:
        """Send all letters; those that found no room."""
        return self.no_room if self._checked(self._post(self.desk.address, self.address)) else []

    @property
    def no_room(self) -> list[int]:
        """The letters that found none when they were sent last."""
        return [i for i in range(self.desk.num_out) if self.held[i]]

    def _checked(self, done: int) -> int:
        if done < 0:
            raise_if_refused(-done, gso=bool(self.words[at.X_GSO]))
            raise OSError(-done, os.strerror(-done))
        return done

    def go(self, fds: Sequence[int], *, steered: bool, budget: int, until: int) -> int:
        """Rounds over these sockets; why they ended, as `rounds.go` says."""
        self._kept[at.X_RAILS][: len(fds)] = fds
        self.words[at.X_NUM_RAILS], self.words[at.X_STEERED] = len(fds), int(steered)
        return self._checked(self._go(self.desk.address, self.address, budget, MAX_OUT, until))

    def collect(self, fd: int, rail: int, *, steered: bool) -> int:
        """Receive letters; how many."""
        return self._checked(self._collect(self.desk.address, self.address, fd, rail, self.num_in, int(steered)))

    @property
    def is_full(self) -> bool:
        """Whether the last call gave as much as there was room for: more may be waiting."""
        return int(self.words[at.X_NUM_READ]) == self.num_in

    def put(self, index: int, arrival: Arrival) -> None:
        """Enter a datagram as the kernel would have."""
        hdr, path = self._in_hdrs[index], arrival.path
        name = name_of(arrival.host, path.source_port)
        self._in_names[index, : len(name)] = np.frombuffer(name, np.uint8)
        v6 = socket.IPPROTO_IPV6
        tclass = path.dscp << DSCP_SHIFT | (3 if path.is_marked else ECN_ECT0)
        label = int.from_bytes(path.flow_label.to_bytes(4, "big"), "little")
        control = _CMSG.pack(20, v6, IPV6_FLOWINFO, label) + _CMSG.pack(20, v6, socket.IPV6_TCLASS, tclass)
        self._in_controls[index, : len(control)] = np.frombuffer(control, np.uint8)
        self._in_data[index, : len(arrival.data)] = np.frombuffer(arrival.data, np.uint8)
        hdr[at.HDR_NAME_LENGTH], hdr[at.HDR_CONTROL_LENGTH] = len(name), len(control)
        hdr[at.HDR_FLAGS], hdr[at.HDR_LENGTH] = 0, len(arrival.data)

    def sort(self, count: int, rail: int, *, steered: bool) -> int:
        """Make letters of what was put."""
        return kernels.sort()(self.desk.address, self.address, count, rail, int(steered))

    def arrival(self, index: int, rail: int) -> Arrival:
        """A letter that came, for Python to take."""
        letter = self.desk.letters[index]
        place, begin = divmod(int(letter[at.I_DATA]) - int(self.words[at.X_IN_DATA]), self.data_room)
        name = bytes(self._in_names[place])
        (family,) = _FAMILY.unpack_from(name)
        raw = name[8:24] if family == socket.AF_INET6 else name[4:8]
        path = Path(int(letter[at.I_EV]), rail, int(letter[at.I_DSCP]), is_marked=bool(letter[at.I_MARKED]))
        return Arrival(self._in_data[place, begin : begin + int(letter[at.I_LENGTH])].data, str(ip_address(raw)), path)


def _classes() -> np.ndarray:
    """Control messages that give a packet its class: for each DSCP over IPv6, then for each over IPv4."""
    kinds = ((socket.IPPROTO_IPV6, socket.IPV6_TCLASS), (socket.IPPROTO_IP, socket.IP_TOS))
    out = b""
    for level, kind in kinds:
        for dscp in range(at.NUM_CLASSES):
            out += _CMSG.pack(20, level, kind, dscp << DSCP_SHIFT | ECN_ECT0).ljust(at.CLASS_ROW, b"\0")
    return np.frombuffer(out, np.uint8).copy()


class LetterPorts(Ports, Protocol):
    """What carries letters, and single datagrams too."""

    goes_round: bool
    """Whether `go` may be called."""

    def go(self, sheets: Sheets, budget: int, until: int) -> int:
        """Rounds over all ports; why they ended (ROUNDS_*)."""

    def post(self, sheets: Sheets) -> list[int]:
        """Send all letters; those that found no room."""

    def collect(self, sheets: Sheets, rail: int) -> int:
        """Receive letters by a port; how many."""

    def fd(self, rail: int, source: int) -> int:
        """Descriptor of a socket."""

    def aim(self, rail: int, source: int, to: str, port: int) -> bool:
        """Have a socket send to this address where letters name none; False if they have to."""

    def release(self, rail: int, source: int) -> None:
        """Nobody sends by a socket any more without naming an address."""


class LetterSockets(Sockets):
    """The sockets of a host, for letters."""

    goes_round = True

    def go(self, sheets: Sheets, budget: int, until: int) -> int:
        """Rounds over all ports."""
        fds = [own[0].fileno() for own in self.rails]
        end = sheets.go(fds, steered=self.is_steered, budget=budget, until=until)
        self._count(sheets)
        return end

    def post(self, sheets: Sheets) -> list[int]:
        """Send all letters; those that found no room."""
        held = sheets.post()
        self._count(sheets)
        return held

    def collect(self, sheets: Sheets, rail: int) -> int:
        """Receive letters by a port; how many."""
        num = sheets.collect(self.rails[rail][0].fileno(), rail, steered=self.is_steered)
        self._count(sheets)
        return num

    def _count(self, sheets: Sheets) -> None:
        self.num_batches += int(sheets.words[at.X_NUM_BATCHES])
        sheets.words[at.X_NUM_BATCHES] = 0
        if sheets.words[at.X_NUM_LOST] or sheets.words[at.X_NUM_CUT]:
            self.num_lost_locally += int(sheets.words[at.X_NUM_LOST])
            self.num_cut_short += int(sheets.words[at.X_NUM_CUT])
            sheets.words[at.X_NUM_LOST] = sheets.words[at.X_NUM_CUT] = 0

    def fd(self, rail: int, source: int) -> int:
        """Descriptor of a socket."""
        return self.rails[rail][source].fileno()
