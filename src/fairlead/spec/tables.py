"""The cluster file with the tables that rooms bring: one type, so that every file is read, completed and explained by
the same walk, whichever room a table belongs to.

Must not know: any room; it asks base/rooms.py which tables there are, and loads their types when a file is read.
"""

from __future__ import annotations

import functools
from typing import Any, cast

from msgspec import Struct, defstruct

from fairlead.base.rooms import Table, brought, load
from fairlead.spec.model import Spec


def tables() -> tuple[Table, ...]:
    """Every table a room brings."""
    found: tuple[Table, ...] = brought("tables")
    return found


def table(name: str) -> Table | None:
    """A room's table by its name in the file."""
    return next((t for t in tables() if t.name == name), None)


def kind_of(name: str) -> type[Struct]:
    """The type of a room's table."""
    found: type[Struct] = load(next(t.target for t in tables() if t.name == name))
    return found


def name_of(kind: type[Struct]) -> str:
    """The name in the file of a table of this type."""
    return next(t.name for t in tables() if load(t.target) is kind)


def spec_type() -> type[Spec]:
    """`Spec` with a field for each room's table."""
    return _with(tables())


@functools.cache
def _with(found: tuple[Table, ...]) -> type[Spec]:
    kinds = {t.name: load(t.target) for t in found}
    fields: list[Any] = [(name, kind, kind()) for name, kind in kinds.items()]
    taken = sorted(set(kinds) & set(Spec.__struct_encode_fields__))
    assert not taken, f"the cluster file has a table [{taken[0]}] of its own"
    assert all(issubclass(kind, Struct) for kind in kinds.values()), "a table is a Struct"
    about = {"__doc__": Spec.__doc__}
    made = defstruct(
        "Spec",
        fields,
        bases=(Spec,),
        module=Spec.__module__,
        namespace=about,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast("type[Spec]", made)
