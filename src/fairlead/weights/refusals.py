"""Why a source cannot be read, as one sentence and what to do next. Pure: words of libraries in, an error out.

obstore passes on what object_store says (github.com/apache/arrow-rs-object-store): one sentence with the request and
the status, and behind `Debug source:` the chain of causes, where alone a name that does not resolve can be told from a
certificate that is not believed. Credentials, names and certificates do not mend themselves: exit code 4. What another
try may mend has 5. Must not know how a source is read.
"""

from __future__ import annotations

import re
import socket
import ssl
import urllib.error
from dataclasses import dataclass
from typing import Literal

from fairlead.errors import Exit, FairleadError, UsageError
from fairlead.records.border import shown


@dataclass(frozen=True)
class Kind:
    """One kind of store, in its users' words."""

    name: str
    container: str
    set: str
    """What proves who one is."""
    account: str
    """What its address follows from."""


STORES = {
    "az": Kind(
        "Azure Blob Storage", "container",
        "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or AZURE_USE_AZURE_CLI=true after `az login`",
        "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ENDPOINT",
    ),
    "s3": Kind(
        "S3", "bucket", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL, AWS_REGION"
    ),
    "gs": Kind(
        "Google Cloud Storage", "bucket", "set GOOGLE_APPLICATION_CREDENTIALS to a file with a key", "the bucket"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One thing that goes wrong."""

    says: str
    """Pattern in the library's words."""
    code: str
    text: str
    hint: str
    exit: Exit = Exit.UNKNOWN
    within: Literal["request", "answer", "causes"] = "answer"
    """Where: in the sentence with its addresses; without addresses, which hold any digits; in all that is said."""


_DENIED = r"(?i)\bstatus(?: code)?: (?:401|403)\b|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|credential|IMDS"
_LS = "fairlead weights ls {plain}"
IN_A_LIST = (
    Case(
        r"169\.254\.169\.254|metadata\.google", "weights/denied",
        "no credentials for {store} are set, and this machine has no identity that gets a token", "{set}; then: " + _LS,
        within="request",
    ),
    Case(
        r"az account get-access-token", "weights/denied", "the Azure CLI gives no token: {tail}",
        "az login; then: " + _LS,
    ),
    Case(r"token request", "weights/denied", "this identity gets no token: {answer}", "{set}; then: " + _LS),
    Case(_DENIED, "weights/denied", "{store} refuses these credentials: {status}", "{set}; then: " + _LS),
    Case(
        r"\bstatus(?: code)?: 404\b", "weights/no-origin", "there is no {container} `{bucket}` at {host}",
        "compare the name, and {account}",
    ),
    Case(
        r"dns error|failed to lookup address", "weights/no-origin", "the name {host} is not known here",
        "compare {account}; then: getent hosts {host}", Exit.RETRY, "causes",
    ),
    Case(
        r"InvalidCertificate|invalid peer certificate|UnknownIssuer", "weights/no-origin",
        "the certificate of {host} is not believed",
        "SSL_CERT_FILE=FILE, with the certificate of the authority that signed it", within="causes",
    ),
    Case(
        r"InvalidContentType|InvalidMessage|CorruptMessage", "weights/no-origin", "{host} does not speak TLS",
        "compare {account}: http:// or https://", within="causes",
    ),
    Case(
        r"ConnectionRefused|Connection refused", "weights/no-origin", "nothing listens at {host}",
        "compare {account}; then: " + _LS, Exit.RETRY, "causes",
    ),
    Case(
        r"kind: Timeout|TimedOut|timed out", "weights/no-origin", "{host} does not answer in time",
        "compare {account}; then: " + _LS, Exit.RETRY, "causes",
    ),
    Case(r"\bstatus(?: code)?: (?:429|5\d\d)\b", "weights/no-origin", "{host} is busy: {status}", "again later: " + _LS,
         Exit.RETRY),
    Case(r"", "weights/no-origin", "it cannot be listed: {short}", _LS, Exit.RETRY),
)  # fmt: skip
IN_SETTINGS = (
    Case(
        r"Account must be specified", "weights/source", "no storage account is named",
        "set AZURE_STORAGE_ACCOUNT_NAME, or write https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX",
    ),
    Case(r"Invalid Access Key", "weights/denied", "AZURE_STORAGE_ACCOUNT_KEY is no account key: {tail}", "{set}"),
    Case(r"service account|credential", "weights/denied", "these credentials cannot be used: {tail}", "{set}"),
    Case(r"Unable to recognise URL", "weights/source", "it names no container and no bucket", "az://CONTAINER/PREFIX, "
         "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX"),
    Case(r"", "weights/source", "{tail}", "{set}; compare {account}"),
)  # fmt: skip
_NOT_SAID = re.compile(r"https?://\S+|RequestId\S*")
_HOST = re.compile(r"\b(?:GET|PUT|POST|HEAD) (https?)://([^/\s?]+)")
_STATUS = re.compile(r"\bstatus(?: code)?: (\d{3}(?: [A-Z][A-Za-z]+)*)")
_ANSWER = re.compile(r"\b(?:status code|error response): (.*)", re.DOTALL)
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")


def kind_of(scheme: str, host: str = "") -> Kind:
    """The kind of a store's address."""
    if scheme == "gs" or "googleapis" in host:
        return STORES["gs"]
    return STORES["s3" if scheme in ("s3", "s3a") or "amazonaws" in host or "r2.cloudflare" in host else "az"]


def is_denied(words: str) -> bool:
    """Whether a store's refusal is about who asks. Addresses and numbers of requests may hold any digits.

    >>> is_denied("GET http://h:40312/c - Server returned non-2xx status code: 404 Not Found: RequestId:bc-4031")
    False
    >>> is_denied("GET http://h/c - Server returned non-2xx status code: 403 Forbidden")
    True
    """
    return re.search(_DENIED, _NOT_SAID.sub("", words.partition("Debug source:")[0])) is not None


def refusal(plain: str, words: str, kind: Kind, bucket: str, *, denied: bool = False) -> FairleadError:
    """What a store's library said when it was to list `plain`. `denied`: the library itself knows that it is about who
    asks.
    """
    head, _, causes = words.partition("Debug source:")
    bare = _NOT_SAID.sub("", head)
    where = {"request": head, "answer": bare, "causes": bare + causes}
    found = (c for c in IN_A_LIST if re.search(c.says, where[c.within]) or (denied and c.says == _DENIED))
    case = next(found)
    values = _words(plain, head, kind, bucket)
    text, hint = case.text.format(**values), case.hint.format(**values)
    return FairleadError(case.code, f"{plain}: {text}", hint=hint, exit=case.exit)


def bad_settings(plain: str, words: str, kind: Kind) -> UsageError:
    """What a store's library said of an address and the environment, before anybody was asked."""
    case = next(c for c in IN_SETTINGS if re.search(c.says, words))
    values = _words(plain, words, kind, "")
    return UsageError(case.code, f"{plain}: {case.text.format(**values)}", hint=case.hint.format(**values))


def _words(plain: str, head: str, kind: Kind, bucket: str) -> dict[str, str]:
    """What sentences are made of."""
    host = _HOST.search(head)
    status = " ".join(found[1] for found in (_STATUS.search(head), _CODE.search(head)) if found)
    answer = _ANSWER.search(head)
    return {
        "answer": shown(" ".join(answer[1].split()), 300) if answer else tail(head),
        "plain": plain,
        "store": kind.name,
        "container": kind.container,
        "set": kind.set,
        "account": kind.account,
        "bucket": bucket,
        "host": host[2] if host else kind.name,
        "short": short(head),
        "tail": tail(head),
        "status": status or tail(head),
    }


def short(words: str) -> str:
    """The first sentence of what a library says."""
    return shown(" ".join(words.partition("\n\n")[0].split()), 300)


def tail(words: str) -> str:
    """The same without the library's own name for where it was.

    >>> tail("Generic MicrosoftAzure error: Invalid Access Key: Invalid symbol 45, offset 3.")
    'Invalid Access Key: Invalid symbol 45, offset 3.'
    """
    return re.sub(r"\AGeneric \w+ error: ", "", short(words))


def http_refusal(plain: str, error: Exception) -> FairleadError:
    """What came of a request by plain HTTP, or to a hub, instead of an answer."""
    host = plain.split("/")[2] if plain.count("/") > 1 else plain
    if isinstance(error, urllib.error.HTTPError):
        status = f"{error.code} {shown(str(error.reason))}"
        if error.code in (401, 403):
            hint = "set HF_TOKEN (or FAIRLEAD_WEIGHTS_TOKEN for plain HTTP) to a token that may read it"
            return FairleadError("weights/denied", f"{plain} refuses: {status}", hint=hint)
        if error.code in (404, 410):
            text = f"{host} has nothing at {plain}: {status}"
            return FairleadError("weights/no-origin", text, hint=f"compare the address: curl -I {plain}")
        is_busy = error.code == 429 or error.code >= 500
        text = f"{plain}: {host} is busy: {status}" if is_busy else f"{plain}: {status}"
        exit_ = Exit.RETRY if is_busy else Exit.UNKNOWN
        return FairleadError("weights/no-origin", text, hint=f"curl -I {plain}", exit=exit_)
    reason = getattr(error, "reason", error)
    text, hint, exit_ = shown(str(reason)), f"curl -I {plain}", Exit.RETRY
    if isinstance(reason, socket.gaierror):
        text, hint = (
            f"the name {host} is not known here",
            f"compare the address; then: getent hosts {host.split(':')[0]}",
        )
    elif isinstance(reason, ssl.SSLCertVerificationError):
        text = f"the certificate of {host} is not believed: {shown(reason.verify_message)}"
        hint, exit_ = "SSL_CERT_FILE=FILE, with the certificate of the authority that signed it", Exit.UNKNOWN
    elif isinstance(reason, ssl.SSLError):
        text, hint, exit_ = (
            f"{host} does not speak TLS",
            f"http:{plain.partition(':')[2]}, if that is meant",
            Exit.UNKNOWN,
        )
    elif isinstance(reason, ConnectionRefusedError):
        text = f"nothing listens at {host}"
    elif isinstance(reason, TimeoutError):
        text = f"{host} does not answer in time"
    return FairleadError("weights/no-origin", f"{plain}: {text}", hint=hint, exit=exit_)
