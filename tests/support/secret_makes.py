"""Secrets of more than fifty makes, each as people leave it somewhere; none of them opens anything."""

from __future__ import annotations

import base64

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
    "amazon signed url": ("https://b.s3.amazonaws.com/k?X-Amz-Date=2026&X-Amz-Signature=5e0a9f&x=1", "5e0a9f"),
    "google signed url": ("https://storage.googleapis.com/b/k?X-Goog-Signature=5e0a9f&x=1", "5e0a9f"),
    "signed url, older": ("https://b.s3.amazonaws.com/k?Expires=1&Signature=Ab%2Fq9&x=1", "Ab%2Fq9"),
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
