"""Files of many queries.

Queries are parted by blank lines, as in the tools of Azure: a blank line inside of brackets or a text, behind `;` or
`|`, or before `|`, parts nothing. A file that is JSON, or has JSON on every line, holds texts or `{"query": ..., "id":
...}`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairlead.base.trust import read_file
from fairlead.errors import UsageError
from fairlead.logs.kql.lexer import tokens
from fairlead.logs.kql.problems import Refused

MAX_BYTES = 64 << 20


def queries_of(path: Path) -> list[tuple[str, str]]:
    """Names (empty where there is none) and texts. Raises UsageError."""
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(
            "cli/usage", f"{path} cannot be read: {error.strerror or error}", hint="--file queries.kql"
        ) from None
    found = _of_json(text) if path.suffix in {".json", ".jsonl", ".ndjson"} else [("", part) for part in parted(text)]
    if not found:
        raise UsageError("cli/usage", f"{path} holds no query", hint="fairlead logs query 'print 1'")
    return found


def _of_json(text: str) -> list[tuple[str, str]]:
    try:
        loaded = json.loads(text)
        items = loaded if isinstance(loaded, list) else [loaded]
    except (ValueError, RecursionError):
        try:
            items = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise UsageError("cli/usage", f"this file is no JSON: {error}", hint="one text a line") from None
    return [_one(item) for item in items]


def _one(item: Any) -> tuple[str, str]:
    if isinstance(item, str):
        return "", item
    if isinstance(item, dict):
        kql = next((item[key] for key in ("query", "kql", "csl", "Kql") if isinstance(item.get(key), str)), None)
        if kql is not None:
            return str(item.get("id", item.get("name", item.get("Id", "")))), kql
    raise UsageError("cli/usage", "every item of this file is a text or has a `query`", hint='{"query": "print 1"}')


def parted(text: str) -> list[str]:
    """The queries of a text."""
    lines = text.splitlines()
    found: list[str] = []
    held: list[str] = []
    for place, line in enumerate(lines):
        if line.strip():
            held.append(line)
            continue
        after = next((later for later in lines[place:] if later.strip()), "")
        if held and not is_open("\n".join(held)) and not after.lstrip().startswith("|"):
            found.append("\n".join(held))
            held = []
        elif held:
            held.append(line)
    if held:
        found.append("\n".join(held))
    return [part.strip() for part in found if _says_something(part)]


def is_open(text: str) -> bool:
    """Whether a query cannot end here."""
    try:
        made = tokens(text)
    except Refused:
        return True
    depth = sum((t.text in "([{") - (t.text in ")]}") for t in made if t.sort == "op" and len(t.text) == 1)
    last = made[-2].text if len(made) > 1 else ""
    return depth > 0 or last in {";", "|", ",", "="}


def _says_something(text: str) -> bool:
    try:
        return len(tokens(text)) > 1
    except Refused:
        return True
