"""What healthy machines write all day, at full volume: none of it is the cause of anything.

Forms: slurm.conf daemons at debug level, systemd, chrony, cron, sshd, rsyslogd, mlx5_core, EDAC, NVRM, NCCL's INFO lines, the
training loop's own words. Some of it looks frightening to a search for "error": a port that is set up at boot, corrected
memory errors, a command of the adapter that the firmware refuses, errors of other people's jobs, of long ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.incidents.machine import Incident

_SYSTEM = (
    ("systemd[1]", "Started Session {n} of User azhpcuser."),
    ("systemd[1]", "session-{n}.scope: Deactivated successfully."),
    ("systemd[1]", "Starting Daily apt download activities..."),
    ("CRON[{n}]", "(root) CMD (   cd / && run-parts --report /etc/cron.hourly)"),
    ("chronyd[812]", "Selected source PHC0"),
    ("sshd[{n}]", "Accepted publickey for azhpcuser from 10.0.0.4 port {n} ssh2: RSA SHA256:abc"),
    ("sshd[{n}]", "error: kex_exchange_identification: Connection closed by remote host"),
    ("sshd[{n}]", "pam_unix(sshd:session): session closed for user azhpcuser"),
    ("rsyslogd", '[origin software="rsyslogd" swVersion="8.2312.0"] rsyslogd was HUPed'),
    ("python3[1931]", "2026-03-02 INFO ExtHandler ExtHandler Checking for agent updates (family: Prod)"),
    ("python3[1931]", "WARNING ExtHandler ExtHandler Error fetching manifest, will retry"),
    ("nvidia-persistenced", "device 0001:00:00.0 - persistence mode enabled."),
    ("systemd-resolved[640]", "Using degraded feature set UDP instead of UDP+EDNS0 for DNS server 168.63.129.16."),
    ("dockerd[1402]", 'level=info msg="ignoring event" module=libcontainerd topic=/tasks/delete'),
    ("smartd[901]", "Device: /dev/nvme0, number of Error Log entries increased from 31 to 32"),
)  # fmt: skip

_KERNEL = (
    ("info", "mlx5_core 0101:00:00.0: mlx5_pcie_event:301:(pid 1204): Detected insufficient power on the PCIe slot (27W)."),
    ("err", ("mlx5_core 0102:00:00.0: mlx5_cmd_out_err:838:(pid {n}): ACCESS_REG(0x805) op_mod(0x1) failed, "
            "status bad parameter(0x3), syndrome (0x15c356), err(-22)")),
    ("info", "perf: interrupt took too long (2501 > 2500), lowering kernel.perf_event_max_sample_rate to 79750"),
    ("warning", ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1f2 "
                "offset:0x0 grain:32 syndrome:0x0 - err_code:0x0101:0x0090)")),
    ("info", "process 'python3' launched '/bin/sh' with NULL argv: empty string added"),
    ("info", "nvidia-uvm: Loaded the UVM driver, major device number 511."),
    ("info", "hv_balloon: Max. dynamic memory size: 1900544 MB"),
    ("warning", "overlayfs: upper fs does not support RENAME_WHITEOUT."),
    ("notice", 'audit: type=1400 audit(1756.1:{n}): apparmor="ALLOWED" operation="open" profile="snap"'),
    ("warning", "python3[{n}]: segfault-handler installed"),
)  # fmt: skip

_BOOT = (
    ("err", "pci 0001:00:00.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]"),
    ("info", "mlx5_core 0101:00:00.0 eth1: Link down"),
    ("info", "mlx5_core 0101:00:00.0 eth1: Link up"),
    ("info", "IPv6: ADDRCONF(NETDEV_UP): ib0: link is not ready"),
    ("warning", "ACPI Error: No handler for Region [SYSI] ((____ptrval____)) [IPMI] (20210730/evregion-130)"),
    ("err", "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0"),
    ("warning", "nvidia: module verification failed: signature and/or required key missing - tainting kernel"),
)  # fmt: skip

_CONTROLLER = (
    "debug:  sched: Running job scheduler for full queue.",
    "debug:  Spawning ping agent for {idle}",
    "sched/backfill: _start_job: Started JobId={other} in gpu on {idle}",
    "_slurm_rpc_submit_batch_job: JobId={other} InitPrio=4294901000 usec=512",
    "_job_complete: JobId={other} WEXITSTATUS 1",
    "_job_complete: JobId={other} done",
    "debug:  backfill: beginning",
    "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId={other} uid 20001",
    'error: _find_node_record: lookup failure for node "old-node-7"',
    "error: slurm_receive_msg [10.0.0.9:40112]: Zero Bytes were transmitted or received",
)  # fmt: skip


def chatter(told: Incident) -> None:
    """Before, while and after the job."""
    end = told.end
    for node in [*told.nodes, *told.idle]:
        _boot(told, node)
        for _ in range(told.chance.randrange(30, 90)):
            program, text = told.chance.choice(_SYSTEM)
            num = told.chance.randrange(1000, 60000)
            told.syslog(node, told.chance.uniform(-1800, end + 200), program.format(n=num), text.format(n=num))
        for _ in range(told.chance.randrange(8, 20)):
            level, text = told.chance.choice(_KERNEL)
            told.kernel(
                node, told.chance.uniform(-1800, end + 200), text.format(n=told.chance.randrange(9999)), level=level
            )
        for _ in range(10):
            when = told.chance.uniform(-1800, end + 200)
            told.healthagent(node, when, "DEBUG", "interval: 300, function: KmsgReader.clear_errors, (), {}")
        _slurmd(told, node, end)
    for _ in range(120):
        text = told.chance.choice(_CONTROLLER)
        other = int(told.job) + told.chance.randrange(1, 500)
        idle = f"{told.idle[0]},{told.idle[1]}"
        told.slurmctld(told.chance.uniform(-1800, end + 200), text.format(idle=idle, other=other))
    _allocation(told)
    _job(told)


def _boot(told: Incident, node: str) -> None:
    up = -told.chance.uniform(20000, 90000)
    for number, (level, text) in enumerate(_BOOT):
        told.kernel(node, up + number, text, level=level)


def _slurmd(told: Incident, node: str, end: float) -> None:
    for _ in range(12):
        told.slurmd(node, told.chance.uniform(-1800, end + 200), "debug:  _rpc_ping: handled ping")
    if node in told.nodes:
        told.slurmd(node, 0.4, f"task/affinity: task_p_slurmd_batch_request: task_p_slurmd_batch_request: {told.job}")
        told.slurmd(
            node, 1.1, f"launch task StepId={told.job}.0 request from UID:20001 GID:20001 HOST:172.16.1.4 PORT:50122"
        )
        told.prolog(node, 0.2, "INFO", f"job {told.job}: script archived")


def _allocation(told: Incident) -> None:
    first, last = told.nodes[0], told.nodes[-1]
    stem = first.rstrip("0123456789")
    told.slurmctld(-3.0, f"_slurm_rpc_submit_batch_job: JobId={told.job} InitPrio=4294901200 usec=611")
    told.slurmctld(
        0.0,
        f"sched: Allocate JobId={told.job} NodeList={stem}[{first.removeprefix(stem)}-{last.removeprefix(stem)}] "
        f"#CPUs={96 * len(told.nodes)} Partition=gpu",
    )


def _job(told: Incident) -> None:
    """What the job says while it is well: until it ends, or until what happens to it happens."""
    for node in told.nodes:
        for local in (0, 1):
            where = f"{node}:{20100 + local}:{20100 + local} [{local}]"
            told.out(20 + local, f"{where} NCCL INFO NET/IB : Using [0]mlx5_ib0:1/IB [1]mlx5_ib1:1/IB [RO]; OOB eth0:{told.ip(node)}<0>",
                     told.rank(node, local))  # fmt: skip
            told.out(21 + local, f"{where} NCCL INFO Connected all rings", told.rank(node, local))
    told.err(
        15, "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors."
    )
    told.err(
        16, "huggingface/tokenizers: The current process just got forked, after parallelism has already been used."
    )
    told.out(17, "config: error_if_nonfinite=False nan_policy=skip max_restarts=0 on_error=raise")
    step = 0
    for when in range(60, int(min(told.at, told.end)), 30):
        step += 10
        told.out(
            when,
            f"step {step:6d} | loss: {2.1 + 3 / (1 + step / 200) + told.chance.random() / 20:.4f} | grad norm: "
            f"{told.chance.random() + 0.6:.3f} | lr: 3.0e-4 | 5.21 s/it",
        )
        if step % 500 == 0:
            told.out(when + 1, f"saved checkpoint to /shared/ckpt/step_{step}, 0 errors")
