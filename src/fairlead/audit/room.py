"""What the audit brings."""

from fairlead.base.rooms import Room, Verb

ROOM = Room(
    verbs=(
        Verb(
            "audit",
            "fairlead.cli.audit:audit",
            "What a guest's network really is, and the file that mends it.",
            65,
            rejudge="fairlead.audit.judge:rejudge",
        ),
    ),
)
