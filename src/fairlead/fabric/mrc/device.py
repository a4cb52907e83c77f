"""A device: what queue pairs are created from. Names follow the published MRC API (mrc.h and mrc_ctl.h).

It hands out queue pair numbers, keeps the protection domain, and knows EV and congestion-control profiles by number,
so that `modify(INIT, ev_profile_id=..., cc_profile_id=...)` means here what it means there. No protocol and no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc.completion import CompletionQueue
from fairlead.fabric.mrc.headers import DEFAULT_DIALECT, ENDPOINT_QP, Dialect, EndpointOp
from fairlead.fabric.mrc.memory import ProtectionDomain
from fairlead.fabric.mrc.packets import Path, Request, Response, WireError, decode
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.qp import QueuePair
from fairlead.fabric.mrc.verbs import QpHint, QpState

EV_FIELDS = frozenset(
    {"path_rule", "planes", "evs_per_plane", "evs_active", "ev_min_active", "ev_probe_ns", "ev_probe_ok", "ring_size"}
    | {"freeze_ns", "reverse_rule", "reverse_probe_ns"}
)
CC_FIELDS = frozenset(
    {"cc_rule", "whole_packet", "rate_mbps", "network_rtt_ns", "target_delay_ns", "cwnd", "qa_gate", "quick_adapt"}
    | {"rtt_on_nack", "base_rtt_floor_ns", "base_rtt_age_ns"}
)
assert {field.name for field in fields(Profile)} >= EV_FIELDS | CC_FIELDS


@dataclass(frozen=True, slots=True)
class DeviceAttr:
    """What mrc_query_device tells."""

    max_evs: int = 256
    max_mpr: int = 255  # unit 128 PSNs
    trim_nack: bool = True
    dynamic_mpr: bool = True
    svc_time: bool = False
    cc_algorithms: tuple[str, ...] = ("constant", "uet-1.0-nscc")  # by cc_rule


class Device:
    """The parent of queue pairs."""

    def __init__(self, profile: Profile, randoms: Iterator[int], *, dialect: Dialect = DEFAULT_DIALECT) -> None:
        """`profile` holds the defaults of its queue pairs, `randoms` is the injected stream of 32-bit numbers."""
        self.profile = profile
        self.domain = ProtectionDomain(randoms)
        self.dialect = dialect
        self._randoms = randoms
        self._next_qp = ENDPOINT_QP + 1
        self._ev_profiles: dict[int, Mapping[str, object]] = {}
        self._cc_profiles: dict[int, Mapping[str, object]] = {}
        self._peers: dict[Hashable, dict[int, QueuePair]] = {}
        self.num_bad_packets = 0
        self.num_foreign_packets = 0

    def query(self) -> DeviceAttr:
        """Limits and capabilities."""
        return DeviceAttr()

    def create_ev_profile(self, **changes: object) -> int:
        """Define how queue pairs choose EVs; the number to give as ev_profile_id."""
        return self._create(self._ev_profiles, EV_FIELDS, changes)

    def create_cc_profile(self, **changes: object) -> int:
        """Define how queue pairs control congestion; the number to give as cc_profile_id."""
        return self._create(self._cc_profiles, CC_FIELDS, changes)

    def _create(
        self, known: dict[int, Mapping[str, object]], allowed: frozenset[str], changes: Mapping[str, object]
    ) -> int:
        foreign = sorted(changes.keys() - allowed)
        if foreign:
            raise LocalProtocolError(
                "fabric/bad-profile",
                f"{foreign[0]} is no field of this profile",
                hint=f"its fields: {', '.join(sorted(allowed))}",
            )
        replace(self.profile, **changes)  # type: ignore[arg-type]
        number = len(known) + 1
        known[number] = dict(changes)
        return number

    def profile_of(self, ev_profile_id: int | None, cc_profile_id: int | None) -> Profile:
        """The parameters of a queue pair with these profiles; None keeps the defaults."""
        changes: dict[str, object] = {}
        for number, known in ((ev_profile_id, self._ev_profiles), (cc_profile_id, self._cc_profiles)):
            if number is None:
                continue
            if number not in known:
                raise LocalProtocolError(
                    "fabric/bad-attribute", f"profile {number} does not exist", hint="create it on this device first"
                )
            changes |= known[number]
        return replace(self.profile, **changes)  # type: ignore[arg-type]

    def create_qp_hint(
        self, num_qps_per_peer: int = 1, num_send_peers: int = 1, num_remote_recv_peers: int = 1
    ) -> QpHint:
        """Say what traffic to expect."""
        return QpHint(num_qps_per_peer, num_send_peers, num_remote_recv_peers)

    def destroy_qp_hint(self, hint: QpHint) -> None:
        """Forget a hint; refused (EBUSY) while a queue pair uses it."""
        if hint.num_users:
            raise LocalProtocolError(
                "fabric/hint-in-use", f"{hint.num_users} queue pairs use this hint", hint="close the queue pairs first"
            )

    def new_qp_num(self) -> int:
        """A number for a queue pair that is yet to be made: the peer is told it before its EVs are known."""
        number = self._next_qp
        self._next_qp += 1
        return number

    def create_qp(
        self,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        *,
        qp_num: int | None = None,
        profile: Profile | None = None,
        ev_values: Sequence[int] | None = None,
        kind: Callable[..., QueuePair] = QueuePair,
    ) -> QueuePair:
        """A queue pair in RESET; where a driver knows its paths, with a profile and entropy values that fit them.

        `kind` makes it: a driver may have a form of its own.
        """
        return kind(
            qp_num=self.new_qp_num() if qp_num is None else qp_num,
            profile=profile or self.profile,
            profile_of=self.profile_of,
            domain=self.domain,
            send_cq=send_cq,
            recv_cq=recv_cq,
            seed=next(self._randoms),
            ev_values=ev_values,
            dialect=self.dialect,
        )

    def join(self, qp: QueuePair, peer: Hashable) -> None:
        """From now on this queue pair hears what comes from that peer, and from nobody else."""
        self._peers.setdefault(peer, {})[qp.qp_num] = qp

    def leave(self, qp: QueuePair, peer: Hashable) -> None:
        """Undo `join`."""
        self._peers.get(peer, {}).pop(qp.qp_num, None)
        if not self._peers.get(peer):
            self._peers.pop(peer, None)

    def receive(
        self, data: bytes | bytearray | memoryview, path: Path, peer: Hashable, now_ns: int
    ) -> tuple[QueuePair, ...]:
        """Take in a UDP payload that came from a peer; the queue pairs that may now have something to say.

        What is no packet, or not for a queue pair that has joined with this peer, is counted and dropped. Endpoint
        packets (QP 2) are about the peer: a request is answered once, its news and a response reach all queue pairs
        with that peer, which know by the id whether it is theirs.
        """
        try:
            packet = decode(data, self.dialect, is_trimmed=path.is_trimmed)
        except WireError:
            self.num_bad_packets += 1
            return ()
        joined = self._peers.get(peer)
        if not joined:
            self.num_foreign_packets += 1
            return ()
        if packet.bth.dest_qp != ENDPOINT_QP:
            qp = joined.get(packet.bth.dest_qp)
            if qp is None or isinstance(packet, Request | Response):
                self.num_foreign_packets += 1
                return ()
            qp.take(packet, path, now_ns)
            return (qp,)
        if not isinstance(packet, Request | Response):
            self.num_foreign_packets += 1
            return ()
        hearing = tuple(qp for qp in joined.values() if qp.state in (QpState.RTR, QpState.RTS))
        if isinstance(packet, Request) and packet.erth.op is EndpointOp.EV_PROBE:
            hearing = hearing[:1]
        for i, qp in enumerate(hearing):
            qp.take(packet, path, now_ns, answer=i == 0)
        return hearing
