"""The verbs of all rooms, in the order of `fairlead --help`. Nothing is imported until its verb is called."""

from __future__ import annotations

from fairlead.base.rooms import Verb, brought


def verbs() -> list[Verb]:
    """Every verb; behind a verb with verbs of its own each of those."""
    found: tuple[Verb, ...] = brought("verbs")
    place = {v.name: v.place for v in found if " " not in v.name}
    return sorted(found, key=lambda v: (place[family(v)], family(v), " " in v.name))


def family(verb: Verb) -> str:
    """The first word of a verb: its own name, or that of the verb it stands under."""
    return verb.name.partition(" ")[0]


def first_words() -> list[str]:
    """What may stand behind `fairlead`."""
    return [v.name for v in verbs() if " " not in v.name]
