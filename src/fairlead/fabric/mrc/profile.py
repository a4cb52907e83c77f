"""Parameters of queue pairs in the units people use, and their translation to a profile block.

A `Profile` is what several queue pairs share: packet sizes, windows, the EV set, timers, SACK thresholds, congestion
control. `Profile.mrc()` are the defaults of the protocol, `Profile.uec()` the values under which the reference
simulator ultraethernet/uet-htsim publishes its results. Scaling of the NSCC constants to the network follows its
initNsccParams: a network of 100 Gb/s and 12 us is the reference, everything else is measured in its bandwidth-delay
product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import congestion
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.rows import AREA_OFFSETS, LINE_WORDS, Parameters, Requestor, Responder, kinds, num_fields

# [UEC] ultraethernet/uet-htsim htsim/sim/uec.cpp, initNsccParams; MSS is the payload of a full packet
REFERENCE_RTT_NS = 12_000
REFERENCE_BDP = 150_000  # 100 Gb/s x 12 us, bytes
ALPHA_MSS = 4  # proportional gain
FI_MSS = 5  # fair increase
FI_SCALE = 1 << 14  # fast increase: 0.25, in 1/65536
FI_DELAY_NS = 1000  # ... below this delay
ETA_PERCENT = 15  # of an MSS, each adjustment period
AVG_DIVISOR = 80  # _delay_alpha 0.0125
QA_TARGETS = 4  # quick adapt acts on a delay of so many targets
ADJUST_PACKETS = 8  # what pays out the increase, if a network RTT does not
BASE_FLOOR_DIVISOR = 8  # no pair of NICs is that much nearer than the farthest: a shorter sample is a clock that lags
TARGET_QUARTERS = 3  # target delay with trimming, in quarters of the network RTT; without: all of it


SCHEDULER_NS = 1_000_000  # two programs on busy machines wait for each other so long now and then
SOFTWARE_MBPS = 40_000  # what one program can hope to send, all ports together
SOFTWARE_SACK_BYTES = 16_384  # a SACK wakes a program: for four packets, as in the reference simulator, not for each
SOFTWARE_RTO_GROWTH = 8  # a program that the other end has seen pause is waited for so many times longer
SOFTWARE_PLANE_LOSSES = 3  # a program has few packets under way: for each EV to lose two would take many round trips
SOFTWARE_AVG_DIVISOR = 8  # with few packets under way an average over eighty SACKs would be of seconds ago
SOFTWARE_RETRIES = 5  # doublings of the timeout before a silent peer is given up

# timers in round trips of the network, no shorter than the protocol's own, which suit 12 us
ROUND_TRIPS = {"reverse_probe_ns": 1, "reorder_ns": 1, "probe_ns": 3, "probe_retry_ns": 5, "ev_probe_ns": 8}
TIMEOUT_ROUND_TRIPS = 16
TIMEOUT_UNIT_NS = 1024  # the local ACK timeout is so much times a power of two


def timers_for(network_rtt_ns: int) -> dict[str, object]:
    """The timers of a `Profile` for a network with this round trip, in ns: they grow with it, but are never shorter."""
    timers: dict[str, object] = {
        name: max(int(getattr(Profile, name)), trips * network_rtt_ns) for name, trips in ROUND_TRIPS.items()
    }
    units = -(-TIMEOUT_ROUND_TRIPS * network_rtt_ns // TIMEOUT_UNIT_NS)
    timers["rto_ns"] = max(Profile.rto_ns, TIMEOUT_UNIT_NS << max(units - 1, 0).bit_length())
    return timers


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One set of parameters. Times in ns, sizes in bytes; 0 switches a timer off where the comment says so."""

    # packets and windows
    mtu: int = 4096  # payload of a full packet
    overhead: int = 88  # added to the payload for congestion accounting: UDP length + 40 - payload, without immediate
    mpr: int = 1024  # max_psn_range, multiple of 128
    max_messages: int = 64  # messages posted and not completed, power of two
    max_wimm: int = 128  # Write-with-Imm in flight
    max_wimm_dest: int = 128
    # paths
    path_rule: int = at.PATH_MRC
    planes: int = 8
    evs_per_plane: int = 32  # power of two
    evs_active: int = 16  # per plane, in rotation
    ev_min_active: int = 8  # all planes together
    ev_run: int = 1  # new data packets in a row that share an EV
    ev_probe_ns: int = 100_000  # longer than a round trip, or no probe is answered in time; 0: bad EVs are not probed
    ev_probe_ok: int = 3
    own_turns: bool = False  # packets without payload go by planes in turns of their own
    plane_losses: int = 0  # after which a plane is judged as a whole; 0: never, each EV by itself
    ring_size: int = 8  # REPS, mixed: power of two
    freeze_ns: int = 10_000_000
    reverse_rule: int = at.REVERSE_SET
    reverse_probe_ns: int = 12_000  # 0: no reverse probes
    # loss recovery
    rto_ns: int = 262_144  # 1.024 us x 2^8
    rto_most_ns: int = (
        0  # more than rto_ns: the timeout follows measured round trips up to this, and rto_ns is its floor
    )
    retry_linear: int = 7
    retry_exp: int = at.RETRY_EXP_INFINITE
    reorder_ns: int = 12_000  # 0: loss is told by NACKs and timeouts only
    reorder_timer: bool = False  # whether it is also told by time, where the window is full and nothing later is sent
    probe_ns: int = 36_000  # 0: no reliability probes
    probe_retry_ns: int = 60_000
    trim: bool = True
    # SACKs
    sack_bytes: int = 4096
    sack_floor: int = 1024
    sack_rule: int = at.SACK_MRC
    message_ack: bool = True
    dynamic_mpr: bool = False
    # congestion control
    cc_rule: int = at.CC_NSCC
    whole_packet: bool = False
    pace_percent: int = 0  # of a window in a round trip, at which data leaves: 125; 0: as the window allows
    pace_burst_ns: int = SCHEDULER_NS  # and what may leave at once, as time: no less than the driver's timer is coarse
    rate_mbps: int = 800_000  # all ports of the NIC
    network_rtt_ns: int = 12_000
    target_delay_ns: int = 0  # 0: 3/4 of the network RTT with trimming, all of it without
    cwnd: int = 0  # initial; 0: the largest, 1.5 bandwidth-delay products
    qa_gate: int = 3
    quick_adapt: bool = True
    rtt_on_nack: bool = True
    base_rtt_floor_ns: int = 0  # 0: an eighth of the network RTT
    delay_marks: bool = False  # switches do not mark, and a queueing delay of the target or more stands for a mark
    avg_divisor: int = AVG_DIVISOR
    base_rtt_age_ns: int = 10_000_000  # how long the shortest round trip is believed; 0: for ever

    def __post_init__(self) -> None:
        for ok, what in (
            (1 <= self.mtu <= 16_000 - self.overhead, "mtu + overhead must be 1 to 16,000 bytes"),
            (self.mpr % 128 == 0 and 128 <= self.mpr <= 32_640, "mpr must be a multiple of 128, at most 255 x 128"),
            (_is_power(self.max_messages), "max_messages must be a power of two"),
            (_is_power(self.evs_per_plane), "evs_per_plane must be a power of two"),
            (_is_power(self.ring_size), "ring_size must be a power of two"),
            (1 <= self.planes <= 32, "planes must be 1 to 32"),
            (self.planes * self.evs_per_plane <= 256, "a queue pair holds at most 256 EVs"),
            (1 <= self.evs_active <= self.evs_per_plane, "evs_active must be 1 to evs_per_plane"),
            (1 <= self.ev_run <= 64, "ev_run must be 1 to 64"),
            (1 <= self.ev_probe_ok <= 15, "ev_probe_ok must be 1 to 15"),
            (0 <= self.plane_losses <= 1 << 15, "plane_losses must be 0 to 32,768"),
            (
                self.ev_probe_ns == 0 or self.ev_probe_ns > self.network_rtt_ns,
                "ev_probe_ns must exceed the network RTT",
            ),
            (0 < self.rto_ns <= 1 << 35, "rto_ns must be at most 34 s"),
            (0 <= self.rto_most_ns <= 1 << 35, "rto_most_ns must be at most 34 s"),
            (
                self.pace_percent == 0 or 100 <= self.pace_percent <= 1_000,
                "pace_percent must be 0 or 100 to 1,000: a slower pace than a window each round trip is no window",
            ),
            (0 <= self.pace_burst_ns <= 1 << 35, "pace_burst_ns must be at most 34 s"),
            (self.target_ns > 0 and self.network_rtt_ns > 0 and self.rate_mbps > 0, "rate and RTT must be positive"),
            (self.bdp < 1 << 27, "rate x RTT must be below 128 MiB"),
            (self.target_ns < 1 << 24, "the target delay must be below 16 ms"),
            (self.alpha < 1 << 28, "rate x RTT x target delay are more than NSCC's integers hold"),
        ):
            if not ok:
                raise LocalProtocolError("fabric/bad-profile", what, hint="correct the profile of the queue pair")

    @classmethod
    def mrc(cls, **changes: object) -> Self:
        """The protocol's defaults, 8 planes of 100 Gb/s."""
        return replace(cls(), **changes)  # type: ignore[arg-type]

    @classmethod
    def software(cls, network_rtt_ns: int, **changes: object) -> Self:
        """For ends that are programs: timers no finer than a scheduler, no switch that trims, a silent peer given up.

        `network_rtt_ns` is the round trip of an idle pair, from call to call. The timeout follows the round trips
        measured, for a busy machine may leave a program without a core for many of them. With the defaults a peer that
        has died is reported after some seventy timeouts: about a second, up to eight where such pauses were seen.
        """
        timers = timers_for(max(network_rtt_ns, SCHEDULER_NS)) | {"network_rtt_ns": network_rtt_ns}
        own: dict[str, object] = {"trim": False, "retry_exp": SOFTWARE_RETRIES, "rate_mbps": SOFTWARE_MBPS}
        own |= {"sack_bytes": SOFTWARE_SACK_BYTES, "plane_losses": SOFTWARE_PLANE_LOSSES, "reorder_timer": True}
        own |= {"own_turns": True, "base_rtt_floor_ns": network_rtt_ns, "delay_marks": True}
        own |= {"avg_divisor": SOFTWARE_AVG_DIVISOR}
        made = timers | own | changes
        return cls.mrc(**({"rto_most_ns": SOFTWARE_RTO_GROWTH * int(str(made["rto_ns"]))} | made))

    @classmethod
    def uec(cls, **changes: object) -> Self:
        """The reference simulator's defaults: one plane of 100 Gb/s, packets of 4,150 bytes, SACK every 16 KB."""
        base = cls(
            mtu=4086,
            overhead=64,
            mpr=1024,
            max_messages=1,
            path_rule=at.PATH_MIXED,
            planes=1,
            evs_per_plane=64,
            evs_active=64,
            ev_probe_ns=0,
            ring_size=64,
            reverse_rule=at.REVERSE_ECHO,
            reverse_probe_ns=0,
            retry_linear=1 << 30,
            reorder_ns=0,
            probe_ns=0,
            sack_bytes=16_344,  # four packets: the reference counts 64 bytes of header in each towards 16,384
            sack_floor=0,
            sack_rule=at.SACK_UEC,
            message_ack=False,
            whole_packet=True,
            rate_mbps=100_000,
            base_rtt_age_ns=0,
        )
        return replace(base, **changes)  # type: ignore[arg-type]

    @property
    def ring(self) -> int:
        """Positions of the PSN rings."""
        return 1 << (self.mpr - 1).bit_length()

    @property
    def num_evs(self) -> int:
        """EVs of a queue pair."""
        return self.planes * self.evs_per_plane

    @property
    def target_ns(self) -> int:
        """Target queueing delay."""
        if self.target_delay_ns:
            return self.target_delay_ns
        return self.network_rtt_ns * TARGET_QUARTERS // 4 if self.trim else self.network_rtt_ns

    @property
    def bdp(self) -> int:
        """Bandwidth-delay product of the unloaded network, bytes."""
        return self.network_rtt_ns * self.rate_mbps // 8000

    @property
    def alpha(self) -> int:
        """NSCC's proportional gain times the target delay: 4 MSS a b; a = BDP / reference BDP, b = target / 12 us.

        Where delay stands for marks b is 1: targets are hundreds of times 12 us there, and a window would jump between
        its bounds each round trip.
        """
        if self.delay_marks:
            return ALPHA_MSS * self.mtu * self.bdp // REFERENCE_BDP
        return ALPHA_MSS * self.mtu * self.bdp * self.target_ns // (REFERENCE_BDP * REFERENCE_RTT_NS)

    @property
    def eta(self) -> int:
        """What a window gains each network RTT whatever the delay: NSCC's 0.15 MSS a.

        Where delay stands for marks a packet each round trip that has waited for the target delay, as in Swift (Kumar
        et al., SIGCOMM 2020): at the target, where all windows stand, nothing else makes them equal.
        """
        if self.delay_marks:
            return self.mtu * self.network_rtt_ns // (self.network_rtt_ns + self.target_ns)
        return ETA_PERCENT * self.mtu * self.bdp // (100 * REFERENCE_BDP)

    def tx_areas(self) -> dict[str, int]:
        """Words of each area of a requestor row; in the order in which they stand there."""
        return {
            "messages": self.max_messages * at.NUM_MSG_FIELDS,
            "plane_words": self.planes,
            "ev_words": -(-self.num_evs // 32) * at.NUM_EV_WORDS,
            "nibbles": -(-self.num_evs // 8),
            "ring": self.ring_size if self.path_rule in (at.PATH_REPS, at.PATH_MIXED) else 0,
            "acked_bits": self.ring // 32,
            "lost_bits": self.ring // 32,
            "records": self.ring,
        }

    def rx_areas(self) -> dict[str, int]:
        """The same for a responder row."""
        return {
            "reverse": self.planes,
            "seen_bits": self.ring // 32,
            "last_bits": self.ring // 32,
            "imm_bits": self.ring // 32,
            "denied_bits": -(-self.num_evs // 32) if self.reverse_rule == at.REVERSE_SET else 0,
        }

    @property
    def tx_words(self) -> int:
        """Length of a requestor row, whole cache lines."""
        return _lines(num_fields(Requestor) + sum(self.tx_areas().values()))

    @property
    def rx_words(self) -> int:
        """Length of a responder row, whole cache lines."""
        return _lines(num_fields(Responder) + sum(self.rx_areas().values()))

    def parameters(self) -> dict[str, int]:
        """The values of `Parameters` by name: as they are said here, or derived."""
        packet = self.mtu + self.overhead
        derived = {
            "ring_mask": self.ring - 1,
            "message_mask": self.max_messages - 1,
            "ev_shift": self.evs_per_plane.bit_length() - 1,
            "first_cwnd": max(self.cwnd or congestion.largest_window(self.network_rtt_ns, self.rate_mbps), packet),
            "min_cwnd": packet,
            "fi": FI_MSS * self.mtu * self.bdp // REFERENCE_BDP,
            "fi_scale": FI_SCALE * self.bdp // REFERENCE_BDP,
            "fi_delay_ns": FI_DELAY_NS,
            "qa_threshold_ns": QA_TARGETS * self.target_ns,
            "adjust_ns": self.network_rtt_ns,
            "adjust_bytes": ADJUST_PACKETS * packet,
            "base_rtt_floor_ns": self.base_rtt_floor_ns or self.network_rtt_ns // BASE_FLOOR_DIVISOR,
        }
        return {n: derived[n] if n in derived else int(getattr(self, n)) for n in kinds(Parameters, "int")}

    def words(self) -> list[int]:
        """The profile block: parameters, then where each area begins."""
        offsets = dict.fromkeys(AREA_OFFSETS, 0)
        for row, areas in ((Requestor, self.tx_areas()), (Responder, self.rx_areas())):
            offset = num_fields(row)
            for name, num_words in areas.items():
                offsets[name] = offset
                offset += num_words
        return [*self.parameters().values(), *offsets.values()]


def _is_power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def _lines(num_words: int) -> int:
    return -(-num_words // LINE_WORDS) * LINE_WORDS
