"""Encode and decode are inverse; no bytes make the decoder raise anything but its own error."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fabric.mrc import icrc, packets
from fairlead.fabric.mrc.control_headers import CcState, Eeth, Erth, Neth, Peth, Seth
from fairlead.fabric.mrc.headers import Aeth, Bth, Dialect, EndpointOp, Meth, Opcode, Reth, Tseth
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.packets import Ack, Nack, Probe, Request, Response, Sack, WireError, Write
from support.depth import cases

NETWORK = bytes.fromhex("45c2003c718c4000401191610a0011010a001201000012b700280000")


def u(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


S16 = st.integers(-(1 << 15), (1 << 15) - 1)
DIALECTS = st.builds(Dialect, bth_m_bit=st.sampled_from([6, 7]), eeth_op_shift=st.just(2), icrc=st.sampled_from(Icrc))


def bth(*opcodes: Opcode) -> st.SearchStrategy[Bth]:
    return st.builds(
        Bth,
        opcode=st.sampled_from(opcodes),
        dest_qp=u(24),
        psn=u(24),
        ack_request=st.booleans(),
        rtx=st.booleans(),
        has_timestamp=st.booleans(),
        solicited=st.booleans(),
        migrate=st.booleans(),
        tver=u(4),
        pkey=u(16),
        variant=u(8),
    )


@st.composite
def writes(draw: st.DrawFn) -> Write:
    base = draw(bth(*(Opcode(n) for n in sorted(packets.WRITES))))
    payload = draw(st.binary(max_size=64))
    return Write(
        bth=replace(base, pad=packets.padding(len(payload))),
        meth=draw(st.builds(Meth, u(16), u(16))),
        reth=draw(st.builds(Reth, u(64), u(32), u(32))),
        payload=payload,
        tseth=draw(st.builds(Tseth, u(16), u(1), u(4))) if base.has_timestamp else None,
        imm=draw(u(32)) if base.opcode in packets.WITH_IMM else None,
    )


SETHS = st.builds(Seth, u(24), S16, S16, u(64), u(32), u(2), st.booleans(), u(8), u(4), u(5), u(16), u(16), u(4), u(4))
PACKETS = st.one_of(
    writes(),
    st.builds(Ack, bth(Opcode.ACK), st.builds(Aeth, u(8), u(24))),
    st.builds(Sack, bth(Opcode.SACK), SETHS, st.builds(CcState, u(16), u(15), u(24), u(7), st.booleans())),
    st.builds(
        Nack,
        bth(Opcode.NACK),
        st.builds(Neth, u(24), u(8), u(32), u(16), u(4), u(5), u(8), u(16), u(16), u(4), u(4)),
    ),
    st.builds(Probe, bth(Opcode.PROBE), st.builds(Peth, u(16), u(16), u(1), u(4), u(4), u(5), u(8), u(16), u(16))),
    st.builds(
        Request,
        bth(Opcode.ENDPOINT_REQUEST),
        st.builds(Erth, st.sampled_from(EndpointOp), u(32), u(16), u(1), u(4), u(4), u(5), u(8)),
    ),
    st.builds(Response, bth(Opcode.ENDPOINT_RESPONSE), st.builds(Eeth, u(2), u(2), u(16), u(4), u(5))),
)


@given(packet=PACKETS, dialect=DIALECTS)
@settings(max_examples=cases(600), deadline=None)
def test_encode_and_decode_are_inverse(packet: packets.Packet, dialect: Dialect) -> None:
    data = packets.encode(packet, dialect, NETWORK)
    assert len(data) % 4 == 0
    decoded = packets.decode(data, dialect, NETWORK)
    if isinstance(decoded, Write):
        decoded = replace(decoded, payload=bytes(decoded.payload))
    assert decoded == packet
    assert packets.encode(decoded, dialect, NETWORK) == data


@given(data=st.binary(max_size=120), is_trimmed=st.booleans(), dialect=DIALECTS, network=st.binary(max_size=60))
@settings(max_examples=cases(1000), deadline=None)
def test_any_bytes_give_a_packet_or_a_wire_error(
    data: bytes, is_trimmed: bool, dialect: Dialect, network: bytes
) -> None:
    _try(data, dialect, network, is_trimmed=is_trimmed)


def _try(data: bytes, dialect: Dialect, network: bytes = b"", *, is_trimmed: bool) -> bool:
    try:
        packet = packets.decode(data, dialect, network, is_trimmed=is_trimmed)
    except WireError:
        return False
    if not is_trimmed and (dialect.icrc is not Icrc.ROCE or icrc.udp_offset(network)):
        packets.encode(packet, dialect, network)
    return True


def fuzz(num: int, seed: int) -> int:
    """Random bytes, half of them behind a true opcode, in every dialect; how many were packets."""
    rng = random.Random(seed)
    opcodes = list(Opcode)
    dialects = [Dialect(bth_m_bit=m, eeth_op_shift=op, icrc=Icrc.NONE) for m in (6, 7) for op in (2, 4)]
    dialects += [Dialect(icrc=variant) for variant in Icrc]
    found = 0
    for i in range(num):
        data = bytearray(rng.randbytes(rng.randrange(96)))
        dialect = dialects[rng.randrange(8)]
        network = b""
        if dialect.icrc is Icrc.ROCE:
            network = rng.choice((NETWORK, rng.randbytes(rng.randrange(64)), b"\x60" + rng.randbytes(47)))
        if i % 2 and data:
            data[0] = rng.choice(opcodes)
            if i % 4 == 1 and len(data) >= 16 and (dialect.icrc is not Icrc.ROCE or icrc.udp_offset(network)):
                data[-4:] = icrc.compute(dialect.icrc, bytes(data[:-4]), network)
        found += _try(bytes(data), dialect, network, is_trimmed=i % 8 == 3)
    return found


def test_twenty_thousand_random_inputs() -> None:
    assert fuzz(20_000, seed=1) > 500


@pytest.mark.slow
def test_a_million_random_inputs() -> None:
    assert fuzz(1_000_000, seed=2) > 25_000
