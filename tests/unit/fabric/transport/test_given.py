"""What no context can be made of is said before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import LocalProtocolError
from fairlead.fabric import transport
from fairlead.fabric.transport import given
from fairlead.fabric.transport.given import payload_of
from fairlead.records.addressbook import Port

GOOD: dict[str, Any] = {"address": "fd00::1", "port": 0, "rate_mbps": 0, "changes": {"trim": True}, "sealed": False}


def check(address: str, port: int, rate_mbps: int, changes: dict[str, object], *, sealed: bool) -> None:
    given.check((Port(rail="rail 0", address=address),), port, rate_mbps, changes, sealed=sealed)


def test_what_can_be_is_taken() -> None:
    check(**GOOD)
    check(**GOOD | {"address": "169.254.0.1", "port": 65_535, "changes": {"mtu": 1024}, "sealed": True})
    assert given.check_payload(256, ["lo"]) == 256


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        ({"address": "host-1"}, "fabric/no-port", "'host-1' is no IP address"),
        ({"address": ""}, "fabric/no-port", "takes one address"),
        ({"address": "fe80::1"}, "fabric/no-port", "of one link"),
        ({"address": "fe80::1%eth0"}, "fabric/no-port", "of one link"),
        ({"port": -1}, "fabric/no-port", "no UDP port -1"),
        ({"port": 65_536}, "fabric/no-port", "no UDP port 65536"),
        ({"rate_mbps": -5}, "fabric/bad-profile", "rate_mbps is -5"),
        ({"changes": {"mut": 1024}}, "fabric/bad-profile", "mut is no field"),
        ({"sealed": True}, "fabric/sealed-trim", "exclude each other"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], code: str, said: str) -> None:
    with pytest.raises(LocalProtocolError, match=said) as told:
        check(**GOOD | wrong)
    assert told.value.code == code


def test_an_interface_without_room_for_a_packet_is_named() -> None:
    with pytest.raises(LocalProtocolError, match="smallest MTU of eth0, eth1 leaves 0 bytes") as told:
        given.check_payload(-60, ["eth0", "eth1"])
    assert told.value.code == "fabric/mtu-mismatch"


@pytest.mark.parametrize(
    ("mtu", "payload"),
    [(2044, 1948), (4092, 3996), (65_520, 4096), (9000, 4096), (1500, 1404)],
    ids=["IPoIB datagram, 2K", "IPoIB datagram, 4K", "IPoIB connected", "jumbo", "Ethernet"],
)
def test_a_packet_carries_what_the_readme_says_of_an_interfaces_mtu(mtu: int, payload: int) -> None:
    assert payload_of(mtu) == payload
    said = Path(transport.__file__).with_name("README.md").read_text()
    (line,) = [line for line in said.splitlines() if line.startswith("| **MTU.**")]
    assert str(payload) in line
    assert str(mtu) in line
