"""What the logs bring."""

from fairlead.base.rooms import Room

ROOM = Room()
