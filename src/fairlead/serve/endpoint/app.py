"""The endpoint's own HTTP: a request is checked, given a place, passed on; its answer passed back as it comes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from fairlead.serve.endpoint.admission import Admission
from fairlead.serve.endpoint.asked import (
    ROUTES,
    Keys,
    Refused,
    check_host,
    check_length,
    check_origin,
    error_body,
    parse,
)
from fairlead.serve.endpoint.engine import State
from fairlead.serve.endpoint.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Collection

    from fairlead.serve.endpoint.engine import Process
    from fairlead.serve.table import Serve

log = logging.getLogger("fairlead.serve")

_MAX_ERROR = 64 << 10
_LONG = 64 << 10
_SMALL = 16 << 10
"""Below what makes a transport ask its writer to wait: asyncio's high-water mark is 64 KiB."""
_JSON = "application/json"
_ENGINE_METRICS_S = 2.0
_PASSED_ON = ("Content-Type", "X-Request-Id")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """What all requests share."""

    def __init__(
        self,
        name: str,
        settings: Serve,
        *,
        context: int,
        count: Callable[[str], int] | None,
        keys: Keys | None,
        hosts: Collection[str],
    ) -> None:
        """`context` in tokens, 0 unknown; `count` tells tokens of a text; `hosts` empty: any."""
        self.name, self.settings = name, settings
        self.context, self.count, self.keys, self.hosts = context, count, keys, hosts
        self.admission = Admission(running=settings.concurrency, waiting=settings.queue, wait_s=settings.queue_s)
        self.metrics = Metrics()
        self.state = State.VERIFYING
        self.process: Process | None = None
        self.session: aiohttp.ClientSession | None = None
        self._created = int(time.time())

    @property
    def now(self) -> State:
        """What `/health` says."""
        if self.state is State.READY and self.process is not None:
            return self.process.state
        return self.state

    def app(self) -> web.Application:
        """For aiohttp; a body is limited here, not there."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        for route in ROUTES:
            app.router.add_post(route, self._ask)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        try:
            host = request.headers.get("Host", "")
            check_host(host, self.hosts)
            check_origin(request.headers.get("Origin", ""), host, self.hosts)
            if self.keys is not None and route not in ("/health", "/metrics"):
                self.keys.check(request.headers)
            answer = await handler(request)
        except Refused as error:
            answer = self._refusal(error, drop=not request.content.is_eof())
        except web.HTTPException as error:
            text = f"{request.method} {request.path} is not known here"
            code = {404: "not_found", 405: "method_not_allowed"}.get(error.status, "invalid_request")
            answer = self._refusal(Refused(error.status, code, text), drop=not request.content.is_eof())
        self.metrics.answers[route, answer.status] += 1
        return answer

    def _refusal(self, error: Refused, *, drop: bool) -> web.Response:
        self.metrics.refused[error.code] += 1
        answer = web.Response(status=error.status, body=error.body, content_type=_JSON)
        if error.again_s:
            answer.headers["Retry-After"] = str(error.again_s)
        if drop or self.state is State.DRAINING:
            answer.force_close()
        return answer

    async def _health(self, request: web.Request) -> web.Response:
        ready = self.now is State.READY
        return web.json_response({"status": self.now}, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        restarts = self.process.restarts if self.process else 0
        text = self.metrics.text(
            {
                "ready": ("1 while questions are answered", self.now is State.READY),
                "running": ("Requests at the engine", self.admission.running),
                "waiting": ("Requests without a place at the engine", self.admission.waiting),
                "engine_restarts": ("How often the engine was started again", restarts),
            }
        )
        text += await self._engine_metrics()
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _engine_metrics(self) -> str:
        """The engine's own, where it has some: its names are its own too."""
        if self.process is None or self.session is None or not self.process.engine.has_metrics:
            return ""
        limit = aiohttp.ClientTimeout(total=_ENGINE_METRICS_S)
        with suppress(aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
            async with self.session.get(f"{self.process.url}/metrics", timeout=limit) as answer:
                if answer.status == 200:
                    return await answer.text()
        return ""

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._card()]})

    async def _model(self, request: web.Request) -> web.Response:
        self._check_model(request.match_info["name"])
        return web.json_response(self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self.name,
            "object": "model",
            "created": self._created,
            "owned_by": "fairlead",
            "max_model_len": self.context or None,
        }

    def _check_model(self, name: str) -> None:
        if name != self.name:
            raise Refused(404, "model_not_found", f"no model is called so here; there is {self.name}", param="model")

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        with self.admission.entered():
            if request.content_type != _JSON:
                raise Refused(415, "invalid_content_type", f"the body must be {_JSON}")
            self._check_ready()
            raw = await self._body(request)
            question = parse(raw, request.path)
            self._check_model(question.model)
            if len(raw) > _LONG:  # counting its tokens takes milliseconds, which others need not wait for
                await asyncio.to_thread(check_length, question, self.context, self.count)
            else:
                check_length(question, self.context, self.count)
            began = time.monotonic()
            async with self.admission.place():
                self._check_ready(begun=True)
                answer = await self._passed(request, raw, began)
            self.metrics.whole.add(time.monotonic() - began)
            return answer

    def _check_ready(self, *, begun: bool = False) -> None:
        """Refuse (503) what cannot be answered now; what waited already when draining began is still answered."""
        now = self.now
        if now is State.READY or (begun and now is State.DRAINING):
            return
        why = {State.DRAINING: "it is being stopped", State.FAILED: "its engine does not start"}
        text = f"the model is not being served: {why.get(now, 'it is ' + now)}"
        raise Refused(503, "not_ready", text, again_s=0 if now is State.FAILED else 5)

    async def _body(self, request: web.Request) -> bytes:
        """All of it; at most `body_bytes` (413), within `request_s` (408)."""
        most = self.settings.body_bytes
        large = Refused(413, "body_too_large", f"the body has more than {most} bytes")
        if (request.content_length or 0) > most:
            raise large
        raw = bytearray()
        try:
            async with asyncio.timeout(self.settings.request_s):
                async for chunk in request.content.iter_any():
                    raw += chunk
                    if len(raw) > most:
                        raise large
        except TimeoutError:
            text = f"the body did not arrive within {self.settings.request_s:g} s"
            raise Refused(408, "request_timeout", text) from None
        except (aiohttp.ClientPayloadError, web.RequestPayloadError) as error:
            raise Refused(400, "invalid_body", f"the body is not what its head says: {error}") from None
        return bytes(raw)

    async def _written(self, request: web.Request, answer: web.StreamResponse, chunk: bytes) -> None:
        """Pass on a part. A client that reads none of it for `request_s` would keep its place for ever: it loses it.

        A small part goes without a clock where the client has taken all before: the transport then takes it at once.
        """
        transport = request.transport
        if transport is not None and len(chunk) <= _SMALL and transport.get_write_buffer_size() == 0:
            await answer.write(chunk)
            return
        try:
            async with asyncio.timeout(self.settings.request_s):
                await answer.write(chunk)
        except TimeoutError:
            if transport is not None:
                transport.abort()
            raise _ReadsNothing from None

    async def _passed(self, request: web.Request, raw: bytes, began: float) -> web.StreamResponse:
        """Ask the engine. Whoever goes away cancels this, which closes the connection to it: it generates no more."""
        assert self.process is not None
        assert self.session is not None
        answer: web.StreamResponse | None = None
        try:
            headers = {**self.process.headers, "Content-Type": _JSON}
            async with self.session.post(f"{self.process.url}{request.path}", data=raw, headers=headers) as asked:
                if asked.status != 200:
                    self.metrics.first.add(time.monotonic() - began)
                    return _engine_error(asked.status, await asked.content.read(_MAX_ERROR))
                passed = {name: asked.headers[name] for name in _PASSED_ON if name in asked.headers}
                answer = web.StreamResponse(headers=passed)
                if asked.content_length is not None:
                    answer.content_length = asked.content_length
                async for chunk in asked.content.iter_any():
                    if not answer.prepared:
                        self.metrics.first.add(time.monotonic() - began)
                        await answer.prepare(request)
                    await self._written(request, answer, chunk)
                if not answer.prepared:
                    await answer.prepare(request)
                await answer.write_eof()
                return answer
        except asyncio.CancelledError:
            self.metrics.left += 1
            raise
        except _ReadsNothing:
            self.metrics.left += 1
            assert answer is not None
            answer.force_close()
            return answer
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, aiohttp.ClientConnectionResetError) and (
                request.transport is None or request.transport.is_closing()
            ):
                self.metrics.left += 1
                raise asyncio.CancelledError from None
            self.metrics.cut += 1
            log.warning("the engine did not answer: %s", error)
            text = "the engine ended before its answer did; it is started again"
            if self.state is State.DRAINING:
                text = f"the server was stopped, and the answer took longer than {self.settings.drain_s:g} s"
            if answer is None or not answer.prepared:
                raise Refused(503, "engine_gone", text, again_s=5) from None
            return await _cut(request, answer, text)


class _ReadsNothing(Exception):
    """A client took nothing of its answer for too long."""


async def _cut(request: web.Request, answer: web.StreamResponse, text: str) -> web.StreamResponse:
    """End an answer that had begun: a stream says so, and no other answer ends as if it were whole."""
    if answer.content_type == "text/event-stream":
        with suppress(OSError):
            await answer.write(b"\n\ndata: " + error_body(503, "engine_gone", text) + b"\n\n")
    elif request.transport is not None:
        request.transport.abort()
    answer.force_close()
    return answer


def _engine_error(status: int, raw: bytes) -> web.Response:
    """An engine's refusal in OpenAI's form: as it is where it has that, else with its own words."""
    import msgspec

    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = msgspec.json.decode(raw)
        if isinstance(body, dict) and isinstance(body.get("error"), dict):
            return web.Response(status=status, body=raw, content_type=_JSON)
        if isinstance(body, dict) and (said := body.get("detail") or body.get("error")):
            status = 400 if status == 422 else status
            return web.Response(status=status, body=error_body(status, "engine", str(said)), content_type=_JSON)
    text = f"the engine answered with {status}; its log says why"
    return web.Response(status=status, body=error_body(status, "engine", text), content_type=_JSON)
