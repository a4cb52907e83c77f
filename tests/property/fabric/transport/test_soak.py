"""Random fault cases in virtual time, by seed: every byte exact, every request complete once, no end by itself.

`FAIRLEAD_DEPTH=200` makes it 10^5 cases. A seed that fails is played again by `support.transport_soak.play(seed)`.
"""

from __future__ import annotations

import pytest

from support.depth import cases
from support.transport_soak import play

BLOCKS = 5


def test_a_few_cases() -> None:
    assert sum(play(seed) for seed in range(30)) >= 25


@pytest.mark.slow
@pytest.mark.timeout(86_400)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_many_cases(block: int) -> None:
    num = cases(100)
    assert sum(play(seed) for seed in range(block * num, (block + 1) * num)) > 0.9 * num
