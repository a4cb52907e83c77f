"""What a queue pair has finished, in order, and how it may end."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from fairlead.errors import FabricError, LocalProtocolError, PathsExhausted, RemoteProtocolError
from fairlead.fabric.mrc import layout as at


class Status(enum.Enum):
    """How a work request ended. Names follow ibv_wc_status."""

    SUCCESS = "success"
    RETRY_EXC_ERR = "retry counter exceeded"
    RNR_RETRY_EXC_ERR = "receiver not ready: retry counter exceeded"
    REM_OP_ERR = "remote operation error"
    LOC_QP_OP_ERR = "too many Write-with-Imm in flight"
    PORT_ERR = "no port is left"
    WR_FLUSH_ERR = "flushed: the queue pair had failed"


class WorkOpcode(enum.Enum):
    """What kind of work request ended. Names follow ibv_wc_opcode."""

    RDMA_WRITE = "write"
    RECV_RDMA_WITH_IMM = "write with immediate, received"


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished work request."""

    wr_id: int
    qp_num: int
    opcode: WorkOpcode
    status: Status
    num_bytes: int = 0
    imm: int | None = None


@dataclass(frozen=True, slots=True)
class QpFailed:
    """The queue pair went to the error state."""

    qp_num: int
    error: FabricError


# why a queue pair fails: the error to report and the status of its oldest request
FAILURES: dict[int, tuple[type[FabricError], Status, str]] = {
    at.ERROR_RETRY: (RemoteProtocolError, Status.RETRY_EXC_ERR, "the peer has not answered within all retries"),
    at.ERROR_STUCK: (
        RemoteProtocolError,
        Status.RETRY_EXC_ERR,
        "the peer answers, and a packet is lost at each retry, as where an MTU on the way is too small",
    ),
    at.ERROR_RNR: (RemoteProtocolError, Status.RNR_RETRY_EXC_ERR, "the peer has posted no receive within all retries"),
    at.ERROR_REMOTE: (RemoteProtocolError, Status.REM_OP_ERR, "the peer refused a packet as an operation error"),
    at.ERROR_WIMM: (RemoteProtocolError, Status.LOC_QP_OP_ERR, "the peer sent more Write-with-Imm than agreed"),
    at.ERROR_PORTS: (PathsExhausted, Status.PORT_ERR, "no plane is left on which both ends have a port that is up"),
}

HINTS: dict[Status, str] = {
    Status.RETRY_EXC_ERR: "fairlead fabric ping, which names the node, port or link that loses packets",
    Status.RNR_RETRY_EXC_ERR: "have the peer call post_recv before it is written to with an immediate",
    Status.REM_OP_ERR: "look whether the peer still registers this memory, and at the key and the bounds it named",
    Status.LOC_QP_OP_ERR: "give both ends the same max_wimm",
    Status.PORT_ERR: "ip link, which shows the ports of this host; fairlead fabric ping asks all nodes",
}
"""What to do next."""


class CompletionQueue:
    """A bounded queue, shared by any number of queue pairs.

    A place is reserved when work is posted, so a completion always finds room.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._reserved = 0
        self._entries: deque[Completion] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(self) -> None:
        """Hold a place for work that is being posted."""
        if self._reserved + len(self._entries) >= self.depth:
            raise LocalProtocolError(
                "fabric/queue-full",
                f"the completion queue holds {self.depth} entries and all are taken",
                hint="poll the queue, or create it deeper",
            )
        self._reserved += 1

    def release(self) -> None:
        """Give a reserved place back: the work was not posted after all."""
        self._reserved -= 1

    def add(self, completion: Completion) -> None:
        """Enter finished work in the place reserved for it."""
        self._reserved -= 1
        self._entries.append(completion)

    def poll(self, num_entries: int = 16) -> list[Completion]:
        """Take up to so many completions, oldest first."""
        return [self._entries.popleft() for _ in range(min(num_entries, len(self._entries)))]
