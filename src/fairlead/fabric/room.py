"""What the fabric brings: the verb its rooms hang theirs under."""

from fairlead.base.rooms import Doctor, Room, Verb

ROOM = Room(
    verbs=(Verb("fabric", "", "The multi-plane fabric, simulated packet by packet.", 220),),
    doctor=(Doctor("numba", "the fabric simulator", extra="fabric", modules=("numba", "numpy")),),
)
