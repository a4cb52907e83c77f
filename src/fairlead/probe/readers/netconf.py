"""What manages network interfaces, by its files: rules of udev, .network files of systemd-networkd, NetworkManager's
configuration, ifupdown, ifcfg files and wicked. Only lines that say who is left alone, and which interface is meant.
"""

from __future__ import annotations

import re
from typing import Any

from fairlead.probe.readers.tree import Absent, Hole, Tree, read_or_hole, safe_name

UDEV = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d")
"""man 7 udev: files of all places are sorted together; of two of one name, that in /etc wins, then /run."""
NETWORKD = ("/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network")
NM_MAIN = "/etc/NetworkManager/NetworkManager.conf"
NM = ("/etc/NetworkManager/conf.d", "/run/NetworkManager/conf.d", "/usr/lib/NetworkManager/conf.d")
IFUPDOWN, IFUPDOWN_D = "/etc/network/interfaces", "/etc/network/interfaces.d"
IFCFG = ("/etc/sysconfig/network-scripts", "/etc/sysconfig/network")
MANAGERS = {"NetworkManager": "/run/NetworkManager", "systemd-networkd": "/run/systemd/netif", "wicked": "/run/wicked"}
"""What each leaves below /run while it runs."""

SAYS = re.compile(r"NM_UNMANAGED|ID_NET_MANAGED_BY|hv_pci|hv_netvsc|mlx[45]_|\bmana\b")
MAX_FILES, MAX_CONF = 200, 1 << 18


def read_netconf(tree: Tree) -> dict[str, Any]:
    """Rules by folder and file, and which managers run."""
    for places, key in ((UDEV, "udev"), (NETWORKD, "networkd"), (NM, "nm"), (IFCFG, "ifcfg")):
        for place in places:
            tree.source((key, place), place)
    tree.source(("nm", NM_MAIN), NM_MAIN)
    tree.source(("ifupdown",), IFUPDOWN)
    for name, path in MANAGERS.items():
        tree.source(("managers", name), path)
    return {
        "udev": {place: read_or_hole(_udev, tree, place) for place in UDEV},
        "networkd": {place: read_or_hole(_networks, tree, place) for place in NETWORKD},
        "nm": {
            **{place: read_or_hole(_nm_folder, tree, place) for place in NM},
            NM_MAIN: read_or_hole(_nm_file, tree, NM_MAIN),
        },
        "ifupdown": read_or_hole(_ifupdown, tree),
        "ifcfg": {place: read_or_hole(_ifcfg, tree, place) for place in IFCFG},
        "managers": {name: read_or_hole(_runs, tree, path) for name, path in MANAGERS.items()},
    }


def _runs(tree: Tree, path: str) -> bool:
    try:
        tree.names(path)
    except Absent:
        return False
    return True


def _files(tree: Tree, place: str, end: str) -> list[str]:
    found = [name for name in tree.optional_names(place, end) if name.endswith(end)]
    if len(found) > MAX_FILES:
        raise Hole("holds more than %d files" % MAX_FILES, place)
    return found


def _udev(tree: Tree, place: str) -> dict[str, list[str]]:
    """File -> its rules that say something of virtual functions. A line that ends in a backslash goes on."""
    found = {}
    for name in _files(tree, place, ".rules"):
        text = tree.read(place + "/" + name, MAX_CONF).replace("\\\n", " ")
        rules = [
            line.strip()[:500] for line in text.split("\n") if SAYS.search(line) and not line.lstrip().startswith("#")
        ]
        found[safe_name(name)] = rules  # one without such rules may stand in the place of another of its name
    return found


def _networks(tree: Tree, place: str) -> dict[str, dict[str, list[str]]]:
    """File -> `Section.Key` -> values: what it matches, and whether that is left alone."""
    keep = re.compile(r"Match\.\w+|Link\.Unmanaged|Network\.DHCP|Network\.Address")
    found = {}
    for name in _files(tree, place, ".network"):
        said = sections(tree.read(place + "/" + name, MAX_CONF))
        found[safe_name(name)] = {key: values[:16] for key, values in said.items() if keep.match(key)}
    return found


def _nm_folder(tree: Tree, place: str) -> dict[str, dict[str, list[str]]]:
    return {safe_name(name): _nm_file(tree, place + "/" + name) for name in _files(tree, place, ".conf")}


def _nm_file(tree: Tree, path: str) -> dict[str, list[str]]:
    """`keyfile.unmanaged-devices`, and sections that leave devices alone (man 5 NetworkManager.conf)."""
    said = sections(tree.optional(path) or "")
    return {
        key: values for key, values in said.items() if re.search(r"unmanaged-devices|\.managed$|\.match-device$", key)
    }


def _ifupdown(tree: Tree) -> list[str]:
    """Interfaces that ifupdown configures."""
    names = []
    paths = [IFUPDOWN] + [IFUPDOWN_D + "/" + name for name in tree.optional_names(IFUPDOWN_D)]
    for path in paths:
        names += re.findall(r"^\s*(?:iface|auto|allow-hotplug)\s+(\S+)", tree.optional(path) or "", re.MULTILINE)
    return sorted(set(names))


def _ifcfg(tree: Tree, place: str) -> list[str]:
    """Interfaces that have a file of their own: ifcfg-eth0."""
    return [safe_name(name[6:]) for name in tree.optional_names(place, "ifcfg-") if name.startswith("ifcfg-")]


def sections(text: str) -> dict[str, list[str]]:
    """An INI file as `Section.Key` -> values, in their order; `#` and `;` begin comments."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in text.split("\n"):
        line = line.strip()  # noqa: PLW2901
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            found.setdefault(section + "." + key.strip().rstrip("+"), []).append(value.strip()[:500])
    return found
