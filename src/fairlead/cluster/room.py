"""What running things on nodes brings."""

from fairlead.base.rooms import Doctor, Room, Table, Verb

ROOM = Room(
    verbs=(Verb("exec", "fairlead.cli.exec:exec_", "Run a command on nodes; equal outputs are folded.", 50),),
    tables=(
        Table("slurm", "fairlead.cluster.table:Slurm", via=("slurm", "lab"), rules="fairlead.cluster.table:rules"),
        Table("kubernetes", "fairlead.cluster.table:Kubernetes", via=("kubernetes",)),
    ),
    doctor=(
        Doctor("ssh", "nodes reached by OpenSSH", "apt install openssh-client", programs=("ssh",)),
        Doctor(
            "slurm",
            "Slurm, on a cluster and in the lab",
            "apt install slurm-wlm",
            programs=("srun", "sbatch", "slurmctld", "slurmd"),
        ),
        Doctor(
            "kubectl", "nodes reached through Kubernetes", "see kubernetes.io/docs/tasks/tools", programs=("kubectl",)
        ),
    ),
)
