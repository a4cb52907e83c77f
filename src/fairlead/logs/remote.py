"""Questions to the owner of a store, over HTTP: from beside it, or from another machine."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead.base.trust import read_file
from fairlead.errors import FairleadError, Problem, QueryError, UsageError

LIMIT_S = 3600.0
ANSWER_BYTES = 1 << 30


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner said."""

    document: dict[str, Any] = {}
    text: str = ""
    cut: bool = False
    num_rows: int = 0
    problems: list[dict[str, Any]] = []
    error: dict[str, str] = {}


class Remote:
    """The owner of a store."""

    def __init__(self, server: str, token_file: Path, authority: str = "") -> None:
        """Raises UsageError."""
        found = urllib.parse.urlsplit(server)
        if found.scheme not in {"http", "https"} or not found.hostname:
            raise UsageError("cli/usage", f"`{server[:200]}` is no URL", hint="--server http://10.0.0.4:8470")
        try:
            self.token = read_file(token_file, 4096, ours=True).strip().decode("ascii")
        except (OSError, ValueError) as error:
            raise UsageError("cli/usage", f"{token_file}: {error}", hint="--token-file FILE") from None
        self.url, self.found, self.authority = server, found, authority

    def ask(self, kql: str, *, form: str, rows: int, memory_bytes: int, parameters: Mapping[str, str]) -> Answered:
        """One question. Raises QueryError where it is none, FairleadError (`logs/owner`) where nobody answers."""
        body = json.dumps({
            "query": kql, "format": form, "rows": rows, "memory_bytes": memory_bytes, "parameters": dict(parameters),
        }).encode()  # fmt: skip
        found = msgspec.json.decode(self._post(body), type=Answered)
        if found.problems:
            raise QueryError([msgspec.convert(each, Problem) for each in found.problems])
        if found.error:
            raise FairleadError(found.error["code"], found.error["message"], hint=found.error["hint"])
        return found

    def _post(self, body: bytes) -> bytes:
        host, port = str(self.found.hostname), self.found.port
        if self.found.scheme == "https":
            context = ssl.create_default_context(cafile=self.authority or None)
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port or 443, timeout=LIMIT_S, context=context
            )
        else:
            made = http.client.HTTPConnection(host, port or 8470, timeout=LIMIT_S)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            made.request("POST", self.found.path.rstrip("/") + "/v1/query", body, headers)
            answer = made.getresponse()
            said = answer.read(ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise FairleadError(
                "logs/owner", f"{self.url} does not answer: {error}", hint="fairlead logs serve, there"
            ) from None
        finally:
            made.close()
        if answer.status != 200:
            text = f"{self.url} refused: {answer.status} {said[:200].decode('utf-8', 'replace').strip()}"
            raise FairleadError("logs/owner", text, hint="look at --token-file, and at the name in --server")
        return said
