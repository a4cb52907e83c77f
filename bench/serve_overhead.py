"""What the endpoint costs: the same engine asked through it and directly, in interleaved pairs; and its memory.

    .venv/bin/python bench/serve_overhead.py --engine vllm --python /opt/vllm/bin/python --rounds 20 --clients 64
    .venv/bin/python bench/serve_overhead.py --memory 10000

One engine runs, that of `fairlead serve run`; in each round both ways are asked the same streams, in turn first.
Of a way: tokens/s of all streams together, the median of their times to the first token. Of a pair: the ratio of both.
In the end: the median of pairs, with the quartiles; and the endpoint's own processor time for a token, which other
programs of the machine change least. Aim: 3 % at most. `--layers`, `--width`: another model than the tiny one, as an
engine that computes longer waits less for its cores. `--limit`: after so many seconds no further pair begins.
`--page` writes docs/benchmarks/serve.md.
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
from page import preface, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.endpoints import SMALL, Running
from support.tinymodel import CONTEXT, make_tiny

PAGE = Path(__file__).parents[1] / "docs/benchmarks/serve.md"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


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


def used_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


async def memory(way: Way, pid: int, requests: int, clients: int) -> list[tuple[int, float]]:
    """Many short questions, every other one a stream; (requests, MiB of the endpoint) as they go by."""
    seen = [(0, rss(pid) / 2**20)]
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
                seen.append((done, rss(pid) / 2**20))
                print(f"{done} requests: {seen[-1][1]:.1f} MiB", flush=True)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    return seen


def kept(seen: list[tuple[int, float]]) -> str:
    """What memory did between a tenth of the requests and all of them."""
    rows = "\n".join(f"| {num} | {mib:.1f} |" for num, mib in seen)
    grown = seen[-1][1] - seen[1][1]
    text = f"From {seen[1][0]} requests to {seen[-1][0]} it grew by {grown:.1f} MiB."
    return f"| requests | MiB of the endpoint |\n|---:|---:|\n{rows}\n\n{text}"


def row(name: str, ratios: list[float]) -> str:
    """Median and quartiles of pairs, as a row."""
    low, mid, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return f"| {name} | {mid:.3f} | {low:.3f} to {high:.3f} |"


def compared(pairs: list[dict[str, Took]], cost_s: float) -> str:
    """Markdown: both ways, pair by pair."""
    first = {way: statistics.median(p[way].first_s for p in pairs) * 1000 for way in ("endpoint", "engine")}
    speed = {way: statistics.median(p[way].tokens_per_s for p in pairs) for way in ("endpoint", "engine")}
    rows = [
        f"| endpoint / engine, {len(pairs)} pairs | median | quartiles |\n|---|---:|---:|",
        row("tokens/s", [p["endpoint"].tokens_per_s / p["engine"].tokens_per_s for p in pairs]),
        row("time to first token", [p["endpoint"].first_s / p["engine"].first_s for p in pairs]),
    ]
    return "\n".join(rows) + (
        f"\n\nMedians: {speed['endpoint']:.0f} and {speed['engine']:.0f} tokens/s, first token after"
        f" {first['endpoint']:.0f} and {first['engine']:.0f} ms. Processor time of the endpoint, a token:"
        f" {cost_s * 1e6:.0f} µs. Aim: 3 % at most."
    )


def measured(want: argparse.Namespace, running: Running) -> str:
    """Pairs, one after the other, until there are enough or the time is over."""
    ways = {"endpoint": Way(running.url, {}), "engine": directly(running)}
    for way in ways.values():
        asyncio.run(asked(way, want.clients, want.tokens))  # what is warm later is warm in the first pair
    began, pairs, used = time.monotonic(), list[dict[str, Took]](), 0.0
    for number in range(want.rounds):
        if pairs and (time.monotonic() - began) * (1 + 1 / number) > want.limit:
            break
        took = dict[str, Took]()
        for way in ways if number % 2 == 0 else reversed(ways):
            before = used_s(running.process.pid)
            took[way] = asyncio.run(asked(ways[way], want.clients, want.tokens))
            if way == "endpoint":
                used += used_s(running.process.pid) - before
        pairs.append(took)
        print(json.dumps({way: found._asdict() for way, found in took.items()}), flush=True)
    return compared(pairs, used / (len(pairs) * want.clients * want.tokens))


def main() -> None:
    """A line a pair, then medians."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--engine", default="transformers", choices=["transformers", "vllm"])
    args.add_argument("--python", default="", help="the Python that has the engine")
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--clients", type=int, default=16)
    args.add_argument("--tokens", type=int, default=64)
    args.add_argument("--layers", type=int, default=2)
    args.add_argument("--width", type=int, default=128)
    args.add_argument("--limit", type=float, default=480, help="seconds for all pairs")
    args.add_argument("--memory", type=int, default=0, help="instead: so many short requests, and the memory")
    args.add_argument("--page", action="store_true", help="write docs/benchmarks/serve.md")
    want = args.parse_args()
    options = SMALL if want.engine == "transformers" else ("--enforce-eager", "--max-model-len", str(CONTEXT))
    words = ["--engine", want.engine, *(("--python", want.python) if want.python else ())]
    with tempfile.TemporaryDirectory() as name:
        model = make_tiny(Path(name) / "tiny", layers=want.layers, width=want.width)
        running = Running(model, Path(name) / "runs", *words, engine=options)
        try:
            running.wait(lambda: running.get("/health")[0] == 200, 600)
            if want.memory:
                section = f"Memory of the endpoint, {want.engine} behind it"
                through = Way(running.url, {})
                text = kept(asyncio.run(memory(through, running.process.pid, want.memory, want.clients)))
            else:
                section = f"The endpoint, {want.engine} behind it"
                text = measured(want, running)
        finally:
            running.stop()
    size = f"{want.layers} layers of {want.width}, {want.clients} clients at once"
    text = f"{preface()} Random weights, {size}.\n\n{text}"
    print(text)
    if want.page:
        write(PAGE, "Serve", section, text)


if __name__ == "__main__":
    main()
