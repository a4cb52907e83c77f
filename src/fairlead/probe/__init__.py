"""Probe: reads a machine and prints its facts as one JSON document. It judges nothing.

program()          the probe as one Python file, to be piped to a node
command(python)    the argv that runs it there
parse(text, node)  its answer as NodeFacts
"""

from __future__ import annotations

from fairlead.probe.answer import command, local, parse, split_capture, write_tree
from fairlead.probe.join import program

__all__ = ["command", "local", "parse", "program", "split_capture", "write_tree"]
