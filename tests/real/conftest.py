"""Labs that real tests build have their records in a folder of their own, and are gone at the end whatever happened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.lab.up import down


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory, monkeypatch) -> None:
    """What a test does to a node is no mark against it in the next test, nor in the user's own history."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(scope="session", autouse=True)
def records() -> Iterator[Path]:
    """Where the records of this worker's labs are; every lab left there is taken down at the end."""
    place = Path(os.environ["FAIRLEAD_TEST_LABS"], str(os.getpid()))
    before = os.environ.get("FAIRLEAD_LABS")
    os.environ["FAIRLEAD_LABS"] = str(place)
    yield place
    if place.exists():
        for folder in place.iterdir():
            down(folder.name)
    if before is None:
        del os.environ["FAIRLEAD_LABS"]
    else:
        os.environ["FAIRLEAD_LABS"] = before
