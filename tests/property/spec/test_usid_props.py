"""compose, shift and parse agree, for every path of the largest fabric, with a bit-string reading of RFC 9800."""

from __future__ import annotations

from ipaddress import IPv6Address

from hypothesis import given
from hypothesis import strategies as st

from fairlead.spec import usid

planes = st.integers(0, 7)
t0s = st.integers(0, 511)
t1s = st.integers(0, 255)
ports = st.integers(0, 255)
functions = st.sampled_from([0, usid.DECAP])


def next_csid(address: IPv6Address) -> IPv6Address:
    """RFC 9800, section 4.1, on a string of bits: argument over the active segment, zeros at the tail."""
    bits = f"{int(address):0128b}"
    locator_block, argument = bits[:32], bits[48:]
    return IPv6Address(int(locator_block + argument + "0" * 16, 2))


@st.composite
def paths(draw):
    src, dst = draw(t0s), draw(t0s)
    t1 = None if src == dst else draw(t1s)
    return draw(planes), src, t1, dst, draw(ports), draw(functions)


@given(paths())
def test_parse_inverts_compose(path):
    plane, src, t1, dst, port, function = path
    parsed = usid.parse(usid.path_address(*path))
    assert parsed.end == usid.PortAddress(plane, dst, port, function)
    assert parsed.hops == (
        (usid.t0_usid(src),) if t1 is None else (usid.t0_usid(src), usid.t1_usid(t1), usid.t0_usid(dst))
    )


@given(paths())
def test_the_journey_ends_at_the_host_after_one_step_a_switch(path):
    plane, _, t1, dst, port, function = path
    steps = usid.journey(usid.path_address(*path))
    assert len(steps) == (2 if t1 is None else 4)
    assert steps[-1] == usid.port_address(plane, dst, port, function)


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_shift_is_the_next_csid_rule_for_any_address(address):
    assert usid.shift(address) == next_csid(address)


@given(paths(), paths())
def test_two_hosts_never_share_a_final_address(one, two):
    same_host = (one[0], *one[3:]) == (two[0], *two[3:])
    same_end = usid.journey(usid.path_address(*one))[-1] == usid.journey(usid.path_address(*two))[-1]
    assert same_host == same_end
