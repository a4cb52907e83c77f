"""What an application does with a queue pair: lead it through its states, post work, have it completed.

    modify(state, ...), post_write(...), post_recv(...), close()
    deny_ev(ev), allow_ev(ev), set_ports(now_ns, up), set_penalty(penalty)

It knows work requests, completions and the two rows. Packets are the business of qp.py.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import evs, law, responder, state
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.completion import FAILURES, Completion, CompletionQueue, QpFailed, Status, WorkOpcode
from fairlead.fabric.mrc.entropy import default_evs, slots_of
from fairlead.fabric.mrc.memory import ProtectionDomain
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.rows import requestor_row, responder_row
from fairlead.fabric.mrc.verbs import (
    MAX_PENALTY,
    MPR_UNIT,
    EvState,
    QpHint,
    QpState,
    check_range,
    check_step,
    check_write,
    profile_changes,
)

ALL_PORTS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Send:
    """A posted Write."""

    wr_id: int
    data: memoryview
    remote_addr: int
    rkey: int
    imm: int | None


class WorkPair:
    """The application's side of a queue pair: `qp.QueuePair` adds packets."""

    def __init__(
        self,
        *,
        qp_num: int,
        profile: Profile,
        domain: ProtectionDomain,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        seed: int,
        ev_values: Sequence[int] | None = None,
        profile_of: Callable[[int | None, int | None], Profile] | None = None,
    ) -> None:
        """`ev_values` are the 32-bit entropy values by slot, plane by plane; by default `default_evs`.

        `profile_of` finds the profile that ev_profile_id and cc_profile_id name; a device has it.
        """
        self.qp_num = qp_num
        self.state = QpState.RESET
        self._domain = domain
        self._send_cq = send_cq
        self._recv_cq = recv_cq
        self._seed = seed
        self._profile_of = profile_of
        self._hint: QpHint | None = None
        self._ports = ALL_PORTS
        self._set_up(profile, ev_values)
        self.dest_qp_num = 0
        self._sends: deque[_Send] = deque()
        self._receives: deque[int] = deque()
        self._lasts: list[tuple[int, int, int | None]] = []  # heap of messages' last packets: PSN, bytes, immediate
        self._message_psn = 0  # first PSN of the oldest incomplete message received
        self._events: deque[QpFailed] = deque()

    def _set_up(self, profile: Profile, ev_values: Sequence[int] | None) -> None:
        """Rows and EVs as the profile asks."""
        self.profile = profile
        self.evs = tuple(ev_values) if ev_values is not None else default_evs(profile, self._seed)
        self._slots = slots_of(self.evs, profile)
        self.rows = state.allocate([profile], 1, 1)
        self.m = self.rows.plain()
        self.tx = requestor_row(self.m, self.rows.tx(0))
        self.rx = responder_row(self.m, self.rows.rx(0))

    # --- states ----------------------------------------------------------------------------------------------------

    def modify(self, target: QpState, **attributes: object) -> None:
        """Lead the queue pair on: INIT, RTR, RTS (verbs.py has the attributes), or ERR from anywhere."""
        if target is QpState.ERR:
            self._fail(Status.WR_FLUSH_ERR)
            return
        check_step(self.state, target, attributes)
        get = attributes.get
        self._set_profile(profile_changes(attributes))
        if target is QpState.INIT:
            self._to_init(attributes)
        elif target is QpState.RTR:
            self.dest_qp_num = _int(get("dest_qp_num"))
            self._message_psn = _int(get("rq_psn"))
            self.rx = law.init_rx(self.m, self.rx.address, self.rows.profiles[0], self._seed ^ 1, self._message_psn)
        else:
            self.tx = law.init_tx(self.m, self.tx.address, self.rows.profiles[0], self._seed, _int(get("sq_psn")))
            law.set_peer_window(self.tx, _int(get("mpr") or self.profile.mpr // MPR_UNIT))
            self.tx.responder_address = self.rx.address
            for field in ("ports", "peer_ports", "status"):  # what the responder heard and said since RTR
                setattr(self.tx, field, getattr(self.rx, field))
        self.state = target
        if target is QpState.RTR:
            self._obey(law.on_ports(self.rx, 0, self._ports, 1))

    def _to_init(self, attributes: Mapping[str, object]) -> None:
        chosen = [attributes.get(name) for name in ("ev_profile_id", "cc_profile_id")]
        if chosen != [None, None]:
            if self._profile_of is None:
                raise LocalProtocolError(
                    "fabric/bad-attribute",
                    "this queue pair has no device to find profiles on",
                    hint="use Device.create_qp",
                )
            ids = [None if number is None else _int(number) for number in chosen]
            self._set_up(self._profile_of(*ids), None)
        hint = attributes.get("hint")
        if isinstance(hint, QpHint):
            self._hint = hint
            hint.num_users += 1

    def _set_profile(self, changes: dict[str, object]) -> None:
        """Take negotiated values into the profile block; rows keep their size, so windows may only shrink."""
        profile = replace(self.profile, **changes)  # type: ignore[arg-type]
        if profile.ring > self.profile.ring:
            raise LocalProtocolError(
                "fabric/bad-attribute",
                f"the window is {profile.mpr} PSNs and the queue pair was created for {self.profile.mpr}",
                hint="create the queue pair with a profile of larger mpr",
            )
        block = profile.parameters()
        for name in changes:
            setattr(self.tx.profile, name, block[name])
        self.profile = replace(profile, mpr=self.profile.mpr)

    # --- application calls -----------------------------------------------------------------------------------------

    def post_write(
        self, data: bytes | bytearray | memoryview, *, wr_id: int, remote_addr: int, rkey: int, imm: int | None = None
    ) -> None:
        """Queue an RDMA Write, with `imm` a Write-with-Imm. `data` is not copied: let it be till then."""
        view = memoryview(data).cast("B")
        self._need(QpState.RTS)
        check_write(len(view), remote_addr=remote_addr, rkey=rkey, imm=imm)
        self._send_cq.reserve()
        if not law.post(self.tx, len(view), 0 if imm is None else 1):
            self._send_cq.release()
            raise LocalProtocolError(
                "fabric/queue-full",
                f"{self.profile.max_messages} messages are posted and not complete",
                hint="wait for a completion",
            )
        self._sends.append(_Send(wr_id, view, remote_addr, rkey, imm))

    def post_recv(self, *, wr_id: int) -> None:
        """Be ready for one more Write-with-Imm; MRC has no other use of receive requests."""
        if self.state not in (QpState.INIT, QpState.RTR, QpState.RTS):
            self._need(QpState.RTR)
        self._recv_cq.reserve()
        self._receives.append(wr_id)

    def set_ports(self, now_ns: int, up: int) -> None:
        """Local ports changed (bit set of planes); the peer will be told, once there is one."""
        self._ports = up
        if self.state in (QpState.RTR, QpState.RTS):
            self._obey(law.on_ports(self.rx, now_ns, up, 0 if self.state is QpState.RTS else 1))
        if self.state is QpState.RTS:
            self._obey(law.on_ports(self.tx, now_ns, up, 1))

    def set_penalty(self, penalty: int) -> None:
        """Ask the peer for less (rcv_cwnd_pen, 1 to 127), or as much as before (0)."""
        check_range("penalty", penalty, 0, MAX_PENALTY)
        law.on_pressure(self.rx, penalty)

    def ev_states(self) -> dict[int, EvState]:
        """The state of each entropy value."""
        self._need(QpState.RTS)
        return {ev: EvState(evs.ev_state(self.tx, slot)) for slot, ev in enumerate(self.evs)}

    def deny_ev(self, ev: int) -> None:
        """A controller takes an entropy value out of use."""
        evs.deny(self.tx, self._slot(ev))
        responder.deny(self.rx, self._slot(ev))

    def allow_ev(self, ev: int) -> None:
        """A controller lets an entropy value be used again."""
        evs.allow(self.tx, self._slot(ev))
        responder.allow(self.rx, self._slot(ev))

    def _slot(self, ev: int) -> int:
        self._need(QpState.RTS)
        if ev not in self._slots:
            raise LocalProtocolError(
                "fabric/bad-evs", f"queue pair {self.qp_num} has no EV {ev:#010x}", hint="`evs` lists those it has"
            )
        return self._slots[ev]

    def close(self) -> None:
        """Give up all outstanding work; it completes as flushed."""
        if self.state is not QpState.ERR:
            self._fail(Status.WR_FLUSH_ERR)

    def _need(self, wanted: QpState) -> None:
        if self.state is not wanted:
            raise LocalProtocolError(
                "fabric/wrong-state",
                f"queue pair {self.qp_num} is in state {self.state.name}, this needs {wanted.name}",
                hint="lead it there with modify",
            )

    def poll_event(self) -> QpFailed | None:
        """The next thing to tell the application beside completions."""
        return self._events.popleft() if self._events else None

    # --- completions and endings -------------------------------------------------------------------------------------

    def _obey(self, did: int) -> None:
        """Complete what the law says is complete, and fail if it says so."""
        self._complete_sends(self.tx.done)
        if did & at.DID_FAIL:
            reason = self.tx.error or self.rx.error
            kind, status, message = FAILURES[reason]
            self._events.append(
                QpFailed(self.qp_num, kind("fabric/qp-failed", message, hint="see the QP counters and EV states"))
            )
            self._fail(status)

    def _complete_sends(self, num_done: int) -> None:
        """So many messages are complete since the beginning."""
        while len(self._sends) > self.tx.posted - num_done:
            self._complete(self._sends.popleft(), Status.SUCCESS)

    def _fail(self, status: Status) -> None:
        """Enter the error state; the oldest request fails with the reason, the others are flushed."""
        self.state = QpState.ERR
        if self._hint is not None:
            self._hint.num_users -= 1
            self._hint = None
        while self._sends:
            self._complete(self._sends.popleft(), status)
            status = Status.WR_FLUSH_ERR
        while self._receives:
            wr_id = self._receives.popleft()
            self._recv_cq.add(Completion(wr_id, self.qp_num, WorkOpcode.RECV_RDMA_WITH_IMM, Status.WR_FLUSH_ERR))

    def _complete(self, send: _Send, status: Status) -> None:
        num_bytes = len(send.data) if status is Status.SUCCESS else 0
        self._send_cq.add(Completion(send.wr_id, self.qp_num, WorkOpcode.RDMA_WRITE, status, num_bytes, send.imm))

    def _deliver(self, before: int) -> None:
        """Complete received messages up to this PSN, the window's lower edge; immediates come out in message order."""
        while self._lasts and self._lasts[0][0] < before:
            psn, num_bytes, imm = heapq.heappop(self._lasts)
            total = (psn - self._message_psn) * self.profile.mtu + num_bytes
            self._message_psn = psn + 1
            if imm is not None:
                done = Completion(
                    self._receives.popleft(), self.qp_num, WorkOpcode.RECV_RDMA_WITH_IMM, Status.SUCCESS, total, imm
                )
                self._recv_cq.add(done)


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
