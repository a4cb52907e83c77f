"""What the cluster file brings."""

from fairlead.base.rooms import Room, Schema, Verb

ROOM = Room(
    verbs=(
        Verb(
            "init",
            "fairlead.cli.init:init",
            "Write a commented cluster.toml, from a preset or from this machine.",
            10,
        ),
        Verb(
            "check", "fairlead.cli.check:check", "Validate the cluster file: every problem at once, with its line.", 20
        ),
    ),
    schemas=(Schema("cluster", "the cluster file", "fairlead.spec.tables:spec_type"),),
    pages=("fairlead.spec.reference:pages",),
)
