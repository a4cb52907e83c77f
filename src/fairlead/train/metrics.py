"""The lines of a metrics file, one a step, as they are found: cut, foreign and unreadable ones are left out.

Must not know: torch.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fairlead.base.trust import read_file

_MAX = 1 << 30


def told(path: Path) -> list[dict[str, Any]]:
    """The steps of a run so far; none where there is no such file, or it is something else than a file."""
    return [line for line in map(_line, texts(path)) if line is not None]


def texts(path: Path) -> list[str]:
    """The same as they are written, foreign ones too."""
    try:
        return read_file(path, _MAX, follow=False).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def step(text: str) -> float:
    """The step that a line is about; infinite where it is no line of ours."""
    line = _line(text)
    return math.inf if line is None else float(line["step"])


def _line(text: str) -> dict[str, Any] | None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    number = said.get("step") if isinstance(said, dict) else None
    return said if type(number) is int and 0 <= number < 1 << 53 else None
