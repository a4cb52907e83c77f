"""Golden addresses, the steps of the NEXT-CSID rule, and what is refused."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest

from fairlead.spec import usid

PATH = IPv6Address("fcbb:bb02:1005:2001:1007:e00c:1007:0")


def test_a_path_is_written_in_the_order_of_its_switches():
    assert usid.path_address(2, 5, 1, 7, 12) == PATH
    assert usid.path_address(2, 5, 1, 7, 12, usid.DECAP) == IPv6Address("fcbb:bb02:1005:2001:1007:e00c:1007:d6")
    assert usid.path_address(0, 7, None, 7, 0) == IPv6Address("fcbb:bb00:1007:e000:1007::")


def test_each_switch_takes_its_own_word_off_and_fills_zeros_in():
    assert [str(a) for a in usid.journey(PATH)] == [
        "fcbb:bb02:1005:2001:1007:e00c:1007:0",
        "fcbb:bb02:2001:1007:e00c:1007::",
        "fcbb:bb02:1007:e00c:1007::",
        "fcbb:bb02:e00c:1007::",
    ]


def test_the_rest_of_a_path_is_the_address_the_host_owns():
    assert usid.journey(PATH)[-1] == usid.port_address(2, 7, 12)
    assert usid.journey(usid.path_address(2, 5, 1, 7, 12, usid.DECAP))[-1] == usid.port_address(2, 7, 12, usid.DECAP)


def test_the_same_port_of_two_t0s_is_two_addresses():
    assert usid.port_address(0, 0, 3) != usid.port_address(0, 1, 3)
    assert usid.locator(0, usid.port_usid(3)) == "fcbb:bb00:e003::/48"


def test_parse_reads_what_is_ahead():
    assert usid.parse(PATH).hops == (0x1005, 0x2001, 0x1007)
    assert usid.parse(usid.shift(PATH)).hops == (0x2001, 0x1007)
    assert usid.parse(PATH).end == usid.PortAddress(plane=2, t0=7, port=12, function=0)


@pytest.mark.parametrize(
    "address",
    [
        "::1",
        "fcbb:bc02:1005::",
        "fcbb:bb02::",
        "fcbb:bb02:1005:2001::",
        "fcbb:bb02:e00c:2007::",
        "fcbb:bb02:e00c:1007:0:1::",
        "fcbb:bb02:1005:2001:1007:1005:2001:1007",
    ],
)
def test_other_addresses_are_refused(address):
    with pytest.raises(ValueError):
        usid.parse(IPv6Address(address))


@pytest.mark.parametrize(("t0", "t1", "dst"), [(1, None, 2), (1, 0, 1)])
def test_a_path_needs_a_t1_exactly_between_two_t0s(t0, t1, dst):
    with pytest.raises(ValueError, match="T1"):
        usid.path_address(0, t0, t1, dst, 0)


@pytest.mark.parametrize("call", [lambda: usid.block(256), lambda: usid.t0_usid(4096), lambda: usid.port_usid(-1)])
def test_numbers_out_of_range_are_refused(call):
    with pytest.raises(ValueError, match="number"):
        call()


def test_the_fabric_address_is_in_no_plane():
    address = usid.fabric_address(7, 12)
    with pytest.raises(ValueError, match="no plane"):
        usid.parse(address)


def test_131_072_hosts_have_131_072_addresses_in_each_plane():
    owned = {int(usid.port_address(7, t0, port)) for t0 in range(512) for port in range(256)}
    assert len(owned) == 131_072
