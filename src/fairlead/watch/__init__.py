"""The guest-side auditor: a program on every node that says who uses its ports, and what becomes of them.

Names are loaded when they are first used: who reads `[watch]` in a cluster file needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.watch.control import Look, Verified, followed, looked, start, stop
    from fairlead.watch.settings import settings_for
    from fairlead.watch.unit import unit_files, unit_text

__getattr__ = lazy(
    __name__,
    {
        "control": ("Look", "Verified", "followed", "looked", "start", "stop"),
        "settings": ("settings_for",),
        "unit": ("unit_files", "unit_text"),
    },
)

__all__ = ["Look", "Verified", "followed", "looked", "settings_for", "start", "stop", "unit_files", "unit_text"]
