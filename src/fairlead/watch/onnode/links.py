"""Network links as the kernel lists them over netlink: state and 64-bit counters, all in one answer. Pure.

Layout: linux include/uapi/linux/rtnetlink.h, if_link.h (IFLA_*, struct rtnl_link_stats64).
"""

from __future__ import annotations

import struct

from fairlead.watch.onnode.wire import Garbled, attribute, attributes, string, unsigned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NETLINK_ROUTE, RTM_GETLINK = 0, 18
LINK_HEAD = struct.Struct("=BxHiII")
"""struct ifinfomsg: family, type, index, flags, change."""
IFNAME, MASTER, OPERSTATE, LINKINFO, STATS64, EXT_MASK, CARRIER_DOWN_COUNT = 3, 10, 16, 18, 23, 29, 48
KIND = 1
STATS = ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
"""RFC 2863, in the words of /sys/class/net/*/operstate."""
ALL_LINKS = LINK_HEAD.pack(0, 0, 0, 0, 0) + attribute(EXT_MASK, struct.pack("=I", 0))
INNER = frozenset({"veth", "bridge", "vxlan", "dummy", "tun", "ifb", "nlmon", "ipip", "sit", "gre", "wireguard"})
"""Kinds of link that lead to no wire of this machine; a node of Kubernetes has hundreds."""


def links_of(payloads: list[bytes], also: frozenset[str] = frozenset()) -> dict[str, dict[str, Any]]:
    """Links that may lead to a wire, and those named in `also`, by name. Raises Garbled."""
    found: dict[str, dict[str, Any]] = {}
    indexes: dict[int, str] = {}
    for payload in payloads:
        if len(payload) < LINK_HEAD.size:
            raise Garbled("a link of %d bytes" % len(payload))
        _, kind, index, flags, _ = LINK_HEAD.unpack_from(payload)
        raw = dict(attributes(payload, LINK_HEAD.size))
        name = string(raw.get(IFNAME, b""))
        indexes[index] = name
        inner = dict(attributes(raw[LINKINFO])) if LINKINFO in raw else {}
        if name == "lo" or (string(inner.get(KIND, b"")) in INNER and name not in also):
            continue
        state = unsigned(raw[OPERSTATE]) if OPERSTATE in raw else 0
        link: dict[str, Any] = {
            "type": kind,
            "is_admin_up": bool(flags & 1),
            "operstate": OPERSTATES[state] if state < len(OPERSTATES) else str(state),
        }
        if CARRIER_DOWN_COUNT in raw:
            link["carrier_downs"] = unsigned(raw[CARRIER_DOWN_COUNT])
        if MASTER in raw:
            link["master"] = unsigned(raw[MASTER])
        numbers = raw.get(STATS64, b"")
        link.update(zip(STATS, struct.unpack_from("=%dQ" % min(len(STATS), len(numbers) // 8), numbers)))  # noqa: B905
        found[name] = link
    for link in found.values():
        if "master" in link:
            link["master"] = indexes.get(link["master"], str(link["master"]))
    return found
