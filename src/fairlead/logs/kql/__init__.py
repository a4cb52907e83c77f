"""KQL, the query language of Azure Monitor and Kusto, with Kusto's own types and null semantics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.base.lazy import lazy

if TYPE_CHECKING:
    from fairlead.logs.kql.evaluate import Answer, NoTables, Tables, answer
    from fairlead.logs.kql.kinds import Column, Kind
    from fairlead.logs.kql.relation import Limits, Relation

__getattr__ = lazy(
    __name__,
    {
        "evaluate": ("Answer", "NoTables", "Tables", "answer"),
        "kinds": ("Column", "Kind"),
        "relation": ("Limits", "Relation"),
    },
)

__all__ = ["Answer", "Column", "Kind", "Limits", "NoTables", "Relation", "Tables", "answer"]
