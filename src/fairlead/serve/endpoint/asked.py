"""What may be asked, and how it is refused: pure.

Errors have OpenAI's form, which its clients turn into exceptions (platform.openai.com/docs/guides/error-codes).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

ROUTES = ("/v1/chat/completions", "/v1/completions")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class Refused(Exception):
    """One request that is not answered as asked: status of HTTP, OpenAI's code, a sentence."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None, again_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.again_s = again_s
        """When to try again, in seconds; 0 where that would not help."""

    @property
    def body(self) -> bytes:
        """As JSON in OpenAI's form."""
        return error_body(self.status, self.code, self.message, self.param)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoint has to know of a body; the engine reads it all."""

    model: str
    texts: tuple[str, ...]
    """Whose tokens count, longest prompt alone where there are several."""
    num_ids: int = 0
    """Tokens that came as numbers."""
    max_tokens: int = 0
    """That the answer may have; 0 where nothing is said."""


def error_body(status: int, code: str, message: str, param: str | None = None) -> bytes:
    """An error in OpenAI's form."""
    kind = _TYPES.get(status, "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def parse(raw: bytes, route: str) -> Question:
    """The question in a body of one of `ROUTES`. Raises Refused (400)."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "invalid_json", f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "invalid_json", "the body is no JSON object")
    model = body.get("model")
    if not isinstance(model, str):
        raise Refused(400, "invalid_value", "`model` must be the name of a model", param="model")
    if not isinstance(body.get("stream"), bool | None):
        raise Refused(400, "invalid_value", "`stream` must be true or false", param="stream")
    most = 0
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise Refused(400, "invalid_value", f"`{name}` must be a number of tokens", param=name)
        most = most or value
    if route == "/v1/completions":
        texts, num_ids = _prompt(body.get("prompt"))
    else:
        texts, num_ids = tuple(_messages(body.get("messages"))), 0
    return Question(model=model, texts=texts, num_ids=num_ids, max_tokens=most)


def _prompt(prompt: Any) -> tuple[tuple[str, ...], int]:
    """A text, tokens, or a list of either; of several prompts the longest counts, each has the context for itself."""
    if isinstance(prompt, str):
        return (prompt,), 0
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, str) for part in prompt):
            return (max(prompt, key=len),), 0
        if all(type(part) is int for part in prompt):
            return (), len(prompt)
        if all(isinstance(part, list) and all(type(one) is int for one in part) for part in prompt):
            return (), max(len(part) for part in prompt)
    raise Refused(400, "invalid_value", "`prompt` must be a text, a list of texts, or tokens", param="prompt")


def _messages(messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "invalid_value", "`messages` must be a list of messages", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            text = f"`messages[{i}]` must be an object with a role"
            raise Refused(400, "invalid_value", text, param=f"messages[{i}]")
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            words = part.get("text") if isinstance(part, dict) else part
            if isinstance(words, str):
                yield words


def check_length(question: Question, context: int, count: Callable[[str], int] | None) -> None:
    """Refuse (400) a prompt that cannot fit into `context` tokens; what a chat template adds is the engine's to count.

    A token stands for one byte at least, so short texts are not counted. `context` 0: nothing is known. Without `count`
    the engine decides.
    """
    if not context:
        return
    asked = question.max_tokens
    num = question.num_ids
    if sum(len(text.encode("utf-8", "surrogatepass")) for text in question.texts) + num + asked <= context:
        return
    if question.texts:
        if count is None:
            return
        num += sum(count(text) for text in question.texts)
    if num + asked > context or num >= context:
        text = (
            f"This model's maximum context length is {context} tokens. However, you requested {num + asked} tokens "
            f"({num} in the prompt, {asked} for the answer). Please reduce the length of either."
        )
        raise Refused(400, "context_length_exceeded", text, param="messages" if not question.num_ids else "prompt")


def check_host(host: str, allowed: Collection[str]) -> None:
    """Refuse (400) a request that names another host: a page in a browser on this machine reaches loopback too.

    `allowed` empty: every name is fine.
    """
    if allowed and host_of(host) not in allowed:
        raise Refused(400, "invalid_host", "the Host header names another host; --allow-host NAME allows one")


def check_origin(origin: str, host: str, allowed: Collection[str]) -> None:
    """Refuse (403) what a page of another site asks, as its browser says (RFC 6454); programs send no Origin.

    A page comes from here where its Origin is the Host it asks, or a name in `allowed`.
    """
    site = origin.partition("://")[2]
    if origin and (not site or site.lower() != host.lower()) and host_of(site) not in allowed:
        raise Refused(403, "invalid_origin", "a page of another site may not ask; --allow-host NAME allows one")


def host_of(text: str) -> str:
    """The host in a Host header.

    >>> [host_of(text) for text in ("localhost:8000", "[::1]:8000", "Node1", "[::1", "::1")]
    ['localhost', '::1', 'node1', '', '::1']
    """
    if text.startswith("["):
        name, closed, _ = text[1:].partition("]")
        return name.lower() if closed else ""
    return text.lower() if text.count(":") > 1 else text.rpartition(":")[0].lower() or text.lower()


class Keys:
    """API keys, as digests: what is compared takes the same time for every key."""

    def __init__(self, text: str) -> None:
        lines = (line.strip() for line in text.splitlines())
        self.digests = tuple(_digest(line) for line in lines if line and not line.startswith("#"))

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse (401) who brings none of them as `Authorization: Bearer KEY`."""
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        found = _digest(key.strip())
        fits = [hmac.compare_digest(found, digest) for digest in self.digests]
        if scheme.lower() != "bearer" or not any(fits):
            raise Refused(401, "invalid_api_key", "no API key, or none that is known: Authorization: Bearer KEY")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
