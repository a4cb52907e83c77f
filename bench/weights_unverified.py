"""`fairlead` as the command is, but for nodes that verify no chunk of a spread: for bench/weights_spread.py alone, to
measure what verifying adds. Every chunk has the same digest then, so whatever comes is taken for right.

    python bench/weights_unverified.py weights spread SOURCE DEST -f cluster.toml
"""

from __future__ import annotations

import sys
from dataclasses import replace

from fairlead.base.program import Program
from fairlead.cli.app import main
from fairlead.weights import spreading

VERIFIES = b"return lambda data: blake3(data).digest()"


class Unverified(Program):
    """The program with one function of it changed."""

    @classmethod
    def of(cls, *words: str, **more: object) -> Program:
        """See Program."""
        made = Program.of(*words, **more)
        assert made.source.count(VERIFIES) == 1, "the function is another now"
        return replace(made, source=made.source.replace(VERIFIES, b"return lambda data: b'u' * 32"))


if __name__ == "__main__":
    spreading.Program = Unverified
    sys.exit(main())
