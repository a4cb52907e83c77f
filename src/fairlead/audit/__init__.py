"""Audit: what a guest's network really is, judged from inside it, and the file that mends what can be mended.

judge_audit(facts, spec)      today's findings: the catalogue, and the checks of an audit
facts_of_log(text, node)      a kernel log or the text of a serial console as facts
tell(facts)                   each NIC's path, and when its virtual function was away
plan(record)                  the file that keeps the running manager off virtual functions, or why there is none

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.audit.fix import Fix, plan
    from fairlead.audit.judge import judge_audit, tell
    from fairlead.audit.logtext import facts_of_log

__getattr__ = lazy(__name__, {"fix": ("Fix", "plan"), "judge": ("judge_audit", "tell"), "logtext": ("facts_of_log",)})

__all__ = ["Fix", "facts_of_log", "judge_audit", "plan", "tell"]
