"""Whether a bundle is what its maker signed: manifest, signature, platform, every byte, and nothing beside it.

`read` finds what lies there, `judge` says what it means; the second is pure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlead.base.trust import read_file
from fairlead.base.units import counted, size
from fairlead.errors import UsageError
from fairlead.records.finding import Evidence, Finding, Subject, worst_first
from fairlead.records.verdict import Verdict
from fairlead.serve.pour import digest_files
from fairlead.serve.record import MANIFEST, MAX_MANIFEST_BYTES, SIGNATURE, BadBundle, Bundle, parse, signed_by

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

MAX_SIGNATURE_BYTES = 4096
_SHOWN = 20
"""Files that are named one by one; more of one kind are counted."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in a folder, whatever its manifest says."""

    manifest: bytes
    signature: bytes | None
    digests: Mapping[str, str]
    """Of each file that the manifest names and that has the right size."""
    sizes: Mapping[str, int | None]
    """Of each file that is there; None for what is no regular file."""
    unread: Mapping[str, str] = {}
    """Files that could not be read, and why."""


def verify(
    folder: Path, *, key: Ed25519PublicKey | None = None, platform: str, said: Callable[[int], None] = lambda _n: None
) -> tuple[Bundle | None, list[Finding]]:
    """The manifest, if it could be taken, and what was found."""
    if not (folder / MANIFEST).is_file():
        text = f"{folder} is no bundle: it has no {MANIFEST}"
        raise UsageError("serve/not-a-bundle", text, hint="fairlead serve bundle MODEL FOLDER makes one")
    raw = read_file(folder / MANIFEST, MAX_MANIFEST_BYTES, follow=False)
    signature = _signature(folder)
    try:
        signer = signed_by(raw, signature, key) if signature is not None else ""
        bundle = parse(raw)
    except BadBundle as error:
        return None, [_fail(error.code, folder.name, error.message, MANIFEST, error.hint)]
    seen = _read(folder, raw, signature, bundle, said)
    return bundle, worst_first(judge(bundle, seen, signer=signer, trusted=key is not None, platform=platform))


def judge(bundle: Bundle, seen: Seen, *, signer: str, trusted: bool, platform: str) -> list[Finding]:
    """What was found about a bundle whose signature, if there is one, fits. Pure."""
    found = [_who(bundle, signer, trusted=trusted)]
    if bundle.platform not in ("any", platform):
        text = f"the bundle is for {bundle.platform}, and this is {platform}"
        remedy = f"Make one for {platform}, or say where it will run: --platform {bundle.platform}"
        found.append(_fail("serve/other-architecture", bundle.name, text, MANIFEST, remedy))
    bad = list[Finding]()
    for stored in bundle.stored:
        path, there = stored.path, seen.sizes.get(stored.path, -1)
        if there == -1:
            bad.append(_fail("serve/missing", path, "it is not there", path, _AGAIN))
        elif path in seen.unread:
            text = f"it could not be read: {seen.unread[path]}"
            bad.append(_fail("serve/unread", path, text, path, "Mend the disk or the rights.", verdict=Verdict.UNKNOWN))
        elif there != stored.size:
            what = "it is no regular file" if there is None else f"it has {there} bytes, signed were {stored.size}"
            bad.append(_fail("serve/flipped", path, what, path, _AGAIN))
        elif seen.digests[path] != stored.sha256:
            text = f"its bytes were changed: SHA-256 {seen.digests[path][:16]}…, signed was {stored.sha256[:16]}…"
            bad.append(_fail("serve/flipped", path, text, path, _AGAIN))
    known = {stored.path for stored in bundle.stored} | {MANIFEST, SIGNATURE}
    bad += [
        _fail("serve/extra", path, "no manifest names it: somebody put it there later", path, "Remove it.")
        for path in sorted(set(seen.sizes) - known)
    ]
    if not bad:
        total = size(sum(stored.size for stored in bundle.stored))
        text = f"{counted(len(bundle.stored), 'file')}, {total}: every byte is as it was made"
        found.append(_said("serve/bundle", Verdict.PASS, bundle.name, text))
    return found + bad[:_SHOWN] + _rest(bad[_SHOWN:])


_AGAIN = "Copy the bundle again; verify it where it was made, too."


def _who(bundle: Bundle, signer: str, *, trusted: bool) -> Finding:
    if signer and trusted:
        return _said("serve/signature", Verdict.PASS, bundle.name, f"signed by the key you trust, {signer}")
    if trusted:
        text = f"it is not signed: there is no {SIGNATURE}"
        return _fail(
            "serve/unsigned", bundle.name, text, SIGNATURE, "Ask for a signed one: fairlead serve bundle --key"
        )
    text = f"signed by {signer}; whose key that is was not asked" if signer else "it is not signed"
    code = "serve/untrusted" if signer else "serve/unsigned"
    remedy = "Name the public key you trust: --key bundle.pub" if signer else "Ask its maker for a signed one."
    return _fail(code, bundle.name, text, SIGNATURE, remedy, verdict=Verdict.WARN)


def _rest(bad: list[Finding]) -> list[Finding]:
    if not bad:
        return []
    worst = Verdict.FAIL if any(f.verdict is Verdict.FAIL for f in bad) else Verdict.UNKNOWN
    return [_fail(bad[0].code, "others", f"and {counted(len(bad), 'more file')}", MANIFEST, _AGAIN, verdict=worst)]


def _read(folder: Path, raw: bytes, signature: bytes | None, bundle: Bundle, said: Callable[[int], None]) -> Seen:
    sizes = dict[str, int | None]()
    for place, below, files in os.walk(folder):
        links = [name for name in below if Path(place, name).is_symlink()]
        for name in (*files, *links):
            path = Path(place, name)
            is_file = path.is_file() and not path.is_symlink()
            sizes[path.relative_to(folder).as_posix()] = path.lstat().st_size if is_file else None
    digests, unread = dict[str, str](), dict[str, str]()
    whole = [stored.path for stored in bundle.stored if sizes.get(stored.path) == stored.size]
    for name, found in zip(whole, digest_files([folder / name for name in whole], said), strict=True):
        if isinstance(found, str):
            digests[name] = found
        else:
            unread[name] = found.strerror or str(found)
    return Seen(manifest=raw, signature=signature, digests=digests, sizes=sizes, unread=unread)


def _signature(folder: Path) -> bytes | None:
    try:
        return read_file(folder / SIGNATURE, MAX_SIGNATURE_BYTES, follow=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError("serve/not-a-bundle", f"{SIGNATURE} cannot be read: {error.strerror}") from None


def _fail(code: str, about: str, message: str, source: str, remedy: str, *, verdict: Verdict = Verdict.FAIL) -> Finding:
    return Finding(
        code=code, verdict=verdict, subject=Subject(kind="cluster", name=about), message=message,
        evidence=(Evidence(source, message),), remedy=remedy,
    )  # fmt: skip


def _said(code: str, verdict: Verdict, about: str, message: str) -> Finding:
    return Finding(code=code, verdict=verdict, subject=Subject(kind="cluster", name=about), message=message)
