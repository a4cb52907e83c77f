"""How many sources that nobody knows a node may bring."""

from __future__ import annotations

from fairlead.logs.receive import Allowance


def test_it_fills_up_steadily_and_no_node_takes_from_another() -> None:
    allowance = Allowance(10, 0.5)
    assert allowance.take("a", 8, 0.0)
    assert not allowance.take("a", 3, 1.0)
    assert allowance.take("b", 10, 1.0)
    assert allowance.take("a", 3, 2.0)
    assert not allowance.take("a", 1, 2.0)
    assert allowance.take("a", 10, 1000.0), "never more than it holds"
    assert not allowance.take("a", 1, 1000.0)
