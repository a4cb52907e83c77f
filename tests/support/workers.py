"""How `pytest -n` spreads the suite: a file of real tests stays whole, as its tests share a lab or a server.

All others are handed out one by one. Files come first, those of many tests before those of few: real tests wait more
than they compute, and what is left at the end is short.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling


class Spread(LoadScopeScheduling):
    """Hands out files of real tests, and single other tests."""

    def _split_scope(self, nodeid: str) -> str:
        """What stays together with a test."""
        return nodeid.partition("::")[0] if nodeid.startswith("tests/real/") else nodeid
