"""Who has a store open and answers for it: a file in the store, believed only while its owner holds the lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.base.trust import read_file

OWNER = "owner.json"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Where the owner of a store answers, as its folder says."""

    url: Annotated[str, Meta(max_length=512)]
    token_file: Annotated[str, Meta(max_length=4096)]
    certificate: Annotated[str, Meta(max_length=65536)] = ""
    """What it proves itself by (PEM), where it speaks TLS: who reads this folder needs no authority to know it."""


def owner_of(place: Path) -> Owner | None:
    """Who has a store open and answers; None where nobody does."""
    try:
        said = msgspec.json.decode(read_file(place / OWNER, 65536, ours=True), type=Owner)
        handle = os.open(place / "owner.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return said
    finally:
        os.close(handle)
    return None
