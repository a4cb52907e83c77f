"""The endpoint's own processes of time: a client that reads nothing, a signal while a model is verified."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

aiohttp = pytest.importorskip("aiohttp", reason="needs aiohttp: extra `serve`")

from aiohttp import web  # noqa: E402

from fairlead.serve.endpoint.app import Endpoint  # noqa: E402
from fairlead.serve.endpoint.engine import State  # noqa: E402
from fairlead.serve.endpoint.engines import ENGINES  # noqa: E402
from fairlead.serve.endpoint.run import Place, serve  # noqa: E402
from fairlead.serve.table import Serve  # noqa: E402


async def _endless(request):
    """An answer that goes on: 64 KiB a piece, as long as somebody takes it."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    while True:
        await answer.write(b"data: " + b"x" * 65528 + b"\n\n")


async def _listening(app):
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]


async def test_who_reads_nothing_of_its_answer_loses_its_place():
    engine = web.Application()
    engine.router.add_post("/v1/completions", _endless)
    behind, port = await _listening(engine)
    endpoint = Endpoint("tiny", Serve(request_s=0.5), context=0, count=None, keys=None, hosts=())
    endpoint.state = State.READY
    endpoint.process = SimpleNamespace(url=f"http://127.0.0.1:{port}", headers={}, state=State.READY)
    body = b'{"model": "tiny", "prompt": "a", "stream": true}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    async with aiohttp.ClientSession() as endpoint.session:
        front, port = await _listening(endpoint.app())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            async with asyncio.timeout(20):
                while not endpoint.metrics.left:
                    await asyncio.sleep(0.05)
                await endpoint.admission.empty()
            assert endpoint.admission.running == 0
            assert endpoint.metrics.cut == 0
    await front.cleanup()
    await behind.cleanup()


def test_a_signal_while_the_model_is_verified_ends_it_at_once(tmp_path):
    let_go = threading.Event()
    place = Place(
        model=tmp_path, name="tiny", host="127.0.0.1", port=0, folder=tmp_path, python="/none", engine=ENGINES[0]
    )

    def said(text):
        if "listens" in text:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()

    began = time.monotonic()
    try:
        assert serve(place, Serve(), keys=None, verify=lambda: let_go.wait(30) and None, said=said).answers == 0
        assert time.monotonic() - began < 10
    finally:
        let_go.set()


def test_what_verification_finds_is_raised(tmp_path):
    place = Place(
        model=tmp_path, name="tiny", host="127.0.0.1", port=0, folder=tmp_path, python="/none", engine=ENGINES[0]
    )

    def verify():
        raise ValueError("a bad shard")

    with pytest.raises(ValueError, match="a bad shard"):
        serve(place, Serve(), keys=None, verify=verify, said=lambda _: None)
