"""Every node is this machine: for trying things out, for tests, and for a cluster of one."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.cluster.backend import Backend


class LocalBackend(Backend):
    """Node names are only names; each command knows its own as FAIRLEAD_NODE."""

    name = "local"

    def wrap(self, node: str, argv: Sequence[str]) -> list[str]:
        """The command itself."""
        return list(argv)
