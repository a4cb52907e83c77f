"""What the command line brings: the verbs about fairlead itself and its runs, and those that span rooms."""

from fairlead.base.rooms import Room, Verb

ROOM = Room(
    verbs=(
        Verb(
            "doctor",
            "fairlead.cli.doctor:doctor",
            "Say what this machine can do, and what to install for the rest.",
            30,
        ),
        Verb(
            "limits", "fairlead.cli.limits:limits", "Every number that judges, its source, and how to have another.", 40
        ),
        Verb(
            "bringup",
            "fairlead.cli.bringup:bringup",
            "The stages in order, one report; without a cluster file, on a lab.",
            190,
            rejudge="fairlead.preflight.rejudge:rejudge",
        ),
        Verb("show", "fairlead.cli.show:show", "List earlier runs, or show one again.", 310),
        Verb("rejudge", "fairlead.cli.show:rejudge", "Judge an earlier run's facts by today's rules.", 320),
        Verb("diff", "fairlead.cli.show:diff", "What changed between two runs.", 330),
        Verb("explain", "fairlead.cli.explain:explain", "What a code means: cause, evidence, remedy.", 340),
        Verb(
            "schema",
            "fairlead.cli.explain:schema",
            "Print the JSON Schema of a document fairlead writes or reads.",
            350,
        ),
    ),
    pages=("fairlead.cli.reference:pages",),
)
