"""Labs that real tests build have their records in a folder of their own, and are gone at the end whatever happened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.lab.up import down


@pytest.fixture(scope="session", autouse=True)
def records(tmp_path_factory) -> Iterator[Path]:
    """Where the records of this run's labs are; every lab left there is taken down at the end."""
    place = tmp_path_factory.mktemp("labs") / "labs"
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
