"""What the fabric brings: the verb its rooms hang theirs under."""

from fairlead.base.rooms import Doctor, Room, Verb

ROOM = Room(
    verbs=(
        Verb("fabric", "", "The multi-plane fabric: simulated packet by packet, and measured.", 220),
        Verb("fabric ping", "fairlead.cli.fabric_ping:ping", ""),
        Verb("fabric perf", "fairlead.cli.fabric_perf:perf", ""),
        Verb("fabric trace", "fairlead.cli.fabric_trace:trace", ""),
    ),
    doctor=(
        Doctor(
            "numba", "the fabric simulator and transport", extra="fabric", modules=("numba", "numpy", "cryptography")
        ),
    ),
)
