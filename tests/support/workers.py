"""How `pytest -n` spreads the suite: a file of real tests stays whole, as its tests share a lab or a server.

All others are handed out one by one. Real tests wait as much as they compute, so one worker in four begins with the
others, which compute: both kinds then end at about the same time. Files that run a whole gate come first, and two of
them at once are enough for two processors. What is left at the end is short.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from typing import Any

from xdist.scheduler import LoadScopeScheduling

ONE_IN = 4
GATES = "tests/real/preflight/"
MOST_GATES = 2


class Spread(LoadScopeScheduling):
    """Hands out files of real tests, and single other tests."""

    def _split_scope(self, nodeid: str) -> str:
        """What stays together with a test."""
        return nodeid.partition("::")[0] if nodeid.startswith("tests/real/") else nodeid

    def _assign_work_unit(self, node: Any) -> None:
        """The next for a worker. The queue is in the order of how many tests each has; files come before the rest."""
        if not self.assigned_work or not any(self.assigned_work.values()):
            self.workqueue = OrderedDict(sorted(self.workqueue.items(), key=lambda item: "::" in item[0]))
        files = list(takewhile(lambda scope: "::" not in scope, self.workqueue))
        if self.nodes.index(node) % ONE_IN == ONE_IN - 1:
            wanted = next((scope for scope in self.workqueue if "::" in scope), None)
        else:
            has_room = self._num_gates(node) < MOST_GATES
            wanted = next((scope for scope in files if scope.startswith(GATES) == has_room), None)
        if wanted is not None:
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)

    def _num_gates(self, node: Any) -> int:
        """Other workers that are at such a file."""
        others = (units for other, units in self.assigned_work.items() if other is not node)
        return sum(any(s.startswith(GATES) and not all(done.values()) for s, done in units.items()) for units in others)
