"""The rail test of preflight by itself, among real ranks, with ends that come late or never.

late      {"FROM:TO": seconds} before a node passes its first message on to another
"""

from __future__ import annotations

import time

from fairlead.launch.onnode.me import Me
from fairlead.launch.onnode.meet import RankGroup
from fairlead.preflight.ranks.onnode.rails import Rails


class Sabotaged(Rails):
    """Some messages begin late."""

    late_s: dict[str, float]

    def pass_on(self, message, peer, rail):
        """As usual, later."""
        time.sleep(self.late_s.pop(f"{self.here}:{peer // self.per_node}", 0.0))
        return super().pass_on(message, peer, rail)


def body(me: Me) -> int:
    """Join, test the rails, leave."""
    group = RankGroup(me)
    group.join()
    me.enter("rails")
    rails = Sabotaged(me, group.torch, group.device, is_gpu=False)
    rails.late_s = dict(me.settings["late"])
    rails.run()
    me.enter("over")
    group.leave()
    return 0
