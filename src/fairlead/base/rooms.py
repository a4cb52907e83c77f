"""What each room brings to the house, and how it is found: a file `room.py` in the room's folder says it.

    from fairlead.base.rooms import Room, Verb

    ROOM = Room(verbs=(Verb("preflight", "fairlead.cli.preflight:preflight", "The gate before a job."),))

A room is a package anywhere below fairlead. Code is named as `module:attribute` and imported when it is first used, and
a `room.py` is loaded without its package: to know all rooms costs a few milliseconds, whatever they import themselves.
Data files need no word: `codes.toml` of any package is found by its name (`files`).

Must not know: any room.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections import Counter
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import fairlead


class Verb(NamedTuple):
    """Something to type. One with verbs of its own has no target; theirs are named `lab up`, by any room."""

    name: str
    target: str
    """A function that returns an Answer; empty for a verb with verbs of its own."""
    help: str = ""
    """One line for `fairlead --help`; a verb of a family is shown with its docstring."""
    place: int = 500
    """Where it stands in that list: lower comes first. Of a family's verbs those of one room stay in their order."""
    rejudge: str = ""
    """What `fairlead rejudge` asks about a run of it: a function of the Run that returns today's findings, or None
    where that run has not enough. Without one, or with None, the facts in the run folder are judged by node checks."""


class Table(NamedTuple):
    """A table of the cluster file: `[name]`."""

    name: str
    target: str
    """A msgspec Struct, every field with a default and its sentence below it; its module must be light."""
    via: tuple[str, ...] = ()
    """The ways of access (`access.via`) with which it is read; empty: with all."""
    rules: str = ""
    """What must fit together: a function of the Spec and the Problems, as in spec/rules.py."""
    derived: str = ""
    """What follows from other values: a function of the Spec and of the paths the file gives, as in spec/resolve.py."""


class Schema(NamedTuple):
    """A document of which `fairlead schema NAME` prints the JSON Schema."""

    name: str
    what: str
    target: str
    """A msgspec Struct, or a function that returns one."""


class Doctor(NamedTuple):
    """A line of `fairlead doctor`: something this machine may lack. Give one of modules, programs, path and look."""

    name: str
    used_for: str
    get: str = ""
    """What to type to have it; left out where an extra brings it."""
    extra: str = ""
    """The extra of the distribution that brings the modules, as pyproject.toml names it."""
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    path: str = ""
    """A file or a pattern of one."""
    look: str = ""
    """A function that returns whether it is there, and what was found or why not."""


class Room(NamedTuple):
    """What a room brings. Each kind has one place that asks for it, named here."""

    verbs: tuple[Verb, ...] = ()
    """cli/verbs.py"""
    tables: tuple[Table, ...] = ()
    """spec/tables.py"""
    schemas: tuple[Schema, ...] = ()
    """cli/schemas.py"""
    doctor: tuple[Doctor, ...] = ()
    """base/machine.py"""
    limits: tuple[str, ...] = ()
    """cli/limits.py: functions of the Spec that return the numbers this room judges by, as records.limit.Limit."""
    pages: tuple[str, ...] = ()
    """cli/reference.py: functions that return pages of docs/reference, file name -> Markdown."""
    node_files: tuple[str, ...] = ()
    """plan/everything.py: functions of the Spec that return files of a node's image, path on the node -> text."""


def rooms() -> Mapping[str, Room]:
    """Every room by the name of its package below fairlead: `lab`, `fabric.sim`."""
    return _rooms(tuple(fairlead.__path__))


def brought(kind: str) -> tuple[Any, ...]:
    """All verbs, tables, ... of all rooms, room by room. What has a name has it alone."""
    return _brought(kind, tuple(fairlead.__path__))


def files(name: str) -> list[Path]:
    """The data files of that name, or pattern, that lie in a package below fairlead."""
    return [path for folder in _packages(tuple(fairlead.__path__)).values() for path in sorted(folder.glob(name))]


def load(target: str) -> Any:
    """What `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@functools.cache
def _brought(kind: str, places: tuple[str, ...]) -> tuple[Any, ...]:
    found = tuple(item for room in _rooms(places).values() for item in getattr(room, kind))
    twice = [name for name, num in Counter(getattr(item, "name", item) for item in found).items() if num > 1]
    assert not twice, f"two rooms bring {kind} of one name: {', '.join(twice)}"
    return found


@functools.cache
def _rooms(places: tuple[str, ...]) -> Mapping[str, Room]:
    return {name: _room(name, folder) for name, folder in _packages(places).items() if (folder / "room.py").is_file()}


def _room(name: str, folder: Path) -> Room:
    """What a room.py says; loaded by itself, so that the package around it stays unloaded."""
    spec = PathFinder.find_spec(f"fairlead.{name}.room", [str(folder)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    room = module.ROOM
    assert isinstance(room, Room), f"ROOM in {folder / 'room.py'} is not a Room"
    return room


@functools.cache
def _packages(places: tuple[str, ...]) -> Mapping[str, Path]:
    """Every package below fairlead with its folder, by name."""
    found: dict[str, Path] = {}
    for place in places:
        for folder, below, names in os.walk(place):
            below[:] = [name for name in below if os.path.isfile(os.path.join(folder, name, "__init__.py"))]  # noqa: PTH113, PTH118 - half the time of --help's share
            name = os.path.relpath(folder, place).replace(os.sep, ".")
            if name != "." and "__init__.py" in names:
                found.setdefault(name, Path(folder))
    return dict(sorted(found.items()))
