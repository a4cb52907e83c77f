"""Where captured real machines are, if anywhere: beside the project, or where FAIRLEAD_CAPTURES says. Never in it."""

from __future__ import annotations

import os
from pathlib import Path

BESIDE = Path(__file__).parents[2].parent / "shared" / "captures"


def captures_root() -> Path | None:
    """The folder of captures; None where there is none."""
    root = Path(os.environ.get("FAIRLEAD_CAPTURES") or BESIDE)
    return root if root.is_dir() else None
