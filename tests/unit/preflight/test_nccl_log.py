"""The library's log is taken in by the process it writes in: for real, through a pipe of that process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fairlead.preflight.ranks.nccl import parse
from fairlead.preflight.ranks.onnode.nccllog import MAX_KEPT, NcclLog
from support.processes import until

P = "node0:523:564 [0] NCCL INFO "
LINES = [
    P + "NET/IB : Using [0]mlx5_ib0:1/IB [1]mlx5_ib1:1/IB [RO]; OOB eth0:10.0.0.4<0>",
    P + "Using network IB",
    P + "Channel 04/0 : 5[5] -> 12[4] [send] via NET/IB/0(4)/GDRDMA",
]


class Me:
    def __init__(self):
        self.said = []

    def say(self, what, **fields):
        self.said.append((what, fields))


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "WARN")


def test_what_is_written_to_the_debug_file_is_told_once_and_warnings_pass_on(capfd):
    log, me = NcclLog(), Me()
    assert os.environ["NCCL_DEBUG"] == "INFO"
    # as the library does it: fopen of the name, from a process that knows nothing of the pipe's number
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as file:
        file.writelines(
            line + "\n"
            for line in [
                *LINES,
                *LINES,
                "n0:1:2 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Unable to open device mlx5_0",
            ]
        )
    assert until(lambda: log.warnings == 1)
    log.tell(me)
    ((what, fields),) = me.said
    assert what == "nccl"
    assert parse(fields["lines"]).devices() == {"mlx5_ib0"}
    assert set(fields["lines"].values()) == {1, 2}
    assert "Unable to open device" in capfd.readouterr().err
    log.tell(me)
    assert len(me.said) == 1


def test_a_library_that_says_much_is_not_held_up_and_is_kept_in_bounds():
    log, me = NcclLog(), Me()
    started = time.monotonic()
    with Path(os.environ["NCCL_DEBUG_FILE"]).open("w") as file:
        file.writelines(f"n0:1:2 [0] NCCL INFO NET/IB : line {i} of one sort\n" for i in range(20_000))
    assert until(lambda: len(log.lines) == MAX_KEPT)
    assert time.monotonic() - started < 20
    log.tell(me)
    assert len(me.said[0][1]["lines"]) == MAX_KEPT
