"""Fifty secrets of different makes, planted as people leave them; none survives, and what is no secret does."""

from __future__ import annotations

import base64
import json
import time

import pytest

from fairlead.base.confidential import HIDDEN, hide, holds_secret, is_secret_name

A = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0"
HEX = "0123456789abcdef" * 4
B64 = base64.b64encode(bytes(range(64))).decode()
assert len(B64) == 88

# make -> (text as it is left somewhere, what of it must not be seen again)
PLANTED: dict[str, tuple[str, str]] = {
    # by the name they stand under
    "wandb": (f"export WANDB_API_KEY={HEX[:40]}", HEX[:40]),
    "hugging face": ("HF_TOKEN=hunter2-not-of-its-form", "hunter2"),
    "aws secret": (f"AWS_SECRET_ACCESS_KEY={A}/+", A),
    "aws session": (f"aws_session_token = {B64}", B64[:40]),
    "azure storage connection": (
        f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={B64};EndpointSuffix=y",
        B64[:80],
    ),
    "azure service bus": (f"Endpoint=sb://x/;SharedAccessKeyName=Root;SharedAccessKey={A}=", A),
    "azure signed url": ("https://x.blob.core.windows.net/c?sv=2022&sig=Ab%2Fq9&se=2026", "Ab%2Fq9"),
    "slurm": (f"SLURM_JWT=eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjF9.{A}", A),
    "flag": ("mytool --token hunter2 --nodes n1", "hunter2"),
    "flag with equals": ("mytool --api-key=hunter2 --nodes n1", "hunter2"),
    "flag in a list": ('["mytool", "--password", "hunter2", "-w", "n1"]', "hunter2"),
    "json": ('{"client_secret": "hunter2", "x": 1}', "hunter2"),
    "json in json": (r'{"text": "{\"client_secret\": \"hunter2\"}"}', "hunter2"),
    "yaml": ("db:\n  password: hunter2\n  host: x", "hunter2"),
    "quoted shell": ("export DB_PASS='hunter 2'", "hunter 2"),
    "mysql": ("MYSQL_PWD=hunter2", "hunter2"),
    "postgres": ("PGPASSWORD=hunter2 psql", "hunter2"),
    "sshpass": ("sshpass -p hunter2 ssh n1", "hunter2"),
    "netrc": ("machine api.wandb.ai login user password hunter2", "hunter2"),
    "curl": ("curl -u ann:hunter2 https://x", "hunter2"),
    "url": ("git clone https://ann:hunter2@github.com/x/y", "hunter2"),
    "url of a proxy": ("https_proxy=http://ann:hunter2@proxy:3128", "hunter2"),
    "url of a database": ("postgresql://ann:hunter2@db/x", "hunter2"),
    "bearer": (f"curl -H 'Authorization: Bearer {A}'", A),
    "bearer alone": (f"sent Bearer {A} to x", A),
    "basic": ("Authorization: Basic YW5uOmh1bnRlcjI=", "YW5uOmh1bnRlcjI"),
    "negotiate": (f"Authorization: Negotiate {A} {A}", A),
    "cookie": ("Set-Cookie: session=hunter2; Path=/", "hunter2"),
    "docker": ('{"auths": {"x": {"identity_token": "hunter2"}}}', "hunter2"),
    "npmrc": ("//registry.npmjs.org/:_authToken=hunter2", "hunter2"),
    # by their own form, wherever they stand
    "pem": (f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n{A}\n{A}\n-----END RSA PRIVATE KEY-----\n", A),
    "openssh": (f"-----BEGIN OPENSSH PRIVATE KEY-----\\n{A}\\n-----END OPENSSH PRIVATE KEY-----", A),
    "a key cut short": (f"-----BEGIN PRIVATE KEY-----\n{A}\n", A),
    "jwt": (f"got eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjF9.{A} back", A),
    "aws id": ("user AKIAIOSFODNN7EXAMPLE said", "AKIAIOSFODNN7EXAMPLE"),
    "github": (f"remote: ghp_{A[:36]}", A[:36]),
    "github, fine": (f"remote: github_pat_{A}_{A}", A),
    "gitlab": ("remote: glpat-abcdefghij0123456789", "abcdefghij0123456789"),
    "hugging face, bare": (f"logged in with hf_{A[:34]}", A[:34]),
    "openai": (f"openai sk-proj-{A}", A),
    "anthropic": (f"sk-ant-api03-{A}", A),
    "nvidia": (f"nvapi-{A}", A),
    "google": (f"AIza{A[:35]}", A[:35]),
    "google oauth": (f"ya29.{A}", A),
    "slack": ("xoxb-123456789012-123456789012-abcdefghijklmnop", "abcdefghijklmnop"),
    "slack hook": ("https://hooks.slack.com/services/T00000000/B00000000/hunter2hunter2", "hunter2hunter2"),
    "stripe": (f"sk_live_{A[:24]}", A[:24]),
    "npm": (f"npm_{A[:36]}", A[:36]),
    "pypi": (f"pypi-AgEIcHlwaS5vcmc{A}", A),
    "docker hub": (f"dckr_pat_{A[:27]}", A[:27]),
    "sendgrid": (f"SG.{A[:22]}.{A}", A),
    "vault": (f"hvs.{A}", A),
    "databricks": (f"dapi{HEX[:32]}", HEX[:32]),
    "telegram": (f"1234567890:{A[:35]}", A[:35]),
    "twilio": (f"SK{HEX[:32]}", HEX[:32]),
    "munge": ("MUNGE:AwQFAADoqPqTzYhUOmFkZGVk:", "AwQFAADoqPqTzYhUOmFkZGVk"),
    "azure application": (f"abc8Q~{A[:34]}", A[:34]),
    "azure storage key": (f"key is {B64[:86]}== there", B64[:86]),
}


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
