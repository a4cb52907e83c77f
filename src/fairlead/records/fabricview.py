"""A fabric as a picture needs it: which parts there are, how each is doing, and what is said about it.

Filled by `lab status` (what is configured and which faults are active) and by preflight (what was measured and judged);
drawn by `report/fabric_picture.py`. Parts that are simply up need not be listed, apart from the hosts.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from fairlead.records.verdict import Verdict

State: TypeAlias = Literal["up", "down", "faulty", "unknown"]
"""`faulty` is up by its own account, and yet not right: silent, slow, lossy, hung."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every part can say about itself."""

    state: State = "up"
    note: str = ""
    """What is wrong, in a few words: an active fault, or what was judged. Empty for a healthy part."""
    verdict: Verdict | None = None
    """What fairlead says; None where nobody judged."""

    @property
    def is_called_out(self) -> bool:
        """Whether a reader must be told about this part."""
        return bool(self.note) or self.state != "up" or self.verdict in (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)


class Host(Part, frozen=True, kw_only=True):
    """A host, under the T0 of the same index in every plane."""

    name: str
    t0: int


class Switch(Part, frozen=True, kw_only=True):
    """A switch of one plane."""

    plane: int
    tier: Literal[0, 1]
    index: int


class Port(Part, frozen=True, kw_only=True):
    """The link between a host and its T0 in one plane."""

    host: str
    plane: int
    rate_bps: float | None = None
    """What was measured; None where nothing was."""


class Trunk(Part, frozen=True, kw_only=True):
    """The link between a T0 and a T1 of one plane."""

    plane: int
    t0: int
    t1: int
    rate_bps: float | None = None


class Pair(Part, frozen=True, kw_only=True):
    """Two hosts between which something is wrong that no single part explains."""

    a: str
    b: str
    plane: int | None = None
    """None: in every plane."""


class FabricView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fabric: the same number of T0 and T1 switches in every plane, every T0 joined to every T1 of its plane."""

    title: str
    num_planes: int
    num_t0: int
    """Per plane."""
    num_t1: int
    """Per plane."""
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...] = ()
    ports: tuple[Port, ...] = ()
    trunks: tuple[Trunk, ...] = ()
    pairs: tuple[Pair, ...] = ()
    rate_bps: float | None = None
    """Nominal rate of a port."""
    trunk_rate_bps: float | None = None
    """Nominal rate of a trunk."""
