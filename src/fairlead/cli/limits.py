"""`fairlead limits`: every number that judges, with where it comes from and how to have another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.base.rooms import brought, load
from fairlead.base.suggest import did_you_mean
from fairlead.base.table import table
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer
from fairlead.errors import UsageError

if TYPE_CHECKING:
    from fairlead.records.limit import Limit, Number
    from fairlead.spec.model import Spec


def limits(word: str | None = None, *, size: str = "", spec: SpecFile = None, common: Common = Common()) -> Answer:
    """List every number that judges: its value, unit and source, what it holds for, and how to have another.

    Parameters
    ----------
    word
        Only those with this in their name, or of the room of this name.
    size
        Those of this VM size, such as Standard_ND96isr_H100_v5, instead of a cluster file's.
    spec
        The cluster file; else FAIRLEAD_SPEC, ./cluster.toml, or the lab.
    """
    from fairlead.cli.common import spec_of_size
    from fairlead.spec.loader import read

    if size and spec:
        raise UsageError("cli/usage", "--size and --spec exclude each other", hint="fairlead limits --help")
    asked = spec_of_size(size) if size else read(spec, or_lab=True).spec
    found = [(room, limit) for room, limit in every_limit(asked) if word is None or word in limit.name or word == room]
    if word is not None and not found:
        names = {limit.name for _, limit in every_limit(asked)}
        raise UsageError("cli/usage", f"no limit `{word}`; {did_you_mean(word, names)}", hint="fairlead limits")
    return Answer(
        schema="fairlead.limits/1",
        text=lambda: _page(found),
        body={"limits": [{"room": room, "limit": limit} for room, limit in found]},
    )


def every_limit(spec: Spec) -> list[tuple[str, Limit]]:
    """(room, limit) of all rooms, for a cluster."""
    return [(_room(target), limit) for target in brought("limits") for limit in load(target)(spec)]


def _room(target: str) -> str:
    return target.removeprefix("fairlead.").partition(":")[0].partition(".")[0]


def _page(found: Sequence[tuple[str, Limit]]) -> str:
    rows = [
        (room, at.name, f"{at.judges} {_value(at.value)} {at.unit}".rstrip(), at.holds_for, at.source, at.key, at.code)
        for room, at in found
    ]
    return table(["ROOM", "LIMIT", "JUDGES", "HOLDS FOR", "SOURCE", "OVERRIDE", "SAID BY"], rows)


def _value(value: Number | tuple[Number, ...]) -> str:
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, tuple) else f"{value:g}"
