"""A device: what queue pairs are created from. Names follow the published MRC API (mrc.h and mrc_ctl.h).

It hands out queue pair numbers, keeps the protection domain, and knows EV and congestion-control profiles by number,
so that `modify(INIT, ev_profile_id=..., cc_profile_id=...)` means here what it means there. No protocol and no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc.completion import CompletionQueue
from fairlead.fabric.mrc.headers import DEFAULT_DIALECT, ENDPOINT_QP, Dialect
from fairlead.fabric.mrc.memory import ProtectionDomain
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.qp import QueuePair
from fairlead.fabric.mrc.verbs import QpHint

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

    def create_qp(self, send_cq: CompletionQueue, recv_cq: CompletionQueue) -> QueuePair:
        """A queue pair in RESET."""
        number = self._next_qp
        self._next_qp += 1
        return QueuePair(
            qp_num=number,
            profile=self.profile,
            profile_of=self.profile_of,
            domain=self.domain,
            send_cq=send_cq,
            recv_cq=recv_cq,
            seed=next(self._randoms),
            dialect=self.dialect,
        )
