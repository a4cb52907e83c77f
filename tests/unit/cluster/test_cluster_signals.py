"""A signal during a call of the sync face: whenever it falls, the call is stopped, and the next call works."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from fairlead.cluster import Cluster
from fairlead.cluster.fake import Answer, FakeCluster
from fairlead.cluster.protocol import Interrupted


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(FakeCluster(lambda _node, _command: Answer())) as made:
        yield made


@pytest.fixture
def stopped_by_sigterm() -> Iterator[None]:
    """As the command does it."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


def tell(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


async def at_its_start() -> None:
    tell()
    await asyncio.sleep(60)


async def while_it_waits() -> None:
    asyncio.get_running_loop().call_later(0.01, tell)
    await asyncio.sleep(60)


async def in_its_last_step() -> None:
    await asyncio.sleep(0)
    tell()


async def in_what_runs_behind_it() -> None:
    """The call is over when the signal comes, and its loop is not: others of the group are being listened to."""
    asyncio.get_running_loop().call_soon(tell)


async def in_the_step_of_another() -> None:
    async def other() -> None:
        tell()

    asyncio.get_running_loop().create_task(other())


CALLS = (at_its_start, while_it_waits, in_its_last_step, in_what_runs_behind_it, in_the_step_of_another)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_wherever_the_signal_falls_the_call_is_interrupted_and_the_next_one_works(cluster, call):
    with pytest.raises(Interrupted, match=r"^interrupted$"):
        cluster._wait(call())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert cluster._wait(asyncio.sleep(0.001, "whole")) == "whole"


def test_one_that_comes_before_the_loop_runs_is_not_lost(cluster, monkeypatch):
    run = cluster._runner.run

    def late(call):
        tell()
        return run(call)

    monkeypatch.setattr(cluster._runner, "run", late)
    with pytest.raises(Interrupted):
        cluster._wait(asyncio.sleep(60))


def test_one_that_comes_when_the_loop_has_ended_is_not_lost(cluster, monkeypatch):
    run = cluster._runner.run

    def early(call):
        try:
            return run(call)
        finally:
            tell()

    monkeypatch.setattr(cluster._runner, "run", early)
    with pytest.raises(Interrupted):
        cluster._wait(asyncio.sleep(0))


def test_an_interrupt_outweighs_what_the_call_fails_of(cluster):
    async def fails() -> None:
        tell()
        raise RuntimeError("the scheduler is gone")

    with pytest.raises(Interrupted):
        cluster._wait(fails())


def test_a_second_one_ends_the_wait_for_what_is_being_stopped(cluster):
    steps = []

    async def stops_slowly() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(tell)
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("stopping")
            loop.call_soon(tell)
            await asyncio.sleep(60)
            steps.append("stopped")

    with pytest.raises(Interrupted):
        cluster._wait(stops_slowly())
    assert steps == ["stopping"]


def test_a_third_one_breaks_off_what_takes_no_hint(cluster):
    async def deaf() -> None:
        for _ in range(3):
            tell()
        pytest.fail("still here")

    with pytest.raises(Interrupted):
        cluster._wait(deaf())
    assert cluster._wait(asyncio.sleep(0.001, "whole")) == "whole"


@pytest.mark.usefixtures("stopped_by_sigterm")
def test_a_handler_that_the_program_has_says_why(cluster):
    async def told() -> None:
        tell(signal.SIGTERM)
        await asyncio.sleep(60)

    with pytest.raises(Interrupted, match=r"^stopped by SIGTERM$"):
        cluster._wait(told())


def test_a_handler_that_goes_on_gets_what_had_come_about(cluster):
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))

    async def told() -> str:
        asyncio.get_running_loop().call_soon(tell, signal.SIGHUP)
        return "done"

    try:
        assert cluster._wait(told()) == "done"
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIGHUP]


def test_calls_of_other_threads_leave_signals_alone(cluster):
    handlers: list[object] = []

    def elsewhere() -> None:
        with Cluster(FakeCluster(lambda _node, _command: Answer())) as own:
            own._wait(looks(handlers.append))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


async def looks(heard: Callable[[object], None]) -> None:
    heard(signal.getsignal(signal.SIGINT))
