"""How a run of several workers finds its tests: each has to know all of them, and none should compile what another did.

A checkout has no compiled code. Compiled code is kept, also where the environment asks for none: the suite starts
fairlead more than a thousand times. Workers begin at different files, so each compiles its share and finds the rest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

_PLACE = pytest.StashKey[dict[Path, int]]()


def keep_compiled_code() -> None:
    """For this process and the programs it starts."""
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def begin_elsewhere(config: pytest.Config) -> None:
    """Give a worker the same files as all others, from a place of its own on."""
    worker: dict[str, object] | None = getattr(config, "workerinput", None)
    if worker is None or any("::" in arg for arg in config.args):
        return
    files = [path for arg in config.args for path in _files(config.rootpath / arg)]
    first = len(files) * int(str(worker["workerid"]).removeprefix("gw")) // int(str(worker["workercount"]))
    config.args = [str(path) for path in files[first:] + files[:first]]
    config.stash[_PLACE] = {path: place for place, path in enumerate(files)}


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def in_one_order(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order that all workers have to agree on."""
    if place := config.stash.get(_PLACE, None):
        items.sort(key=lambda item: place[item.path])
