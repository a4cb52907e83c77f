"""All calls of MPI in one thread: what others want sent goes in by a queue, what comes is handed out in order.

MPI is begun, used and ended by this thread alone, so MPI_THREAD_FUNNELED is enough, which every MPI has. It knows
messages, ranks and tags; not what they are for.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from fairlead import __version__
from fairlead.errors import FairleadError, MissingTool, UsageError

IDLE_S = 0.0005
"""Between two looks while nothing moves."""
TURN = 64
"""Messages that are taken in before what is to go out is looked at again."""

Heard = Callable[[int, int, memoryview], None]
"""Who, tag, bytes."""


class Post:
    """This rank of the job."""

    def __init__(self) -> None:
        """Returns when MPI has begun on all ranks. Raises MissingTool or UsageError, the same on every rank."""
        self.heard: Heard = lambda *_: None
        self.me = self.size = 0
        self.names: list[str] = []
        self.error: FairleadError | None = None
        self._out: deque[tuple[int, int, Any, Callable[[], None] | None]] = deque()
        self._begun, self._may_carry, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._is_over, self._lock = False, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fairlead-mpi", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self.error is not None:
            self._thread.join()
            raise self.error

    def begin(self, heard: Heard) -> None:
        """From now on messages are heard, and go."""
        self.heard = heard
        self._may_carry.set()

    def send(self, rank: int, tag: int, data: Any, done: Callable[[], None] | None = None) -> None:
        """To a rank; `done` is called once the memory is free again. Never waits."""
        with self._lock:  # what came after the last look at the queue would be under way when MPI ends
            if not self._is_over:
                self._out.append((rank, tag, data, done))
                self._wake.set()

    def leave(self, limit_s: float) -> bool:
        """Send what is to be sent, take what others send until they leave too, and end MPI; whether that was done in
        time. Where it was not, a rank does not answer, and only an end of this process ends the job.
        """
        with self._lock:
            self._is_over = True
        self._wake.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Its fault is the end of this process, and so of the job: others would wait for this rank forever."""
        try:
            self._use()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _use(self) -> None:
        mpi = self._begin()
        self._begun.set()
        if mpi is None:
            return
        if self.error is None:
            self._may_carry.wait()
            self._carry(mpi)
        mpi.Finalize()

    def _begin(self) -> Any:
        try:
            settings: Any = importlib.import_module("mpi4py")
            settings.rc.initialize = settings.rc.finalize = False
            mpi = importlib.import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as why:
            text = f"the Python of {socket.gethostname()} has no mpi4py that works: {why}"
            self.error = MissingTool("weights/no-transport", text, hint="pip install mpi4py on every node")
            return None
        mpi.Init_thread(mpi.THREAD_FUNNELED)
        world = mpi.COMM_WORLD
        self.me, self.size = world.Get_rank(), world.Get_size()
        told = world.allgather((os.uname().nodename, __version__))
        self.names = [name for name, _ in told]
        self.error = why_not(self.names, [version for _, version in told])
        return mpi

    def _carry(self, mpi: Any) -> None:
        world, status = mpi.COMM_WORLD, mpi.Status()
        going: list[Any] = []
        dones: list[Callable[[], None] | None] = []
        coming: dict[int, deque[tuple[Any, int, memoryview]]] = {}
        all_leave: Any = None
        while all_leave is None or not all_leave.Test():
            if all_leave is None and self._is_over and not self._out and not going:
                all_leave = world.Ibarrier()  # whoever still sends to this rank is still heard
            self._wake.clear()
            moved = False
            while self._out:
                rank, tag, data, done = self._out.popleft()
                going.append(world.Isend([data, mpi.BYTE], rank, tag))
                dones.append(done)
                moved = True
            for _ in range(TURN):
                message = world.Improbe(mpi.ANY_SOURCE, mpi.ANY_TAG, status)
                if message is None:
                    break
                view = memoryview(bytearray(status.Get_count(mpi.BYTE)))
                asked = message.Irecv([view, mpi.BYTE])
                coming.setdefault(status.Get_source(), deque()).append((asked, status.Get_tag(), view))
                moved = True
            for source, waiting in coming.items():
                while waiting and waiting[0][0].Test():
                    _, tag, view = waiting.popleft()
                    self.heard(source, tag, view)
                    moved = True
            ended = set(mpi.Request.Testsome(going) or ()) if going else set()
            for number in ended:
                if (done := dones[number]) is not None:
                    done()
            if ended:
                moved = True
                left = [i for i in range(len(going)) if i not in ended]
                going, dones = [going[i] for i in left], [dones[i] for i in left]
            if not moved:
                self._wake.wait(IDLE_S)


def why_not(names: list[str], versions: list[str]) -> UsageError | None:
    """Why no spread is possible with these ranks; pure."""
    hint = "mpirun --map-by ppr:1:node ...; srun --ntasks-per-node=1 ..."
    if len(names) == 1:
        text = "this is the only rank: nobody started others by MPI"
        return UsageError("weights/no-ranks", text, hint=hint)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        text = f"{twice[0]} has {names.count(twice[0])} ranks, and a node takes part once"
        return UsageError("weights/no-ranks", text, hint=hint)
    if len(set(versions)) > 1:
        odd = next(i for i, version in enumerate(versions) if version != versions[0])
        text = f"{names[0]} has fairlead {versions[0]}, {names[odd]} has {versions[odd]}"
        return UsageError("weights/no-ranks", text, hint="the same version on every node")
    return None
