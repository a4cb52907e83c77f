"""EV profiles: expanded as the control API says, refused where it refuses, and the lab's addresses come out of one."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.evprofile import EV_BYTES, EvField, EvFormat, EvProfile, addresses, usid_profile
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import QpState
from fairlead.spec import usid
from support.depth import cases


def ev(text):
    return bytes.fromhex(text).ljust(EV_BYTES, b"\0")


def test_the_steps_of_the_header_by_hand():
    """init 0001 0000 0000 0000, mask 0000 1111 0000 1111: eight bits of the EV, 1010 1011, go to the mask's places."""
    profile = EvProfile(EvFormat.STEV, (16, 16), (EvField(16, init=0x1000, mask=0x0F0F), EvField(16, init=0xBEEF)))
    assert profile.num_bits == 8
    assert profile.expand(bytes([0b1010_1011])) == ev("1a0b beef")


def test_a_field_narrower_than_its_place_stands_at_its_right():
    fields = (EvField(32, init=0xFCBBBB02), EvField(4, mask=0xF), EvField(4, init=0x8, mask=0x7))
    profile = EvProfile(EvFormat.SRV6, (32, 16, 16), fields)
    assert profile.expand(bytes([0b1001_1010])) == ev("fcbbbb02 0009 000d")  # 1001, then 101; the last bit is unused


def test_bits_that_no_field_takes_are_refused():
    profile = EvProfile(EvFormat.STEV, (16,), (EvField(16, mask=0xF),))
    with pytest.raises(LocalProtocolError, match="more than the 4 bits"):
        profile.expand(bytes([0b0000_1000]))
    with pytest.raises(LocalProtocolError, match="more than the 4 bits"):
        profile.expand(bytes(EV_BYTES + 1))


@st.composite
def profiles(draw):
    fields, widths = [], []
    for _ in range(draw(st.integers(1, 6))):
        width = draw(st.integers(1, 32))
        numbers = st.integers(0, (1 << width) - 1)
        fields.append(EvField(width, init=draw(numbers), mask=draw(numbers)))
        widths.append(draw(st.integers(width, 32)))
    return EvProfile(EvFormat.SRV6, tuple(widths), tuple(fields))


@settings(max_examples=cases(60), deadline=None)
@given(profiles(), st.randoms(use_true_random=False))
def test_expanded_as_text_of_bits(profile, chance):
    """The header's steps 1 to 3, on text instead of numbers."""
    source = "".join(chance.choice("01") for _ in range(profile.num_bits))
    left, wire = source, ""
    for field, width in zip(profile.fields, profile.widths, strict=True):
        text = list(f"{field.init:0{field.width}b}")
        for place, is_set in enumerate(f"{field.mask:0{field.width}b}"):
            if is_set == "1":
                text[place], left = left[0], left[1:]
        wire += "".join(text).rjust(width, "0")
    packed = int(source.ljust(256, "0"), 2).to_bytes(32, "big")
    assert profile.expand(packed) == int(wire.ljust(256, "0"), 2).to_bytes(32, "big")


@pytest.mark.parametrize(
    ("format_", "widths", "fields", "says"),
    [
        (EvFormat.STEV, (16,), (EvField(8), EvField(8)), "2 fields in a format of 1"),
        (EvFormat.STEV, (16,), (), "0 fields"),
        (EvFormat.STEV, (16, 17), (EvField(16),), "33 bits where STEV has 32"),
        (EvFormat.UDP, (16, 1), (EvField(16),), "17 bits where UDP has 16"),
        (EvFormat.SRV6, (32,) * 9, (EvField(32),), "288 bits where SRV6 has 256"),
        (EvFormat.STEV, (8, 8), (EvField(9),), "wider than the 8 bits"),
        (EvFormat.SRV6, (64,), (EvField(33),), "1 to 32 bits"),
        (EvFormat.STEV, (16,), (EvField(4, init=16),), "first value is wider"),
        (EvFormat.STEV, (16,), (EvField(4, mask=0x10),), "outside of the field"),
        (EvFormat.STEV, (16,), (EvField(8, mask=0x11, max=4),), "largest value is wider"),
        (EvFormat.STEV, (16,), (EvField(8, mask=0xFF, min=5, max=4),), "least value is above"),
        (EvFormat.STEV, (16,), (EvField(8, max=1),), "largest value is wider"),
    ],
)
def test_what_the_header_forbids(format_, widths, fields, says):
    with pytest.raises(LocalProtocolError, match=says) as error:
        EvProfile(format_, widths, fields)
    assert error.value.code == "fabric/bad-ev-profile"


def test_generated_evs_are_all_of_the_ranges_and_no_more():
    fields = (EvField(16, init=0x100, min=1, max=3, mask=0xF), EvField(16, init=0x200, min=0, max=4, mask=0x70))
    profile = EvProfile(EvFormat.STEV, (16, 16), fields)
    made = [profile.expand(one)[:4].hex() for one in profile.generated()]
    assert profile.num_generated == len(made) == 15
    assert made == [f"010{high}02{low}0" for high in (1, 2, 3) for low in range(5)]


def test_a_queue_pair_sprays_over_generated_evs():
    profile = Profile.mrc(planes=2, evs_per_plane=8, evs_active=8)
    fields = (EvField(16, init=0xC000, max=15, mask=0xF), EvField(16, init=7))
    numbers = EvProfile(EvFormat.STEV, (16, 16), fields).numbers(profile.num_evs)
    assert numbers == tuple(0xC000_0007 + (i << 16) for i in range(16))
    qp = Device(profile, iter(range(1, 10))).create_qp(*_queues(), ev_values=numbers)
    qp.modify(QpState.INIT)
    qp.modify(QpState.RTR, dest_qp_num=9, rq_psn=0)
    qp.modify(QpState.RTS, sq_psn=0)
    qp.post_write(bytes(16 * qp.profile.mtu), wr_id=1, remote_addr=0, rkey=1)
    assert {datagram.path.ev for datagram in qp.transmit(0)} == set(numbers)


def test_of_udp_the_number_is_the_source_port():
    profile = EvProfile(EvFormat.UDP, (16,), (EvField(16, init=0xC000, max=3, mask=0x3),))
    assert profile.numbers(4) == (0xC000_0000, 0xC001_0000, 0xC002_0000, 0xC003_0000)
    with pytest.raises(LocalProtocolError, match="5 EVs are needed"):
        profile.numbers(5)


def test_paths_of_a_plane_are_one_generated_profile():
    """What the lab's switches act on is what a device makes of a profile of fixed micro-segments and one range."""
    t1s = range(usid.t1_usid(0), usid.t1_usid(0) + 5)
    words = (usid.t0_usid(5), t1s, usid.t0_usid(7), usid.port_usid(12), usid.t0_usid(7))
    profile = usid_profile(words, usid.BLOCK_BASE + 2)
    made = [addresses(profile.expand(one)) for one in profile.generated()]
    assert made == [(usid.path_address(2, 5, t1, 7, 12), None) for t1 in range(5)]
    with pytest.raises(LocalProtocolError, match="low bits"):
        usid_profile((range(3, 9),), usid.BLOCK_BASE)
    with pytest.raises(LocalProtocolError, match="not numbers"):
        profile.numbers(1)


def test_the_second_half_is_the_segment_of_a_routing_header():
    fields = (*(EvField(32, init=i) for i in range(4)), EvField(32, init=0xFCBBBB00), EvField(16, mask=0xFFFF))
    profile = EvProfile(EvFormat.SRV6, (32, 32, 32, 32, 32, 16), fields)
    assert addresses(profile.expand(bytes.fromhex("e001"))) == (
        IPv6Address("0:0:0:1:0:2:0:3"),
        IPv6Address("fcbb:bb00:e001::"),
    )


def _queues():
    from fairlead.fabric.mrc.completion import CompletionQueue

    return CompletionQueue(64), CompletionQueue(64)
