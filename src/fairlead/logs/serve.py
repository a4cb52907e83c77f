"""The owner of the store: takes what nodes collect, and answers KQL, over HTTP.

    POST /v1/batch    of a collector (batch.py)      -> {"ends": {source: how far}, "unknown": [source, ...]}
    POST /v1/query    {"query": KQL, "format": ...}  -> {"document": ..., "text": ..., "cut": ...}
    POST /v1/diagnose {"job": 4711, "findings": ...} -> {"document": the diagnosis}, or {"error": ...}
    GET  /v1/status   who was heard; what the store holds, its limits, and what was dropped for them

Loopback unless it is told an address. Nobody is answered without the token of a file: the owner's own, or for batches
the one of the node that sends (`token_for`). A Host that is not ours and any Origin are refused, so no page in a
browser gets here. Nothing that comes is ever SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import secrets
import signal
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from fairlead.base.files import write_atomic
from fairlead.base.trust import PRIVATE_FILE, read_file
from fairlead.errors import FairleadError, QueryError, UsageError
from fairlead.logs.batch import PACKED_BYTES, unpacked
from fairlead.logs.diagnose.explain import Why, explained
from fairlead.logs.kql.evaluate import answer
from fairlead.logs.kql.faces import csv_text, document, svg, text
from fairlead.logs.kql.relation import Limits
from fairlead.logs.kql.sql.relation import Engine, StoreTables
from fairlead.logs.onnode.agent import token_for
from fairlead.logs.owner import OWNER, Owner
from fairlead.logs.receive import Busy, Receiver
from fairlead.logs.store import Store
from fairlead.records.border import Border, Breach

PORT = 8470
TOKEN = "serve.token"  # noqa: S105 - a name of a file
QUERY_BYTES = 1 << 20
WHY_BYTES = 64 << 20
"""A question about a job, with dumps of its ranks and the findings of other runs."""
MAX_QUERIES = 8
"""Questions at a time; further ones are asked to come again."""
LIMIT_S = 60.0
T = TypeVar("T")
_END: list[Any] = []
_BEGIN, _END_MARK = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A query from elsewhere."""

    query: Annotated[str, Meta(max_length=QUERY_BYTES)]
    parameters: Annotated[dict[str, str], Meta(max_length=256)] = {}
    format: Literal["table", "csv", "svg"] = "table"
    rows: Annotated[int, Meta(ge=1, le=10_000_000)] = 500_000
    memory_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 0


QUESTION = Border(Question, "a question", max_bytes=QUERY_BYTES + 65536)
WHY = Border(Why, "a question about a job", max_bytes=WHY_BYTES)


class Shared:
    """The engine, for questions beside what is taken in: one at a time is inside of it."""

    def __init__(self, engine: Engine, lock: threading.Lock) -> None:
        self.engine, self.lock = engine, lock

    def rows(self, sql: str) -> Iterator[list[Any]]:
        """The rows; the engine is done when the first one leaves."""
        rows = self.engine.rows(sql)
        with self.lock:
            first = next(rows, _END)
        if first is not _END:
            yield first
            yield from rows

    def tables(self) -> Iterable[str]:
        """The tables that a query may read."""
        with self.lock:
            return list(self.engine.tables())

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Names and types."""
        with self.lock:
            return self.engine.columns(table)


def listening(text: str) -> tuple[str, int]:
    """`127.0.0.1:8470`, or an address alone. Raises UsageError for a name, or for all addresses at once."""
    bare = text.strip("[]")
    host, _, port = (bare, "", str(PORT)) if _is_address(bare) else text.rpartition(":")
    host = host.strip("[]")
    if not _is_address(host) or not port.isdigit() or int(port) > 65535:
        raise UsageError("cli/usage", f"`{text[:80]}` is no address and port", hint="--listen 10.0.0.4:8470")
    if ipaddress.ip_address(host).is_unspecified:
        raise UsageError("cli/usage", f"`{text[:80]}` would listen on every network", hint="--listen 10.0.0.4:8470")
    return host, int(port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def secret_of(place: Path, file: Path | None) -> tuple[bytes, Path]:
    """The owner's token and its file: the one that is named, or one in the store's folder, made where there is none.

    Raises UsageError.
    """
    path = file or place / TOKEN
    if file is None and not path.exists():
        write_atomic(path, secrets.token_urlsafe(32) + "\n", mode=PRIVATE_FILE)
    try:
        token = read_file(path, 4096, ours=True).strip()
        if path.stat().st_mode & 0o077:
            raise UsageError("cli/usage", f"{path} can be read by others", hint=f"chmod 600 {path}")
    except OSError as error:
        raise UsageError("cli/usage", f"{path}: {error.strerror or error}", hint="--token-file FILE") from None
    if len(token) < 16 or not token.isascii():
        raise UsageError("cli/usage", f"{path} holds no token of 16 ASCII characters", hint="openssl rand -hex 32")
    return token, path


class Proof(NamedTuple):
    """By what the owner proves to others who it is."""

    context: ssl.SSLContext
    certificate: str
    """Its own, in PEM."""


def proof_of(certificate: Path | None, key: Path | None) -> Proof | None:
    """What speaks TLS; None where neither is named. Raises UsageError."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("cli/usage", "--certificate goes with --key", hint="--certificate FILE --key FILE")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        if key.stat().st_mode & 0o077:
            raise UsageError("cli/usage", f"{key} can be read by others", hint=f"chmod 600 {key}")
        context.load_cert_chain(certificate, key, password=lambda: b"")  # a prompt would wait for nobody
        text = certificate.read_text("ascii")
        first = text.index(_BEGIN)
        return Proof(context, text[first : text.index(_END_MARK, first) + len(_END_MARK)] + "\n")
    except (OSError, ValueError) as error:
        text = f"{certificate} and {key} are no certificate and its key: {error}"
        raise UsageError("cli/usage", text, hint="both in PEM, the key without a passphrase") from None


class Serving:
    """The endpoint."""

    def __init__(self, store: Store, receiver: Receiver, secret: bytes, names: Iterable[str] = ()) -> None:
        self.receiver, self.secret, self.names = receiver, secret, {name.lower() for name in names}
        self.shared = Shared(store.engine, receiver.engine)
        self.num_queries = 0
        self.app = web.Application(middlewares=[self._guarded], client_max_size=PACKED_BYTES)
        self.app.router.add_post("/v1/batch", self.batch)
        self.app.router.add_post("/v1/query", self.query)
        self.app.router.add_post("/v1/diagnose", self.diagnose)
        self.app.router.add_get("/v1/status", self.status)

    @property
    def _guarded(self) -> Any:
        @web.middleware
        async def guarded(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            host = request.host.lower()
            name = host if _is_address(host.strip("[]")) else host.rpartition(":")[0] or host
            if name.strip("[]") not in self.names or "Origin" in request.headers:
                raise web.HTTPForbidden(text="not by this name\n")
            said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            node = urllib.parse.unquote(request.headers.get("X-Fairlead-Node", ""), errors="surrogateescape")
            request["node"], request["central"] = None, True
            if not hmac.compare_digest(said, b"Bearer " + self.secret):
                request["node"] = node
                request["central"] = self._is_of(said, node, central=True)
                if not node or request.path != "/v1/batch" or not (request["central"] or self._is_of(said, node)):
                    raise web.HTTPUnauthorized(text="a token, please\n", headers={"WWW-Authenticate": "Bearer"})
            return await handler(request)

        return guarded

    def _is_of(self, said: bytes, node: str, *, central: bool = False) -> bool:
        return hmac.compare_digest(said, b"Bearer " + token_for(self.secret, node, central))

    async def batch(self, request: web.Request) -> web.Response:
        """Take what a node sends; answered once it is on the disk."""
        try:
            async with asyncio.timeout(LIMIT_S):
                body = await request.read()
            header, parts = await asyncio.to_thread(unpacked, body)
            if request["node"] not in {None, header.node}:
                raise web.HTTPForbidden(text="this token is another node's\n")
            done = self.receiver.put(header, parts, central=request["central"])
            found = await asyncio.wrap_future(done)
        except Breach as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        except Busy:
            raise web.HTTPServiceUnavailable(text="too much waits\n", headers={"Retry-After": "1"}) from None
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        except FairleadError as error:
            raise web.HTTPInsufficientStorage(text=f"{error}\n", headers={"Retry-After": "5"}) from None
        return web.json_response(found)

    async def query(self, request: web.Request) -> web.Response:
        """Answer in KQL."""
        return await self._ask(request, QUESTION, self._answered)

    async def diagnose(self, request: web.Request) -> web.Response:
        """Say why a job died."""
        return await self._ask(request.clone(client_max_size=WHY_BYTES), WHY, self._explained)

    async def _ask(self, request: web.BaseRequest, border: Border[T], answered: Callable[[T], Any]) -> web.Response:
        """Have a question answered, in a thread, where not too many are."""
        if self.num_queries >= MAX_QUERIES:
            raise web.HTTPServiceUnavailable(text="too many questions\n", headers={"Retry-After": "1"})
        self.num_queries += 1
        try:
            async with asyncio.timeout(LIMIT_S):
                body = await request.read()
            said = await asyncio.to_thread(_said, lambda: answered(border(body)))
        except Breach as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        finally:
            self.num_queries -= 1
        return web.Response(body=msgspec.json.encode(said), content_type="application/json")

    def _answered(self, question: Question) -> dict[str, Any]:
        limits = Limits(memory_bytes=question.memory_bytes, answer_rows=question.rows)
        found = answer(question.query, StoreTables(self.shared), limits=limits, parameters=question.parameters)
        faces = {"csv": csv_text, "svg": lambda found: svg(found, question.query), "table": text}
        return {"document": document(found), "text": faces[question.format](found), "cut": found.cut,
                "num_rows": len(found.rows)}  # fmt: skip

    def _explained(self, why: Why) -> dict[str, Any]:
        return {"document": explained(self.shared, why)}

    async def status(self, _: web.Request) -> web.Response:
        """Who was heard."""
        now = time.time()
        nodes = {
            name: {
                "heard_s": round(now - said.heard, 1),
                "records": said.records,
                "bytes": said.bytes,
                "lost": said.lost,
            }
            for name, said in sorted(self.receiver.nodes.items())
        }
        kept = self.receiver.kept
        store = msgspec.to_builtins(kept) | {"says": kept.says}
        return web.json_response({"nodes": nodes, "broken": self.receiver.broken, "store": store})


def _said(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """An answer, or what was wrong with the question."""
    try:
        return ask()
    except QueryError as error:
        return {"problems": [msgspec.to_builtins(problem) for problem in error.problems]}
    except FairleadError as error:
        return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    except RuntimeError as error:
        return {"error": {"code": "logs/engine", "message": str(error).partition("\n")[0][:300], "hint": ""}}


async def _until_ended(
    serving: Serving, host: str, port: int, begun: Callable[[int], None], proof: Proof | None
) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    runner = web.AppRunner(serving.app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024, ssl_context=proof.context if proof else None)
        await site.start()
        begun(runner.addresses[0][1])
        await ended.wait()
    finally:
        await runner.cleanup()


def serve(
    store: Store, receiver: Receiver, secret: bytes, listen: tuple[str, int],
    *, names: Iterable[str] = (), begun: Callable[[str], None] = lambda _: None, token_file: Path, place: Path,
    proof: Proof | None = None,
) -> None:  # fmt: skip
    """Serve until SIGTERM or Ctrl-C; the folder `place` says so. Raises UsageError where the address cannot be had."""
    host, port = listen
    known = {host, socket.gethostname(), *names}
    if ipaddress.ip_address(host).is_loopback:
        known.add("localhost")
    shown = f"[{host}]" if ":" in host else host

    def told(number: int) -> None:
        url = f"http{'s' if proof else ''}://{shown}:{number}"
        said = Owner(url=url, token_file=str(token_file), certificate=proof.certificate if proof else "")
        write_atomic(place / OWNER, msgspec.json.encode(said), mode=PRIVATE_FILE)
        begun(url)

    try:
        asyncio.run(_until_ended(Serving(store, receiver, secret, known), host, port, told, proof))
    except OSError as error:
        raise UsageError("cli/usage", f"{shown}:{port}: {error.strerror}", hint="--listen 127.0.0.1:0") from None
    finally:
        with contextlib.suppress(OSError):
            (place / OWNER).unlink()
