"""Whether rules of udev, systemd-networkd and NetworkManager leave virtual functions alone, driver by driver. Pure.

A virtual function (VF) has the MAC address of its synthetic NIC, so a rule that matches the one by its address may take
the other too. What a rule says that is not understood here makes its answer unclear (None), never yes or no.
Sources: man 7 udev, man 5 systemd.network, man 5 NetworkManager.conf; learn.microsoft.com: azure/virtual-network/
accelerated-networking-how-it-works (`DRIVERS=="hv_pci"`, NM_UNMANAGED) and setup-infiniband for names.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Answer = bool | None


SAMPLES = ("enP53091s1np0", "enP30832s1", "ens1")
"""Names that VFs get: of the documentation's ConnectX and of MANA NICs."""


class Family(NamedTuple):
    """One kind of NIC: the driver on its PCI function, the one that ethtool names, names its interface may have."""

    name: str
    pci: str
    ethtool: str
    interfaces: tuple[str, ...] = SAMPLES


FAMILIES = (
    Family("mlx4", "mlx4_core", "mlx4_en"),
    Family("mlx5", "mlx5_core", "mlx5_core"),
    Family("mana", "mana", "mana"),
)
"""What a host may give as a VF."""


class ManagerFile(NamedTuple):
    """A file that keeps a manager of networks off every VF."""

    path: str
    text: str
    then: str
    """What to type on the node so that it is read."""


UDEV_FILE = ManagerFile(
    "/etc/udev/rules.d/68-azure-sriov-nm-unmanaged.rules",
    """\
# The virtual functions of accelerated NICs (mlx4, mlx5, MANA) belong to their synthetic NIC, which carries the address.
# Nobody else may configure them. All of them stand below hv_pci, whatever the host's NIC is.
SUBSYSTEM=="net", DRIVERS=="hv_pci", ACTION!="remove", ENV{NM_UNMANAGED}="1"
""",
    "udevadm control --reload; udevadm trigger --subsystem-match=net --action=change",
)
NETWORKD_FILE = ManagerFile(
    "/etc/systemd/network/05-azure-sriov-unmanaged.network",
    """\
# The virtual functions of accelerated NICs belong to their synthetic NIC, which carries the address. This file comes
# before any that matches by MAC address, which both of them have.
[Match]
Driver=mlx4_en mlx4_core mlx5_core mlx5_en mana

[Link]
Unmanaged=yes
""",
    "networkctl reload",
)
"""learn.microsoft.com: azure/virtual-network/accelerated-networking-how-it-works; the driver of MANA is added, and the
name, as networkd takes the first file that matches."""

TOKEN = re.compile(r'\s*([A-Z_]+)(?:\{([^}]*)\})?\s*(==|!=|\+=|-=|:=|=)\s*"((?:[^"\\]|\\.)*)"\s*,?')


def families(arch: str) -> tuple[Family, ...]:
    """The kinds a host may give to a machine of an instruction set: ConnectX-3 came with x86 alone."""
    return FAMILIES if arch == "x86_64" else FAMILIES[1:]


# ---- udev ------------------------------------------------------------------------------------------------------------


def udev_leaves_alone(rules: Iterable[str], family: Family) -> Answer:
    """Whether some rule sets NM_UNMANAGED for a VF of a family."""
    answers = [_udev_rule(rule, family) for rule in rules if "NM_UNMANAGED" in rule]
    return True if True in answers else None if None in answers else False


def _udev_rule(rule: str, family: Family) -> Answer:
    sets, unclear, at = False, False, 0
    while at < len(rule.rstrip()):
        token = TOKEN.match(rule, at)
        if token is None:
            return None
        at = token.end()
        key, attribute, operator, value = token.groups()
        if operator not in ("==", "!="):
            sets |= key == "ENV" and attribute == "NM_UNMANAGED" and value == "1"
            continue
        answer = _udev_match(key, attribute or "", value, family)
        if answer is None:
            unclear = True
        elif answer != (operator == "=="):
            return False
    return None if unclear and sets else sets


def _udev_match(key: str, attribute: str, value: str, family: Family) -> Answer:
    one_of = value.split("|")
    if key == "SUBSYSTEM":
        return _any_glob(one_of, ("net",))
    if key == "ACTION":
        return _any_glob(one_of, ("add",))
    if key in ("DRIVERS", "DRIVER"):
        return _any_glob(one_of, ("hv_pci", family.pci) if key == "DRIVERS" else ("",))
    if (key, attribute) == ("ENV", "ID_NET_DRIVER"):
        return _any_glob(one_of, (family.ethtool,))
    if key in ("KERNEL", "NAME") or (key, attribute) == ("ENV", "INTERFACE"):
        return _all_or_none([_any_glob(one_of, (name,)) for name in family.interfaces])
    return None


# ---- systemd-networkd ------------------------------------------------------------------------------------------------

Network = Mapping[str, Sequence[str]]


def networkd_file(files: Iterable[tuple[str, Network]], family: Family, macs: Sequence[str]) -> tuple[str, Answer]:
    """The first .network file, by name, that takes a VF of a family, and whether it leaves it alone.

    ("", True) where none takes it: what no file matches, networkd leaves alone.
    """
    for name, said in sorted(files):
        matches = _network_matches(said, family, macs)
        if matches is None:
            return name, None
        if matches:
            return name, (said.get("Link.Unmanaged") or ["no"])[-1].lower() in ("yes", "true", "1", "on")
    return "", True


def _network_matches(said: Network, family: Family, macs: Sequence[str]) -> Answer:
    answers: list[Answer] = []
    matches = {key.removeprefix("Match."): values for key, values in said.items() if key.startswith("Match.")}
    if not matches:
        return True
    for key, values in matches.items():
        words = " ".join(values).split()
        if key == "Driver":
            answers.append(_networkd_list(words, (family.ethtool,)))
        elif key in ("MACAddress", "PermanentMACAddress"):
            answers.append(bool({w.lower().replace("-", ":") for w in words} & {m.lower() for m in macs}))
        elif key in ("Name", "OriginalName"):
            answers.append(_all_or_none([_networkd_list(words, (name,)) for name in family.interfaces]))
        elif key == "Type":
            answers.append(_networkd_list(words, ("ether",)))
        elif key == "Kind":
            answers.append(bool(words) and all(w.startswith("!") for w in words))
        elif key == "Virtualization":
            answers.append(_networkd_list(words, ("yes", "true", "1", "vm", "microsoft")))
        else:
            answers.append(None)
    return False if False in answers else None if None in answers else True


def _networkd_list(words: Sequence[str], names: Sequence[str]) -> bool:
    """A list in which a first word that begins with `!` turns it round (man 5 systemd.network)."""
    if words and words[0].startswith("!"):
        return not _any_glob([words[0][1:], *words[1:]], names)
    return _any_glob(words, names)


# ---- NetworkManager --------------------------------------------------------------------------------------------------


def nm_leaves_alone(confs: Iterable[Mapping[str, Sequence[str]]], family: Family) -> Answer:
    """Whether NetworkManager's own files, in the order in which it reads them, leave a VF of a family alone."""
    listed: Answer = False
    for said in confs:
        if "keyfile.unmanaged-devices" in said:  # a later file's list takes the place of an earlier one's
            listed = _nm_takes(";".join(said["keyfile.unmanaged-devices"]), family)
        for key, values in said.items():
            section = key.removesuffix(".managed")
            if section != key and section.startswith("device") and values[-1].lower() in ("0", "no", "false"):
                answer = _nm_takes(";".join(said.get(f"{section}.match-device", ["*"])), family)
                if answer is not False:
                    return answer
    return listed


def _nm_takes(spec: str, family: Family) -> Answer:
    """A device list: `driver:mlx5_core;interface-name:enP*;*,except:type:wifi`."""
    hit, unclear = False, False
    for word in filter(None, re.split(r"[;,\s]+", spec)):
        is_except = word.startswith("except:")
        answer = _nm_word(word.removeprefix("except:"), family)
        if is_except and answer:
            return False
        if is_except:
            unclear |= answer is None
        else:
            hit |= answer is True
            unclear |= answer is None
    return None if unclear and not hit else hit


def _nm_word(word: str, family: Family) -> Answer:
    kind, _, value = word.partition(":")
    if word == "*":
        return True
    if kind == "driver":
        return _any_glob([value], (family.ethtool, family.pci))
    if kind == "type":
        return value == "ethernet"
    if kind == "interface-name":
        return _all_or_none([_any_glob([value.lstrip("=~")], (name,)) for name in family.interfaces])
    if kind == "mac":
        return None
    return _all_or_none([word == name for name in family.interfaces])


# ---- words -----------------------------------------------------------------------------------------------------------


def _any_glob(patterns: Iterable[str], names: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _all_or_none(answers: Sequence[bool]) -> Answer:
    """Yes or no where all names agree."""
    return answers[0] if len(set(answers)) == 1 else None
