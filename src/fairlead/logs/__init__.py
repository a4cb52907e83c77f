"""Every node's logs: collected, kept in one store, asked in KQL.

Names are loaded when they are first used: knowing the room needs no engine.
"""

from __future__ import annotations

from fairlead.base.lazy import lazy

__getattr__ = lazy(__name__, {})

__all__: list[str] = []
