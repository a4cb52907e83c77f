"""What a stage asks for: a group of ranks, described. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fairlead.cluster import NodeSet, Program
from fairlead.launch.patience import Patience

BACKENDS: Mapping[str, Mapping[str, str]] = {
    "auto": {},
    "gloo": {},
    "nccl": {},
    "rccl": {},
    # the plugin's own README: NCCL loads libnccl-net-mrc.so by its suffix (github.com/microsoft/mrc-nccl-plugin)
    "mrc": {"NCCL_NET_PLUGIN": "mrc"},
}
"""How ranks communicate -> settings that go with it. auto: NCCL (or RCCL) on GPUs, gloo on CPUs; mrc: NCCL over
Multipath Reliable Connection by its network plugin."""

_LAUNCHER = (
    "fairlead.cluster.channel",
    *(f"fairlead.launch.onnode.{part}" for part in ("me", "place", "share", "meet", "task")),
)


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """A group of ranks: where, how many, what each does, and how they meet."""

    nodes: NodeSet
    per_node: int
    """One a GPU, as a rule."""
    parts: tuple[str, ...]
    """The stage's own modules for the node; the last defines `body(me: Me) -> int`, which does the work."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the body finds as `me.settings`."""
    host: str
    """The rendezvous: an address of the first node, at which rank 0 listens, there and nowhere else."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Node -> the address whose interface gloo and NCCL shall use, where each node can be told its own; elsewhere, and
    where it is left out, the one by which a node reaches rank 0."""
    backend: Literal["auto", "gloo", "nccl", "rccl", "mrc"] = "auto"
    device: Literal["any", "gpu", "cpu"] = "any"
    """What ranks compute with. gpu: one that reaches none cannot start."""
    limit_s: float = 120.0
    """How long the body may take once the group stands."""
    patience: Patience
    """How long to wait for what comes before, and between two steps."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Set in every rank, whatever its node says."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Set where the node does not say otherwise."""
    in_container: bool = False
    options: tuple[str, ...] = ()
    """More options for the scheduler's step."""

    @property
    def wanted(self) -> int:
        """How many ranks there should be."""
        return len(self.nodes) * self.per_node

    @property
    def total_s(self) -> float:
        """The longest all of it can take."""
        return self.patience.start_s + self.limit_s

    def program(self) -> Program:
        """What runs on a node: in the Python of its pool, with what is installed there."""
        return Program.of("fairlead-rank", *_LAUNCHER, *self.parts, call="start(body)", needs_packages=True)

    def config(self) -> dict[str, Any]:
        """What every rank is told first, as one line of its standard input: the same for all, however many they are."""
        return {
            "run": secrets.token_hex(8),
            "host": self.host,
            "per_node": self.per_node,
            "device": self.device,
            "backend": self.backend,
            "beat_s": self.patience["beat"],
            # the control side decides first; this ends ranks that lost it
            "timeout_s": 2 * self.patience["join"] + self.limit_s,
            "env": dict(self.env),
            "defaults": {**BACKENDS[self.backend], **self.defaults},
            "settings": dict(self.settings),
        }

    def own(self, node: str) -> dict[str, Any]:
        """What only the ranks of one node are told, as the next line."""
        return {"address": self.addresses.get(node, "")}
