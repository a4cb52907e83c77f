"""What tests of training on several ranks share."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_thread():
    """Sums depend on the number of threads; both sides are computed with one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
