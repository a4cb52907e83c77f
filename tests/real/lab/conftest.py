"""One real lab for the tests of a file, and its faults healed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.lab.faults.apply import heal
from fairlead.lab.shape import LabShape
from fairlead.lab.up import down
from support.labs import Lab, fresh_name


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
