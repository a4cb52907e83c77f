"""A queue pair as an application has it: writes into the memory of one peer, and what became of its packets.

Calls come from any thread; each takes the context's lock for as long as it changes something.
"""

from __future__ import annotations

import socket
from collections import Counter
from typing import Any

from fairlead.errors import FabricError, LocalProtocolError
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.transport import exchange
from fairlead.fabric.transport.driver import Driver
from fairlead.fabric.transport.engine import Line
from fairlead.fabric.transport.exchange import Remote
from fairlead.fabric.transport.memory import view_of


class QueuePair:
    """A connection to one peer: one-sided writes into its memory."""

    def __init__(self, driver: Driver, line: Line, sock: socket.socket, private: str) -> None:
        self._driver = driver
        self._line = line
        self._sock = sock
        self.private = private
        """What the other end said of itself."""

    @property
    def qp_num(self) -> int:
        """Its number; completions carry it."""
        return self._line.qp.qp_num

    @property
    def profile(self) -> Profile:
        """Its parameters."""
        return self._line.qp.profile

    @property
    def error(self) -> FabricError | None:
        """Why it has failed; None: it has not."""
        with self._driver.lock:
            self._driver.engine.events(self._line)
            return self._line.error

    @property
    def remote(self) -> Remote:
        """The memory that the other end has named in `private`."""
        return exchange.decode(self.private.encode(), Remote)

    def post_write(self, memory: Any, remote: Remote, *, wr_id: int, offset: int = 0, imm: int | None = None) -> None:
        """Write memory into the peer's, from `offset` there; it is not copied, so let it be until that completes.

        With `imm` (32 bits) the peer's oldest posted receive completes too, after all that was written before. Raises
        LocalProtocolError: fabric/out-of-bounds; fabric/queue-full where the completion queue has no place, or where
        `max_messages` (of the Context, 64) Writes of this queue pair are not complete; fabric/wrong-state once it has
        failed (see `error`).
        """
        view = view_of(memory)
        if offset < 0 or offset + len(view) > remote.length:
            raise LocalProtocolError(
                "fabric/out-of-bounds",
                f"{len(view)} bytes at {offset} do not fit into {remote.length}",
                hint="write less, or let the peer register more",
            )
        with self._driver.lock:
            self._line.qp.post_write(view, wr_id=wr_id, remote_addr=remote.addr + offset, rkey=remote.rkey, imm=imm)
            self._driver.engine.wake(self._line)
        self._driver.nudge()

    def post_write_imm(self, memory: Any, remote: Remote, imm: int, *, wr_id: int, offset: int = 0) -> None:
        """A Write that the peer is told of."""
        self.post_write(memory, remote, wr_id=wr_id, offset=offset, imm=imm)

    def post_recv(self, *, wr_id: int) -> None:
        """Be ready for one more Write with an immediate."""
        with self._driver.lock:
            self._line.qp.post_recv(wr_id=wr_id)

    def counters(self) -> dict[str, int]:
        """Packets of this queue pair: new, sent again, timed out, inferred lost; SACKs and NACKs heard."""
        names = {"new": "num_new", "resent": "num_rtx", "timeouts": "num_timeouts"}
        names |= {"inferred_lost": "num_lost", "sacks": "num_sacks", "nacks": "num_nacks"}
        with self._driver.lock:
            qp = self._line.qp
            return {name: getattr(qp.tx, field) for name, field in names.items()}

    def packets_sent(self) -> dict[str, int]:
        """Packets by the address they were sent to, which on a steered fabric is the path."""
        with self._driver.lock:
            sent: Counter[str] = Counter()
            for route, num in self._driver.engine.sent(self._line).items():
                sent[route.to] += num
            return dict(sent)

    def packets_by_way(self) -> dict[tuple[int, str, int], int]:
        """Packets by (number of the local port, address they were sent to, number of the source port's socket)."""
        with self._driver.lock:
            sent: Counter[tuple[int, str, int]] = Counter()
            for route, num in self._driver.engine.sent(self._line).items():
                sent[route.rail, route.to, route.source] += num
            return dict(sent)

    def close(self) -> None:
        """Give up what is not complete; the peer is told by the end of the connection."""
        self._driver.drop(self._line, self._sock)
