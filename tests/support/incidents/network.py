"""Ports, adapters, platform events and meeting of ranks. Lines: mlx5_core (drivers/net/ethernet/mellanox), NCCL's net_ib,
systemd-networkd, hv_netvsc, Azure's scheduled events, PyTorch's c10d store."""

from __future__ import annotations

from support.incidents.machine import Incident


def _completions(told: Incident, seconds: float, bad: str, *, form: int = 0) -> None:
    """Both sides of a dead path see retries exceeded; who speaks first is chance."""
    for other in told.others[:3]:
        here, there = (bad, other) if told.chance.random() < 0.5 else (other, bad)
        for who, peer in ((here, there), (there, here)):
            words = (
                f"Got completion from peer {told.ip(peer)}<44206> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_ib3",
                f"Got completion with error 12, opcode 1, len 0, vendor err 129 (Recv), remote peer {told.ip(peer)}",
                f"Got completion from peer {told.ip(peer)}<44206> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129",
            )[form]
            told.nccl(seconds, who, 3, f"transport/net_ib.cc:1295 NCCL WARN NET/IB : {words}")
            seconds += told.chance.random() / 5
        told.err(
            seconds,
            "RuntimeError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, remote process exited or there was a network error, NCCL version 2.21.5",
            told.rank(other, 3),
        )


def port_down(told: Incident) -> None:
    at = told.at
    told.kernel(told.bad, at, "mlx5_core 0103:00:00.0: Port module event: module 0, Cable unplugged", level="info")
    told.kernel(told.bad, at + 0.1, "mlx5_core 0103:00:00.0 ib3: Link down", level="info")
    told.syslog(told.bad, at + 0.2, "systemd-networkd[611]", "ib3: Lost carrier")
    told.nccl(
        at + 0.3,
        told.bad,
        3,
        "transport/net_ib.cc:253 NCCL WARN NET/IB : mlx5_ib3:1 Got non-fatal async event: port error(10)",
    )
    _completions(told, at + 4, told.bad)
    told.aborted(told.watchdogs(at + 2), told.others[0])
    told.truth(
        "link",
        told.bad,
        ["Cable unplugged", "Lost carrier", "port error", "Link down"],
        "carrier lost, then both peers complain",
    )


def port_flaps(told: Incident) -> None:
    at = told.at
    for turn in range(6):
        told.kernel(told.bad, at + 7 * turn, "mlx5_core 0102:00:00.0 ib2: Link down", level="info")
        told.kernel(told.bad, at + 7 * turn + 2, "mlx5_core 0102:00:00.0 ib2: Link up", level="info")
        told.syslog(told.bad, at + 7 * turn + 0.1, "systemd-networkd[611]", "ib2: Lost carrier")
        told.syslog(told.bad, at + 7 * turn + 2.1, "systemd-networkd[611]", "ib2: Gained carrier")
    _completions(told, at + 20, told.bad, form=1)
    told.aborted(told.watchdogs(at + 15), told.others[-1])
    told.truth("link", told.bad, ["Lost carrier", "Link down"], "six flaps in 40 s")


def cable_error(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad, at, "mlx5_core 0104:00:00.0: Port module event[error]: module 0, Cable error, High Temperature"
    )
    told.kernel(told.bad, at + 1, "mlx5_core 0104:00:00.0 ib4: Link down", level="info")
    _completions(told, at + 5, told.bad, form=2)
    told.aborted(told.watchdogs(at + 3), told.others[0])
    told.truth("link", told.bad, ["Cable error", "Link down"], "hot module")


def two_peers_one_path(told: Incident) -> None:
    """Only two nodes complain of each other, and nothing tells which of the two it is."""
    at, other = told.at, told.others[0]
    for who, peer in ((told.bad, other), (other, told.bad)):
        told.nccl(
            at,
            who,
            2,
            f"transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer {told.ip(peer)}<44206> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_ib2",
        )
    told.aborted(told.watchdogs(at), other)
    told.truth("link", [told.bad, other], "status=12", "between these two")


def adapter_health(told: Incident) -> None:
    at = told.at
    told.kernel(told.bad, at, "mlx5_core 0101:00:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
                "mlx5_core 0101:00:00.0: print_health_info:424:(pid 0): synd 0x8: unrecoverable hardware error")  # fmt: skip
    told.kernel(told.bad, at + 1, "mlx5_core 0101:00:00.0 ib0: Link down", level="info")
    _completions(told, at + 3, told.bad)
    told.aborted(told.watchdogs(at + 1), told.others[0])
    told.truth(
        "nic", told.bad, ["health compromised", "synd 0x8"], "the adapter is dead; the link down is its consequence"
    )


def adapter_command_timeout(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at,
        "mlx5_core 0105:00:00.0: wait_func:1195:(pid 967): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
    )
    told.kernel(
        told.bad,
        at + 0.2,
        "mlx5_core 0105:00:00.0: mlx5_cmd_out_err:838:(pid 967): ENABLE_HCA(0x104) op_mod(0x0) failed, status internal error(0x1), syndrome (0x0), err(-110)",
    )
    _completions(told, at + 6, told.bad, form=2)
    told.aborted(told.watchdogs(at + 1), told.others[0])
    told.truth("nic", told.bad, "ENABLE_HCA(0x104) timeout", "firmware does not answer")


def function_revoked(told: Incident) -> None:
    at = told.at
    told.kernel(told.bad, at, "hv_netvsc 000d3a5c-2b9f-000d-3a5c-2b9f000d3a5c eth0: Data path switched from VF: enP30832s1",
                "hv_netvsc 000d3a5c-2b9f-000d-3a5c-2b9f000d3a5c eth0: VF unregistering: enP30832s1", "mlx5_core 7870:00:02.0: poll_health:825:(pid 0): Fatal error 1 detected", level="info")  # fmt: skip
    told.err(
        at + 30,
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error, NCCL version 2.21.5",
        told.rank(told.bad),
    )
    told.aborted(told.watchdogs(at), told.bad)
    told.truth(
        ["host-servicing", "nic"],
        told.bad,
        ["Data path switched from VF", "VF unregistering"],
        "the virtual function was revoked and never came back",
    )


def scheduled_freeze(told: Incident) -> None:
    at = told.at
    not_before = f"{told.stamp(told.bad, at):%a, %d %b %Y %H:%M:%S} GMT"
    told.syslog(
        told.bad,
        at - 840,
        "azure-scheduled-events",
        f'{{"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventType": "Redeploy", "ResourceType": "VirtualMachine", "Resources": ["{told.bad}"], "EventStatus": "Scheduled", "NotBefore": "{not_before}", "EventSource": "Platform"}}',
    )
    told.syslog(told.bad, at, "systemd[1]", "Starting Power-Off...")
    told.syslog(told.bad, at, "systemd-logind[702]", "System is powering down.")
    told.lost_by_slurm(at, told.bad)
    told.watchdogs(at, missing=told.bad, timeout=280)
    told.truth(
        "host-servicing", told.bad, ["Redeploy", "scheduled"], "the platform announced it a quarter of an hour before"
    )


def address_in_use(told: Incident) -> None:
    at, head = 20.0, told.nodes[0]
    told.at = at
    told.err(at, "Traceback (most recent call last):", 0)
    told.err(
        at,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        0,
    )
    for node in told.nodes[1:]:
        told.err(
            at + 600,
            f"torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to ({head}, 29500).",
            told.rank(node),
        )
    told.aborted(at + 602, head)
    told.truth(
        "rendezvous", [head, ""], ["EADDRINUSE", "address already in use"], "the port was taken on the first node"
    )


def nobody_at_the_meeting_point(told: Incident) -> None:
    told.at = at = 30.0
    for node in told.nodes:
        told.err(
            at + 600,
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (gpu-login, 29500). The client socket has timed out after 600000ms while trying to connect to (gpu-login, 29500).",
            told.rank(node),
        )
    told.aborted(at + 605, told.nodes[0])
    told.truth("rendezvous", "", "failed to connect", "MASTER_ADDR names a machine that is not in the job", victims=[])


def refused_before_the_start(told: Incident) -> None:
    told.at = at = 40.0
    for node in told.others:
        told.nccl(
            at,
            node,
            0,
            f"misc/socket.cc:484 NCCL WARN Connect to {told.ip(told.bad)}<56821> failed : Connection refused",
        )
    told.aborted(at + 30, told.others[0])
    told.truth(
        ["rendezvous", "program-error", "not-in-the-logs"],
        [told.bad, ""],
        ["Connection refused"],
        "everybody is refused by one node",
    )


def missing_rank_in_watchdogs(told: Incident) -> None:
    """All ranks but those of one node time out, and of that node there is not a word."""
    at = told.at
    told.watchdogs(at, missing=told.bad)
    told.aborted(at + 605, told.others[0])
    told.truth("collective-hang", [told.bad, ""], ["Watchdog caught"], "only who did not come is known")


NETWORK = (
    port_down, port_flaps, cable_error, two_peers_one_path, adapter_health, adapter_command_timeout, function_revoked,
    scheduled_freeze, address_in_use, nobody_at_the_meeting_point, refused_before_the_start, missing_rank_in_watchdogs,
)  # fmt: skip
