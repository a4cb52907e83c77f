"""The lines of a metrics file, one a step, as they are found: cut, foreign and unreadable ones are left out.

Must not know: torch.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fairlead.base.shown import shown
from fairlead.base.trust import read_file
from fairlead.errors import TrainError

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


def check(base: Path, name: str, store: str) -> None:
    """Raise TrainError where the file tells of a run in another store, as long as that store is there."""
    others = sorted({other for line in told(base / name) if isinstance(other := line.get("store"), str)})
    for other in others:
        place = base / other
        if place.is_dir() and place.resolve() != (base / store).resolve():
            raise TrainError(
                "train/metrics-taken",
                f"{base / name} holds the steps of the run in {shown(str(place))}",
                hint=f'name another file for this one: [run] metrics = "{Path(store).name}.jsonl"',
            )


def _line(text: str) -> dict[str, Any] | None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    number = said.get("step") if isinstance(said, dict) else None
    return said if type(number) is int and 0 <= number < 1 << 53 else None
