"""Every kind of fault: what it is aimed at, its settings, how it is done. The table behind `fairlead lab fault`.

Knows: names, settings and targets as people write them. Must not know: what a kind asks for (kinds.py), or which faults
are in force. Pure, so that a script of faults is checked whole before the first is injected.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.base.suggest import did_you_mean
from fairlead.errors import UsageError
from fairlead.lab.faults import kinds
from fairlead.lab.faults.effects import Effects
from fairlead.lab.faults.kinds import Settings, View

_HINT = "fairlead lab fault --kinds"


class Setting(NamedTuple):
    """A setting of a kind: its default (None: it must be given), the values it takes, and what it means."""

    default: str | None
    pattern: str
    help: str


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of fault."""

    name: str
    on: str
    """What a target is: link, switch, host, or pair (`n0:n1`, from the first to the second)."""
    effects: Callable[[View, int, str, Settings], Effects]
    how: str
    """Which tool does it."""
    help: str
    settings: Mapping[str, Setting] = field(default_factory=dict)


_NUMBER = r"\d{1,9}(\.\d{1,9})?"
_ABOVE_0 = rf"(?=.*[1-9]){_NUMBER}"
_VERSION = Setting(None, r"[\w.+-]+", "the version it shows")
_SECONDS = Setting("1", r"(?=.*[1-9])(?!0*\.0)\d{1,6}(\.\d{1,3})?", "seconds, 0.1 or more")
_HCA = {"hca": Setting("mlx5_0", r"\w+", "the HCA's name")}
_SIDE = {"side": Setting("both", "both|up|down", "`both`, `up` (towards T1) or `down` (towards the host)")}
_SHARE = {"percent": Setting("1", r"100(\.0+)?|\d{1,2}(\.\d{1,4})?", "percent of packets, up to 100")}
_IN, _OUT = "nftables, netdev ingress of the receiving end", "nftables, netdev egress of the sending end"
_FACTS = "files laid over the host's"

_TABLE = (
    Kind(
        name="link-down",
        on="link",
        effects=kinds.link_down,
        how="`ip link set down` of the end closer to T1",
        help="Carrier goes at both ends.",
    ),
    Kind(
        name="silent-drop",
        on="link",
        effects=kinds.silent_drop,
        how=_IN,
        help="Every packet vanishes; carrier stays.",
        settings=_SIDE,
    ),
    Kind(
        name="one-way-drop",
        on="pair",
        effects=kinds.one_way_drop,
        how=_IN,
        help="Packets of one host to another vanish, in all planes.",
    ),
    Kind(
        name="switch-down",
        on="switch",
        effects=kinds.switch_down,
        how="`ip link set down` of its ports",
        help="All its ports lose carrier.",
    ),
    Kind(
        name="flap",
        on="link",
        effects=kinds.flap,
        how="`ip link set down` and `up` in a loop",
        help="The link goes and comes.",
        settings={"down_s": _SECONDS, "up_s": _SECONDS},
    ),
    Kind(
        name="rate",
        on="link",
        effects=kinds.rate,
        how="tc tbf",
        help="The link is slower, both ways.",
        settings={"mbps": Setting(None, _ABOVE_0, "megabits per second, more than 0")},
    ),
    Kind(
        name="loss",
        on="link",
        effects=kinds.loss,
        how=_IN,
        help="A share of packets vanishes.",
        settings={**_SHARE, **_SIDE},
    ),
    Kind(
        name="ecn-mark",
        on="link",
        effects=kinds.ecn_mark,
        how=_IN,
        help="A share of ECN-capable packets is marked CE.",
        settings={**_SHARE, **_SIDE},
    ),
    Kind(
        name="duplicate",
        on="link",
        effects=kinds.duplicate,
        how=_OUT,
        help="A share of packets arrives twice.",
        settings={**_SHARE, **_SIDE},
    ),
    Kind(
        name="reorder",
        on="link",
        effects=kinds.reorder,
        how="tc htb with a slow class, nftables egress",
        help="A share of packets is overtaken, the more the fuller the link.",
        settings=_SHARE,
    ),
    Kind(
        name="mtu-black-hole",
        on="link",
        effects=kinds.mtu_black_hole,
        how=_IN,
        help="Packets above a size vanish without a word.",
        settings={"bytes": Setting("1500", r"\d{2,5}", "largest that passes, without its Ethernet header"), **_SIDE},
    ),
    Kind(
        name="node-dead",
        on="host",
        effects=kinds.node_dead,
        how="far ends down, then a kill of its PID namespace and cgroup",
        help="The host loses power; healing boots it.",
    ),
    Kind(
        name="node-hung",
        on="host",
        effects=kinds.node_hung,
        how="cgroup freezer, else SIGSTOP",
        help="Everything on the host stands still; its kernel answers.",
    ),
    Kind(
        name="slow-node",
        on="host",
        effects=kinds.slow_node,
        how="cgroup cpu quota",
        help="The host gets a share of one processor.",
        settings={"percent": Setting("10", _ABOVE_0, "percent of one processor, more than 0")},
    ),
    Kind(
        name="disk-full",
        on="host",
        effects=kinds.disk_full,
        how="a file that fills its tmpfs",
        help="The host's own file space fills up.",
        settings={"percent": Setting("100", r"100|\d{1,2}(\.\d{1,4})?", "how full, up to 100 percent")},
    ),
    Kind(
        name="clock-skew",
        on="host",
        effects=kinds.clock_skew,
        how="libfaketime by /etc/ld.so.preload",
        help="Programs started from now on see another time.",
        settings={"seconds": Setting("60", rf"[+-]?{_NUMBER}", "ahead, or with a minus behind")},
    ),
    Kind(
        name="driver-version",
        on="host",
        effects=kinds.driver_version,
        how=_FACTS,
        help="Another GPU driver.",
        settings={"version": _VERSION},
    ),
    Kind(
        name="library-version",
        on="host",
        effects=kinds.library_version,
        how=_FACTS,
        help="Another RDMA library stack.",
        settings={"version": _VERSION},
    ),
    Kind(
        name="firmware-version",
        on="host",
        effects=kinds.firmware_version,
        how=_FACTS,
        help="Another firmware in an HCA.",
        settings={"version": _VERSION, **_HCA},
    ),
    Kind(
        name="missing-hca",
        on="host",
        effects=kinds.missing_hca,
        how=_FACTS,
        help="An HCA is gone.",
        settings=_HCA,
    ),
    Kind(
        name="file",
        on="host",
        effects=kinds.file,
        how=_FACTS,
        help="Any one file, changed or hidden.",
        settings={
            "path": Setting(None, r"/.+", "the file on the host"),
            "content": Setting("none", r"(?s).*", r"what it holds (\n for a line end); `none` hides it"),
        },
    ),
)

KINDS = {kind.name: kind for kind in _TABLE}


def kind_of(name: str) -> Kind:
    """A kind by name. Raises UsageError `lab/unknown-fault` with the nearest one."""
    if name not in KINDS:
        raise UsageError("lab/unknown-fault", f"no fault `{name}`; {did_you_mean(name, KINDS)}", hint=_HINT)
    return KINDS[name]


def settings_of(kind: Kind, given: Settings) -> dict[str, str]:
    """All settings of a fault, defaults filled in. Raises UsageError `lab/bad-setting`."""
    for name, text in given.items():
        if name not in kind.settings:
            known = did_you_mean(name, kind.settings) if kind.settings else "it has none"
            raise _bad(f"{kind.name} has no setting `{name}`; {known}")
        if not re.fullmatch(kind.settings[name].pattern, text):
            raise _bad(f"{name} of {kind.name} cannot be `{text}`: {kind.settings[name].help}")
    wanted: dict[str, str | None] = {name: setting.default for name, setting in kind.settings.items()}
    wanted.update(given)
    for name, value in wanted.items():
        if value is None:
            raise _bad(f"{kind.name} needs {name}=... ({kind.settings[name].help})")
    return {name: value for name, value in wanted.items() if value is not None}


def _bad(message: str) -> UsageError:
    return UsageError("lab/bad-setting", message, hint=_HINT)


def targets_of(kind: Kind, pattern: str, view: View) -> list[str]:
    """The things a pattern names (`p2/n3`, `p*/n3`). Raises UsageError `lab/unknown-target` where there is none."""
    shape = view.shape
    known: Mapping[str, Callable[[], Iterable[str]]] = {
        "link": lambda: view.links,
        "switch": shape.topology.switches,
        "host": lambda: shape.nodes,
        "pair": lambda: (f"{a}:{b}" for a in shape.nodes for b in shape.nodes if a != b),
    }
    names = list(known[kind.on]())
    found = [name for name in names if _matches(name, pattern)]
    if not found:
        near = did_you_mean(pattern, names)
        hint = f"fairlead lab status -n {shape.name}"
        raise UsageError("lab/unknown-target", f"no {kind.on} `{pattern}` in the lab; {near}", hint=hint)
    return found


def _matches(name: str, pattern: str) -> bool:
    """Shell patterns, where `*` does not cross a `/`."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(fnmatch.fnmatchcase(p, w) for p, w in zip(parts, wanted, strict=True))
