"""What training brings."""

from fairlead.base.rooms import Doctor, Room

ROOM = Room(
    doctor=(
        Doctor(
            "transformers",
            "training by streaming",
            extra="train",
            modules=("torch", "transformers", "safetensors", "numpy"),
        ),
    ),
)
