"""One control plane, or one cluster with a real node, for the tests of a file; gone at its end."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def control() -> Iterator:
    from support.kube.control import ControlPlane
    from support.processes import left_after

    with ControlPlane() as whole:
        yield whole
    assert not left_after(str(whole.root), 20)
    assert not whole.root.exists()


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    from support.kube.node import Cluster
    from support.processes import left_after

    with Cluster() as whole:
        yield whole
    assert not left_after(str(whole.root), 20)
    assert not whole.root.exists()


@pytest.fixture
def fresh_name() -> str:
    """A name that no other test uses."""
    return f"t{secrets.token_hex(4)}"
