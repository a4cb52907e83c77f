"""What a store itself says of an object's bytes, and whether a file has them. Python 3.9.

Digests of our own tell that all nodes have the same bytes; a store's tell that they are those that were uploaded.
Written `ALGORITHM:HEXADECIMAL`; `git` is the digest that git makes of a file (git-scm.com/book, "Git Objects"). CRC-32C
and CRC-64/NVME, which stores keep of objects that were uploaded in parts, take the package awscrt: in Python alone they
would take minutes a gigabyte. Blob storage keeps no CRC of a blob: its x-ms-content-crc64 is of one request.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    class Headers(Protocol):  # noqa: D101
        def get(self, name: str, /) -> str | None: ...  # noqa: D102


CRCS = ("crc32c", "crc64nvme")
MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?\Z')
HASHED_BYTES = 4 << 20


def said_digest(headers: Headers, *, has_md5_tags: bool = False) -> str:
    """The digest of a whole object that an answer to a range of it carries; empty where it carries none.

    `has_md5_tags`: the store speaks S3.

    Blob storage: x-ms-blob-content-md5 (learn.microsoft.com/rest/api/storageservices/get-blob). Google Cloud:
    x-goog-hash, with a CRC-32C alone for composite objects. S3: an ETag without a dash is the MD5, unless a key of KMS
    or of the customer encrypts the object
    (docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html).

    >>> said_digest({"x-ms-blob-content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="})
    'md5:d41d8cd98f00b204e9800998ecf8427e'
    """
    given = {"md5": headers.get("x-ms-blob-content-md5") or ""}
    for part in (headers.get("x-goog-hash") or "").split(","):
        name, _, value = part.strip().partition("=")
        given[name] = value
    for kind in ("md5", "crc32c"):
        if given.get(kind):
            return of_base64(kind, given[kind])
    own_key = "kms" in (headers.get("x-amz-server-side-encryption") or "") or headers.get(
        "x-amz-server-side-encryption-customer-algorithm"
    )
    tag = MD5_TAG.match(headers.get("ETag") or "")
    return f"md5:{tag[1]}" if has_md5_tags and not own_key and tag else ""


def of_base64(kind: str, value: str) -> str:
    """A digest as headers have it; empty where it is none.

    >>> of_base64("crc64nvme", "rosUhgp5mIg=")
    'crc64nvme:ae8b14860a799888'
    """
    try:
        return f"{kind}:{base64.b64decode(value, validate=True).hex()}"
    except (binascii.Error, ValueError):
        return ""


def digest_of_file(fd: int, size: int, said: str) -> str:
    """The digest of the file, of the kind that was said; empty where this Python has no package for it. Raises OSError,
    and ValueError for another kind.
    """
    kind = said.partition(":")[0]
    if kind in CRCS:
        return crc_of_file(fd, size, kind)
    if kind not in ("md5", "sha256", "git"):
        raise ValueError(kind)
    import hashlib

    made = hashlib.new("sha1" if kind == "git" else kind, usedforsecurity=False)
    if kind == "git":
        made.update(b"blob %d\0" % size)
    for some in pieces_of(fd, size):
        made.update(some)
    return f"{kind}:{made.hexdigest()}"


def crc_of_file(fd: int, size: int, kind: str) -> str:
    """The same for a CRC: reveng.sourceforge.io/crc-catalogue, CRC-32/ISCSI and CRC-64/NVME."""
    try:
        checksums = importlib.import_module("awscrt.checksums")
        crc = getattr(checksums, kind)
    except (ImportError, AttributeError):
        return ""
    value = 0
    for some in pieces_of(fd, size):
        value = crc(some, value)
    return f"{kind}:{value:0{8 if kind == 'crc32c' else 16}x}"


def pieces_of(fd: int, size: int) -> Iterator[memoryview]:
    """The bytes of a file, one buffer of them after the other."""
    buffer, at = memoryview(bytearray(min(HASHED_BYTES, max(1, size)))), 0
    while num := os.preadv(fd, [buffer], at):
        yield buffer[:num]
        at += num
