"""How many requests each node has open at the origin at a time. Pure; the caller brings the time.

An origin divides what it gives by the requests that are open: with many, all first chunks come late and at once, and
the ring has nothing to do until then. With few, an origin that gives each request only so much is not used. So what
nodes ask for at first is a small part of the whole; where that is few requests, they have twice as many as long as all
of them together then get more. A step that brings nothing is taken back, and tried again later.
"""

from __future__ import annotations

FIRST_PART = 0.02
"""Of all chunks so many are asked for at first, at most: what the ring may be idle for."""
GAIN = 1.1
"""What a step must bring, in bytes a second of all nodes together."""
WATCHED_S = 2.0
"""How long a step is watched before it is judged."""
AGAIN_S = 30.0
"""Before a step that brought nothing is tried once more."""


class Asking:
    """The requests of one spread."""

    def __init__(self, most: int, num_nodes: int, num_chunks: int) -> None:
        """`most` requests a node at most, as one node alone has at once; `num_nodes` ask the origin."""
        self.most, num_nodes = most, max(1, num_nodes)
        self.at_once = min(most, max(-(-most // num_nodes), int(FIRST_PART * num_chunks / num_nodes)))
        self._before = 0.0
        """Bytes a second before the last step; 0: there is none to be judged."""
        self._since: tuple[float, int] | None = None
        self._wait_s = WATCHED_S

    def look(self, num_bytes: int, now_s: float) -> int | None:
        """The bytes that all nodes have from the origin by now; returns how many requests each is to have from now on,
        None for no change.
        """
        if self._since is None:
            self._since = (now_s, num_bytes)
        took_s, came = now_s - self._since[0], num_bytes - self._since[1]
        if took_s < self._wait_s:
            return None
        self._since, self._wait_s = (now_s, num_bytes), WATCHED_S
        rate = came / took_s
        if self._before and rate < GAIN * self._before:
            self.at_once, self._before, self._wait_s = max(1, self.at_once // 2), 0.0, AGAIN_S
            return self.at_once
        if self.at_once >= self.most or not came:
            return None
        self.at_once, self._before = min(self.most, 2 * self.at_once), rate
        return self.at_once
