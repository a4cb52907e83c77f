"""Where objects come from: what lies there, and the addresses by which nodes read it.

Credentials stay on the control side. Stores are listed with obstore, which knows every usual way to prove who one is
(keys, SAS, managed and workload identity, the cloud's own command line), and it signs an address for each object that
is valid for hours and for reading alone; a node gets that address and needs no library. Folders are read by nodes that
see them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import os
import re
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fairlead.base.trust import read_file
from fairlead.errors import Exit, FairleadError, MissingTool, UsageError
from fairlead.records.border import shown
from fairlead.weights.objects import MAX_OBJECTS, Object
from fairlead.weights.refusals import bad_settings, http_refusal, kind_of, refusal
from fairlead.weights.sums import s3_digests

VALID = dt.timedelta(hours=12)
"""How long a signed address holds; a node that is refused gets a fresh one."""
LIST_S = 4.0
"""How long listing goes on trying: what is wrong is said soon."""
BODY_S = 120.0
"""For a page of a list, however slowly it comes."""
MAX_PAGES = 4096
STORES = ("az", "azure", "abfs", "abfss", "adl", "s3", "s3a", "gs")
_HOSTS = (".blob.core.", ".dfs.core.", ".fabric.microsoft.com", ".amazonaws.com", ".r2.cloudflarestorage.com",
          "storage.googleapis.com")  # fmt: skip
_HINT = (
    "az://CONTAINER/PREFIX, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, https://HOST/FILE, hf://OWNER/MODEL, a folder, or "
    "node://NODE/FOLDER"
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One place that objects come from."""

    name: str
    """As people know it, without secrets."""
    listed: Callable[[], list[Object]]
    """What lies there. Raises FairleadError."""
    urls: Callable[[Iterable[str]], Mapping[str, str]]
    """Addresses that nodes read these paths by."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What nodes send along."""
    pins: bool = True
    """A tag is an ETag of the address: nodes ask for just that version."""
    has_md5_tags: bool = False
    """An ETag without a dash is the MD5 of the object."""
    digests: Callable[[Sequence[Object]], Mapping[str, str]] = lambda _: {}
    """Path -> what the store keeps of these objects' bytes, and says neither in lists nor with them."""
    ranged: Callable[[], None] = lambda: None
    """Asked where something takes more than one request. Raises FairleadError where it can be had by one alone."""
    node: str = ""
    """The one node that can read it; empty: each can."""


def source_of(text: str) -> Source:
    """What is meant by a source on the command line. Raises UsageError and MissingTool."""
    parts = urllib.parse.urlsplit(text)
    if parts.scheme in ("", "file"):
        return _folder(Path(urllib.parse.unquote(parts.path) if parts.scheme else text))
    if parts.scheme == "hf":
        return _hugging_face(text)
    if parts.scheme == "node":
        text_ = "a node is a source for others alone: `weights spread` and `weights plan` take it"
        raise UsageError("weights/source", text_, hint="fairlead weights spread node://NODE/FOLDER FOLDER")
    is_store = parts.scheme in STORES or (parts.scheme == "https" and any(h in parts.netloc for h in _HOSTS))
    if is_store:
        return _store(text, parts)
    if parts.scheme in ("http", "https"):
        return _http(text)
    raise UsageError("weights/source", f"no source is called `{parts.scheme}://`", hint=_HINT)


# ---- a folder --------------------------------------------------------------------------------------------------------


def _folder(path: Path) -> Source:
    if not path.is_dir():
        raise UsageError("weights/source", f"{path} is no folder here", hint=_HINT)
    top = path.resolve()

    def listed() -> list[Object]:
        found = []
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                at = Path(folder) / name
                said = _file(at)  # a link to a file is that file: caches of models are made of them
                when = dt.datetime.fromtimestamp(said.st_mtime, dt.UTC).isoformat(timespec="seconds")
                tag = f"{said.st_size:x}-{said.st_mtime_ns:x}"
                found.append(Object(path=at.relative_to(top).as_posix(), size=said.st_size, tag=tag, modified=when))
        return found

    return Source(
        name=str(top),
        listed=listed,
        urls=lambda paths: {p: "file://" + urllib.parse.quote(str(top / p)) for p in paths},
        pins=False,
    )


def _file(path: Path) -> os.stat_result:
    """A regular file, or a link to one. Raises FairleadError: a node would wait for a pipe, or find nothing."""
    why = "is neither a file nor a link to one"
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            return found
    except OSError as error:
        why = f"cannot be looked at: {error.strerror}"
    raise FairleadError("weights/no-origin", f"{shown(str(path))} {why}", hint="remove it from the source")


# ---- stores ----------------------------------------------------------------------------------------------------------


def _store(text: str, parts: urllib.parse.SplitResult) -> Source:
    try:
        import obstore
        from obstore import exceptions as bad
        from obstore.store import AzureStore, GCSStore, from_url
    except ImportError:
        raise MissingTool(
            "weights/source", "stores are read with the package obstore", hint="pip install 'fairlead[weights]'"
        ) from None
    plain, kind = text.partition("?")[0], kind_of(parts.scheme, parts.netloc)
    config: dict[str, Any] = {"sas_key": parts.query} if "sig=" in parts.query else {}
    sas = (
        parts.query if config else os.environ.get("AZURE_STORAGE_SAS_TOKEN") or os.environ.get("AZURE_STORAGE_SAS_KEY")
    )
    set_ = (v for k, v in os.environ.items() if k.endswith(("ENDPOINT", "ENDPOINT_URL", "BASE_URL")))
    loopback = any(v.startswith("http://") for v in set_)
    retry: dict[str, Any] = {"max_retries": 2, "retry_timeout": dt.timedelta(seconds=LIST_S)}
    options: dict[str, Any] = {"timeout": f"{LIST_S:g}s", "connect_timeout": "3s", "allow_http": loopback}
    try:
        more: Any = {"config": config or None, "client_options": options, "retry_config": retry}
        store: Any = from_url(plain, **more)
    except (bad.BaseError, ValueError) as error:
        raise bad_settings(plain, str(error), kind) from None

    def trouble(error: Exception) -> FairleadError:
        denied = isinstance(error, bad.PermissionDeniedError | bad.UnauthenticatedError)
        bucket = parts.netloc if parts.scheme != "https" else parts.path.strip("/").partition("/")[0]
        return refusal(plain, str(error), kind, bucket, denied=denied)

    def listed() -> list[Object]:
        found: list[Object] = []
        try:
            for some in obstore.list(store, chunk_size=1000):
                for meta in some:
                    when = meta["last_modified"].astimezone(dt.UTC).isoformat(timespec="seconds")
                    one = Object(path=meta["path"], size=meta["size"], tag=meta["e_tag"] or "", modified=when)
                    found.append(one)
                if len(found) > MAX_OBJECTS:
                    break
        except (bad.BaseError, OSError, ValueError) as error:
            raise trouble(error) from None
        return found

    def signed(paths: Iterable[str]) -> Mapping[str, str]:
        names = list(paths)
        try:
            if sas and isinstance(store, AzureStore):
                # a token cannot sign another one: it stands behind the bare address, which a key of no worth makes
                bare: Any = from_url(plain, config={"account_key": "AAAA"}, client_options=options)
                made = obstore.sign(bare, "GET", names, VALID)
                return {p: f"{url.partition('?')[0]}?{sas.lstrip('?')}" for p, url in zip(names, made, strict=True)}
            # obstore 0.12 signs the escaped name, where Blob storage reckons with the plain one
            odd = [
                p for p in names if isinstance(store, AzureStore) and urllib.parse.quote(p, safe="/~+&='!$()*,;:@") != p
            ]
            if odd:
                text_ = f"no address can be signed for {shown(odd[0])}: spaces and the like need a SAS token"
                raise UsageError(
                    "weights/unsignable", text_, hint="set AZURE_STORAGE_SAS_TOKEN, or --leave-out PATTERN"
                )
            # and for Google Cloud Storage it signs the plain name, where `#`, `?` and `%` end or change an address
            said = [urllib.parse.quote(p) for p in names] if isinstance(store, GCSStore) else names
            return dict(zip(names, obstore.sign(store, "GET", said, VALID), strict=True))
        except (bad.BaseError, OSError, ValueError) as error:
            raise trouble(error) from None

    is_s3 = not isinstance(store, AzureStore | GCSStore)
    kept: dict[str, Any] = {}
    if is_s3 and parts.scheme in ("s3", "s3a"):
        kept["digests"] = partial(s3_digests, parts.netloc, parts.path.strip("/"))
    return Source(name=plain, listed=listed, urls=signed, has_md5_tags=is_s3, **kept)


# ---- one file by HTTP, a model of Hugging Face -----------------------------------------------------------------------


def _http(url: str) -> Source:
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    if not name:
        raise UsageError("weights/source", "an address of a file is needed: plain HTTP has no lists", hint=_HINT)
    if "@" in urllib.parse.urlsplit(url).netloc:
        hint = "set FAIRLEAD_WEIGHTS_TOKEN, which is sent as a bearer token"
        raise UsageError("weights/source", "an address holds no user and no password: it stands in lists", hint=hint)
    plain = url.partition("?")[0]
    token = os.environ.get("FAIRLEAD_WEIGHTS_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    says_ranges: list[bool] = []

    def listed() -> list[Object]:
        with _asked(url, headers, method="HEAD") as answer:
            head = answer.headers
        says_ranges[:] = [(head.get("Accept-Ranges") or "").strip().lower() == "bytes"]  # RFC 9110, 14.3
        length = head.get("Content-Length") or ""
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise FairleadError("weights/no-origin", f"{plain} does not say how large it is", hint="curl -I " + plain)
        tag = head.get("ETag") or ""
        when = ""
        with contextlib.suppress(ValueError, TypeError, OverflowError):  # a date is told, and nothing rests on it
            told = parsedate_to_datetime(head.get("Last-Modified") or "")
            when = told.astimezone(dt.UTC).isoformat(timespec="seconds")
        # a weak tag (RFC 9110, 8.8.3) promises no byte, so nothing can be asked for by it
        return [Object(path=name, size=int(length), tag="" if tag.startswith("W/") else tag, modified=when)]

    def ranged() -> None:
        if any(says_ranges):
            return
        with _asked(url, {**headers, "Range": "bytes=0-0"}) as answer:  # what comes beyond a byte is not read
            if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
                return
        text = f"{plain}: this server gives no byte ranges, and the file takes more than one request"
        hint = f"curl -f --create-dirs -o FOLDER/{shown(name)} {plain}; then FOLDER as the source"
        raise FairleadError("weights/no-ranges", text, hint=hint)

    return Source(
        name=plain, listed=listed, urls=lambda paths: dict.fromkeys(paths, url), headers=headers, ranged=ranged
    )


class _Sha(msgspec.Struct):
    oid: str = ""
    size: int = 0


class _Revision(msgspec.Struct):
    sha: Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z._-]{1,128}\Z")]


class _Entry(msgspec.Struct):
    """Of the tree of a repository, as the Hub's API documents it: huggingface.co/docs/hub/api."""

    type: str
    path: str
    size: int = 0
    oid: str = ""
    lfs: _Sha | None = None


def _hugging_face(text: str) -> Source:
    name, _, revision = text.removeprefix("hf://").strip("/").partition("@")
    if name.count("/") != 1:
        raise UsageError("weights/source", f"`{shown(text)}` names no repository", hint="hf://OWNER/MODEL@REVISION")
    hub = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    token = os.environ.get("HF_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    quoted = urllib.parse.quote(revision or "main", safe="")
    commit: list[str] = []

    def listed() -> list[Object]:
        where = f"{hub}/api/models/{name}/revision/{quoted}"
        commit[:] = [_decoded(where, _body(where, _asked(where, headers), 1 << 24), _Revision).sha]
        url: str | None = f"{hub}/api/models/{name}/tree/{commit[0]}?recursive=true"
        found: list[Object] = []
        pages = 0
        while url and len(found) <= MAX_OBJECTS:
            pages += 1
            if pages > MAX_PAGES:
                text_ = f"{hub} sends a list of more than {MAX_PAGES} pages"
                raise FairleadError("weights/no-origin", text_, hint="set HF_ENDPOINT to the hub itself")
            answer = _asked(url, headers)
            for entry in _decoded(url, _body(url, answer, 1 << 28), list[_Entry]):
                if entry.type == "file":
                    tag = entry.lfs.oid if entry.lfs else entry.oid
                    digest = f"sha256:{tag}" if entry.lfs else f"git:{tag}" if len(tag) == 40 else ""
                    found.append(Object(path=entry.path, size=entry.size, tag=tag, digest=digest))
            url = _next(answer.headers.get("Link") or "")
            if url and not url.startswith(hub + "/"):  # the token is for the hub alone, and file: is a scheme, too
                text_ = f"{hub} sends the list on to {shown(url)}, which is another place"
                raise FairleadError("weights/no-origin", text_, hint="set HF_ENDPOINT to the hub itself")
        return found

    def urls(paths: Iterable[str]) -> Mapping[str, str]:
        return {p: f"{hub}/{name}/resolve/{commit[0]}/{urllib.parse.quote(p)}" for p in paths}

    return Source(name=f"hf://{name}@{revision or 'main'}", listed=listed, urls=urls, headers=headers, pins=False)


def _next(link: str) -> str | None:
    """The next page of a list: RFC 8288."""
    for part in link.split(","):
        target, _, rest = part.partition(";")
        if 'rel="next"' in rest:
            return target.strip().strip("<>")
    return None


def read_whole(source: Source, path: str, most_bytes: int) -> bytes:
    """A small object, read here. Raises FairleadError."""
    url = source.urls([path])[path]
    if url.startswith("file:"):
        try:
            return read_file(urllib.parse.unquote(urllib.parse.urlsplit(url).path), most_bytes)
        except OSError as error:
            raise FairleadError("weights/no-origin", f"{path}: {error}", hint=f"ls -l {source.name}") from None
    return _body(url, _asked(url, source.headers), most_bytes)


def _body(url: str, answer: Any, most_bytes: int) -> bytes:
    """All of an answer. Raises FairleadError where it is longer, is cut off, or comes by drips."""
    plain, end, parts, size = url.partition("?")[0], time.monotonic() + BODY_S, [], 0
    try:
        with answer:
            while part := answer.read1(1 << 20):
                parts.append(part)
                size += len(part)
                if size > most_bytes:
                    text = f"{plain} sends more than {most_bytes} bytes"
                    raise FairleadError("weights/no-origin", text, hint=f"curl -I {plain}")
                if time.monotonic() > end:
                    text = f"{plain} has sent {size} bytes in {BODY_S:g} s, and goes on"
                    raise FairleadError("weights/no-origin", text, hint=f"curl -o /dev/null {plain}", exit=Exit.RETRY)
    except (OSError, http.client.HTTPException) as error:
        text = f"{plain} ends in the middle: {shown(str(error))}"
        raise FairleadError("weights/no-origin", text, hint=f"curl -I {plain}", exit=Exit.RETRY) from None
    if answer.length:  # what the head promised, and did not come
        text = f"{plain} ends {answer.length} bytes too early"
        raise FairleadError("weights/no-origin", text, hint=f"curl -I {plain}", exit=Exit.RETRY)
    return b"".join(parts)


def _decoded(url: str, data: bytes, kind: Any) -> Any:
    """What a hub says, of its type. Raises FairleadError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = f"{url.partition('?')[0]} answers with something else than a hub's list: {shown(str(error))}"
        raise FairleadError("weights/no-origin", text, hint="set HF_ENDPOINT to the hub itself") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A token goes to the host that it is for, and to no other that this one names."""

    def redirect_request(self, req: Any, *answer: Any) -> Any:
        made, newurl = super().redirect_request(req, *answer), answer[-1]
        was, now = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if made is not None and (was.scheme, was.netloc) != (now.scheme, now.netloc):
            made.remove_header("Authorization")
        return made


_OPENER = urllib.request.build_opener(_Redirects)


def _asked(url: str, headers: Mapping[str, str], method: str = "GET") -> Any:
    """An answer. Raises FairleadError."""
    request = urllib.request.Request(url, headers={"User-Agent": "fairlead", **headers}, method=method)  # noqa: S310
    plain = url.partition("?")[0]
    try:
        return _OPENER.open(request, timeout=LIST_S)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise http_refusal(plain, error) from None
