"""What the endpoint costs: the same engine asked through it and directly, in interleaved pairs; and its memory.

    .venv/bin/python bench/serve_overhead.py --engine vllm --python /opt/vllm/bin/python --rounds 20 --clients 64
    .venv/bin/python bench/serve_overhead.py --memory 10000

One engine runs, that of `fairlead serve run`; in each round both ways are asked the same streams, in turn first.
Of a way: tokens/s of all streams together, the median of their times to the first token. Of a pair: the ratio of both.
In the end: the median of pairs, with the quartiles. Goal: 3 % at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.endpoints import SMALL, Running
from support.tinymodel import CONTEXT, make_tiny


class Way(NamedTuple):
    """Where to ask."""

    url: str
    headers: dict[str, str]


class Took(NamedTuple):
    """Of one round."""

    tokens_per_s: float
    first_s: float


def directly(running: Running) -> Way:
    """The engine behind it: its port from its command line, its key from its environment."""
    pid = running.engine_pid()
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    env = dict(
        row.split("=", 1) for row in Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0") if "=" in row
    )
    port = words[words.index("--port") + 1]
    key = env.get("VLLM_API_KEY", "")
    return Way(f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {key}"} if key else {})


async def stream(http: aiohttp.ClientSession, way: Way, number: int, tokens: int) -> tuple[float, int]:
    """(seconds to the first piece of text, pieces of text) of one answer."""
    body = {"model": "tiny", "prompt": f"host {number} sends", "max_tokens": tokens, "stream": True, "temperature": 0}
    began, first, num = time.perf_counter(), 0.0, 0
    async with http.post(f"{way.url}/v1/completions", json=body, headers=way.headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - began
                num += 1
    return first, num


async def asked(way: Way, clients: int, tokens: int) -> Took:
    """All clients at once; each asks one question."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        began = time.perf_counter()
        found = await asyncio.gather(*(stream(http, way, i, tokens) for i in range(clients)))
        took = time.perf_counter() - began
    return Took(clients * tokens / took, statistics.median(first for first, _ in found))


def rss(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def memory(way: Way, pid: int, requests: int, clients: int) -> None:
    """Many short questions, every other one a stream; the endpoint's memory as they go by."""
    left = iter(range(requests))
    done = 0

    async def client(http: aiohttp.ClientSession) -> None:
        nonlocal done
        for number in left:
            if number % 2:
                await stream(http, way, number, 2)
            else:
                body = {"model": "tiny", "prompt": f"host {number}", "max_tokens": 1}
                async with http.post(f"{way.url}/v1/completions", json=body, headers=way.headers) as answer:
                    answer.raise_for_status()
                    await answer.read()
            done += 1
            if done % max(1, requests // 10) == 0:
                print(f"{done} requests: {rss(pid) / 2**20:.1f} MiB", flush=True)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))


def said(name: str, ratios: list[float]) -> str:
    """Median and quartiles of pairs."""
    low, mid, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return f"{name}: endpoint / engine {mid:.3f} (quartiles {low:.3f} to {high:.3f}, {len(ratios)} pairs)"


def main() -> None:
    """A line a pair, then medians."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--engine", default="transformers", choices=["transformers", "vllm"])
    args.add_argument("--python", default="", help="the Python that has the engine")
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--clients", type=int, default=16)
    args.add_argument("--tokens", type=int, default=64)
    args.add_argument("--memory", type=int, default=0, help="instead: so many short requests, and the memory")
    want = args.parse_args()
    options = SMALL if want.engine == "transformers" else ("--enforce-eager", "--max-model-len", str(CONTEXT))
    words = ["--engine", want.engine, *(("--python", want.python) if want.python else ())]
    with tempfile.TemporaryDirectory() as name:
        running = Running(make_tiny(Path(name) / "tiny"), Path(name) / "runs", *words, engine=options)
        try:
            running.wait(lambda: running.get("/health")[0] == 200, 600)
            through, engine = Way(running.url, {}), directly(running)
            if want.memory:
                asyncio.run(memory(through, running.process.pid, want.memory, want.clients))
                return
            ways = {"endpoint": through, "engine": engine}
            for way in ways.values():
                asyncio.run(asked(way, want.clients, want.tokens))  # what is warm later is warm in the first pair
            pairs = []
            for number in range(want.rounds):
                order = list(ways) if number % 2 == 0 else list(reversed(ways))
                took = {way: asyncio.run(asked(ways[way], want.clients, want.tokens)) for way in order}
                pairs.append(took)
                print(json.dumps({way: row._asdict() for way, row in took.items()}), flush=True)
            print(said("tokens/s", [p["endpoint"].tokens_per_s / p["engine"].tokens_per_s for p in pairs]))
            print(said("time to first token", [p["endpoint"].first_s / p["engine"].first_s for p in pairs]))
        finally:
            running.stop()


if __name__ == "__main__":
    main()
