"""What the lab brings."""

from fairlead.base.rooms import Doctor, Room, Schema, Table, Verb

ROOM = Room(
    verbs=(
        Verb("lab", "", "A whole cluster inside this machine, with faults on demand.", 210),
        Verb("lab up", "fairlead.cli.lab:up"),
        Verb("lab down", "fairlead.cli.lab:down"),
        Verb("lab status", "fairlead.cli.lab:status"),
        Verb("lab exec", "fairlead.cli.lab:exec_"),
        Verb("lab fault", "fairlead.cli.lab:fault"),
    ),
    tables=(
        Table(
            "lab",
            "fairlead.lab.table:Lab",
            via=("lab",),
            rules="fairlead.lab.table:rules",
            derived="fairlead.lab.table:derived",
        ),
    ),
    schemas=(
        Schema("lab-state", "what a running lab is", "fairlead.records.labstate:LabState"),
        Schema("lab-status", "what a running lab is doing", "fairlead.records.labstate:LabStatus"),
    ),
    doctor=(
        Doctor("root", "labs with real Slurm; installing packages", "run as root", look="fairlead.lab.looks:root"),
        Doctor(
            "userns",
            "labs as an ordinary user",
            "sysctl kernel.unprivileged_userns_clone=1",
            look="fairlead.lab.looks:user_namespaces",
        ),
        Doctor(
            "netns",
            "the lab",
            "a kernel with network namespaces, veth; apt install iproute2",
            look="fairlead.lab.looks:netns",
        ),
        Doctor("srv6", "the lab's fabric", "a kernel with SRv6 next-csid (6.1+)", look="fairlead.lab.looks:srv6"),
        Doctor("tbf", "shaped lab links", "a kernel with sch_tbf", look="fairlead.lab.looks:tbf"),
        Doctor("nft", "lab faults: loss, drops, marks", "apt install nftables", look="fairlead.lab.looks:nft"),
        Doctor("munge", "Slurm in the lab", "apt install munge", programs=("munged",)),
        Doctor("sshd", "OpenSSH servers in the lab", "apt install openssh-server", programs=("sshd", "ssh-keygen")),
        Doctor(
            "faketime",
            "clock skew in the lab",
            "apt install faketime",
            path="/usr/lib/*/faketime/libfaketime.so.1",
        ),
    ),
    pages=("fairlead.lab.reference:pages",),
)
