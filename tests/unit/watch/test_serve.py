"""The Prometheus endpoint, over real sockets: who gets an answer, and who gets none."""

from __future__ import annotations

import http.client
import socket
import time

import pytest

from fairlead.watch.onnode.metrics import metrics_text
from fairlead.watch.onnode.serve import BadEndpoint, Endpoint, address_of, read_token
from support import promtext

TOKEN = "0123456789abcdef-token"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def endpoint(token_file):
    made = Endpoint("127.0.0.1:0", token_file, lambda: "fairlead_watch_records_total 7\n")
    made.start()
    return made


def get(endpoint, path="/metrics", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    said = {"Authorization": f"Bearer {TOKEN}", **headers}
    connection.request(method, path, headers={k: v for k, v in said.items() if v is not None})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_who_has_the_token_gets_the_metrics(endpoint):
    assert get(endpoint) == (200, "fairlead_watch_records_total 7\n")


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer " + TOKEN[:-1]}, 401),
        ({"Authorization": "Basic " + TOKEN}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Authorization": None}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"path": "/"}, 404),
        ({"path": "/../etc/passwd"}, 404),
        ({"method": "POST"}, 405),
    ],
)
def test_everybody_else_gets_none(endpoint, how, status):
    assert get(endpoint, **how)[0] == status
    assert "records_total" not in get(endpoint, **how)[1]


def raw(endpoint, data, wait_s=0.0):
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as one:
        one.sendall(data)
        time.sleep(wait_s)
        try:
            return one.recv(1000)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("junk", [b"\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET /metrics\r\n\r\n", b"A" * 20_000])
def test_junk_and_endless_requests_are_let_go(endpoint, junk):
    assert b"200" not in raw(endpoint, junk)
    assert get(endpoint)[0] == 200


def test_two_hosts_in_one_request_are_none(endpoint):
    host = f"Host: 127.0.0.1:{endpoint.port}\r\n"
    asked = f"GET /metrics HTTP/1.1\r\n{host}{host}Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    assert raw(endpoint, asked).startswith(b"HTTP/1.1 400")


def test_one_who_says_nothing_keeps_nobody_waiting_for_long(endpoint):
    with socket.create_connection(("127.0.0.1", endpoint.port)):
        before = time.monotonic()
        assert get(endpoint)[0] == 200
        assert time.monotonic() - before < 8


@pytest.mark.parametrize(
    "said", ["", "0.0.0.0:9464", "[::]:9464", "localhost:9464", "127.0.0.1", "127.0.0.1:99999", "x:y"]
)
def test_an_address_that_is_none_or_all_of_them_is_refused(said):
    with pytest.raises(BadEndpoint):
        address_of(said)


def test_a_token_that_others_can_read_or_that_is_short_is_refused(tmp_path, token_file):
    assert read_token(token_file) == TOKEN.encode()
    loose, short, link = tmp_path / "loose", tmp_path / "short", tmp_path / "link"
    loose.write_text(TOKEN)
    loose.chmod(0o644)
    short.write_text("abc")
    short.chmod(0o600)
    link.symlink_to("/dev/zero")
    for path in (loose, short, link, tmp_path / "none"):
        with pytest.raises(BadEndpoint):
            read_token(str(path))


def test_metrics_are_what_prometheus_reads_whatever_a_process_calls_itself():
    evil = 'x"} 1\nfake_metric 7\n\\'
    now = {
        "t": 1_795_000_000_123_000_000,
        "head": [41, "0" * 64],
        "ports": {"mlx5_0/1": {"state": "4: ACTIVE", "owners": [evil], "rx_total": (1 << 63), "tx_total": None}},
        "links": {"eth0": {"vf_share": 0.25}},
        "talkers": [{"who": evil, "alone_bps": 1.5e9, "shared_bps": 0.0}],
        "findings": [
            {"code": "watch/counter-rate", "verdict": "warn", "part": evil, "data": {"counter": "symbol_error"}}
        ],
        "self": {"cpu_s": 1.25, "rss_bytes": 20_000_000},
    }
    found = promtext.read(metrics_text(now))
    assert "fake_metric" not in found
    assert found["fairlead_watch_port_received_bytes_total"] == {frozenset({("port", "mlx5_0/1")}): float(1 << 63)}
    assert "fairlead_watch_port_transmitted_bytes_total" not in found
    assert list(found["fairlead_watch_vf_bytes_ratio"].values()) == [0.25]
    assert list(found["fairlead_watch_records_total"].values()) == [42]
    assert len(found["fairlead_watch_talker_bytes_per_second"]) == 2
    assert promtext.read(metrics_text({}))
