"""How deep tests that draw their cases go: FAIRLEAD_DEPTH times as many cases as they say.

At depth 1, which is what `make test` runs, the cases are the same each time, so that a change is judged by what it
changed. Deeper runs explore: other cases each time.
"""

from __future__ import annotations

import os

DEPTH = max(1, int(os.environ.get("FAIRLEAD_DEPTH") or 1))


def cases(number: int) -> int:
    """How many cases to draw, where a quick run draws so many."""
    return number * DEPTH
