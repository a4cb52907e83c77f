"""What stores answer when they refuse, as Azurite 3.35 said it to obstore 0.12; numbers of requests mislead."""

from __future__ import annotations

import pytest

from fairlead.weights.refusals import is_denied

ANSWER = """Generic MicrosoftAzure error: Error performing list request: Error performing GET \
http://127.0.0.1:{port}/devstoreaccount1/models?restype=container&comp=list&prefix=t%2F in 4.310041ms - Server \
returned non-2xx status code: {status}: <?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<Error>
  <Code>{code}</Code>
  <Message>{text}
RequestId:{request}
Time:2026-11-23T00:08:02.354Z</Message>
</Error>

Debug source:
Generic {{ status: {debug} }}"""
REFUSED = (
    "Server failed to authenticate the request. Make sure the value of the Authorization header is formed correctly."
)


@pytest.mark.parametrize(
    ("denied", "words"),
    [
        (True, {"status": "403 Forbidden", "code": "AuthorizationFailure", "text": REFUSED}),
        (True, {"status": "401 Unauthorized", "code": "NoAuthenticationInformation", "text": ""}),
        (False, {"request": "bc4031aa-4401-4b47-bc25-c5cbb97e3775"}),
        (False, {"port": 40312}),
        (False, {"debug": 403}),
    ],
)
def test_only_what_the_store_says_of_who_asks_is_a_refusal(denied, words):
    plain = {"port": 1234, "status": "404 Not Found", "code": "ContainerNotFound", "text": "It does not exist.",
             "request": "1b00ed9c", "debug": 404}  # fmt: skip
    assert is_denied(ANSWER.format(**{**plain, **words})) == denied
