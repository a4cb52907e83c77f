"""Rules about who manages a virtual function (VF) (id A4): nobody but its synthetic NIC, now and after the next move
to another host, whatever kind of NIC that host has. How rules are understood, vfrules.py says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fairlead.checks.node import Node, Outcome, bad, ok, skip, unknown
from fairlead.checks.rules.accel import LINKS, NETVSC, addresses, synthetic
from fairlead.checks.vfrules import Family, families, networkd_file, nm_leaves_alone, udev_leaves_alone

UDEV = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d")
NETWORKD = ("/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network")
NM_MAIN = "/etc/NetworkManager/NetworkManager.conf"
NM = ("/etc/NetworkManager/conf.d", "/run/NetworkManager/conf.d", "/usr/lib/NetworkManager/conf.d")
IFCFG = ("/etc/sysconfig/network-scripts", "/etc/sysconfig/network")
NM_NAME, NETWORKD_NAME, WICKED_NAME = "NetworkManager", "systemd-networkd", "wicked"
MANAGED = {"nm": ("true",), "networkd": ("configured", "configuring", "degraded", "failed", "linger")}
LEFT_ALONE = {"nm": ("false",), "networkd": ("unmanaged",)}


def running(n: Node) -> list[str]:
    """Managers of networks that run on the node."""
    return [name for name in (NM_NAME, NETWORKD_NAME, WICKED_NAME) if n.get("netconf.managers", name)]


def unmanaged(n: Node, part: str) -> Outcome:
    """Nobody has given the VF an address, and whoever manages interfaces says that it leaves this one alone."""
    own = addresses(n, part)
    if own:
        return bad(f"it has an address of its own, {own[0]}: its synthetic NIC should hold it alone", addresses=own)
    managers = running(n)
    for name, key, word in ((NM_NAME, "nm", "managed"), (NETWORKD_NAME, "networkd", "ADMIN_STATE")):
        if name not in managers:
            continue
        said = n.get("accelnet.vfs", part, key).get(word, "")
        if said in MANAGED[key]:
            return bad(f"{name} manages it ({word}={said})", manager=name)
        if said not in LEFT_ALONE[key]:
            return unknown(f"{name} runs, and does not say whether it manages it" + (f" ({said})" if said else ""))
    files = [p for p in IFCFG if part in n.get("netconf.ifcfg", p)]
    if files or part in n.get("netconf.ifupdown"):
        return bad(f"{files[0] if files else '/etc/network/interfaces'} configures it")
    return ok(f"{' and '.join(managers) or 'no manager'} leaves it alone")


def rules(n: Node, part: str) -> Outcome:
    """Whatever NIC the next host has, a rule keeps each running manager off its VF: of mlx4, of mlx5 and of MANA."""
    managers = [name for name in running(n) if name != WICKED_NAME]
    if not managers:
        return skip("neither NetworkManager nor systemd-networkd runs; others take only interfaces they are told of")
    kinds = families(n.get("host.os.arch"))
    open_, unclear, how = [], [], []
    for manager in managers:
        answers = {kind.name: (_nm if manager == NM_NAME else _networkd)(n, kind) for kind in kinds}
        missing = [name for name, (answer, _) in answers.items() if answer is False]
        how += [where for _, where in answers.values() if where and where not in how]
        if missing:
            open_.append(f"nothing keeps {manager} off a VF of {', '.join(missing)}")
        unclear += [f"{manager}, {name}: {where}" for name, (answer, where) in answers.items() if answer is None]
    data = {"managers": managers, "by": how}
    if open_:
        return bad("; ".join(open_), **data)
    if unclear:
        return unknown(f"a rule says more than is understood here: {unclear[0]}", **data)
    return ok(f"{', '.join(k.name for k in kinds)}: {', '.join(how) or 'no file takes them'}", **data)


def _nm(n: Node, kind: Family) -> tuple[bool | None, str]:
    """What keeps NetworkManager off: a rule of udev, or its own files."""
    taken: set[str] = set()
    unclear = ""
    for place in UDEV:
        table = n.get("netconf.udev", place)
        for name in table:
            if name in taken:
                continue  # a file of the same name in an earlier place stands for it
            taken.add(name)
            answer = udev_leaves_alone(n.get("netconf.udev", place, name), kind)
            if answer:
                return True, f"{place}/{name}"
            unclear = unclear or (f"{place}/{name}" if answer is None else "")
    answer = nm_leaves_alone(_nm_confs(n), kind)
    if answer:
        return True, "NetworkManager's own files"
    return (None, unclear or "NetworkManager's own files") if unclear or answer is None else (False, "")


def _nm_confs(n: Node) -> list[dict[str, list[str]]]:
    """NetworkManager's files in the order of reading: the main one, then those of all folders by name; /etc's wins."""
    by_name: dict[str, dict[str, list[str]]] = {}
    for place in reversed(NM):
        by_name |= {name: n.get("netconf.nm", place, name) for name in n.get("netconf.nm", place)}
    return [n.get("netconf.nm", NM_MAIN), *(by_name[name] for name in sorted(by_name))]


def _networkd(n: Node, kind: Family) -> tuple[bool | None, str]:
    by_name: dict[str, tuple[str, dict[str, list[str]]]] = {}
    for place in reversed(NETWORKD):
        for name in n.get("netconf.networkd", place):
            by_name[name] = f"{place}/{name}", n.get("netconf.networkd", place, name)
    files = [(name, said) for name, (_, said) in by_name.items()]
    found, answer = networkd_file(files, kind, macs(n))
    return answer, by_name[found][0] if found else ""


def macs(n: Node) -> Sequence[str]:
    """Addresses of the synthetic NICs, which their VFs have too."""
    found = []
    for name, hole in n.once("synthetic NICs", synthetic).items():
        if hole is not None:
            raise hole
        found.append(n.get(LINKS, name, "address"))
    return found


def competing(n: Node, part: str) -> Outcome:
    """One manager has the synthetic NICs: two undo each other's settings."""
    managers = running(n)
    if len(managers) < 2:
        return ok(f"{managers[0]} alone" if managers else "none runs")
    taken: dict[str, list[str]] = defaultdict(list)
    for nic in _nics(n):
        kind = Family(nic, NETVSC, NETVSC, (nic,))
        if NETWORKD_NAME in managers and networkd_file(_files(n), kind, [n.get(LINKS, nic, "address")])[1] is False:
            taken[NETWORKD_NAME].append(nic)
        if NM_NAME in managers and nm_leaves_alone(_nm_confs(n), kind) is False:
            taken[NM_NAME].append(nic)
    if len(taken) > 1:
        return bad(" and ".join(f"{name} takes {', '.join(nics)}" for name, nics in taken.items()), managers=managers)
    return ok(f"{' and '.join(managers)} run, and {next(iter(taken), 'none')} has the NICs", managers=managers)


def _nics(n: Node) -> list[str]:
    return [name for name, hole in n.once("synthetic NICs", synthetic).items() if hole is None]


def _files(n: Node) -> list[tuple[str, dict[str, list[str]]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for place in reversed(NETWORKD):
        found |= {name: n.get("netconf.networkd", place, name) for name in n.get("netconf.networkd", place)}
    return list(found.items())


def drivers(n: Node, part: str) -> Outcome:
    """The running kernel has the drivers of every NIC that the next host may have."""
    arch, release = n.get("host.os.arch"), n.get("kernel_modules.release")
    wanted = [name for kind in families(arch) for name in dict.fromkeys((kind.pci, kind.ethtool))]
    there = {*n.get("kernel_modules.loadable"), *n.get("kernel_modules.builtin")}
    missing = [name for name in wanted if name not in there]
    if missing:
        return bad(f"kernel {release} has no {', '.join(missing)}", missing=missing)
    return ok(f"{', '.join(wanted)} of {release}")
