"""The limit of one call: when it runs, and when it stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("torch")

from fairlead.fabric.torch.clock import Clock


def played(limit_s: float, job: Callable[[Clock], Awaitable[None]]) -> None:
    async def go() -> None:
        clock = Clock(limit_s)
        await asyncio.wait_for(clock.limit(job(clock)), 20)

    asyncio.run(go())


def test_it_stands_until_it_is_started() -> None:
    async def job(clock: Clock) -> None:
        await asyncio.sleep(0.1)
        clock.start()
        clock.start()  # a second time says nothing new
        await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        played(0.05, job)

    async def waits(_: Clock) -> None:
        await asyncio.sleep(0.2)

    played(0.05, waits)


def test_it_may_be_started_before_the_call_begins() -> None:
    async def go() -> None:
        clock = Clock(0.05)
        clock.start()
        with pytest.raises(TimeoutError):
            await clock.limit(asyncio.sleep(10))
        clock.start()  # somebody waits for a call that has ended

    asyncio.run(go())


def test_a_pause_puts_its_end_off() -> None:
    async def job(clock: Clock) -> None:
        clock.start()
        clock.put_off(10)
        await asyncio.sleep(0.3)

    played(0.1, job)


def test_no_limit() -> None:
    async def job(clock: Clock) -> None:
        clock.start()
        clock.put_off(1)
        await asyncio.sleep(0.1)

    played(0, job)
