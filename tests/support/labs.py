"""A real lab in a test: built, entered, and given sockets in its namespaces."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

from fairlead.cluster.enter import into_host, running
from fairlead.lab import syscalls as sc
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down, up
from fairlead.records.labstate import LabState

_numbers = itertools.count()


def fresh_name() -> str:
    """A lab name no other test run has."""
    return f"t{os.getpid()}-{next(_numbers)}"


def take_down_all(root: Path) -> None:
    """End every lab in the folders of a folder, and remove them."""
    before = os.environ.get("FAIRLEAD_LABS")
    for place in root.iterdir():
        os.environ["FAIRLEAD_LABS"] = str(place)
        for folder in place.iterdir():
            down(folder.name)
    os.environ.pop("FAIRLEAD_LABS", None) if before is None else os.environ.update(FAIRLEAD_LABS=before)
    shutil.rmtree(root, ignore_errors=True)


class Lab:
    """A running lab with what tests do in it."""

    def __init__(self, shape: LabShape) -> None:
        self.shape = shape
        up(shape)

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def state(self) -> LabState:
        return running(self.shape.name)

    def on(self, host: str, *argv: str, limit_s: float = 60, check: bool = True) -> str:
        """What a command says on a host."""
        state = self.state
        done = subprocess.run(into_host(state, state.host(host), argv), capture_output=True, text=True, timeout=limit_s)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def sh(self, host: str, script: str, *, limit_s: float = 60, check: bool = True) -> str:
        """What a shell script says on a host."""
        return self.on(host, "sh", "-c", script, limit_s=limit_s, check=check)

    def socket_in(self, netns: str, *args: int) -> socket.socket:
        """A socket that belongs to a namespace of the lab, held by this process."""
        keeper = self.state.keeper
        made: list[socket.socket] = []

        def make() -> None:
            # a thread of its own: entering a namespace changes the thread, the socket keeps what it was made in
            sc.enter(f"/proc/{keeper.pid}/root/run/netns/{netns}", sc.CLONE_NEWNET)
            made.append(socket.socket(*args))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]
