"""The stages in order, one report. Without real hosts: on a lab that is built for it and taken down again.

    bringup(spec, folder, stages=...)   run them; returns a BringupReport
    chosen_fault(words, shape)          what `--fault` means

Names are loaded when they are first used: who reads `[bringup]` in a cluster file needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.bringup.run import BringupReport, bringup, chosen_fault

__getattr__ = lazy(__name__, {"run": ("BringupReport", "bringup", "chosen_fault")})

__all__ = ["BringupReport", "bringup", "chosen_fault"]
