"""What the catalogue of checks brings."""

from fairlead.base.rooms import Room

ROOM = Room(
    limits=("fairlead.checks.limits:limits",),
    pages=("fairlead.checks.reference:pages", "fairlead.checks.listpage:pages"),
)
