"""Single rows of protocol state for tests that call the law's handlers one by one."""

from __future__ import annotations

from fairlead.fabric.mrc import law, state
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.profile import Profile

ALL = 0xFFFFFFFF


class Requestor:
    """A requestor row, `state`, its profile, `p`, and its handlers."""

    def __init__(self, profile: Profile | None = None, psn: int = 0, seed: int = 1) -> None:
        rows = state.allocate([profile or Profile.mrc()], 1, 1)
        self.state = law.init_tx(rows.plain(), rows.tx(0), rows.profiles[0], seed, psn)
        self.p = self.state.profile
        self.out = [0] * at.NUM_SEND_FIELDS

    def snapshot(self) -> list[int]:
        """All words of the memory."""
        return list(self.state.m)

    def post(self, num_bytes: int, imm: int = 0) -> int:
        return law.post(self.state, num_bytes, imm)

    def next(self, now: int = 0, ports: int = ALL) -> int:
        """next_packet; its block is in `out`."""
        return law.next_packet(self.state, now, ports, self.out)

    def send(self, num: int, now: int = 0) -> list[tuple[int, int, int]]:
        """Send so many data packets: their PSN, EV slot and flags."""
        sent = []
        for _ in range(num):
            assert self.next(now) == at.SEND_DATA
            sent.append((self.out[at.D_PSN], self.out[at.D_EV], self.out[at.D_FLAGS]))
        return sent

    def sack(self, now: int = 0, **fields: int) -> int:
        """on_sack with the fields of `sack_block`."""
        return law.on_sack(self.state, now, sack_block(**fields))

    def nack(
        self, psn: int, reason: int = at.NACK_TRIMMED, now: int = 0, echo: int = -1, slot: int = at.INFO_EV_MASK
    ) -> int:
        block = [0] * at.NUM_SACK_FIELDS
        block[at.S_PSN], block[at.S_INFO], block[at.S_ECHO] = psn, slot | reason << at.INFO_REASON_SHIFT, echo
        return law.on_nack(self.state, now, block)

    def timer(self, now: int) -> int:
        return law.on_timer(self.state, now)


class Responder:
    """A responder row, `state`, its profile, `p`, and its handlers."""

    def __init__(self, profile: Profile | None = None, psn: int = 0, seed: int = 1) -> None:
        rows = state.allocate([profile or Profile.mrc()], 1, 1)
        self.state = law.init_rx(rows.plain(), rows.rx(0), rows.profiles[0], seed, psn)
        self.p = self.state.profile
        self.block = [0] * at.NUM_SACK_FIELDS
        self.out = [0] * at.NUM_SEND_FIELDS

    def snapshot(self) -> list[int]:
        """All words of the memory."""
        return list(self.state.m)

    def data(self, psn: int, flags: int = 0, num_bytes: int = 4096, now: int = 0, slot: int = 0) -> int:
        """on_data; the answer is in `block`."""
        return law.on_data(self.state, now, psn, num_bytes, flags, slot, -1, self.block)

    @property
    def cack(self) -> int:
        return self.block[at.S_CACK]

    def reported(self) -> set[int]:
        """The PSNs that the SACK in the block says have arrived, above its cumulative one."""
        word = self.block[at.S_HIGH] << 32 | self.block[at.S_LOW]
        return {self.block[at.S_BASE] + i for i in range(64) if word >> i & 1}


def sack_block(
    *,
    cack: int = -1,
    psn: int = 0,
    base: int | None = None,
    bitmap: int = 0,
    rcvd: int = 0,
    slot: int = at.INFO_EV_MASK,
    mark: int = at.M_NONE,
    info: int = 0,
    echo: int = -1,
) -> list[int]:
    """A SACK as the responder would describe it; by default one that says nothing."""
    block = [0] * at.NUM_SACK_FIELDS
    base = cack + 1 if base is None else base
    block[at.S_CACK], block[at.S_PSN], block[at.S_BASE] = cack, psn, base
    block[at.S_LOW], block[at.S_HIGH] = bitmap & 0xFFFFFFFF, bitmap >> 32
    block[at.S_RCVD], block[at.S_ECHO] = rcvd, echo
    block[at.S_INFO] = slot | mark << at.INFO_M_SHIFT | info
    return block
