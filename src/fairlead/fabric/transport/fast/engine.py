"""An engine whose bursts are compiled. Same rules, same packets; a test compares it with `Engine` byte by byte.

What differs: packets of a turn are packed first and sent together, so a socket without room holds what was meant for it
in this turn, not one packet. Where OpenSSL is no shared library, sealed packets go the way of `transport.Engine`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from fairlead.fabric.mrc.completion import CompletionQueue
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.qp import QueuePair
from fairlead.fabric.transport.engine import Engine, Line, Peer
from fairlead.fabric.transport.fast import kernels
from fairlead.fabric.transport.fast import layout as at
from fairlead.fabric.transport.fast.desk import MAX_OUT, Desk, address_of_bytes
from fairlead.fabric.transport.fast.pair import BurstPair
from fairlead.fabric.transport.fast.seals import FastSeal, seals
from fairlead.fabric.transport.fast.sheets import BATCHES_IN, LetterPorts, Sheets, name_of
from fairlead.fabric.transport.lanes import Route
from fairlead.fabric.transport.ports import Outgoing
from fairlead.fabric.transport.seal import Seal

BURST = 128
DRIVER_MBPS = 8_000
GSO_BURST = 240  # sixteen batches of 15 packets of 4 KB
GSO_MBPS = 32_000
ROUNDS_NS = 500_000
"""The longest that rounds go on: so long an application may wait for the lock, or to hear what is complete."""
MOST_IN_BATCH = 128  # UDP_MAX_SEGMENTS of kernels since 6.10


class FastEngine(Engine):
    """Queue pairs over ports that carry letters."""

    ports: LetterPorts

    def __init__(self, device: Device, ports: LetterPorts, num_rails: int, *, gso: bool = False) -> None:
        """Compiles, the first time on a machine."""
        super().__init__(device, ports, num_rails, gso=gso)
        self.burst = GSO_BURST if gso else BURST
        self.driver_mbps = GSO_MBPS if gso else DRIVER_MBPS
        self.desk = Desk(BATCHES_IN * MOST_IN_BATCH) if gso else Desk()
        if device.dialect.icrc is Icrc.NONE:
            self.desk.words[at.K_CRC] = 0
        self.sheets = Sheets(self.desk, gso=gso)
        self.seals = seals(self.desk)
        self._lines: dict[int, Line] = {}  # by the number on the card
        self._by_card: dict[int, Line] = {}  # by its address
        self._names: dict[Line, list[bytes]] = {}
        self._peers: dict[Peer, int] = {}
        self._aimed: dict[Line, set[tuple[int, int]]] = {}  # sockets by which a queue pair sends without an address
        self._num_cards = self._num_peers = 0
        self._regions_seen = -1
        self._places_stale = True
        self._goes_on = False
        self._fill, self._take_letters = kernels.fill(), kernels.take()

    # --- who is there ------------------------------------------------------------------------------------------------

    def create_qp(self, peer: Peer, send_cq: CompletionQueue, recv_cq: CompletionQueue, **options: Any) -> QueuePair:
        """A queue pair with a card; without one where packets are sealed by Python."""
        if peer.sending is None or isinstance(peer.sending, FastSeal):
            options["kind"] = partial(BurstPair, desk=self.desk)
        return super().create_qp(peer, send_cq, recv_cq, **options)

    def peer(self, made: Peer) -> Peer:
        """As `Engine.peer`."""
        self._places_stale = True
        return super().peer(made)

    def add(self, line: Line, now: int) -> None:
        """As `Engine.add`; the card is filled in."""
        if isinstance(line.qp, BurstPair):
            self._enter(line, line.qp)
        super().add(line, now)

    def _enter(self, line: Line, qp: BurstPair) -> None:
        if line.peer not in self._peers:
            self._num_peers += 1
            self._peers[line.peer] = self._num_peers
        self._num_cards += 1
        qp.card[at.C_NUMBER], qp.card[at.C_PEER] = self._num_cards, self._peers[line.peer]
        qp.card[at.C_SEAL] = _card_address(line.peer.sending)
        qp.card[at.C_PLANES] = sum(1 << plane for plane in line.peer.rails)
        self._lines[self._num_cards] = line
        self._places_stale = True  # they may have been brought up to date since the peer was known, without its number
        names = []
        for slot, ev in enumerate(qp.evs):
            route = line.routes[ev]
            port = line.ports[slot // qp.profile.evs_per_plane]
            name = name_of(route.to, port, route.label)
            names.append(name)
            number = self.sheets.socket(route.rail, route.source, self.ports.fd(route.rail, route.source))
            family = int.from_bytes(name[:2], "little")
            where = address_of_bytes(memoryview(name)), len(name)
            if self.ports.aim(route.rail, route.source, route.to, port):
                where = 0, 0
                self._aimed.setdefault(line, set()).add((route.rail, route.source))
            qp.routes[slot] = number, *where, family
        self._names[line] = names
        self._set_cards()

    def _set_cards(self) -> None:
        pairs = {line: line.qp for line in self._lines.values() if isinstance(line.qp, BurstPair)}
        self._by_card = {qp.card_address: line for line, qp in pairs.items()}
        self.desk.set_cards({qp.qp_num: qp.card_address for qp in pairs.values()})

    def remove(self, line: Line) -> None:
        """As `Engine.remove`."""
        super().remove(line)
        self._places_stale = True
        if isinstance(line.qp, BurstPair):
            for route, num in self.sent(line).items():
                line.sent[route] = num
            self._lines.pop(int(line.qp.card[at.C_NUMBER]), None)
            self._names.pop(line, None)
            for rail, source in self._aimed.pop(line, set()).difference(*self._aimed.values()):
                self.ports.release(rail, source)
            self._set_cards()
        if not line.peer.lines:
            self._peers.pop(line.peer, None)

    def sent(self, line: Line) -> Counter[Route]:
        """Packets of a queue pair by route."""
        if not isinstance(line.qp, BurstPair) or line not in self._names:
            return line.sent
        sent: Counter[Route] = Counter()
        for ev, num in zip(line.qp.evs, line.qp.sent_by_slot.tolist(), strict=True):
            if num:
                sent[line.routes[ev]] += num
        return sent

    def wake(self, line: Line) -> None:
        """The queue pair may have something to send."""
        super().wake(line)
        if isinstance(line.qp, BurstPair):
            line.qp.card[at.C_READY] = 1

    # --- packets in --------------------------------------------------------------------------------------------------

    def read_all(self, rails: Sequence[int], now: int) -> tuple[bool, int]:
        """As `Engine.read_all`; with real sockets and nothing out of the ordinary it sends, too, as long as it can."""
        if not self.ports.goes_round or self._held or not (rails or self._ready):
            return super().read_all(rails, now)
        cards = [line.qp.card_address for line in self._ready if isinstance(line.qp, BurstPair)]
        if len(cards) < len(self._ready):
            return super().read_all(rails, now)
        self._look_up()
        desk = self.desk
        desk.turns[: len(cards)] = cards
        desk.words[at.K_NUM_TURNS], desk.words[at.K_NUM_NEWS] = len(cards), 0
        words = self.sheets.words
        words[at.X_NOW] = now
        end = self.ports.go(self.sheets, self.burst, now + ROUNDS_NS)
        now = int(words[at.X_NOW])
        turns = desk.turns[: desk.words[at.K_NUM_TURNS]].tolist()
        self._ready = {self._by_card[card]: None for card in turns}
        has_failed = self._hear()
        if end == at.ROUNDS_HELD:
            self._hold(self.sheets.no_room)
        elif end == at.ROUNDS_STOPPED:
            rail = int(words[at.X_RAIL])
            self._take_on(rail, int(words[at.X_TAKEN]), int(words[at.X_COME]), now, failed=has_failed)
            for later in range(rail + 1, self.num_rails):  # nothing is sent before all ports have been read
                self.read(later, now)
        self._goes_on = end == at.ROUNDS_MORE
        if self._goes_on and not words[at.X_IS_FULL]:
            self.on_timers(now)  # as of when the ports were read, so no answer waits that would be in time
        return end != at.ROUNDS_DONE, now

    def read(self, rail: int, now: int) -> bool:
        """Take in what came by a port; True if more may be waiting."""
        self._look_up()
        num = self.ports.collect(self.sheets, rail)
        self.desk.words[at.K_NUM_NEWS] = 0
        first = self._take_letters(self.desk.address, 0, num, now)
        self._take_on(rail, first, num, now, failed=self._hear())
        return self.sheets.is_full

    def _take_on(self, rail: int, first: int, num: int, now: int, *, failed: bool) -> None:
        """Take in letters from `first` on, which Python has to take unless a queue pair has `failed` before it."""
        while first < num:
            if not failed:
                is_open = int(self.desk.letters[first, at.I_SEAL]) == at.SEAL_OPENED
                self._take(self.sheets.arrival(first, rail), now, is_open=is_open)
                first += 1
            self.desk.words[at.K_NUM_NEWS] = 0
            first = self._take_letters(self.desk.address, first, num, now)
            failed = self._hear()

    def _look_up(self) -> None:
        """Bring the tables of the desk up to date."""
        domain = self.device.domain
        if self._regions_seen != domain.num_changes:
            self._regions_seen = domain.num_changes
            self.desk.set_regions(domain.regions)
        if self._places_stale:
            self._places_stale = False
            places, first = {}, self._first_cards()
            for source, peer in self._by_source.items():
                name = name_of(source.host, source.port)
                v6 = len(name) > 16
                high = int.from_bytes(name[8:16], "big") if v6 else 0
                low = int.from_bytes(name[16:24] if v6 else name[4:8], "big")
                number = self._peers.get(peer, at.PEER_SLOW)
                places[source.rail, source.port, high, low] = (
                    number,
                    peer.planes[source],
                    _card_address(peer.receiving),
                    first.get(peer, 0),
                )
            self.desk.set_places(places)

    def _first_cards(self) -> dict[Peer, int]:
        """The card of the first queue pair with each peer, which leads to the others; none where one has no card."""
        by_peer: dict[Peer, list[BurstPair]] = {}
        for line in self._lines.values():
            if isinstance(line.qp, BurstPair):
                by_peer.setdefault(line.peer, []).append(line.qp)
        for pairs in by_peer.values():
            for qp, beside in zip(pairs, [qp.card_address for qp in pairs[1:]] + [0], strict=True):
                qp.card[at.C_BESIDE] = beside
        return {peer: pairs[0].card_address for peer, pairs in by_peer.items() if len(pairs) >= len(peer.lines)}

    def _hear(self) -> bool:
        """What the burst has brought about; True if a queue pair has failed."""
        desk, failed = self.desk, False
        for kind, number, a, b, c in desk.news[: desk.words[at.K_NUM_NEWS]].tolist():
            line = self._lines[number]
            if kind == at.NEWS_WAKE:
                self._ready[line] = None
                continue
            assert isinstance(line.qp, BurstPair)
            line.qp.hear(kind, a, b, c)
            failed |= kind == at.NEWS_FAIL
        for name, place in _COUNTS:
            if desk.words[place]:
                self.counts[name] += int(desk.words[place])
                desk.words[place] = 0
        return failed

    # --- packets out -------------------------------------------------------------------------------------------------

    def send(self, now: int) -> bool:
        """One turn for each queue pair that may send; True if some have more, or rounds are to go on."""
        if self._goes_on:
            self._goes_on = False
            return True
        has_more = super().send(now)
        self._flush()
        return has_more and any(self._free(line) for line in self._ready)

    def _burst(self, line: Line, now: int) -> bool:
        qp = line.qp
        if not isinstance(qp, BurstPair):
            return super()._burst(line, now)
        free = self._free(line)
        if not free:
            qp.card[at.C_READY] = int(bool(self._held))
            return bool(self._held)
        if self.desk.num_out + self.burst > MAX_OUT:
            self._flush()
        num = self._fill(self.desk.address, qp.card_address, now, free, self.burst)
        has_more = num == self.burst
        qp.card[at.C_READY] = int(has_more)
        return has_more

    def _flush(self) -> None:
        """Send the letters of all queue pairs; those without room are copied and wait."""
        if not self.desk.num_out:
            return
        self._hold(self.ports.post(self.sheets))

    def _hold(self, held: list[int]) -> None:
        """All letters are sent but those, which are copied and wait."""
        self.counts["sent"] += self.desk.num_out - len(held)
        for i in held:
            packet = self.packet(i)
            self._held.setdefault(packet.route.rail, deque()).append(packet)
            self.counts["held"] += 1
        self.desk.words[at.K_NUM_OUT] = 0

    def packet(self, index: int) -> Outgoing:
        """A letter that waits on the desk, copied."""
        row = self.desk.out[index]
        line = self._lines[int(row[at.O_CARD])]
        qp, slot = line.qp, int(row[at.O_SLOT])
        assert isinstance(qp, BurstPair)
        route = line.routes[qp.evs[slot]]
        to = (route.to, line.ports[slot // qp.profile.evs_per_plane])
        return Outgoing(route, to, int(row[at.O_DSCP]), qp.parts(index))


def _card_address(seal: Seal | None) -> int:
    return seal.card_address if isinstance(seal, FastSeal) else 0


_COUNTS = (
    ("unauthentic", at.K_UNAUTHENTIC),
    ("received", at.K_RECEIVED),
    ("marked", at.K_MARKED),
    ("foreign", at.K_FOREIGN),
    ("sent", at.K_SENT),
)
