"""What libraries say when a source cannot be read, as obstore 0.12 said it, and the sentence that a user gets."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error

import pytest

from fairlead.errors import Exit
from fairlead.weights.refusals import STORES, bad_settings, http_refusal, kind_of, refusal

LIST = "Generic S3 error: Error performing list request: Error performing GET http://s3.site:403/b?prefix=x%2F in 2ms"
CAUSES = "{head}, after 2 retries, max_retries: 2, retry_timeout: 4s  - HTTP error: error sending request\n\n\
Debug source:\nGeneric {{ inner: Http(HttpError {{ kind: Connect, source: {cause} }}) }}"
IMDS = "Generic MicrosoftAzure error: Error performing token request: Error performing GET \
http://169.254.169.254/metadata/identity/oauth2/token?resource=x in 1.4ms - "


@pytest.mark.parametrize(
    ("words", "code", "exit_", "text", "hint"),
    [
        (CAUSES.format(head=LIST, cause='ConnectError("dns error", Custom { })'), "weights/no-origin", Exit.RETRY,
         "the name s3.site:403 is not known here", "AWS_ENDPOINT_URL"),
        (CAUSES.format(head=LIST, cause="ConnectError(Os { kind: ConnectionRefused })"), "weights/no-origin",
         Exit.RETRY, "nothing listens at s3.site:403", "AWS_ENDPOINT_URL"),
        (CAUSES.format(head=LIST, cause="Custom { error: InvalidCertificate(UnknownIssuer) }"), "weights/no-origin",
         Exit.UNKNOWN, "the certificate of s3.site:403 is not believed", "SSL_CERT_FILE"),
        (CAUSES.format(head=LIST, cause="Custom { error: InvalidMessage(InvalidContentType) }"), "weights/no-origin",
         Exit.UNKNOWN, "s3.site:403 does not speak TLS", "http:// or https://"),
        (f"{LIST} - HTTP error: error sending request\n\nDebug source:\nHttpError {{ kind: Timeout }}",
         "weights/no-origin", Exit.RETRY, "does not answer in time", "fairlead weights ls s3://b/x"),
        (f"{LIST} - Server returned non-2xx status code: 404 Not Found: <Error><Code>NoSuchBucket</Code></Error>",
         "weights/no-origin", Exit.UNKNOWN, "there is no bucket `b` at s3.site:403", "compare the name"),
        (f"{LIST} - Server returned non-2xx status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code>",
         "weights/denied", Exit.UNKNOWN, "S3 refuses these credentials: 403 Forbidden SignatureDoesNotMatch",
         "AWS_SECRET_ACCESS_KEY"),
        (f"{LIST} - Server returned error response: status: 503 Slow Down", "weights/no-origin", Exit.RETRY,
         "s3.site:403 is busy: 503 Slow Down", "again later"),
        (IMDS + "Server returned non-2xx status code: 400 Bad Request: Identity not found", "weights/denied",
         Exit.UNKNOWN, "no credentials for S3 are set, and this machine has no identity", "AWS_ACCESS_KEY_ID"),
        (f"{IMDS} HTTP error: error sending request\n\nDebug source:\nkind: Timeout", "weights/denied", Exit.UNKNOWN,
         "no credentials for S3 are set", "AWS_ACCESS_KEY_ID"),
        ("Generic MicrosoftAzure error: 'az account get-access-token' command failed: Azure Cli not installed",
         "weights/denied", Exit.UNKNOWN, "the Azure CLI gives no token", "az login"),
        ("something new", "weights/no-origin", Exit.RETRY, "it cannot be listed: something new", "weights ls s3://b/x"),
    ],
)  # fmt: skip
def test_what_a_store_says_becomes_one_sentence_and_what_to_do(words, code, exit_, text, hint):
    error = refusal("s3://b/x", words, STORES["s3"], "b")
    assert (error.code, error.exit) == (code, exit_)
    assert error.message.startswith("s3://b/x: ")
    assert text in error.message
    assert hint in error.hint
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("words", "code", "text", "hint"),
    [
        ("Generic MicrosoftAzure error: Account must be specified", "weights/source", "no storage account is named",
         "AZURE_STORAGE_ACCOUNT_NAME"),
        ("Generic MicrosoftAzure error: Invalid Access Key: Invalid symbol 45, offset 3.", "weights/denied",
         "is no account key", "AZURE_STORAGE_SAS_TOKEN"),
        ('Generic URL error: Unable to recognise URL "az://"', "weights/source", "names no container", "az://CONTAINER"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_settings_is_a_wrong_usage(words, code, text, hint):
    error = bad_settings("az://c/x", words, STORES["az"])
    assert (error.code, error.exit) == (code, Exit.USAGE)
    assert text in error.message
    assert hint in error.hint


def test_the_kind_of_a_store_is_that_of_its_address():
    assert kind_of("gs") is STORES["gs"]
    assert kind_of("https", "b.s3.eu-west-1.amazonaws.com") is STORES["s3"]
    assert kind_of("https", "storage.googleapis.com") is STORES["gs"]
    assert kind_of("https", "a.blob.core.windows.net") is STORES["az"] is kind_of("abfss")


def of(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://h/f", status, http.client.responses[status], http.client.HTTPMessage(), None)


@pytest.mark.parametrize(
    ("error", "code", "exit_", "text"),
    [
        (of(401), "weights/denied", Exit.UNKNOWN, "refuses: 401"),
        (of(404), "weights/no-origin", Exit.UNKNOWN, "h has nothing at http://h/f: 404"),
        (of(503), "weights/no-origin", Exit.RETRY, "h is busy: 503"),
        (urllib.error.URLError(socket.gaierror(-2, "?")), "weights/no-origin", Exit.RETRY, "the name h is not known"),
        (urllib.error.URLError(ConnectionRefusedError(111, "?")), "weights/no-origin", Exit.RETRY, "nothing listens"),
        (urllib.error.URLError(ssl.SSLError("WRONG_VERSION")), "weights/no-origin", Exit.UNKNOWN, "speak TLS"),
        (TimeoutError("timed out"), "weights/no-origin", Exit.RETRY, "does not answer in time"),
    ],
)
def test_what_comes_instead_of_an_answer_by_http(error, code, exit_, text):
    made = http_refusal("http://h/f", error)
    assert (made.code, made.exit) == (code, exit_)
    assert text in made.message
    assert made.hint
