"""Probe: reads a machine and prints its facts as one JSON document. It judges nothing.

program()            the probe as a Program: one Python file, to be piped to a node
arguments(...)       what it is told there
sort_answers(...)    nodes' answers as records, and a finding for each node that gave none
local(root)          the same answer from this machine, or from a captured tree
"""

from __future__ import annotations

from fairlead.probe.answer import GRACE_S, KEEP_BYTES, LIMIT_S, arguments, local, parse, split_capture, write_tree
from fairlead.probe.collect import Answer as NodeAnswer
from fairlead.probe.collect import sort_answers
from fairlead.probe.join import program

__all__ = [
    "GRACE_S",
    "KEEP_BYTES",
    "LIMIT_S",
    "NodeAnswer",
    "arguments",
    "local",
    "parse",
    "program",
    "sort_answers",
    "split_capture",
    "write_tree",
]
