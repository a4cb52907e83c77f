"""What the launcher brings."""

from fairlead.base.rooms import Doctor, Room, Table, Verb

ROOM = Room(
    verbs=(
        Verb("service", "", "Programs on nodes that outlive the command: which run where, and their end.", 240),
        Verb("service ls", "fairlead.cli.service:ls"),
        Verb("service deploy", "fairlead.cli.service:deploy"),
        Verb("service stop", "fairlead.cli.service:stop"),
    ),
    tables=(Table("launch", "fairlead.launch.table:Launch"),),
    limits=("fairlead.launch.table:limits",),
    doctor=(
        Doctor(
            "systemd",
            "services kept by systemd: the supervisor needs none",
            "apt install systemd",
            programs=("systemctl", "systemd-analyze"),
        ),
    ),
)
