"""The verbs of support/verbs.py, as a room brings them."""

from fairlead.base.rooms import Room
from support.verbs import VERBS

ROOM = Room(verbs=VERBS)
