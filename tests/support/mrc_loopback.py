"""A minimal driver of two queue pairs over real UDP sockets on ::1.

Each plane has a socket at each end. The EV is in the source port and the IPv6 flow label, traffic class and ECN in the
traffic class octet, all through the kernel and back. The network's misdeeds are those of `mrc_pair.Link`, done before
sending."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from fairlead.fabric.mrc.entropy import default_evs
from fairlead.fabric.mrc.headers import Dscp
from fairlead.fabric.mrc.packets import Datagram, Path
from fairlead.fabric.mrc.profile import Profile
from support.mrc_pair import End, Pair

IPV6_FLOWINFO = 11  # linux/in6.h
IPV6_FLOWINFO_SEND = 33
ECN_CE = 3
ECN_ECT0 = 2
WAIT_S = 5.0


class Wire:
    """The sockets of one end, one for each plane."""

    def __init__(self, num_planes: int) -> None:
        self.sockets = [socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(num_planes)]
        for sock in self.sockets:
            sock.bind(("::1", 0))
            sock.settimeout(WAIT_S)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FLOWINFO, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        self.ports = [sock.getsockname()[1] for sock in self.sockets]

    def evs(self, profile: Profile, seed: int) -> list[int]:
        """EVs of this end: the usual flow labels, and for each plane the source port of its socket."""
        labels = [ev & 0xFFFF for ev in default_evs(profile, seed)]
        return [self.ports[slot // profile.evs_per_plane] << 16 | label for slot, label in enumerate(labels)]

    def send(self, datagram: Datagram, to: Wire) -> None:
        """Send on the plane, with the flow label and the traffic class that the path says."""
        path = datagram.path
        tclass = path.dscp << 2 | (ECN_CE if path.is_marked else ECN_ECT0)
        sock = self.sockets[path.plane]
        assert self.ports[path.plane] == path.source_port
        address = ("::1", to.ports[path.plane], path.flow_label, 0)
        control = [(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tclass.to_bytes(4, "little"))]
        sock.sendmsg([datagram.data], control, 0, address)

    def receive(self, plane: int) -> Datagram:
        """The next datagram on a plane, with the path as the kernel saw it."""
        data, control, _, address = self.sockets[plane].recvmsg(65536, 256)
        tclass = label = 0
        for level, kind, value in control:
            assert level == socket.IPPROTO_IPV6
            if kind == socket.IPV6_TCLASS:
                tclass = int.from_bytes(value, "little")
            elif kind == IPV6_FLOWINFO:
                label = int.from_bytes(value, "big") & 0xFFFFF
        ev = address[1] << 16 | label & 0xFFFF
        return Datagram(data, Path(ev=ev, plane=plane, dscp=Dscp(tclass >> 2), is_marked=tclass & 3 == ECN_CE))

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


class LoopbackPair(Pair):
    """A `Pair` whose datagrams pass through the kernel when they arrive: real bytes, virtual time, equal runs."""

    def __init__(self, profile: Profile, **options: Any) -> None:
        self.wires = (Wire(profile.planes), Wire(profile.planes))
        seed = options.setdefault("seed", 1)
        evs = (self.wires[0].evs(profile, seed), self.wires[1].evs(profile, seed + 1))
        super().__init__(profile, evs=evs, **options)

    def deliver(self, to: End, datagram: Datagram) -> None:
        sender, receiver = self.wires if to is self.b else self.wires[::-1]
        sender.send(datagram, receiver)
        super().deliver(to, receiver.receive(datagram.path.plane))

    def close(self) -> None:
        for wire in self.wires:
            wire.close()


class RealTimePair(LoopbackPair):
    """The same in real time: sockets are read when they have something, timers run by the clock."""

    def run_real(self, done: Callable[[], bool], *, for_s: float) -> None:
        """Run until `done()` or for so long."""
        begin = time.monotonic_ns() - self.now
        end = time.monotonic() + for_s
        for wire in self.wires:
            for sock in wire.sockets:
                sock.setblocking(False)
        while not done() and time.monotonic() < end:
            self.now = time.monotonic_ns() - begin
            self.pump()
            self._read()
            for side in (self.a, self.b):
                timer = side.qp.next_timer_ns()
                if timer is not None and timer <= self.now:
                    side.qp.on_timer(self.now)

    def inject(self, to: End, datagram: Datagram, delay_ns: int = 0) -> None:
        sender, receiver = self.wires if to is self.b else self.wires[::-1]
        sender.send(datagram, receiver)

    def _read(self) -> None:
        for side, wire in zip((self.a, self.b), self.wires, strict=True):
            for plane in range(len(wire.sockets)):
                while True:
                    try:
                        datagram = wire.receive(plane)
                    except BlockingIOError:
                        break
                    side.qp.receive(datagram.data, datagram.path, self.now)
