"""torch.distributed by the backend `mrc`: ranks as processes on the loopback, beside gloo."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.errors import FabricError
from fairlead.fabric.mrc.completion import Completion, Status, WorkOpcode
from fairlead.fabric.transport.context import Context

pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.slow]
PROGRAM = Path(__file__).parent / "torch_rank.py"
LIMIT_S = 200.0


@contextmanager
def ranks(size: int, part: str, folder: Path, **env: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of all ranks; none of them outlives the test."""
    command = [sys.executable, str(PROGRAM)]
    env = {**os.environ, "FAIRLEAD_MRC_ADDRESSES": "::1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **env}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": env}
    started = [
        subprocess.Popen([*command, str(r), str(size), str(folder / "store"), part], **pipes) for r in range(size)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    words = [p.communicate(timeout=LIMIT_S)[0] for p in processes]
    return [(p.returncode, text) for p, text in zip(processes, words, strict=True)]


@pytest.mark.parametrize("part", ["direct", "train", "kinds", "sizes", "splits"])
def test_three_ranks_do_it_right(part: str, tmp_path: Path) -> None:
    with ranks(3, part, tmp_path) as processes:
        for code, text in ended(processes):
            assert (code, text.splitlines()[-1:]) == (0, ["done"]), text


@pytest.mark.parametrize(
    ("size", "cases"),
    [(2, 2), (3, 4), (4, 30)],
)
def test_all_collectives_give_what_gloo_gives(size: int, cases: int, tmp_path: Path) -> None:
    with ranks(size, "equal", tmp_path, CASES=str(cases)) as processes:
        for code, text in ended(processes):
            assert (code, text.splitlines()[-1:]) == (0, ["done"]), text


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_killed_or_stopped_in_a_collective_is_named_by_all_others(how: signal.Signals, tmp_path: Path) -> None:
    with ranks(3, "killed", tmp_path, TIMEOUT_S="8") as processes:
        for process in processes:
            assert process.stdout.readline() == "going\n"
        time.sleep(1)
        begin = time.monotonic()
        processes[1].send_signal(how)
        for code, text in ended([processes[0], processes[2]]):
            assert (code, text) == (7, "fabric/rank-lost rank 1 is lost\n")
        assert time.monotonic() - begin < 20


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_on_which_nobody_waits_is_found(how: signal.Signals, tmp_path: Path) -> None:
    with ranks(3, "idle", tmp_path, TIMEOUT_S="8") as processes:
        for process in processes:
            assert process.stdout.readline() == "going\n"
        time.sleep(1)
        begin = time.monotonic()
        processes[1].send_signal(how)
        for code, text in ended([processes[0], processes[2]]):
            assert (code, text) == (7, "fabric/rank-lost rank 1 is lost\n")
        assert time.monotonic() - begin < (3 if how is signal.SIGKILL else 30)


@pytest.mark.parametrize(("size", "part"), [(3, "leaving"), (4, "anew")])
def test_a_rank_may_leave_right_after_its_last_collective(size: int, part: str, tmp_path: Path) -> None:
    with ranks(size, part, tmp_path) as processes:
        for code, text in ended(processes):
            assert (code, text.splitlines()[-1:]) == (0, ["done"]), text


def test_of_an_exception_in_one_rank_the_others_name_that_rank(tmp_path: Path) -> None:
    with ranks(3, "raising", tmp_path) as processes:
        first, (_, raised), last = ended(processes)
    assert raised.endswith("ValueError\n")
    for code, text in (first, last):
        assert (code, text) == (7, "fabric/rank-lost rank 1 is lost: it has left the group\n")


@pytest.mark.parametrize("pause_s", [3, 10])
def test_a_pause_shorter_than_the_timeout_is_survived(pause_s: int, tmp_path: Path) -> None:
    with ranks(3, "paused", tmp_path, TIMEOUT_S="30", GOING_S=str(pause_s + 3)) as processes:
        stop_and_go(processes, pause_s)
        for code, text in ended(processes):
            assert (code, text) == (0, "done\n")


def test_after_a_longer_pause_all_name_the_rank_that_was_paused_and_no_other(tmp_path: Path) -> None:
    with ranks(3, "paused", tmp_path, TIMEOUT_S="4", GOING_S="60") as processes:
        stop_and_go(processes, 20)  # the others have said farewell for as long as they do, and ended
        for code, text in ended(processes):
            assert code == 7
            assert text.startswith("fabric/rank-lost rank 1 is lost: "), text
            assert "waits for" not in text


def stop_and_go(processes: list[subprocess.Popen[str]], pause_s: float) -> None:
    """Rank 1 stands still for so long."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
    time.sleep(1)
    processes[1].send_signal(signal.SIGSTOP)
    time.sleep(pause_s)
    processes[1].send_signal(signal.SIGCONT)


def test_time_spent_behind_calls_of_the_same_rank_does_not_count(tmp_path: Path) -> None:
    with ranks(2, "queued", tmp_path) as processes:
        (code, text), _ = ended(processes)
        assert (code, text) == (0, "done\n")


def test_after_a_timeout_all_ranks_say_who_gave_up_and_for_whom_it_waited(tmp_path: Path) -> None:
    with ranks(3, "late", tmp_path) as processes:
        first, absent, other = (text for _, text in ended(processes))
    # of three ranks two are halves of the exchange, and the third hands its values to rank 0
    assert first == "fabric/collective-timeout not done after 3 s; rank 0 waits for rank 1\n"
    gave_up = "fabric/collective-timeout rank 0 gave up waiting for rank 1, as its time was over"
    assert other == f"{gave_up}; this rank waits for rank 0\n"
    assert absent == f"{gave_up}\n"


def test_ranks_at_different_collectives_are_told_so(tmp_path: Path) -> None:
    with ranks(2, "unlike", tmp_path) as processes:
        words = [text for _, text in ended(processes)]
        assert "fabric/collective-mismatch" in "".join(words)
        assert all(text.startswith("fabric/") for text in words)


BEFORE_IT_BEGINS = """
import os
from datetime import timedelta
import torch
import torch.distributed as dist
from fairlead.errors import FabricError
from fairlead.fabric.torch.group import MrcGroup

group = MrcGroup(dist.HashStore(), 0, 1, timedelta(minutes=10), "g")
works = []
def call_and_fail():
    works.append(group.allreduce([torch.ones(3)]))  # its task is made in the next turn of the loop, and so
    group._loop.call_soon(group._fail, FabricError("fabric/rank-lost", "rank 1 is lost", hint="-"), None)
group._loop.call_soon_threadsafe(call_and_fail)
while not works:
    pass
try:
    works[0].wait(timedelta(seconds=20))
except FabricError as exc:
    print(exc.code)
group.shutdown()
"""


def test_a_call_that_the_groups_end_overtakes_before_its_first_step_ends_too() -> None:
    """A task that is cancelled before it begins runs none of its lines."""
    env = {**os.environ, "FAIRLEAD_MRC_ADDRESSES": "::1"}
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_IT_BEGINS], capture_output=True, text=True, env=env, timeout=100, check=False
    )
    assert done.stdout == "fabric/rank-lost\n", done.stderr


@pytest.mark.parametrize("is_given_back", [False, True])
def test_a_message_to_a_rank_that_leaves(is_given_back: bool) -> None:
    """It has said goodbye, so its end is no loss to the group. What was under way to it is lost, and an error.

    But what it gave back the slot of it had received, though it has gone before it could acknowledge that.
    """
    import torch

    from fairlead.fabric.torch.meeting import _box
    from fairlead.fabric.torch.peers import _LENGTH_BITS, DIRECT, FREED, Peer, Says

    token = b"t" * 32

    async def go() -> None:
        with Context(addresses=["::1"]) as here, Context(addresses=["::1"]) as there:
            queue, other = here.completion_queue(), there.completion_queue()
            (mine, hello), (theirs, answer) = _box(here, 0), _box(there, 1)
            with there.listen("::1", token) as listener, ThreadPoolExecutor(1) as pool:
                job = pool.submit(listener.accept, other, other, private=answer)
                peer = Peer(here.connect("::1", listener.port, token, queue, queue, private=hello), *mine)
                gone = Peer(job.result(60), *theirs)
            asyncio.get_running_loop().add_reader(queue, lambda: [peer.on(done) for done in queue.wait(0)])
            with there.lock:  # nothing is answered any more
                sending = asyncio.create_task(peer.send(DIRECT, 7, torch.ones(100, dtype=torch.uint8)))
                await asyncio.sleep(0.1)
                assert peer.silent_s(asyncio.get_running_loop().time()) > 0.05
                if is_given_back:
                    freed = FREED << _LENGTH_BITS | DIRECT
                    peer.on(Completion(0, peer.qp.qp_num, WorkOpcode.RECV_RDMA_WITH_IMM, Status.SUCCESS, imm=freed))
                peer.has_left = True
                gone.qp.close()
            if is_given_back:
                await asyncio.wait_for(sending, 60)
            else:
                with pytest.raises(FabricError, match="rank 1 is lost: it has left the group"):
                    await asyncio.wait_for(sending, 60)
            while peer.qp.error is None:
                await asyncio.sleep(0.01)
            assert not await peer.tell(Says.LIVES)  # and what is written to it later is no error of this end
            asyncio.get_running_loop().remove_reader(queue)

    asyncio.run(go())
