"""The tiny model of a bringup in a lab: real files that engines load."""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.bringup.tiny import CONTEXT, make_tiny

__all__ = ["CONTEXT", "make_tiny"]

if __name__ == "__main__":
    make_tiny(Path(sys.argv[1]))
