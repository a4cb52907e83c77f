"""What the endpoint refuses, without a server. Statuses and codes: platform.openai.com/docs/guides/error-codes."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import MissingTool, UsageError
from fairlead.serve.endpoint.admission import Admission
from fairlead.serve.endpoint.asked import (
    ROUTES,
    Keys,
    Question,
    Refused,
    check_host,
    check_length,
    check_origin,
    host_of,
    parse,
)
from fairlead.serve.endpoint.engines import choose
from fairlead.serve.endpoint.metrics import Histogram, Metrics

CHAT, PLAIN = ROUTES
HI = [{"role": "user", "content": "hi"}]


def body(**own):
    return json.dumps({"model": "m", **own}).encode()


@pytest.mark.parametrize(
    ("raw", "route", "param"),
    [
        (b"", CHAT, None),
        (b"{", CHAT, None),
        (b"\xff\xfe", CHAT, None),
        (b"[]", CHAT, None),
        (b"[" * 100_000, CHAT, None),
        (b'{"messages": []}', CHAT, "model"),
        (body(), CHAT, "messages"),
        (body(messages=[]), CHAT, "messages"),
        (body(messages=["hi"]), CHAT, "messages[0]"),
        (body(messages=[*HI, {"content": "hi"}]), CHAT, "messages[1]"),
        (body(messages=HI, stream="yes"), CHAT, "stream"),
        (body(messages=HI, max_tokens=-1), CHAT, "max_tokens"),
        (body(messages=HI, max_completion_tokens=True), CHAT, "max_completion_tokens"),
        (body(messages=HI), PLAIN, "prompt"),
        (body(prompt=[]), PLAIN, "prompt"),
        (body(prompt=[1, "a"]), PLAIN, "prompt"),
        (body(prompt=[[1], ["a"]]), PLAIN, "prompt"),
    ],
)
def test_a_body_that_is_no_question_is_refused_by_its_part(raw, route, param):
    with pytest.raises(Refused) as refused:
        parse(raw, route)
    assert (refused.value.status, refused.value.param) == (400, param)
    error = json.loads(refused.value.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_prompts_of_all_forms_are_read():
    assert parse(body(prompt="a b"), PLAIN).texts == ("a b",)
    assert parse(body(prompt=["a", "abc"]), PLAIN).texts == ("abc",)
    assert parse(body(prompt=[1, 2, 3]), PLAIN).num_ids == 3
    assert parse(body(prompt=[[1], [1, 2]]), PLAIN).num_ids == 2
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}, {"role": "assistant"}]
    asked = parse(body(messages=chat, max_tokens=5, max_completion_tokens=7), CHAT)
    assert (asked.texts, asked.max_tokens) == (("s", "a"), 7)


def test_a_prompt_is_counted_only_where_it_could_be_too_long():
    counted = []

    def count(text):
        counted.append(text)
        return len(text.split())

    check_length(Question(model="m", texts=("a b c",), max_tokens=5), 10, count)
    assert not counted
    check_length(Question(model="m", texts=("alpha beta gamma",), max_tokens=7), 10, count)
    assert counted
    for question in (
        Question(model="m", texts=("alpha beta gamma",), max_tokens=8),
        Question(model="m", texts=("a " * 10,)),
        Question(model="m", texts=(), num_ids=11),
    ):
        with pytest.raises(Refused, match="maximum context length is 10 tokens") as refused:
            check_length(question, 10, count)
        assert refused.value.code == "context_length_exceeded"
    check_length(Question(model="m", texts=("a " * 10,)), 10, None)
    check_length(Question(model="m", texts=("a " * 10,)), 0, count)


def test_a_page_in_a_browser_does_not_reach_the_loopback_by_its_own_name():
    names = frozenset({"localhost", "127.0.0.1", "::1"})
    for fine in ("localhost", "localhost:8000", "LOCALHOST", "127.0.0.1:1", "[::1]:8000"):
        check_host(fine, names)
    for bad in ("", "evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example", "[::1", "evil@localhost"):
        with pytest.raises(Refused):
            check_host(bad, names)
    check_host("anything", frozenset())


def test_a_page_of_another_site_may_not_ask():
    """The forms of RFC 6454, 6.1 and 7: scheme, host and port, or `null` for a page that has no site."""
    names = frozenset({"localhost", "127.0.0.1", "::1"})
    for fine in ("", "http://localhost:3000", "http://127.0.0.1:8000", "http://[::1]:8000", "HTTP://LOCALHOST"):
        check_origin(fine, "127.0.0.1:8000", names)
    check_origin("http://node1:8000", "Node1:8000", frozenset())
    check_origin("https://ui.site", "node1:8000", frozenset({"ui.site"}))
    for bad in (
        "null",
        "http://evil.example",
        "http://localhost.evil.example",
        "http://",
        "localhost",
        "https://evil@localhost",
    ):
        for host, allowed in (("127.0.0.1:8000", names), ("node1:8000", frozenset()), ("", frozenset())):
            with pytest.raises(Refused) as refused:
                check_origin(bad, host, allowed)
            assert refused.value.status == 403


@given(st.text())
def test_any_host_header_is_read(text):
    assert isinstance(host_of(text), str)


def test_keys():
    keys = Keys("# of the site\n\nalpha\n beta \n")
    for fine in ("Bearer alpha", "bearer beta"):
        keys.check({"Authorization": fine})
    for bad in ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer gamma"}, {"Authorization": "Basic alpha"},
                {"Authorization": "Bearer # of the site"}, {"Authorization": "Bearer \udcff"}):  # fmt: skip
        with pytest.raises(Refused) as refused:
            keys.check(bad)
        assert refused.value.status == 401


async def test_places_are_given_in_order_and_the_queue_ends():
    admission = Admission(running=1, waiting=1, wait_s=30)
    order, go = [], asyncio.Event()

    async def ask(name):
        with admission.entered():
            async with admission.place():
                order.append(name)
                await go.wait()

    first, second = asyncio.create_task(ask(1)), asyncio.create_task(ask(2))
    await asyncio.sleep(0)
    assert (admission.running, admission.waiting) == (1, 1)
    with pytest.raises(Refused) as refused:
        await ask(3)
    assert (refused.value.status, refused.value.again_s) == (429, 1)
    go.set()
    await asyncio.gather(first, second)
    await admission.empty()
    assert (order, admission.running, admission.present) == ([1, 2], 0, 0)


async def test_who_waits_too_long_or_goes_away_leaves_no_trace():
    admission = Admission(running=1, waiting=5, wait_s=0.01)
    async with admission.place():
        with pytest.raises(Refused) as refused, admission.entered():
            async with admission.place():
                pass
        assert refused.value.status == 503
    gone = asyncio.create_task(_hold(admission))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert (admission.running, admission.present) == (0, 0)


async def _hold(admission):
    with admission.entered():
        async with admission.place():
            await asyncio.sleep(60)


def test_the_first_engine_that_is_there_serves():
    both = ["transformers.cli.serve", "vllm"]
    assert choose("", both, "python3").name == "vllm"
    assert choose("transformers", both, "python3").name == "transformers"
    assert choose("", both[:1], "python3").name == "transformers"
    for there, wanted in ((both[:1], "vllm"), ((), "")):
        with pytest.raises(MissingTool):
            choose(wanted, there, "python3")
    with pytest.raises(UsageError):
        choose("sglang", both, "python3")


def test_buckets_of_a_histogram_add_up():
    histogram = Histogram()
    for took_s in (0.005, 0.2, 1000):
        histogram.add(took_s)
    lines = list(histogram.lines("x"))
    assert lines[0] == 'x_bucket{le="0.005"} 1'
    assert lines[-3:] == ['x_bucket{le="+Inf"} 3', "x_sum 1000.205000", "x_count 3"]
    metrics = Metrics()
    metrics.answers["/health", 200] += 1
    assert 'fairlead_serve_requests_total{route="/health",status="200"} 1' in metrics.text({})
