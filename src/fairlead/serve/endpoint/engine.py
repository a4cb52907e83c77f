"""An engine as a process: started, asked until it answers, watched, started again, stopped with all it began."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from fairlead.serve.endpoint.engines import Engine, Wanted, engine_command
from fairlead.serve.image import OFFLINE

log = logging.getLogger("fairlead.serve")

_EVERY_S = 0.5
_HEALTH_S, _HEALTH_LIMIT_S, _STRIKES = 5.0, 20.0, 3
"""How often it is asked whether it is well, how long it may think, and how often it may fail in a row."""
_STOP_S = 20.0
_FIRST_PAUSE_S, _MOST_PAUSE_S = 1.0, 30.0
STARTS = 5
"""That may fail in a row before nobody tries again."""


class State(enum.StrEnum):
    """What `/health` says."""

    VERIFYING = "verifying"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Process:
    """One engine behind the endpoint; `keep` is the task that has it running."""

    def __init__(
        self,
        engine: Engine,
        python: str,
        model: Path,
        name: str,
        *,
        place: Path,
        patience_s: float,
        more: Sequence[str],
    ) -> None:
        """`place` is an empty folder of this run; `more` are options the user has for the engine."""
        self.engine = engine
        self.state = State.LOADING
        self.restarts = 0
        self.answers = asyncio.Event()
        """Set once it was ready."""
        self._python, self._more, self._patience_s = python, more, patience_s
        self._wanted = Wanted(model=str(model), name=name, port=0)
        self._place = place
        self._child: asyncio.subprocess.Process | None = None
        self._key = secrets.token_urlsafe(24) if engine.key_variable else ""
        (place / name).symlink_to(model)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._wanted.port}"

    @property
    def headers(self) -> dict[str, str]:
        """That each question to it needs."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    @property
    def pid(self) -> int:
        """Of the engine, which leads a process group; 0 while there is none."""
        return self._child.pid if self._child else 0

    async def keep(self, session: aiohttp.ClientSession) -> None:
        """Start it, and again whenever it ends or no longer answers; returns once it failed `STARTS` times in a row."""
        failed = 0
        while failed < STARTS:
            self.state = State.LOADING
            began = time.monotonic()
            try:
                await self._start()
                if await self._loaded(session):
                    failed, self.state = 0, State.READY
                    self.answers.set()
                    log.info("the engine is ready after %.1f s", time.monotonic() - began)
                    await self._until_ill(session)
                else:
                    failed += 1
            finally:
                self.state = State.LOADING
                await self._stop()
            self.restarts += 1
            pause = min(_FIRST_PAUSE_S * 2**failed, _MOST_PAUSE_S)
            log.warning("the engine ended; it is started again in %g s", pause)
            await asyncio.sleep(pause)
        self.state = State.FAILED

    async def _start(self) -> None:
        self._wanted = Wanted(model=self._wanted.model, name=self._wanted.name, port=_free_port())
        words = engine_command(self._python, self.engine, self._wanted, self._more)
        if setpriv := shutil.which("setpriv"):
            words = [setpriv, "--pdeathsig", "TERM", "--", *words]
        with (self._place / "engine.log").open("ab") as out:
            self._child = await asyncio.create_subprocess_exec(
                *words,
                cwd=self._place,
                env=_environment(os.environ, self.engine, self._key),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    async def _loaded(self, session: aiohttp.ClientSession) -> bool:
        """Whether it answers a first question, of one token: then its weights are there."""
        until = time.monotonic() + self._patience_s
        question = {"model": self._wanted.name, "prompt": "a", "max_tokens": 1}
        while self._runs() and time.monotonic() < until:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                limit = aiohttp.ClientTimeout(total=until - time.monotonic())
                asked = session.post(f"{self.url}/v1/completions", json=question, headers=self.headers, timeout=limit)
                if (answer := await self._while_it_runs(_status(asked))) == 200:
                    return True
                log.warning("the engine answers its first question with %d", answer)
            await asyncio.sleep(_EVERY_S)
        return False

    async def _while_it_runs(self, asked: asyncio.Task[int]) -> int:
        assert self._child is not None
        ended = asyncio.create_task(self._child.wait())
        try:
            await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
            return await asked if asked.done() else 0
        finally:
            asked.cancel()
            ended.cancel()

    async def _until_ill(self, session: aiohttp.ClientSession) -> None:
        strikes = 0
        assert self._child is not None
        while strikes < _STRIKES:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEALTH_S):
                    await self._child.wait()
            if not self._runs():
                return
            try:
                limit = aiohttp.ClientTimeout(total=_HEALTH_LIMIT_S)
                async with session.get(f"{self.url}/health", headers=self.headers, timeout=limit) as answer:
                    strikes = 0 if answer.status == 200 else strikes + 1
            except (aiohttp.ClientError, TimeoutError, OSError):
                strikes += 1
        log.warning("the engine did not say that it is well, %d times in a row", strikes)

    def _runs(self) -> bool:
        return self._child is not None and self._child.returncode is None

    async def _stop(self) -> None:
        """Ask it to end, then make it, with whatever it started."""
        if self._child is None:
            return
        if self._runs():
            _kill(self._child.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._child.wait()
        _kill(self._child.pid, signal.SIGKILL)
        await self._child.wait()


def _status(asked: contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]) -> asyncio.Task[int]:
    async def ask() -> int:
        async with asked as answer:
            await answer.read()
            return answer.status

    return asyncio.create_task(ask())


def _environment(env: Mapping[str, str], engine: Engine, key: str) -> dict[str, str]:
    """What the user set, and what keeps engines from calling out."""
    own = {engine.key_variable: key} if key else {}
    return {"VLLM_HOST_IP": "127.0.0.1"} | dict(env) | OFFLINE | own


def _kill(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
