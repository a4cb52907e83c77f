"""Bytes on the wire: each header against bytes written out by hand, both readings of what is disputed, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.errors import RemoteProtocolError
from fairlead.fabric.mrc import headers, icrc, packets
from fairlead.fabric.mrc.control_headers import CcState, Eeth, Erth, Neth, Peth, Seth
from fairlead.fabric.mrc.headers import Aeth, Bth, Dialect, EndpointOp, Meth, Opcode, Reth, Tseth
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.packets import Ack, Nack, Path, Probe, Request, Response, Sack, WireError, Write
from fairlead.fabric.mrc.profile import Profile

PLAIN = Dialect(icrc=Icrc.NONE)

BTH = Bth(Opcode.WRITE_ONLY, dest_qp=0xABCDEF, psn=0x123456, ack_request=True, rtx=True, has_timestamp=True, pad=1)
WRITE = Write(
    bth=BTH,
    meth=Meth(rqmsn=0x0102, msn=0x0304),
    tseth=Tseth(0xBEEF, tsr=1),
    reth=Reth(va=0x1122334455667788, rkey=0x99AABBCC, dma_len=3),
    payload=b"abc",
)
SETH = Seth(
    cack_psn=4,
    ack_psn_offset=-2,
    sack_offset=1,
    sack_bitmap=0x76,
    entropy=0xC0DE0042,
    m=1,
    is_probe=True,
    mpr=8,
    type=0xA,
    nxt=0x13,
    spdcid=0x1111,
    dpdcid=0x2222,
    cc_type=2,
    cc_flags=5,
)

GOLDEN = [
    (
        WRITE,  # A, rtx, ts, pad 1
        """ca 10 ffff 00 abcdef b0 123456
           0102 0304
           beef 8001
           1122334455667788 99aabbcc 00000003
           616263 00""",
    ),
    (
        replace(WRITE, bth=replace(BTH, opcode=Opcode.WRITE_LAST_IMM, has_timestamp=False), tseth=None, imm=0xCAFE),
        """c9 10 ffff 00 abcdef a0 123456
           0102 0304
           1122334455667788 99aabbcc 00000003
           0000cafe
           616263 00""",
    ),
    (
        Ack(Bth(Opcode.ACK, 1, 2), Aeth(0x1F, 0x030405)),
        """d1 00 ffff 00 000001 00 000002
           1f 030405""",
    ),
    (
        Sack(Bth(Opcode.SACK, 1, 0), SETH, CcState(0xBEEF, 0x7ABC, 0x00FFEE, 64, restore_cwnd=True)),
        """dc 00 ffff 00 000001 00 000000
           a9 a2 fffe c0de0042 1111 2222 00 000004 25 08 0001 0000000000000076
           beef 7abc c0 00ffee""",
    ),
    (
        Nack(Bth(Opcode.NACK, 1, 0), Neth(0x0A0B0C, 0x02, 0xC0DE0042, 0xBEEF, vendor=7)),
        """dd 00 ffff 00 000001 00 000000
           00 00 02 07 c0de0042 0000 0000 00 0a0b0c 20 00 beef""",
    ),
    (
        Probe(Bth(Opcode.PROBE, 1, 0), Peth(0x4321, 0xBEEF, tsr=1, spdcid=3, dpdcid=4)),
        """de 00 ffff 00 000001 00 000000
           00 00 00 00 4321 0000 0003 0004 beef 8001""",
    ),
    (
        Request(Bth(Opcode.ENDPOINT_REQUEST, 2, 0x4321), Erth(EndpointOp.EV_PROBE, 0xF0F0F0F0, 0xBEEF, vendor=9)),
        """d8 00 ffff 00 000002 00 004321
           00 01 00 09 f0f0f0f0 00000000 beef 0001""",
    ),
    (
        Response(Bth(Opcode.ENDPOINT_RESPONSE, 2, 0x4321), Eeth(1, 2, 0xBEEF)),
        """d9 00 ffff 00 000002 00 004321
           00 44 0000 00000000 00000000 00000000 00000000 00000000 00000000 beef 0000 00000000""",
    ),
]


@pytest.mark.parametrize(("packet", "text"), GOLDEN, ids=lambda x: type(x).__name__ if not isinstance(x, str) else "")
def test_bytes_as_written_by_hand(packet: packets.Packet, text: str) -> None:
    data = bytes.fromhex(text) + bytes(4)
    assert packets.encode(packet, PLAIN) == data
    decoded = packets.decode(data, PLAIN)
    if isinstance(decoded, Write):
        decoded = replace(decoded, payload=bytes(decoded.payload))
    assert decoded == packet


def test_header_sizes() -> None:
    sizes = {cls.__name__: cls.SIZE for cls in (Bth, Meth, Tseth, Reth, Aeth, Seth, CcState, Neth, Peth, Erth, Eeth)}
    assert sizes == {
        "Bth": 12, "Meth": 4, "Tseth": 4, "Reth": 16, "Aeth": 4, "Seth": 28, "CcState": 8,
        "Neth": 20, "Peth": 16, "Erth": 16, "Eeth": 36,
    }  # fmt: skip


def test_opcodes_lie_in_the_manufacturers_range_of_bth() -> None:
    assert {opcode >> 5 for opcode in Opcode} == {0b110}
    assert sorted(Opcode) == [0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE]


@pytest.mark.parametrize(
    ("first", "last", "imm", "opcode"),
    [
        (True, False, False, 0xC6),
        (False, False, False, 0xC7),
        (False, True, False, 0xC8),
        (False, True, True, 0xC9),
        (True, True, False, 0xCA),
        (True, True, True, 0xCB),
    ],
)
def test_write_opcodes(first: bool, last: bool, imm: bool, opcode: int) -> None:
    found = packets.write_opcode(is_first=first, is_last=last, has_imm=imm)
    assert found == opcode
    assert (found in packets.LASTS, found in packets.WITH_IMM) == (last, imm)


# --- disputed bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m_bit", "solicited", "migrate", "byte"),
    [(6, True, False, 0x80), (6, False, True, 0x40), (7, True, False, 0x40), (7, False, True, 0x80)],
)
def test_both_readings_of_se_and_m(m_bit: int, solicited: bool, migrate: bool, byte: int) -> None:
    dialect = Dialect(bth_m_bit=m_bit, icrc=Icrc.NONE)
    packet = Ack(Bth(Opcode.ACK, 1, 2, solicited=solicited, migrate=migrate), Aeth(0, 0))
    data = packets.encode(packet, dialect)
    assert data[1] == byte
    assert packets.decode(data, dialect) == packet


@pytest.mark.parametrize(("shift", "byte", "m"), [(2, 0x24, 1), (4, 0x10, 0)])
def test_both_readings_of_the_op_of_an_endpoint_response(shift: int, byte: int, m: int) -> None:
    dialect = Dialect(eeth_op_shift=shift, icrc=Icrc.NONE)
    data = packets.encode(Response(Bth(Opcode.ENDPOINT_RESPONSE, 2, 5), Eeth(1, 1)), dialect)
    assert data[13] == byte
    assert packets.decode(data, dialect).eeth == Eeth(1, m)  # type: ignore[union-attr]


def test_both_ports_are_known() -> None:
    assert headers.UDP_PORTS == (4791, 4971)


# --- iCRC ------------------------------------------------------------------------------------------------------------

# A congestion notification packet that a ConnectX-4 Lx sent: secdev/scapy test/contrib/roce.uts, without Ethernet
CAPTURED = bytes.fromhex(
    "45c2003c718c400040119161 0a001101 0a001201"  # IPv4
    "000012b700280000"  # UDP
    "8100ffff4000011800000000 00000000000000000000000000000000"  # BTH, padding
    "82fd002a"
)


def test_the_roce_variant_matches_a_packet_from_a_real_nic() -> None:
    assert icrc.compute(Icrc.ROCE, CAPTURED[28:-4], CAPTURED[:28]) == CAPTURED[-4:]


def test_the_roce_variant_covers_what_stays_and_not_what_changes_on_the_way() -> None:
    v6 = bytearray(bytes.fromhex("60012345 0020 11 40") + bytes(range(32)) + bytes.fromhex("c0de12b700200000"))
    packet = bytes(range(20))
    base = icrc.compute(Icrc.ROCE, packet, bytes(v6))
    for place, same in ((1, True), (3, True), (7, True), (46, True), (8, False), (39, False), (41, False), (43, False)):
        other = bytearray(v6)
        other[place] ^= 0x55
        assert (icrc.compute(Icrc.ROCE, packet, bytes(other)) == base) == same, place
    assert icrc.compute(Icrc.ROCE, packet[:4] + b"\x99" + packet[5:], bytes(v6)) == base
    assert icrc.compute(Icrc.ROCE, packet[:-1] + b"\x99", bytes(v6)) != base


def test_the_other_variants() -> None:
    assert icrc.compute(Icrc.NONE, b"whatever") == bytes(4)
    assert icrc.compute(Icrc.CRC32C, b"123456789") == bytes.fromhex("e3069283")  # the check value of CRC-32C
    masked = icrc.compute(Icrc.PACKET, b"1234\xff6789")
    assert icrc.compute(Icrc.PACKET, b"123456789") == masked  # BTH byte 4 does not count
    assert icrc.compute(Icrc.PACKET, b"123456780") != masked


def test_the_variant_none_leaves_the_last_four_bytes_to_the_driver() -> None:
    data = packets.encode(GOLDEN[2][0], PLAIN)[:-4] + b"mine"
    assert packets.decode(data, PLAIN) == GOLDEN[2][0]


@pytest.mark.parametrize(
    "network", [b"", b"\x45", CAPTURED[:27], b"\x44" + CAPTURED[1:28], b"\x60" + bytes(46), bytes(60)]
)
def test_the_roce_variant_wants_whole_headers(network: bytes) -> None:
    data = packets.encode(WRITE, Dialect(icrc=Icrc.ROCE), CAPTURED[:28])
    with pytest.raises(WireError, match="no whole IP and UDP headers"):
        packets.decode(data, Dialect(icrc=Icrc.ROCE), network)


@pytest.mark.parametrize("variant", [Icrc.PACKET, Icrc.CRC32C, Icrc.ROCE])
def test_a_flipped_bit_is_noticed(variant: Icrc) -> None:
    dialect = Dialect(icrc=variant)
    network = CAPTURED[:28]
    data = packets.encode(WRITE, dialect, network)
    assert packets.decode(data, dialect, network)
    for bit in range(0, len(data) * 8, 7):
        if bit // 8 == 4:
            continue  # the variant byte
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            packets.decode(bytes(broken), dialect, network)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xca",
        bytes(15),
        bytes(16),
        b"\xc5" + bytes(60),
        b"\xd0" + bytes(60),
        b"\xca" + bytes(34),  # a Write without room for its RETH
        b"\xca" + bytes(36),  # ... not a multiple of 4
        b"\xca\x30" + bytes(34),  # more padding than payload
        b"\xdc" + bytes(50),
        b"\xdc" + bytes(52),
        b"\xd1" + bytes(20),
        bytes.fromhex("d8 00 ffff 00 000002 00 000000 00 02") + bytes(14) + bytes(4),  # an unknown request
    ],
)
def test_what_is_no_packet_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        packets.decode(data, PLAIN)
    assert isinstance(caught.value, RemoteProtocolError)
    assert caught.value.code == "fabric/bad-packet"


def test_a_trimmed_packet_keeps_its_headers_only() -> None:
    data = packets.encode(WRITE)
    trimmed = packets.decode(data[:37], is_trimmed=True)
    assert trimmed == replace(WRITE, payload=b"")
    with pytest.raises(WireError):
        packets.decode(data[:35], is_trimmed=True)
    with pytest.raises(WireError):
        packets.decode(packets.encode(GOLDEN[2][0]), is_trimmed=True)
    with pytest.raises(WireError):
        packets.decode(data[:11], is_trimmed=True)


# --- small things --------------------------------------------------------------------------------------------------


def test_an_ev_is_a_source_port_and_a_flow_label() -> None:
    path = Path(ev=0xC0DE0042)
    assert (path.source_port, path.flow_label) == (0xC0DE, 0x42)


@pytest.mark.parametrize("age", [0, 1, 127, 128, 5_000, 8_388_479])
@pytest.mark.parametrize("now", [10**9, 10**9 + 127, (1 << 23) + 77])
def test_a_timestamp_is_good_for_eight_milliseconds_to_128_ns(now: int, age: int) -> None:
    if age <= now:
        found = packets.time_of(packets.timestamp(now - age), now)
        assert -128 < found - (now - age) <= 0


def test_a_packet_counts_its_udp_length_and_forty_bytes_for_congestion_control() -> None:
    mtu = Profile.mrc().mtu
    full = replace(WRITE, bth=replace(BTH, pad=0), payload=bytes(mtu))
    udp_header = 8
    assert Profile.mrc().overhead == udp_header + len(packets.encode(full)) + 40 - mtu


@pytest.mark.parametrize(("size", "pad"), [(0, 0), (1, 3), (2, 2), (3, 1), (4, 0), (4095, 1)])
def test_padding(size: int, pad: int) -> None:
    assert packets.padding(size) == pad
