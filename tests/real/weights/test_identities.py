"""Blob storage by an identity, without a key: Azurite asks for tokens of Entra ID (`--oauth basic`, over TLS), and
refuses what has none, another audience, or has run out.

Who gives the tokens is a server of the test that answers as Microsoft documents it (support/identities.py), and for
the Azure CLI a script that prints what `az account get-access-token` prints: no real Entra ID, no real `az`. Azurite
looks at a token's claims, not at its signature.
"""

from __future__ import annotations

import json
import os
import random
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.certificates import Certificate, certificate
from support.identities import TENANT, Identities, az, giving, token
from support.injector import FAIRLEAD
from support.stores import ACCOUNT, azurite, files_below, filled_azure

pytestmark = [pytest.mark.real, pytest.mark.requires("obstore")]
ASSERTION = "a.kubernetes.token"


class Site(NamedTuple):
    """A store that takes tokens, and who gives them."""

    env: dict[str, str]
    folder: Path
    identities: Identities
    imds: str
    entra: str
    own: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    own = tmp_path_factory.mktemp("site")
    made: Certificate = certificate(own)
    folder = own / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(random.Random(3).randbytes((3 << 20) + 1))
    (folder / "config.json").write_text("{}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    identities = Identities(ASSERTION)
    trusted = {"SSL_CERT_FILE": str(made.authority), "REQUESTS_CA_BUNDLE": str(made.authority)}
    with azurite("--oauth", "basic", "--cert", str(made.cert), "--key", str(made.key)) as port:
        filled_azure(port, folder, "models", "one", scheme="https", verify=str(made.authority))
        with giving(identities) as imds, giving(identities, context) as entra:
            env = {
                **trusted,
                "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
                "AZURE_STORAGE_ENDPOINT": f"https://127.0.0.1:{port}/{ACCOUNT}",
            }
            at = f"http://127.0.0.1:{imds}/metadata/identity/oauth2/token"
            yield Site(env, folder, identities, at, f"https://127.0.0.1:{entra}", own)


@pytest.fixture(autouse=True)
def _afresh(site) -> None:
    site.identities.known, site.identities.audience = True, "https://storage.azure.com"
    site.identities.asked.clear()
    site.identities.given.clear()


def call(site: Site, tmp_path: Path, *words: str, **env: str) -> tuple[int, dict]:
    argv = [*FAIRLEAD, "weights", *words, "--json", "--runs", str(tmp_path / "runs")]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AZURE_")}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**clean, **site.env, **env})
    return done.returncode, json.loads(done.stdout)


def federated(site: Site, said: str = ASSERTION) -> dict[str, str]:
    """What the mutating webhook of AKS sets in a pod."""
    file = site.own / "federated"
    file.write_text(said)
    return {
        "AZURE_FEDERATED_TOKEN_FILE": str(file),
        "AZURE_CLIENT_ID": TENANT,
        "AZURE_TENANT_ID": TENANT,
        "AZURE_AUTHORITY_HOST": site.entra,
    }


def cli(site: Site, said: str) -> dict[str, str]:
    """`az login` was done here."""
    folder = site.own / "bin"
    folder.mkdir(exist_ok=True)
    return {"AZURE_USE_AZURE_CLI": "true", "PATH": f"{az(folder, said)}:{os.environ['PATH']}"}


@pytest.mark.parametrize("kind", ["managed", "workload", "cli"])
def test_a_model_comes_by_an_identity_and_no_key_is_set(site, tmp_path, kind):
    env = {
        "managed": lambda: {"AZURE_MSI_ENDPOINT": site.imds},
        "workload": lambda: federated(site),
        "cli": lambda: cli(site, token()),
    }[kind]()
    status, listed = call(site, tmp_path, "ls", "az://models/one", **env)
    assert status == 0, listed
    assert sorted(o["path"] for o in listed["objects"]) == ["config.json", "model.safetensors"]
    status, result = call(site, tmp_path, "pull", "az://models/one", str(tmp_path / "d"), **env)
    assert status == 0, result.get("error") or result["findings"]
    for path in files_below(site.folder):
        assert (tmp_path / "d" / path.name).read_bytes() == path.read_bytes()
    asked = {"managed": "GET /metadata/identity/oauth2/token", "workload": f"POST /{TENANT}/oauth2/v2.0/token"}
    assert set(site.identities.asked) == ({asked[kind]} if kind in asked else set())
    kept = "".join(p.read_text(errors="replace") for p in (tmp_path / "runs").rglob("*") if p.is_file())
    assert not [one for one in site.identities.given if one in kept + json.dumps(result)], "no token is kept"


def test_an_identity_that_there_is_not_or_that_may_not_is_said(site, tmp_path):
    site.identities.known = False
    status, result = call(site, tmp_path, "ls", "az://models/one", AZURE_MSI_ENDPOINT=site.imds)
    assert (status, result["error"]["code"]) == (4, "weights/denied"), result
    assert "Identity not found" in result["error"]["message"]
    site.identities.known, site.identities.audience = True, "https://vault.azure.net"
    status, result = call(site, tmp_path, "ls", "az://models/one", AZURE_MSI_ENDPOINT=site.imds)
    assert (status, result["error"]["code"]) == (4, "weights/denied"), result
    assert "refuses these credentials" in result["error"]["message"]
    status, result = call(site, tmp_path, "ls", "az://models/one", **federated(site, "another"))
    assert (status, result["error"]["code"]) == (4, "weights/denied"), result
    assert "this identity gets no token" in result["error"]["message"]
