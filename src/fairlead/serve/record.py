"""The manifest of a bundle, and its signature: what is in the bundle, file by file, and who says so.

    fairlead-bundle.json   the manifest; canonical: the same bundle has the same bytes
    fairlead-bundle.sig    Ed25519 (RFC 8032) over a fixed prefix and those bytes
    sbom.cdx.json          CycloneDX 1.6

Pure but for reading keys. Must not know where a bundle lies.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

import msgspec

from fairlead.base.trust import NotOurs, read_file
from fairlead.errors import Exit, FairleadError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SCHEMA, NUMBER = "fairlead.bundle", 1
SIGNATURE_SCHEMA = "fairlead.bundle-signature/1"
MANIFEST, SIGNATURE, SBOM = "fairlead-bundle.json", "fairlead-bundle.sig", "sbom.cdx.json"
WHEELS = "wheels"
"""The folder of a bundle with what installs an engine."""
MAX_MANIFEST_BYTES = 64 << 20
_MAX_KEY_BYTES = 16 << 10
_PREFIX = b"fairlead bundle manifest\0"
"""So that a signature of this key over something else is never one of a bundle."""
_MAKE = "openssl genpkey -algorithm ed25519 -out bundle.key && openssl pkey -in bundle.key -pubout -out bundle.pub"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the bundle itself, below its folder: a blob, an index, or a file of the model."""

    path: str
    size: int
    sha256: str


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of the model."""

    path: str
    size: int
    sha256: str
    layer: str = ""
    """The digest of the layer it is in, `sha256:...`; empty in a folder."""


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest. Everything a bundle holds is named here, but for this file and its signature."""

    schema: str = f"{SCHEMA}/{NUMBER}"
    name: str
    form: Literal["oci", "directory"]
    platform: str
    """`linux/amd64`; `any` where nothing in it runs."""
    licence: str
    """As the model's card says, or NOASSERTION."""
    image: str = ""
    """Digest of the image's manifest: what to write behind `@` in a deployment."""
    base: str = ""
    """Digest of the image it stands on."""
    at: str = ""
    """Where the model is, in the image or below the bundle."""
    files: tuple[Held, ...]
    stored: tuple[Stored, ...]
    wheels: tuple[str, ...] = ()
    """Names of the engine's wheels, below `wheels/`."""


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who signed a manifest."""

    schema: str = SIGNATURE_SCHEMA
    key: str
    """The public key, 32 bytes in base64."""
    signature: str
    """64 bytes in base64."""


class BadBundle(FairleadError):
    """What lies there cannot be taken for a bundle."""

    exit = Exit.FAIL


def parse(raw: bytes) -> Bundle:
    """The manifest of these bytes. Raises BadBundle, also for a manifest that only a newer fairlead can judge."""
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except (ValueError, RecursionError) as error:
        raise BadBundle("serve/not-a-bundle", f"{MANIFEST} does not read: {error}") from None
    name, _, number = head.schema.partition("/")
    if name != SCHEMA or not (number.isascii() and number.isdigit() and len(number) < 6):
        raise BadBundle("serve/not-a-bundle", f"{MANIFEST} is no manifest of a bundle: schema `{head.schema[:80]}`")
    if int(number) > NUMBER:
        text = f"{MANIFEST} is {head.schema}, made by a newer fairlead: this one knows {SCHEMA}/{NUMBER}"
        raise BadBundle("serve/newer-manifest", text, hint="pip install -U fairlead, then verify again")
    try:
        bundle = msgspec.json.decode(raw, type=Bundle)
    except (ValueError, RecursionError) as error:
        raise BadBundle("serve/not-a-bundle", f"{MANIFEST} does not read: {error}") from None
    named: tuple[Stored | Held, ...] = (*bundle.stored, *bundle.files)
    for held in named:
        if not is_plain(held.path) or held.size < 0 or not _SHA256.match(held.sha256):
            raise BadBundle("serve/not-a-bundle", f"{MANIFEST} names a file that no bundle has: {held.path[:200]!r}")
    return bundle


def is_plain(path: str) -> bool:
    """Whether a path stays below its folder.

    >>> [is_plain(p) for p in ("a/b", "../a", "/a", "a//b", "", "a/..")]
    [True, False, False, False, False, False]
    """
    return bool(path) and "\0" not in path and str(PurePosixPath(path)) == path and (
        path[0] != "/" and not {"..", "."} & set(path.split("/"))
    )  # fmt: skip


class _Head(msgspec.Struct, frozen=True):
    schema: str


# ---- signatures ------------------------------------------------------------------------------------------------------


def sign(raw: bytes, key: Ed25519PrivateKey) -> bytes:
    """The signature file for the bytes of a manifest."""
    made = Signature(
        key=base64.b64encode(key.public_key().public_bytes_raw()).decode(),
        signature=base64.b64encode(key.sign(_PREFIX + raw)).decode(),
    )
    return msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"


def signed_by(raw: bytes, signature: bytes, key: Ed25519PublicKey | None) -> str:
    """The public key, in base64, that signed these bytes: `key`, or the one the signature names. Raises BadBundle."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        said = msgspec.json.decode(signature, type=Signature)
        named = Ed25519PublicKey.from_public_bytes(base64.b64decode(said.key, validate=True))
        by = key or named
        if by.public_bytes_raw() != named.public_bytes_raw():
            raise BadBundle("serve/signature", "the bundle is signed by another key than the one you trust")
        by.verify(base64.b64decode(said.signature, validate=True), _PREFIX + raw)
    except (ValueError, RecursionError) as error:
        raise BadBundle("serve/signature", f"{SIGNATURE} does not read: {error}") from None
    except InvalidSignature:
        raise BadBundle(
            "serve/signature", "the signature does not fit the manifest: one of the two was changed"
        ) from None
    return said.key


def private_key(path: Path) -> Ed25519PrivateKey:
    """A private key in PEM (PKCS #8, not encrypted) that nobody else may change or read. Raises UsageError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    raw = _key_bytes(path, secret=True)
    try:
        key = load_pem_private_key(raw, None)
    except (ValueError, TypeError) as error:
        raise UsageError("serve/key", f"{path} holds no private key that can be used: {error}", hint=_MAKE) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError("serve/key", f"the key in {path} is not an Ed25519 key", hint=_MAKE)
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """A public key in PEM. Raises UsageError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_key_bytes(path, secret=False))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError("serve/key", f"{path} holds no public key: {error}", hint=_MAKE) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("serve/key", f"the key in {path} is not an Ed25519 key", hint=_MAKE)
    return key


def _key_bytes(path: Path, *, secret: bool) -> bytes:
    try:
        raw = read_file(path, _MAX_KEY_BYTES, ours=True)
        if secret and path.stat().st_mode & 0o077:
            raise UsageError("serve/key", f"others may read the private key {path}", hint=f"chmod 600 {path}")
    except NotOurs as error:
        raise UsageError("serve/key", f"{path} cannot be trusted: {error.strerror}", hint=f"ls -l {path}") from None
    except OSError as error:
        raise UsageError("serve/key", f"{path} cannot be read: {error.strerror}", hint=_MAKE) from None
    return raw
