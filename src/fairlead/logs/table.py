"""`[logs]` in the cluster file."""

from __future__ import annotations

import urllib.parse
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.spec.model import Spec
from fairlead.spec.problems import Problems

PASSWORD_ENV = "FAIRLEAD_LOGS_PASSWORD"  # noqa: S105 - a name


class Logs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the logs are, and how much of them is kept."""

    store: Annotated[str, Meta(examples=["http://fairlead@clickhouse.example:8123/logs"])] = ""
    """The folder of the store, or the URL of a ClickHouse server with a user and a database of its own; left out,
    `logs` in the user's state directory."""

    password_file: Annotated[str, Meta(examples=["/etc/fairlead/clickhouse.password"])] = ""
    """The file with the password of that user, mode 600; left out, FAIRLEAD_LOGS_PASSWORD in the environment."""

    cluster: Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{0,100}$", examples=["main"])] = ""
    """The cluster, as that server calls it (system.clusters), over which tables are spread and replicated; left out,
    they are on that server alone."""

    keep_days: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Records that the store took in longer ago are dropped, whole days at a time; 0 keeps them for ever."""

    max_gib: Annotated[float, Meta(ge=0, examples=[500])] = 0.0
    """When records take more on the disk, the oldest days are dropped, but never the current one; 0 is no limit."""


def is_url(text: str) -> bool:
    """Whether a store is a server."""
    return text.startswith(("http://", "https://"))


def wrong(url: str) -> str:
    """What is wrong with the URL of a store; empty where nothing is."""
    try:
        found = urllib.parse.urlsplit(url)
        port = found.port
    except ValueError as error:
        return f"the URL of the store is none: {error}"
    if found.scheme not in {"http", "https"} or not found.hostname or port == 0:
        return "the URL of the store is none"
    if found.password is not None:
        return f"a password does not belong into the URL of the store, but into password_file or {PASSWORD_ENV}"
    if found.query or found.fragment or "/" in found.path.strip("/"):
        return "the URL of the store has more than a host and a database"
    return ""


def rules(spec: Spec, report: Problems) -> None:
    """What must fit together: a URL without a password, and what only a server has."""
    ours = spec.table(Logs)
    if is_url(ours.store) or "://" in ours.store:
        if problem := wrong(ours.store):
            report(("logs", "store"), "logs/bad-settings", problem)
        return
    for name in ("password_file", "cluster"):
        if getattr(ours, name):
            report(("logs", name), "logs/bad-settings", "only a ClickHouse server has it, and `store` names none")
