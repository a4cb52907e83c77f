"""From a model to an endpoint and to its end: listen, verify, load, answer, drain.

It listens first, so that a port which is taken is an error at once and whoever asks early hears why there is no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from aiohttp import web

from fairlead.base.trust import NotOurs, read_file
from fairlead.base.units import counted
from fairlead.errors import Exit, FairleadError, UsageError
from fairlead.serve.endpoint.app import Endpoint
from fairlead.serve.endpoint.asked import LOOPBACK, Keys, error_body
from fairlead.serve.endpoint.engine import STARTS, Process, State
from fairlead.serve.endpoint.engines import ENGINES, Engine, choose

if TYPE_CHECKING:
    from fairlead.serve.table import Serve

log = logging.getLogger("fairlead.serve")

_KEPT_S = 75.0
"""How long a connection without a request is kept; load balancers keep theirs for 60 s."""
_LINGER_S = 2.0
"""How long a client may still send after it was refused: it would not read the refusal otherwise."""
_REPLY_TOKENS = 32
_MAX_CONFIG_BYTES = 4 << 20
_MAX_TOKENIZER_BYTES = 64 << 20
_MAX_KEYS_BYTES = 64 << 10
_LOOK = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n.partition('.')[0])])"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is served, from where to where."""

    model: Path
    name: str
    host: str
    port: int
    """0: any that is free."""
    folder: Path
    """Empty, of this run: the engine's log, its working folder."""
    python: str
    engine: Engine
    more: tuple[str, ...] = ()
    """Options for the engine."""
    hosts: tuple[str, ...] = ()
    """Names that requests may call us by, beside the loopback's own."""
    ask: str = ""
    """A question of our own: it ends when that is answered."""


class ServeResult(msgspec.Struct, kw_only=True):
    """What came of it."""

    answers: int = 0
    """With status 200."""
    reply: str = ""
    """To the question of our own."""


def engine_in(python: str, wanted: str) -> Engine:
    """The engine that this Python has. Raises UsageError or MissingTool."""
    modules = [engine.module for engine in ENGINES]
    try:
        done = subprocess.run([python, "-c", _LOOK, *modules], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError("cli/usage", f"{python} does not run: {error}", hint="--python ENV/bin/python") from None
    return choose(wanted, done.stdout.split(), python)


def keys_in(path: Path) -> Keys:
    """API keys, one a line, from a file that nobody else may read or write. Raises UsageError."""
    hint = f"one key a line in a file of yours: chmod 600 {path}"
    try:
        text = read_file(path, _MAX_KEYS_BYTES, ours=True).decode()
        mode = path.stat().st_mode
    except NotOurs as error:
        raise UsageError("serve/api-key", f"{path} cannot be trusted: {error.strerror}", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("serve/api-key", f"{path} cannot be read: {error}", hint=hint) from None
    if mode & 0o077:
        raise UsageError("serve/api-key", f"others may read the API keys in {path}", hint=hint)
    keys = Keys(text)
    if not keys.digests:
        raise UsageError("serve/api-key", f"{path} holds no key", hint=hint)
    return keys


def context_of(model: Path) -> int:
    """How many tokens a model can hold, as its config says; 0 where it says nothing."""
    try:
        config: Any = msgspec.json.decode(read_file(model / "config.json", _MAX_CONFIG_BYTES))
    except (OSError, msgspec.DecodeError, RecursionError):
        return 0
    inner = config.get("text_config") if isinstance(config, dict) else None
    for part in (config, inner):
        value = part.get("max_position_embeddings") if isinstance(part, dict) else None
        if isinstance(value, int) and value > 0:
            return value
    return 0


def counter_of(model: Path) -> Callable[[str], int] | None:
    """What counts tokens of a text, by the model's own tokenizer; None where no package reads that."""
    try:
        from tokenizers import Tokenizer

        raw = read_file(model / "tokenizer.json", _MAX_TOKENIZER_BYTES)
        tokenizer = Tokenizer.from_str(raw.decode())
    except Exception as error:  # noqa: BLE001 - the package raises Exception itself
        log.info("prompts are counted by the engine alone: %s", error)
        return None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def serve(
    place: Place, settings: Serve, *, keys: Keys | None, verify: Callable[[], None], said: Callable[[str], None]
) -> ServeResult:
    """Serve until a signal, or until `place.ask` is answered. `verify` raises where the model is not to be loaded."""
    with asyncio.Runner(loop_factory=_quick_loop()) as runner:
        return runner.run(_serve(place, settings, keys, verify, said))


def _quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop where it is installed: a part of an answer then costs about a quarter less; else asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return made


async def _serve(
    place: Place, settings: Serve, keys: Keys | None, verify: Callable[[], None], said: Callable[[str], None]
) -> ServeResult:
    context = settings.context_tokens or context_of(place.model)
    hosts = frozenset({*(LOOPBACK if _is_loopback(place.host) else ()), *(name.lower() for name in place.hosts)})
    endpoint = Endpoint(place.name, settings, context=context, count=counter_of(place.model), keys=keys, hosts=hosts)
    runner = web.AppRunner(
        endpoint.app(),
        handler_cancellation=True,
        access_log=None,
        lingering_time=_LINGER_S,
        keepalive_timeout=_KEPT_S,
        handle_signals=False,
    )
    await runner.setup()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked_to_stop, stop, asyncio.current_task())
    listening = await _listen(runner, place)
    assert runner.server is not None
    sweeping = asyncio.create_task(_send_away(runner.server, settings.request_s))
    try:
        said(f"http://{_shown_host(place.host)}:{listening.sockets[0].getsockname()[1]} listens")
        reply = await _with_engine(endpoint, place, settings, verify, said, stop=stop)
    finally:
        sweeping.cancel()
        listening.close()
        await runner.cleanup()
    answers = sum(n for (_route, status), n in endpoint.metrics.answers.items() if status == 200)
    return ServeResult(answers=answers, reply=reply)


async def _with_engine(
    endpoint: Endpoint,
    place: Place,
    settings: Serve,
    verify: Callable[[], None],
    said: Callable[[str], None],
    *,
    stop: asyncio.Event,
) -> str:
    """What was answered to `place.ask`."""
    if not await _done_before(stop, verify):
        return ""
    limit = aiohttp.ClientTimeout(total=None, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
    async with aiohttp.ClientSession(timeout=limit, connector=connector, auto_decompress=False) as session:
        endpoint.session = session
        endpoint.process = Process(
            place.engine,
            place.python,
            place.model,
            place.name,
            place=place.folder,
            patience_s=settings.patience_s,
            more=place.more,
        )
        endpoint.state = State.READY  # from now on, the engine says it
        keeping = asyncio.create_task(endpoint.process.keep(session))
        telling = asyncio.create_task(_tell(endpoint, said))
        stopping = asyncio.create_task(stop.wait())
        asking = asyncio.create_task(_asked(endpoint, place)) if place.ask else stopping
        try:
            await asyncio.wait((keeping, stopping, asking), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
                raise _no_engine(place)
            endpoint.state = State.DRAINING
            said(f"draining: {endpoint.admission.present} answers to finish")
            try:
                async with asyncio.timeout(settings.drain_s):
                    await endpoint.admission.empty()
            except TimeoutError:
                late = counted(endpoint.admission.present, "answer")
                said(f"{late} took longer than serve.drain_s, {settings.drain_s:g} s: the engine is stopped")
            return str(asking.result()) if place.ask and asking.done() else ""
        finally:
            for task in (keeping, telling, stopping, asking):
                task.cancel()
            await asyncio.gather(keeping, telling, stopping, asking, return_exceptions=True)


async def _asked(endpoint: Endpoint, place: Place) -> str:
    """The engine's answer to `place.ask`, once it is ready. Raises FairleadError for a refusal."""
    assert endpoint.process is not None
    assert endpoint.session is not None
    await endpoint.process.answers.wait()
    body = {"model": place.name, "prompt": place.ask, "max_tokens": _REPLY_TOKENS}
    url, headers = f"{endpoint.process.url}/v1/completions", endpoint.process.headers
    try:
        async with endpoint.session.post(url, json=body, headers=headers) as answer:
            raw = await answer.content.read(_MAX_CONFIG_BYTES)
            if answer.status == 200:
                return str(msgspec.json.decode(raw)["choices"][0]["text"])
            why = f"it answered with {answer.status}"
    except (aiohttp.ClientError, OSError, msgspec.DecodeError, LookupError, TypeError) as error:
        why = str(error) or type(error).__name__
    hint = f"less {place.folder}/engine.log"
    raise FairleadError("serve/engine", f"the engine {place.engine.name} did not answer the question: {why}", hint=hint)


async def _done_before(stop: asyncio.Event, work: Callable[[], None]) -> bool:
    """Whether `work` ended before `stop` was set; nobody waits for it then. Raises what `work` raises."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    ended, stopping = asyncio.wrap_future(done), asyncio.create_task(stop.wait())
    await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if ended.done():
        ended.result()
    return ended.done()


async def _tell(endpoint: Endpoint, said: Callable[[str], None]) -> None:
    """Say each change of state once."""
    before = None
    while True:
        if endpoint.now is not before:
            before = endpoint.now
            said(f"{endpoint.name} is {before}")
        await asyncio.sleep(0.2)


def _asked_to_stop(stop: asyncio.Event, task: asyncio.Task[Any] | None) -> None:
    """The first time answers are finished, the second time not."""
    if stop.is_set() and task is not None:
        task.cancel()
    stop.set()


async def _listen(runner: web.AppRunner, place: Place) -> asyncio.Server:
    server = runner.server
    assert server is not None
    try:
        loop = asyncio.get_running_loop()
        return await loop.create_server(server, place.host, place.port, backlog=1024, reuse_address=True)
    except OSError as error:
        text = f"nothing can listen on {place.host}:{place.port}: {error.strerror or error}"
        raise FairleadError("serve/port", text, hint="--port 0 takes any that is free", exit=Exit.USAGE) from None


async def _send_away(server: web.Server, request_s: float) -> None:
    """Whoever connects and sends no whole head within `request_s` is told so (408): aiohttp would wait for ever."""
    since: dict[web.RequestHandler, float] = {}
    while True:
        now = time.monotonic()
        silent = [handler for handler in server.connections if not handler._request_count]  # noqa: SLF001
        since = {handler: since.get(handler, now) for handler in silent}
        for handler, began in since.items():
            if now - began > request_s and handler.transport is not None:
                body = error_body(408, "request_timeout", "the head of the request did not arrive in time")
                head = f"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
                handler.transport.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
                handler.transport.close()
        await asyncio.sleep(min(1.0, request_s / 4))


def _is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _no_engine(place: Place) -> FairleadError:
    lines = _last(place.folder / "engine.log")
    text = f"the engine {place.engine.name} did not start, {STARTS} times in a row"
    return FairleadError("serve/engine", f"{text}: {lines}" if lines else text, hint=f"less {place.folder}/engine.log")


def _last(path: Path) -> str:
    from fairlead.base.shown import shown

    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return shown(lines[-1][:300]) if lines else ""
    return ""


def model_of(source: Path) -> tuple[Path, bool]:
    """(the folder of the model, whether it lies in a bundle). Raises UsageError."""
    from fairlead.serve.record import MANIFEST

    if not (source / MANIFEST).is_file():
        return source, False
    if (source / "model").is_dir():
        return source / "model", True
    hint = "start that image, or make the bundle with --form directory"
    raise UsageError("serve/image-bundle", f"{source} holds an image, which is no folder to serve from", hint=hint)


def name_of(source: Path, wanted: str, taken: Sequence[str] = ("engine.log",)) -> str:
    """What the model is called. Raises UsageError."""
    name = wanted or source.resolve().name
    if not name.isprintable() or "/" in name or name.startswith((".", "-")) or "@" in name or name in taken:
        raise UsageError("cli/usage", f"{name!a} is no name for a model", hint="--name llama")
    return name
