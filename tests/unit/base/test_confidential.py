"""Fifty secrets of different makes, planted as people leave them; none survives, and what is no secret does."""

from __future__ import annotations

import json
import time

import pytest

from fairlead.base.confidential import HIDDEN, hide, holds_secret, is_secret_name
from support.secret_makes import PLANTED


def test_there_are_fifty_makes():
    assert len(PLANTED) >= 50


@pytest.mark.parametrize("make", PLANTED)
def test_a_planted_secret_does_not_survive(make):
    text, secret = PLANTED[make]
    around = f"first line\n{text}\nlast line"
    for said in (text, around, json.dumps(around), f'"{text}"'):
        assert secret in said or secret.replace("\n", "\\n") in said
        shown = hide(said)
        assert secret not in shown
        assert HIDDEN in shown
    shown = hide(around)
    assert shown.startswith("first line\n")
    assert shown.endswith("last line") or make == "a key cut short", "what stands around it stays"
    assert hide(shown) == shown


def test_all_in_one_text():
    whole = "\n".join(text for make, (text, _) in PLANTED.items() if make != "a key cut short")
    shown = hide(whole)
    assert [make for make, (_, secret) in PLANTED.items() if secret in shown and make != "a key cut short"] == []
    assert shown.count("\n") >= len(PLANTED) - 2


@pytest.mark.parametrize(
    "text",
    [
        "7 pass, 47 skip; the token is good and the secret of it",
        "NCCL_DEBUG=WARN p_key=0x7fff pkey: 0x8001 q_key: 3 max_tokens=4096 tokens: 5",
        "key: GPU-5a1b2c3d  node: h200-003  authenticated by publickey",
        "--token-file /etc/token --key-path=/x https://x.y/z?sv=1&se=2 ssh://n1:22 http://[fe80::1]:80/",
        "mlx5_core 0101:00:00.0: Port module event: module 0, Cable unplugged",
        "0123456789abcdef0123456789abcdef 00:15:5d:33:ff:01 21:42:07.123",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "login password sk- hf_ eyJ Bearer basic authentication",
        "",
    ],
)
def test_what_is_no_secret_stays(text):
    assert hide(text) == text
    assert not holds_secret(text)


UNITS = r"""a A1 - = a= token= token=" token=' \ \" : :// ://a: @ eyJ -eyJ eyJa. ----- sk- hf_ SG. \n token=\" 0 0: AKIA
[1, . _ é MUNGE: ~8Q~ x-a- a.b-c_ -----BEGIN 1234567890:"""
SPACED = ["-----BEGIN PRIVATE KEY-----", "bearer ", "Authorization: ", "login a ", "-u a:", "--token ", " ", "\n"]


@pytest.mark.parametrize("unit", [*UNITS.split(), *SPACED])
def test_the_time_grows_with_the_length_and_no_faster(unit):
    def cpu_s(num_bytes):
        text = unit * (num_bytes // len(unit))
        started = time.process_time()
        hide(text)
        return time.process_time() - started

    cpu_s(1000)
    assert cpu_s(400_000) < 4.0, "with its square it would be minutes"


def test_no_name_is_too_long_to_be_asked():
    assert is_secret_name("a" * 10_000_000) is False


WRAPPED = (
    "DB_PASSWORD={}", "export DB_PASSWORD={}", "password: {}", "- password: {}", 'DB_PASSWORD="{}"',
    "X='DB_PASSWORD={}'",
    'Environment="DB_PASSWORD={}" "X=1"', "docker run -e 'DB_PASSWORD={}' image", '{{"password": "{}"}}',
    '{{"env": ["A=1", "DB_PASSWORD={}"]}}', '{{"file": "A=1\\nDB_PASSWORD={}\\nB=2"}}', 'password = """\n{}\n"""\n',
    "a:\n  password: |\n    {}\n    {}\n", "<password>{}</password>", "Cookie: sid={}", "Set-Cookie: sid={}; Path=/",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
)  # fmt: skip
"""Forms of env files, YAML, systemd, Docker, JSON, TOML, XML, HTTP and PEM."""


@pytest.mark.parametrize("wrapping", WRAPPED)
def test_a_secret_with_blanks_does_not_survive_in_any_wrapping(wrapping):
    for words in (("alpha1", "beta2", "gamma3"), ("q7",), ("x9x", "pa.ss-w0rd")):
        said = hide("first line\n" + wrapping.replace("{}", " ".join(words)).replace("{{", "{").replace("}}", "}"))
        assert not [word for word in words if word in said], said
        assert "first line" in said
