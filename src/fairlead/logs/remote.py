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
from fairlead.logs.diagnose.explain import Why
from fairlead.logs.diagnose.model import Diagnosis
from fairlead.logs.owner import owner_of
from fairlead.logs.server import Server
from fairlead.logs.store import default_place
from fairlead.records.border import shown

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


def remote_of(
    store: Path | Server | None, server: str, token_file: Path | None, authority: Path | None = None
) -> Remote | None:
    """Whom to ask: a server that is named, or the owner of the store; None where the store is there to be opened.

    Raises UsageError.
    """
    if bool(server) != bool(token_file) or (server and store):
        text = "--server goes with --token-file, without --store"
        raise UsageError("cli/usage", text, hint="--server http://10.0.0.4:8470 --token-file FILE")
    if server and token_file:
        return Remote(server, token_file, _trust(authority) if server.startswith("https:") else None)
    if authority:
        text = "--authority goes with --server"
        raise UsageError("cli/usage", text, hint="--server https://owner.example:8470 --token-file FILE")
    if store is not None and not isinstance(store, Path):
        return None
    found = owner_of((store or default_place()).absolute())
    return Remote(found.url, Path(found.token_file), _pinned(found.certificate)) if found else None


def _trust(authority: Path | None) -> ssl.SSLContext:
    """To believe who has a certificate of this file, or of one that the system trusts. Raises UsageError."""
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        text = f"{authority} holds no certificates: {error}"
        raise UsageError("cli/usage", text, hint="--authority FILE, in PEM") from None


def _pinned(certificate: str) -> ssl.SSLContext | None:
    """To believe who has this very certificate, by whatever address; None for an owner without TLS."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the folder named the certificate itself, which says more than a name in it
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError) as error:
        raise FairleadError("logs/owner", f"the store's folder holds no certificate: {error}",
                            hint="fairlead logs serve, again") from None  # fmt: skip
    return context


class Remote:
    """The owner of a store."""

    def __init__(self, server: str, token_file: Path, trust: ssl.SSLContext | None = None) -> None:
        """Raises UsageError."""
        found = urllib.parse.urlsplit(server)
        if found.scheme not in {"http", "https"} or not found.hostname:
            raise UsageError("cli/usage", f"`{server[:200]}` is no URL", hint="--server http://10.0.0.4:8470")
        try:
            self.token = read_file(token_file, 4096, ours=True).strip().decode("ascii")
        except (OSError, ValueError) as error:
            raise UsageError("cli/usage", f"{token_file}: {error}", hint="--token-file FILE") from None
        self.url, self.found, self.trust = server, found, trust

    def ask(self, kql: str, *, form: str, rows: int, memory_bytes: int, parameters: Mapping[str, str]) -> Answered:
        """One question. Raises QueryError where it is none, FairleadError (`logs/owner`) where nobody answers."""
        body = json.dumps({
            "query": kql, "format": form, "rows": rows, "memory_bytes": memory_bytes, "parameters": dict(parameters),
        }).encode()  # fmt: skip
        found = self._answer("/v1/query", body)
        if found.problems:
            raise QueryError([msgspec.convert(each, Problem) for each in found.problems])
        return found

    def why(self, asked: Why) -> Diagnosis:
        """The diagnosis of a job. Raises FairleadError: `logs/no-job`, or `logs/owner` where nobody answers."""
        found = self._answer("/v1/diagnose", msgspec.json.encode(asked))
        return msgspec.convert(found.document, Diagnosis, strict=False)

    def _answer(self, path: str, body: bytes) -> Answered:
        try:
            found = msgspec.json.decode(self._post(path, body), type=Answered)
        except ValueError as error:
            text = f"{self.url} answers with what no owner of a store says: {shown(str(error))}"
            raise FairleadError("logs/owner", text, hint="fairlead logs serve, there") from None
        if found.error:
            raise FairleadError(found.error["code"], found.error["message"], hint=found.error["hint"])
        return found

    def _post(self, path: str, body: bytes) -> bytes:
        host, port = str(self.found.hostname), self.found.port
        if self.found.scheme == "https":
            trust = self.trust or ssl.create_default_context()
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port or 443, timeout=LIMIT_S, context=trust
            )
        else:
            made = http.client.HTTPConnection(host, port or 8470, timeout=LIMIT_S)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            made.request("POST", self.found.path.rstrip("/") + path, body, headers)
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
