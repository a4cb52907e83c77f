"""What of KQL is refused, as data: the messages of refusals and the page of the docs are made of it."""

from __future__ import annotations

import tomllib
from pathlib import Path


def _refused() -> dict[str, str]:
    rows = tomllib.loads(Path(__file__).with_name("refused.toml").read_text(encoding="utf-8"))["refused"]
    return {name: row["instead"] for row in rows for name in row["names"].split()}


REFUSED_FUNCTIONS = _refused()
"""Functions of Kusto by name, and what comes nearest."""
