"""Engines there are, and how each is started: pure.

docs.vllm.ai, "OpenAI-Compatible Server"; huggingface.co/docs/transformers, "Serving".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from fairlead.errors import MissingTool, UsageError


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is to serve, and where."""

    model: str
    """The folder."""
    name: str
    """What clients call it; in the engine's working folder a link of this name leads to the model."""
    port: int
    """On the loopback."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A server of OpenAI's API that somebody else keeps."""

    name: str
    module: str
    """That Python must be able to import."""
    words: Callable[[Wanted], Sequence[str]]
    """Its command line, behind `python -m`."""
    key_variable: str = ""
    """Of the environment, with a key that it asks everyone for; empty where it knows no key."""
    has_metrics: bool = False
    install: str


def _vllm(wanted: Wanted) -> list[str]:
    names = ["--served-model-name", wanted.name]
    return ["vllm.entrypoints.cli.main", "serve", wanted.model, *names, *_listen(wanted)]


def _transformers(wanted: Wanted) -> list[str]:
    return ["transformers.cli.transformers", "serve", wanted.name, "--continuous-batching", *_listen(wanted)]


def _listen(wanted: Wanted) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(wanted.port)]


ENGINES = (
    Engine(
        name="vllm",
        module="vllm",
        words=_vllm,
        key_variable="VLLM_API_KEY",
        has_metrics=True,
        install="pip install vllm, in an environment of its own; then --python ITS/bin/python",
    ),
    Engine(
        name="transformers",
        module="transformers.cli.serve",
        words=_transformers,
        install="pip install 'transformers[serving]' accelerate",
    ),
)
"""The first that is there serves, unless one is named."""


def engine_command(python: str, engine: Engine, wanted: Wanted, more: Sequence[str]) -> list[str]:
    """The whole command line of an engine; `more` are the user's own options for it."""
    return [python, "-m", *engine.words(wanted), *more]


def choose(wanted: str, there: Collection[str], python: str) -> Engine:
    """The engine to start, of those whose modules are `there`. Raises UsageError or MissingTool."""
    if wanted and wanted not in {engine.name for engine in ENGINES}:
        names = " or ".join(engine.name for engine in ENGINES)
        raise UsageError("cli/usage", f"no engine is called {wanted!r}", hint=f"--engine {names}")
    for engine in ENGINES:
        if engine.module in there and wanted in ("", engine.name):
            return engine
    missing = next((engine for engine in ENGINES if engine.name == wanted), ENGINES[-1])
    raise MissingTool("serve/no-engine", f"{python} has no {wanted or 'engine'}", hint=missing.install)
