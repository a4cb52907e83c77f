"""Forwards meet at each layer, one at a time and in order."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from fairlead.train import lockstep


@pytest.mark.parametrize("num", [1, 2, 5])
def test_all_meet_each_time_in_their_order(num) -> None:
    heard, busy = [], []

    def forward(k):
        def run(meet):
            got = []
            for layer in range(3):
                assert not busy
                busy.append(k)
                busy.pop()
                got.append(meet((layer, k)))
            return got

        return run

    def together(items):
        heard.append(list(items))
        return [layer * 10 + k for layer, k in items]

    results = lockstep.run([forward(k) for k in range(num)], together, lambda: None)
    assert results == [[k, 10 + k, 20 + k] for k in range(num)]
    assert heard == [[(layer, k) for k in range(num)] for layer in range(3)]


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_one_that_fails_ends_all(culprit) -> None:
    def forward(k):
        def run(meet):
            meet(k)
            if k == culprit:
                raise ValueError(k)
            return meet(k)

        return run

    with pytest.raises(ValueError, match=str(culprit)):
        lockstep.run([forward(k) for k in range(3)], lambda items: items, lambda: None)
