"""A certificate for the loopback, and that of the authority that signed it, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """Files in PEM."""

    key: Path
    cert: Path
    authority: Path


def certificate(folder: Path) -> Certificate:
    """For 127.0.0.1 and localhost, for two days."""
    made = Certificate(folder / "key.pem", folder / "cert.pem", folder / "authority.pem")

    def openssl(*words: object) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)

    ca, request, more = folder / "authority.key", folder / "request.pem", folder / "more.cnf"
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-days", 2, "-subj", "/CN=fairlead test", "-keyout", ca, "-out", made.authority)
    openssl(*new, "-subj", "/CN=localhost", "-keyout", made.key, "-out", request)
    more.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    signed = ("x509", "-req", "-days", 2, "-in", request, "-CA", made.authority, "-CAkey", ca, "-CAcreateserial")
    openssl(*signed, "-extfile", more, "-out", made.cert)
    return made
