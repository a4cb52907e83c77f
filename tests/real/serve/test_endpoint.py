"""`serve run` with a real engine, asked by the official client: answers, refusals, clients and engines that go away.

The engine is `transformers serve`; with FAIRLEAD_VLLM_PYTHON, the Python of an environment that has vLLM, that as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.endpoints import SMALL, Running
from support.examples import HERE
from support.tinymodel import CONTEXT, make_tiny

openai = pytest.importorskip("openai", reason="needs openai: group `dev`")
for _name in ("aiohttp", "accelerate", "fastapi", "uvicorn"):
    pytest.importorskip(_name, reason=f"needs {_name}: extras `serve` and `engine`")

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1200)]
KEY = "a-key-of-the-test"
HI = [{"role": "user", "content": "a switch"}]
LIMITS = "[serve]\nrequest_s = 3\nbody_bytes = 100000\ndrain_s = 400\nconcurrency = 64\nqueue = 8\n"
VLLM = os.environ.get("FAIRLEAD_VLLM_PYTHON", "")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny")


WITH_VLLM = pytest.mark.skipif(not VLLM, reason="FAIRLEAD_VLLM_PYTHON names no Python that has vLLM")
ENGINES = ["transformers", pytest.param("vllm", marks=WITH_VLLM)]


@pytest.fixture(scope="module", params=ENGINES)
def endpoint(request, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("endpoint")
    running = Running(tiny, folder / "runs", *words(folder, request.param), engine=options(request.param))
    try:
        yield running.ready()
    finally:
        assert running.stop() == 0, running.said.read_text()


def options(engine):
    return SMALL if engine == "transformers" else ("--enforce-eager", "--max-model-len", str(CONTEXT))


def words(folder, engine, limits=LIMITS):
    (folder / "keys").write_text(KEY + "\n")
    (folder / "keys").chmod(0o600)
    (folder / "cluster.toml").write_text(HERE + limits)
    python = ("--python", VLLM) if engine == "vllm" else ()
    return ("--engine", engine, *python, "--api-keys", str(folder / "keys"), "--spec", str(folder / "cluster.toml"))


@pytest.fixture
def client(endpoint):
    with openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
        yield client


def test_answers_whole_and_in_pieces(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    whole = client.completions.create(model="tiny", prompt="a host", max_tokens=6, temperature=0)
    assert whole.usage.completion_tokens == 6
    chat = client.chat.completions.create(model="tiny", messages=HI, max_tokens=6, temperature=0)
    assert chat.choices[0].finish_reason == "length"
    pieces = client.chat.completions.create(model="tiny", messages=HI, max_tokens=6, temperature=0, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == chat.choices[0].message.content.rstrip("\ufffd")
    plain = client.completions.create(model="tiny", prompt="a host", max_tokens=6, temperature=0, stream=True)
    text = "".join(piece.choices[0].text for piece in plain if piece.choices)
    # random weights may end in half a character, which a stream keeps back and a whole answer shows as U+FFFD
    assert text == whole.choices[0].text.rstrip("\ufffd")


def test_a_stream_is_not_held_back(client):
    pieces = client.chat.completions.create(model="tiny", messages=HI, max_tokens=200, stream=True)
    times = [time.monotonic() for _piece in pieces]
    whole = times[-1] - times[0]
    assert len(times) > 50
    assert max(late - early for early, late in pairwise(times)) < whole / 2


def test_refusals_reach_the_client_as_its_own_exceptions(endpoint, client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt", messages=HI)
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="a switch forwards " * CONTEXT)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt=[5] * CONTEXT, max_tokens=10)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="another", max_retries=0).models.list()
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 200_000}])
    assert refused.value.status_code == 413


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/chat/completions", b"{", {}, 400),
        ("/v1/chat/completions", b"\xff" * 50, {}, 400),
        ("/v1/chat/completions", b'{"model": "tiny"}', {}, 400),
        ("/v1/chat/completions", b"{}", {"Content-Type": "text/plain"}, 415),
        ("/v1/models", None, {"Host": "evil.example"}, 400),
        ("/v1/chat/completions", b"{}", {"Origin": "https://evil.example", "Content-Type": ""}, 403),
        ("/v1/embeddings", b"{}", {}, 404),
        ("/v1/models", b"{}", {}, 405),
    ],
)
def test_odd_requests(endpoint, path, body, headers, status):
    got, answer, _headers = endpoint.get(path, body, **{"Authorization": f"Bearer {KEY}", **headers})
    assert got == status
    assert answer["error"]["message"]


def _raw(endpoint, head, more=b"", limit_s=15.0):
    parts = urlsplit(endpoint.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=limit_s) as raw:
        raw.sendall(head)
        if more:
            try:
                for _ in range(1024):
                    raw.sendall(more)
            except OSError:
                pass  # it was closed before all was sent: what was answered may be read all the same
        answer = b""
        try:
            while part := raw.recv(65536):
                answer += part
        except ConnectionError:
            pass
        return answer


def test_a_body_of_1_gib_is_refused_before_it_is_sent_and_while_it_is(endpoint):
    before = _rss(endpoint.process.pid)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: application/json\r\n"
    said = _raw(endpoint, f"{head}Content-Length: {1 << 30}\r\n\r\n".encode())
    assert b" 413 " in said.split(b"\r\n", 1)[0]
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    said = _raw(endpoint, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), chunk)
    assert b" 413 " in said.split(b"\r\n", 1)[0] or not said
    assert _rss(endpoint.process.pid) - before < 32 << 20


def test_slow_clients_are_sent_away(endpoint):
    began = time.monotonic()
    assert b" 408 " in _raw(endpoint, b"POST /v1/completions HTTP/1.1\r\nHost: local").split(b"\r\n", 1)[0]
    assert b" 408 " in _raw(endpoint, b"").split(b"\r\n", 1)[0]
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    slow = f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode()
    assert b" 408 " in _raw(endpoint, slow).split(b"\r\n", 1)[0]
    assert time.monotonic() - began < 30


def test_who_leaves_in_mid_stream_is_not_answered_on(endpoint, client):
    left = endpoint.metric("fairlead_serve_clients_left_total")
    with client.chat.completions.create(model="tiny", messages=HI, max_tokens=CONTEXT - 200, stream=True) as stream:
        for _piece, _ in zip(stream, range(3), strict=False):
            pass
    endpoint.wait(lambda: endpoint.metric("fairlead_serve_clients_left_total") == left + 1, 10)
    assert endpoint.metric("fairlead_serve_running") == 0
    used = _idle_cpu(endpoint.engine_pid())
    assert used < 0.5, f"the engine still used {used:.2f} s of a second"


def _idle_cpu(pid):
    """Seconds of CPU of a process in the best of ten seconds: one that generates uses them all."""
    best = 10.0
    for _ in range(10):
        before = _cpu(pid)
        time.sleep(1)
        best = min(best, _cpu(pid) - before)
    return best


def _cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_64_clients_at_once(endpoint):
    async with openai.AsyncOpenAI(base_url=f"{endpoint.url}/v1", api_key=KEY, max_retries=0, timeout=300) as client:

        async def ask(num):
            asked = [{"role": "user", "content": f"host {num}"}]
            stream = await client.chat.completions.create(model="tiny", messages=asked, max_tokens=16, stream=True)
            return [piece.choices[0].finish_reason async for piece in stream if piece.choices][-1]

        assert await asyncio.gather(*(ask(num) for num in range(64))) == ["length"] * 64
    assert endpoint.metric("fairlead_serve_running") == 0


def test_an_engine_that_is_killed_is_started_again(endpoint, client):
    stream = client.chat.completions.create(model="tiny", messages=HI, max_tokens=CONTEXT - 200, stream=True)
    for _piece, _ in zip(stream, range(3), strict=False):
        pass
    os.killpg(endpoint.engine_pid(), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="engine ended"):
        list(stream)
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model="tiny", messages=HI, max_tokens=2)
    assert refused.value.status_code == 503
    endpoint.ready()
    assert client.completions.create(model="tiny", prompt="a", max_tokens=2).usage.completion_tokens == 2
    assert endpoint.metric("fairlead_serve_engine_restarts") >= 1


@pytest.mark.parametrize("engine", ENGINES)
async def test_sigterm_finishes_64_streams_that_had_begun(tiny, tmp_path, engine):
    """Of 64 clients that have their first piece, each gets its last one; who asks then is sent away."""
    running = Running(tiny, tmp_path / "runs", *words(tmp_path, engine), engine=options(engine))
    begun = asyncio.Semaphore(0)
    try:
        running.ready()
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0, timeout=300) as client:

            async def ask(num):
                asked = {"messages": [{"role": "user", "content": f"host {num}"}], "max_tokens": 200, "stream": True}
                stream = await client.chat.completions.create(model="tiny", **asked)
                pieces = [await anext(stream)]
                begun.release()
                pieces += [piece async for piece in stream]
                return [piece.choices[0].finish_reason for piece in pieces if piece.choices][-1]

            async with asyncio.timeout(300):
                asked = [asyncio.create_task(ask(num)) for num in range(64)]
                for _ in asked:
                    await begun.acquire()
                ended = sum(task.done() for task in asked)
                running.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(running.wait, lambda: "draining: " in running.said.read_text(), 30)
                assert ended < 64, "all had ended before the signal: it showed nothing"
                with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
                    await client.completions.create(model="tiny", prompt="a")
                assert set(await asyncio.gather(*asked)) <= {"length", "stop"}  # vLLM ends where the model says so
        assert running.process.wait(60) == 0, running.said.read_text()
    finally:
        if running.process.poll() is None:
            running.stop()


def test_what_takes_longer_than_the_drain_is_said(tiny, tmp_path):
    """An engine that is told to end may finish its answer in the seconds it has for that; else the client is told."""
    limits = LIMITS.replace("drain_s = 400", "drain_s = 1")
    running = Running(tiny, tmp_path / "runs", *words(tmp_path, "transformers", limits))
    try:
        running.ready()
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
            stream = client.chat.completions.create(model="tiny", messages=HI, max_tokens=CONTEXT - 200, stream=True)
            next(stream)
            running.process.send_signal(signal.SIGTERM)
            try:
                list(stream)
            except openai.APIError as error:
                assert "longer than 1 s" in str(error)  # noqa: PT017 - whether it is cut is the engine's doing
        assert running.process.wait(60) == 0
        assert "1 answer took longer than serve.drain_s, 1 s" in running.said.read_text()
    finally:
        if running.process.poll() is None:
            running.stop()


async def test_who_finds_no_place_is_told_when_to_come_again(tiny, tmp_path):
    """One at the engine, one that waits: he is sent away after queue_s, the third at once."""
    limits = LIMITS.replace("concurrency = 64\nqueue = 8", "concurrency = 1\nqueue = 1\nqueue_s = 3")
    running = Running(tiny, tmp_path / "runs", *words(tmp_path, "transformers", limits))
    try:
        running.ready()
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
            long = {"model": "tiny", "messages": HI, "max_tokens": CONTEXT - 200, "stream": True}
            stream = await client.chat.completions.create(**long)
            await anext(stream)
            second = asyncio.create_task(client.chat.completions.create(**long))
            await asyncio.to_thread(running.wait, lambda: running.metric("fairlead_serve_waiting") == 1, 30)
            with pytest.raises(openai.RateLimitError) as refused:
                await client.completions.create(model="tiny", prompt="a")
            assert refused.value.response.headers["Retry-After"] == "1"
            with pytest.raises(openai.InternalServerError, match="no place was free for 3 s") as late:
                await second
            assert late.value.status_code == 503
            assert late.value.response.headers["Retry-After"] == "5"
            await stream.close()
            await asyncio.to_thread(running.wait, lambda: running.metric("fairlead_serve_running") == 0, 30)
            found = await client.completions.create(model="tiny", prompt="a", max_tokens=2)
            assert found.usage.completion_tokens == 2
    finally:
        running.stop()


def test_one_question_and_the_end(tiny, tmp_path):
    argv = [sys.executable, "-m", "fairlead", "serve", "run", str(tiny), "--port", "0", "--runs", str(tmp_path)]
    argv += ["--engine", "transformers", "--ask", "a host sends", "--json", "--", *SMALL]
    done = subprocess.run(argv, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reply"]


def test_an_endpoint_that_is_killed_leaves_no_engine(tiny, tmp_path):
    running = Running(tiny, tmp_path / "runs", *words(tmp_path, "transformers")).ready()
    engine = running.engine_pid()
    running.process.kill()
    running.process.wait(10)
    until = time.monotonic() + 30
    while Path(f"/proc/{engine}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{engine}").exists()
