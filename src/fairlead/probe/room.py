"""What reading nodes brings."""

from fairlead.base.rooms import Doctor, Room, Verb

ROOM = Room(
    verbs=(Verb("probe", "fairlead.cli.probe:probe", "Read nodes' facts and judge each node by itself.", 60),),
    doctor=(
        Doctor("gpu", "NCCL, GPU checks", "an NVIDIA driver", path="/proc/driver/nvidia/version"),
        Doctor(
            "infiniband",
            "InfiniBand checks",
            "an RDMA-capable VM size and its driver",
            path="/sys/class/infiniband/*",
        ),
    ),
)
