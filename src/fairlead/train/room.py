"""What training brings."""

from fairlead.base.rooms import Doctor, Room, Verb

ROOM = Room(
    verbs=(
        Verb("train", "", "Full-precision training of models far larger than the device's memory.", 160),
        Verb("train estimate", "fairlead.cli.train:estimate"),
        Verb("train run", "fairlead.cli.train:run"),
        Verb("train resume", "fairlead.cli.train:resume"),
        Verb("train show", "fairlead.cli.train:show"),
        Verb("train export", "fairlead.cli.train:export"),
    ),
    pages=("fairlead.train.reference:pages",),
    doctor=(
        Doctor(
            "transformers",
            "training by streaming",
            extra="train",
            modules=("torch", "transformers", "safetensors", "numpy", "peft"),
        ),
    ),
)
