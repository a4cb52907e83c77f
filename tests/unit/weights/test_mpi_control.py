"""The control side of a spread by MPI, with a socket in the place of the rank that started it."""

from __future__ import annotations

import json
import socket
import time
from multiprocessing.connection import Connection

import pytest

from fairlead.weights.mpi.control import Ranks
from fairlead.weights.mpi.rank import EVERYBODY, FD, HEAD


@pytest.fixture
def both(monkeypatch) -> tuple[Ranks, Connection]:
    mine, its = socket.socketpair()
    monkeypatch.setenv(FD, str(its.detach()))
    rank = Connection(mine.detach())
    rank.send_bytes(json.dumps(["a", "b"]).encode())
    return Ranks(), rank


def test_after_close_nobody_reads_from_a_number_that_may_be_another_files(both):
    ranks, rank = both
    ranks.send("the last word")
    ranks.close()
    assert rank.recv_bytes() == HEAD.pack(EVERYBODY, True) + b"the last word"
    assert rank.poll(10), "the end is known, though the process of the control side lives on"
    with pytest.raises(EOFError):
        rank.recv_bytes()
    ranks.close()


def test_when_the_rank_has_ended_all_nodes_have(both):
    ranks, rank = both
    rank.send_bytes(HEAD.pack(1, True) + b"{}")
    rank.close()
    end = time.monotonic() + 30
    lines, ended = [], []
    while not ended and time.monotonic() < end:
        lines += ranks.read_all(1.0)
        ended += ranks.take_ended()
    assert [line.node for line in lines] == ["b"]
    assert [key for key, _ in ended] == [("a", None), ("b", None)]
    ranks.close()
