"""What the gate brings."""

from fairlead.base.rooms import Doctor, Room, Table, Verb

ROOM = Room(
    verbs=(
        Verb(
            "preflight",
            "fairlead.cli.preflight:preflight",
            "The gate before a job: nodes, pairs, collective; who is to blame.",
            130,
            rejudge="fairlead.preflight.rejudge:rejudge",
        ),
    ),
    tables=(Table("preflight", "fairlead.preflight.table:Preflight", rules="fairlead.preflight.table:rules"),),
    limits=(
        "fairlead.preflight.nodes.patience:limits",
        "fairlead.preflight.pairs.limits:limits",
        "fairlead.preflight.ranks.limits:limits",
    ),
    doctor=(Doctor("torch", "real ranks: preflight, bringup", extra="ranks", modules=("torch",)),),
)
