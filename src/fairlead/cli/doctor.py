"""`fairlead doctor`: what this machine can do."""

from __future__ import annotations

from fairlead.base.machine import capabilities
from fairlead.base.table import table
from fairlead.cli.common import Common
from fairlead.cli.output import Answer


def doctor(*, common: Common = Common()) -> Answer:
    """Say what this machine can do, and what to install for the rest. Changes nothing."""
    found = capabilities()
    rows = [(c.name, "yes" if c.ok else "no", c.used_for, c.detail if c.ok else f"{c.detail}; {c.get}") for c in found]
    body = {"capabilities": [vars(c) for c in found]}
    return Answer(
        schema="fairlead.doctor/1", text=table(["WHAT", "HERE", "USED FOR", "FOUND, OR HOW TO GET IT"], rows), body=body
    )
