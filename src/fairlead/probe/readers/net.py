"""Network interfaces: driver, state, speed, MTU, addresses, default routes, and what a file says of this node's place.

The file is for what a node cannot see of its fabric; records/addressbook.py says what may stand in it.
"""

from __future__ import annotations

import json
from typing import Any

from fairlead.probe.readers.host import REACHED_BY, environment
from fairlead.probe.readers.tree import Tree, hole, key_values, number, read_or_hole, safe_name

SYS_NET = "/sys/class/net"
PLACE = "/etc/fairlead/place.json"
RTF_REJECT = 0x200
MAX_LINKS = 256
FORMS = {
    "address": "([0-9a-f]{2}(:[0-9a-f]{2}){5,31})?",
    "operstate": "unknown|notpresent|down|lowerlayerdown|testing|dormant|up",
    "flags": "0x[0-9a-f]+",
    "type": "-?[0-9]+",
}
"""Of a network link: what the kernel writes into these files (linux: Documentation/ABI/testing/sysfs-class-net)."""


def read_net(tree: Tree) -> dict[str, Any]:
    """`links` by name, under the kernel's own file names, the interfaces of default routes, and the node's place."""
    tree.source(("links",), SYS_NET + "/")
    tree.source(("default_interface",), "/proc/net/route")
    tree.source(("default_interface6",), "/proc/net/ipv6_route")
    tree.source(("reached_at",), "/proc/self/environ")
    tree.source(("place",), PLACE)
    addresses = read_or_hole(_addresses, tree)
    return {
        "links": {
            safe_name(n): _link(tree, n, addresses) for n in tree.names(SYS_NET)[:MAX_LINKS] if n != "bonding_masters"
        },
        "default_interface": read_or_hole(_default, tree),
        "default_interface6": read_or_hole(_default6, tree),
        "reached_at": read_or_hole(_reached_at, tree),
        "place": read_or_hole(_place, tree),
    }


def _link(tree: Tree, name: str, addresses: dict[str, Any]) -> dict[str, Any]:
    base = SYS_NET + "/" + name
    found: dict[str, Any] = {key: tree.attr(base + "/" + key, form) for key, form in FORMS.items()}
    found["mtu"] = tree.number(base + "/mtu")
    found["carrier_changes"] = tree.number(base + "/carrier_changes")
    # the kernel refuses to name the speed of a link that is down or has none
    found["speed"] = tree.number(base + "/speed")
    # a virtual interface has no device, and so no driver of one
    found["pci"] = read_or_hole(tree.optional_link, base + "/device")
    found["driver"] = read_or_hole(tree.optional_link, base + "/device/driver") if found["pci"] else ""
    found["master"] = read_or_hole(tree.optional_link, base + "/master")
    found["devtype"] = read_or_hole(_devtype, tree, base + "/uevent")
    for key, link in (("pci", "device"), ("driver", "device/driver"), ("master", "master"), ("devtype", "uevent")):
        tree.source(("links", name, key), base + "/" + link)
    found["addresses"] = addresses if "unread" in addresses else addresses.get(name, [])
    tree.source(("links", name, "addresses"), "ip -j addr show")
    return found


def _devtype(tree: Tree, path: str) -> str:
    """`bond`, `bridge`, `vlan`, ...; empty for a plain interface (linux: net_device type `name`, shown in uevent)."""
    return key_values(tree.read(path, 4096), "=").get("DEVTYPE", "")


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
    for words in tree.table("/proc/net/route", 8)[1:]:
        if words[1] == "00000000" and words[7] == "00000000":
            return words[0]
    return ""


def _default6(tree: Tree) -> str:
    """The interface of the IPv6 default route. Columns: destination, its length, source, ..., flags, interface."""
    for line in (tree.optional("/proc/net/ipv6_route") or "").split("\n"):
        words = line.split()
        if len(words) >= 10 and words[:2] == ["0" * 32, "00"]:
            flags = number(words[8], "/proc/net/ipv6_route", 16)
            if isinstance(flags, int) and not flags & RTF_REJECT:
                return words[9]
    return ""


def _reached_at(tree: Tree) -> str:
    """The address of this node that ssh came to; empty where it did not (man 1 ssh: SSH_CONNECTION)."""
    words = environment(tree).get(REACHED_BY, "").split()
    return words[2] if len(words) == 4 else ""


def _place(tree: Tree) -> dict[str, Any]:
    """What the file says; nothing where there is none."""
    text = tree.optional(PLACE)
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    return found if isinstance(found, dict) else hole("is not the JSON it should be", PLACE)
