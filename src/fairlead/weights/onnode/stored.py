"""What a store itself says of an object's bytes, and whether a file has them. Python 3.9.

Digests of our own tell that all nodes have the same bytes; a store's tell that they are those that were uploaded.
Written `ALGORITHM:HEXADECIMAL`; `git` is the digest that git makes of a file (git-scm.com/book, "Git Objects").
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Headers(Protocol):  # noqa: D101
        def get(self, name: str, /) -> str | None: ...  # noqa: D102


MD5_TAG = re.compile(r'"?([0-9a-f]{32})"?\Z')
HASHED_BYTES = 4 << 20


def said_digest(headers: Headers, *, has_md5_tags: bool = False) -> str:
    """The digest of a whole object that an answer to a range of it carries; empty where it carries none.

    `has_md5_tags`: the store speaks S3.

    Blob storage: x-ms-blob-content-md5 (learn.microsoft.com/rest/api/storageservices/get-blob). Google Cloud:
    x-goog-hash. S3: an ETag without a dash is the MD5, unless a key of KMS or of the customer encrypts the object
    (docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html).

    >>> said_digest({"x-ms-blob-content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="})
    'md5:d41d8cd98f00b204e9800998ecf8427e'
    """
    given = headers.get("x-ms-blob-content-md5") or ""
    for part in (headers.get("x-goog-hash") or "").split(","):
        name, _, value = part.strip().partition("=")
        given = value if name == "md5" else given
    if given:
        try:
            return "md5:" + base64.b64decode(given, validate=True).hex()
        except (binascii.Error, ValueError):
            return ""
    own_key = "kms" in (headers.get("x-amz-server-side-encryption") or "") or headers.get(
        "x-amz-server-side-encryption-customer-algorithm"
    )
    tag = MD5_TAG.match(headers.get("ETag") or "")
    return f"md5:{tag[1]}" if has_md5_tags and not own_key and tag else ""


def digest_of_file(fd: int, size: int, said: str) -> str:
    """The digest of the file, of the kind that was said. Raises OSError, and ValueError for another kind."""
    kind = said.partition(":")[0]
    if kind not in ("md5", "sha256", "git"):
        raise ValueError(kind)
    made = hashlib.new("sha1" if kind == "git" else kind, usedforsecurity=False)
    if kind == "git":
        made.update(b"blob %d\0" % size)
    buffer, at = memoryview(bytearray(min(HASHED_BYTES, max(1, size)))), 0
    while num := os.preadv(fd, [buffer], at):
        made.update(buffer[:num])
        at += num
    return f"{kind}:{made.hexdigest()}"
