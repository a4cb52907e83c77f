"""Real questions to a server that speaks OpenAI's HTTP API, from within its network namespace.

https://platform.openai.com/docs/api-reference: models, completions, chat completions, and the latter as a stream.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

MAX_ANSWER = 8 << 20
_EVERY_S = 0.2
_PROMPT = "Say one word."


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One question and how it was answered."""

    what: str
    """`POST /v1/chat/completions, stream`."""
    status: int
    """Of HTTP; 0 where there was no answer."""
    took_s: float
    why: str = ""
    """What stood instead of an answer."""


def is_up(url: str) -> str:
    """The name of the first model, once the server says it has one; empty before."""
    status, body = _ask(url, "GET", "/v1/models", None, 5.0)
    if status != 200:
        return ""
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""


def wait_up(url: str, patience_s: float, is_over: Callable[[], bool]) -> str:
    """The same, waited for; empty where the server ended or patience did."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until and not is_over():
        if model := is_up(url):
            return model
        time.sleep(_EVERY_S)
    return ""


def questions(url: str, model: str, limit_s: float) -> list[Asked]:
    """Ask everything once."""
    chat = {"model": model, "messages": [{"role": "user", "content": _PROMPT}], "max_tokens": 8}
    rows: list[tuple[str, str, Any]] = [
        ("GET", "/v1/models", None),
        ("POST", "/v1/completions", {"model": model, "prompt": _PROMPT, "max_tokens": 8}),
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/chat/completions", {**chat, "stream": True}),
    ]
    found = []
    for method, path, body in rows:
        began = time.monotonic()
        status, answer = _ask(url, method, path, body, limit_s)
        stream = ", stream" if isinstance(body, dict) and body.get("stream") else ""
        why = "" if status == 200 else answer[:200].decode("utf-8", "backslashreplace")
        took = round(time.monotonic() - began, 3)
        found.append(Asked(what=f"{method} {path}{stream}", status=status, took_s=took, why=why))
    return found


def _ask(url: str, method: str, path: str, body: Any, limit_s: float) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=limit_s)
    try:
        raw = None if body is None else json.dumps(body).encode()
        connection.request(method, parts.path.rstrip("/") + path, raw, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error).encode()
    finally:
        connection.close()
