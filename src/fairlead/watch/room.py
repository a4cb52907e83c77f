"""What the auditor brings."""

from fairlead.base.rooms import Room, Table, Verb

ROOM = Room(
    verbs=(
        Verb(
            "watch",
            "fairlead.cli.watch:watch",
            "The auditor on each node: who uses its ports, what becomes of them.",
            150,
        ),
    ),
    tables=(Table("watch", "fairlead.watch.table:Watch", rules="fairlead.watch.table:rules"),),
    limits=("fairlead.watch.settings:limits",),
    node_files=("fairlead.watch.unit:unit_files",),
)
