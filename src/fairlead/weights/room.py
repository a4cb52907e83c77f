"""What weights brings."""

from fairlead.base.rooms import Doctor, Room, Table, Verb

ROOM = Room(
    verbs=(
        Verb("weights", "", "A model on every node for the price of one download.", 140),
        Verb("weights plan", "fairlead.cli.weights:plan"),
        Verb("weights pull", "fairlead.cli.weights:pull"),
        Verb("weights spread", "fairlead.cli.weights:spread"),
        Verb("weights verify", "fairlead.cli.weights:verify"),
        Verb("weights ls", "fairlead.cli.weights:ls"),
        Verb("weights manifest", "fairlead.cli.weights:manifest"),
        Verb("weights script", "fairlead.cli.weights:script"),
        Verb("weights kubernetes", "fairlead.cli.weights_kubernetes:kubernetes"),
    ),
    tables=(Table("weights", "fairlead.weights.table:Weights"),),
    limits=("fairlead.weights.table:limits",),
    doctor=(
        Doctor(
            "obstore",
            "weights from Blob storage, S3 and Google Cloud, verified at full speed",
            extra="weights",
            modules=("obstore", "blake3"),
        ),
        Doctor("mpi4py", "weights over a site's own MPI", extra="mpi", modules=("mpi4py",)),
    ),
)
