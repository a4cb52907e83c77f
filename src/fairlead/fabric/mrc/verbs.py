"""Names and states of the application interface, after the published MRC API (mrc.h v1.0.1 of the Open Compute
Project).

A queue pair is led from RESET to RTS by `modify`, each step with the attributes of the table below. Attributes that
MRC does not use are refused by name, as the published interface does. This file holds names and tables, no protocol.

    to      attributes
    INIT    hint, ev_profile_id, cc_profile_id (all may be left out; the numbers are those of Device.create_*_profile)
    RTR     dest_qp_num, rq_psn, max_wimm_dest, mpr_dest     what this side accepts
    RTS     sq_psn, max_wimm, mpr, retry_cnt, timeout        what the other side accepts, and when to give up
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import layout as at

MPR_UNIT = 128
TIMEOUT_UNIT_NS = 1024
MAX_TIMEOUT = 24
MAX_RETRY_LINEAR = 7
MAX_RETRY_EXP = 25  # and 25 means for ever
MAX_MESSAGE_BYTES = 1 << 31
MAX_PENALTY = 127  # CC_STATE.rcv_cwnd_pen has 7 bits


class QpState(enum.Enum):
    """States of a queue pair."""

    RESET = "reset"
    INIT = "init"
    RTR = "ready to receive"
    RTS = "ready to send"
    ERR = "error"


class EvState(enum.Enum):
    """States of an entropy value. STANDBY is a good one not in rotation; the published API calls both GOOD."""

    GOOD = at.STATE_GOOD
    SKIP = at.STATE_SKIP
    ASSUMED_BAD = at.STATE_ASSUMED_BAD
    DENIED = at.STATE_DENIED
    STANDBY = at.STATE_STANDBY


@dataclass(frozen=True, slots=True)
class RetryCnt:
    """Retries before the queue pair fails: so many at the same interval, then so many at doubling intervals."""

    linear: int = MAX_RETRY_LINEAR
    exp: int = MAX_RETRY_EXP


@dataclass(slots=True, eq=False)
class QpHint:
    """What the application knows of its traffic."""

    num_qps_per_peer: int = 1
    num_send_peers: int = 1
    num_remote_recv_peers: int = 1
    vendor_cfg: bytes = b""
    num_users: int = 0


# next state -> (from state, required, optional)
_STEPS: Mapping[QpState, tuple[QpState, frozenset[str], frozenset[str]]] = {
    QpState.INIT: (QpState.RESET, frozenset(), frozenset({"hint", "ev_profile_id", "cc_profile_id"})),
    QpState.RTR: (
        QpState.INIT,
        frozenset({"dest_qp_num", "rq_psn"}),
        frozenset({"max_wimm_dest", "mpr_dest"}),
    ),
    QpState.RTS: (
        QpState.RTR,
        frozenset({"sq_psn"}),
        frozenset({"max_wimm", "mpr", "retry_cnt", "timeout"}),
    ),
}

UNUSED = frozenset(
    {"port_num", "rnr_retry", "min_rnr_timer", "max_rd_atomic", "max_dest_rd_atomic", "alt_ah_attr", "path_mig_state"}
)

_RANGES = {
    "rq_psn": (0, 0xFFFFFF),
    "sq_psn": (0, 0xFFFFFF),
    "dest_qp_num": (0, 0xFFFFFF),
    "mpr_dest": (1, 255),
    "mpr": (1, 255),
    "max_wimm_dest": (0, 0xFFFF),
    "max_wimm": (0, 0xFFFF),
    "timeout": (0, MAX_TIMEOUT),
}


def check_step(state: QpState, target: QpState, attributes: Mapping[str, object]) -> None:
    """Raise LocalProtocolError unless a queue pair in `state` may go to `target` with these attributes."""
    if target not in _STEPS:
        raise _refused(f"a queue pair does not go to {target.name}; make a new one")
    start, required, optional = _STEPS[target]
    unused = sorted(UNUSED & attributes.keys())
    unknown = sorted(attributes.keys() - required - optional - UNUSED)
    missing = sorted(required - attributes.keys())
    if state is not start:
        raise _refused(f"a queue pair goes to {target.name} from {start.name}, not from {state.name}")
    if unused:
        raise _refused(f"MRC does not use the attribute {unused[0]}")
    if unknown:
        raise _refused(f"{unknown[0]} is no attribute of the step to {target.name}")
    if missing:
        raise _refused(f"the step to {target.name} needs {missing[0]}")
    for name, (low, high) in _RANGES.items():
        if attributes.get(name) is not None:
            check_range(name, attributes[name], low, high)
    match attributes.get("retry_cnt", RetryCnt()):
        case RetryCnt(int(linear), int(exp)) if 0 <= linear <= MAX_RETRY_LINEAR and 0 <= exp <= MAX_RETRY_EXP:
            return
        case _:
            raise _refused(f"retry_cnt must be a RetryCnt of at most {MAX_RETRY_LINEAR} and {MAX_RETRY_EXP} retries")


def check_range(name: str, value: object, low: int, high: int) -> None:
    """Raise LocalProtocolError unless the value is an integer of this range."""
    if not (isinstance(value, int) and low <= value <= high):
        raise _refused(f"{name} must be {low} to {high}")


def check_write(num_bytes: int, *, remote_addr: int, rkey: int, imm: int | None) -> None:
    """Raise LocalProtocolError if the fields of RETH and ImmDt cannot say this."""
    if num_bytes > MAX_MESSAGE_BYTES:
        raise LocalProtocolError("fabric/too-long", f"a message of {num_bytes} bytes is too long", hint="split it")
    check_range("remote_addr", remote_addr, 0, (1 << 64) - num_bytes)
    check_range("rkey", rkey, 0, (1 << 32) - 1)
    check_range("imm", imm or 0, 0, (1 << 32) - 1)


def profile_changes(attributes: Mapping[str, object]) -> dict[str, object]:
    """What checked attributes mean for the fields of a `Profile`."""
    changes = {name: attributes[name] for name in ("max_wimm", "max_wimm_dest") if name in attributes}
    match attributes.get("mpr_dest"):
        case int(units):
            changes["mpr"] = units * MPR_UNIT
    match attributes.get("timeout"):
        case int(exponent):
            changes["rto_ns"] = TIMEOUT_UNIT_NS << exponent
    match attributes.get("retry_cnt"):
        case RetryCnt(linear, exp):
            changes |= {"retry_linear": linear, "retry_exp": exp}
    return changes


def _refused(message: str) -> LocalProtocolError:
    return LocalProtocolError("fabric/bad-attribute", message, hint="see the table in fairlead.fabric.mrc.verbs")
