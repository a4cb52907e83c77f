"""The table of what nodes are: alike in one line, and a hole is a question mark, not a guess."""

from __future__ import annotations

from fairlead.report.inventory import COLUMNS, cells, inventory
from support.judging import facts_of, small


def test_nodes_that_are_alike_share_a_line():
    text = inventory([facts_of(small(), name) for name in ("n0", "n1")], ["GPUS", "RDMA PORTS"])
    assert [line.split("  ")[0] for line in text.splitlines()] == ["NODES", "n[0-1] (2)"]
    assert inventory([], ["GPUS"]) == ""


def test_what_could_not_be_read_is_a_question_mark():
    machine = small()
    machine.remove("/proc/meminfo")
    row = dict(zip(COLUMNS, cells(facts_of(machine), list(COLUMNS)), strict=True))
    assert row["MEMORY"] == "?"
    assert "?" not in {row["KERNEL"], row["CPUS"], row["GPUS"], row["DRIVER"]}
    assert row["RDMA PORTS"] == "2 x 400 Gb/sec (4X NDR), 1 x 40 Gb/sec (4X QDR)"
