"""What waits to be read: bounded for each who speaks, in order, ends told once."""

from __future__ import annotations

import asyncio

from fairlead.cluster.heard import LINE_COST_BYTES, MAX_UNREAD_BYTES, MIN_SHARE_BYTES, Heard
from fairlead.cluster.protocol import Line, Result, State


def line(text: str, node: str = "n1") -> Line:
    return Line(node, None, "stdout", text)


def test_one_who_talks_without_end_is_held_and_the_others_are_not():
    heard = Heard(10_000)
    loud, quiet = heard.source(), heard.source()
    while loud.wanted.is_set():
        heard.hear(loud, line("x" * 1000))
    assert MIN_SHARE_BYTES <= loud.unread_bytes <= MIN_SHARE_BYTES + 1000 + LINE_COST_BYTES
    heard.hear(quiet, line("here"))
    assert quiet.wanted.is_set()
    heard.take(loud.unread_bytes // (2 * (1000 + LINE_COST_BYTES)) + 1)
    assert loud.wanted.is_set()


def test_all_together_stay_below_the_bound():
    heard = Heard(64)
    for source in [heard.source() for _ in range(64)]:
        while source.wanted.is_set():
            heard.hear(source, line("x" * 10_000))
    assert sum(len(text.text) for text in heard.take()) <= MAX_UNREAD_BYTES + 64 * 10_000
    assert not heard.has_unread


def test_lines_come_in_order_and_ends_once():
    heard = Heard(1)
    source = heard.source()
    for text in "abc":
        heard.hear(source, line(text))
    heard.end(("n1", None), Result(node="n1", state=State.DONE))
    assert [one.text for one in heard.take(2)] == ["a", "b"]
    assert [key for key, _ in heard.take_ended()] == [("n1", None)]
    assert heard.take_ended() == []
    assert heard.ended[("n1", None)].ok


async def test_an_end_that_nobody_has_waited_for_is_news_at_once():
    heard = Heard(1)
    heard.end(("n1", None), Result(node="n1", state=State.DONE))
    async with asyncio.timeout(5):
        await heard.news(60)
    started = asyncio.get_running_loop().time()
    await heard.news(0.05)
    assert asyncio.get_running_loop().time() - started >= 0.04
