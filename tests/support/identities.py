"""Who gives tokens in Azure, as its documentation says that they answer: the metadata service of a machine, the token
endpoint of Entra ID, and the command `az`. Tokens have the claims of real ones; nobody has signed them.

learn.microsoft.com: "How to use managed identities on an Azure VM to acquire an access token" (IMDS);
"Microsoft identity platform and the OAuth 2.0 client credentials flow", third case (a federated credential);
"az account get-access-token".
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TENANT = "00000000-0000-0000-0000-00000000000a"
AUDIENCE = "https://storage.azure.com"
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def token(audience: str = AUDIENCE) -> str:
    """A JSON Web Token for an hour, with the claims of Entra ID's access tokens."""
    now = int(time.time())
    claims = {"aud": audience, "iss": f"https://sts.windows.net/{TENANT}/", "iat": now - 60, "nbf": now - 60,
              "exp": now + 3600, "oid": TENANT, "tid": TENANT, "sub": TENANT, "ver": "1.0"}  # fmt: skip
    parts = (json.dumps({"typ": "JWT", "alg": "RS256", "kid": "1"}), json.dumps(claims), "nobody")
    return ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)


class Identities:
    """What is given out, and to whom; `known` is whether this machine has an identity."""

    def __init__(self, assertion: str) -> None:
        self.assertion, self.known, self.audience = assertion, True, AUDIENCE
        self.asked: list[str] = []
        self.given: list[str] = []

    def make(self) -> str:
        self.given.append(token(self.audience))
        return self.given[-1]

    def metadata(self, headers: dict[str, str], query: dict[str, str]) -> tuple[int, dict]:
        """GET /metadata/identity/oauth2/token of 169.254.169.254."""
        if headers.get("metadata") != "true":
            return 400, {"error": "invalid_request", "error_description": "Required metadata header not specified"}
        if not self.known:
            return 400, {"error": "invalid_request", "error_description": "Identity not found"}
        if query.get("resource") != AUDIENCE or "api-version" not in query:
            return 400, {"error": "invalid_resource"}
        at = int(time.time())
        return 200, {"access_token": self.make(), "client_id": TENANT, "expires_in": "86399", "token_type": "Bearer",
                     "expires_on": str(at + 86399), "ext_expires_in": "86399", "not_before": str(at - 60),
                     "resource": AUDIENCE}  # fmt: skip

    def entra(self, tenant: str, form: dict[str, str]) -> tuple[int, dict]:
        """POST /TENANT/oauth2/v2.0/token of login.microsoftonline.com."""
        wanted = {"grant_type": "client_credentials", "client_assertion_type": ASSERTION, "client_id": TENANT,
                  "scope": f"{AUDIENCE}/.default", "client_assertion": self.assertion}  # fmt: skip
        wrong = [key for key, value in wanted.items() if form.get(key) != value]
        if tenant != TENANT or wrong:
            text = f"AADSTS700213: no matching federated identity record: {wrong}"
            return 401, {"error": "invalid_client", "error_description": text}
        return 200, {"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": self.make()}


@contextlib.contextmanager
def giving(made: Identities, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port at which both services answer."""

    class Asked(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def answer(self, status: int, body: dict) -> None:
            made.asked.append(f"{self.command} {self.path.partition('?')[0]}")
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path != "/metadata/identity/oauth2/token":
                return self.answer(404, {})
            headers = {k.lower(): v.lower() for k, v in self.headers.items()}
            return self.answer(*made.metadata(headers, dict(urllib.parse.parse_qsl(query))))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            _, tenant, rest = self.path.split("/", 2)
            if rest != "oauth2/v2.0/token":
                return self.answer(404, {})
            return self.answer(*made.entra(tenant, dict(urllib.parse.parse_qsl(body))))

    with ThreadingHTTPServer(("127.0.0.1", 0), Asked) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def az(folder: Path, said: str) -> Path:
    """A folder for PATH whose `az account get-access-token` prints this token."""
    until = time.time() + 3600
    answer = {"accessToken": said, "expiresOn": time.strftime("%Y-%m-%d %H:%M:%S.000000", time.localtime(until)),
              "expires_on": int(until), "subscription": TENANT, "tenant": TENANT, "tokenType": "Bearer"}  # fmt: skip
    (folder / "answer.json").write_text(json.dumps(answer))
    (folder / "az").write_text(
        f'#!/bin/sh\ncase "$*" in "account get-access-token"*--output*json*) exec cat {folder}/answer.json;; esac\n'
        'echo "ERROR: $*" >&2; exit 2\n'
    )
    (folder / "az").chmod(0o755)
    return folder
