"""Network interfaces: driver, state, speed, MTU, addresses, and which one carries the default route."""

from __future__ import annotations

import json
from typing import Any

from fairlead.probe.readers.tree import Tree, hole, read_or_hole, safe_name

SYS_NET = "/sys/class/net"
MAX_LINKS = 256


def read_net(tree: Tree) -> dict[str, Any]:
    """`links` by name, under the kernel's own file names, and the interface of the default route."""
    tree.source(("links",), SYS_NET + "/")
    tree.source(("default_interface",), "/proc/net/route")
    addresses = read_or_hole(_addresses, tree)
    return {
        "links": {
            safe_name(n): _link(tree, n, addresses) for n in tree.names(SYS_NET)[:MAX_LINKS] if n != "bonding_masters"
        },
        "default_interface": read_or_hole(_default, tree),
    }


def _link(tree: Tree, name: str, addresses: dict[str, Any]) -> dict[str, Any]:
    base = SYS_NET + "/" + name
    found: dict[str, Any] = {key: tree.attr(base + "/" + key) for key in ("address", "operstate", "flags", "type")}
    found["mtu"] = tree.number(base + "/mtu")
    # the kernel refuses to name the speed of a link that is down or has none
    found["speed"] = tree.number(base + "/speed")
    # a virtual interface has no device, and so no driver of one
    found["pci"] = read_or_hole(tree.optional_link, base + "/device")
    found["driver"] = read_or_hole(tree.optional_link, base + "/device/driver") if found["pci"] else ""
    found["master"] = read_or_hole(tree.optional_link, base + "/master")
    for key, link in (("pci", "device"), ("driver", "device/driver"), ("master", "master")):
        tree.source(("links", name, key), base + "/" + link)
    found["addresses"] = addresses if "unread" in addresses else addresses.get(name, [])
    tree.source(("links", name, "addresses"), "ip -j addr show")
    return found


def _addresses(tree: Tree) -> dict[str, Any]:
    source = "ip -j addr show"
    try:
        found = json.loads(tree.run(["ip", "-j", "addr", "show"], 3.0))
        return {
            link["ifname"]: ["%s/%s" % (a["local"], a["prefixlen"]) for a in link.get("addr_info", []) if "local" in a]
            for link in found
            if "ifname" in link
        }
    except (ValueError, TypeError, KeyError):
        return hole("is not the JSON it should be", source)


def _default(tree: Tree) -> str:
    """The interface of the IPv4 default route; empty where there is none. Columns: Iface Destination ... Mask."""
    for line in tree.read("/proc/net/route").split("\n")[1:]:
        words = line.split()
        if len(words) >= 8 and words[1] == "00000000" and words[7] == "00000000":
            return words[0]
    return ""
