"""Real labs for tests: records in a folder of their own, names of their own, gone at the end whatever happened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.lab.faults.apply import heal
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down
from support.labs import Lab, fresh_name


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


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One default lab a test file."""
    made = Lab(LabShape(name=fresh_name()))
    yield made
    down(made.name)


@pytest.fixture
def healed(lab) -> Iterator[None]:
    """A test that injects faults leaves none."""
    yield
    heal(lab.name, "all")
