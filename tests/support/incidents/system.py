"""Kernels, memory, disks and shared file systems. Lines: mm/oom_kill.c, kernel/watchdog.c, kernel/panic.c, AER, mce, nvme, XFS,
EXT4, NFS, Lustre's ptlrpc, GPFS stacks in hung tasks, Slurm's cgroup plugin."""

from __future__ import annotations

from support.incidents.machine import Incident


def oom_of_the_job(told: Incident) -> None:
    at = told.at
    task = f"/slurm/uid_20001/job_{told.job}/step_0/task_0"
    told.kernel(told.bad, at, "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
                f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm/uid_20001/job_{told.job},task_memcg={task},task=python3,pid=20104,uid=20001",
                "Memory cgroup out of memory: Killed process 20104 (python3) total-vm:204800000kB, anon-rss:188000000kB, file-rss:0kB, shmem-rss:0kB, UID:20001 pgtables:4096kB oom_score_adj:0",
                "oom_reaper: reaped process 20104 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB")  # fmt: skip
    told.err(
        at + 1,
        f"slurmstepd: error: Detected 1 oom_kill event in StepId={told.job}.0. Some of the step tasks have been OOM Killed.",
    )
    told.slurmd(
        told.bad,
        at + 1,
        f"[{told.job}.0] error: Detected 1 oom_kill event in StepId={told.job}.0. Some of the step tasks have been OOM Killed.",
    )
    told.err(at + 2, f"srun: error: {told.bad}: task {told.rank(told.bad)}: Out Of Memory")
    told.watchdogs(at + 1, missing=told.bad, timeout=20)
    told.finished(at + 26, "OOM failure")
    told.state, told.exit = "OUT_OF_MEMORY", "0:125"
    told.truth(
        "memory-limit",
        told.bad,
        ["oom_memcg", "oom-kill", "Memory cgroup out of memory", "oom_kill event", "invoked oom-killer"],
        "limit of the job on one node",
    )


def oom_of_the_job_old_words(told: Incident) -> None:
    at = told.at
    told.kernel(told.bad, at, f"Task in /slurm/uid_20001/job_{told.job}/step_0 killed as a result of limit of /slurm/uid_20001/job_{told.job}",
                "Memory cgroup out of memory: Kill process 20104 (python3) score 998 or sacrifice child", "Killed process 20104 (python3) total-vm:204800000kB, anon-rss:188000000kB, file-rss:0kB")  # fmt: skip
    told.err(
        at + 1,
        f"slurmstepd: error: Detected 1 oom-kill event(s) in StepId={told.job}.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",
    )
    told.err(at + 2, f"srun: error: {told.bad}: task {told.rank(told.bad)}: Out Of Memory")
    told.finished(at + 5, "OOM failure")
    told.state, told.exit = "OUT_OF_MEMORY", "0:125"
    told.truth("memory-limit", told.bad, ["limit of", "out of memory", "oom-kill event"], "kernel 3.10, Slurm 19")


def data_loader_killed(told: Incident) -> None:
    at = told.at
    told.kernel(told.bad, at, "python3 invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/user.slice,task=python3,pid=31001,uid=20001",
                "Out of memory: Killed process 31001 (python3) total-vm:904800000kB, anon-rss:888000000kB, file-rss:0kB, shmem-rss:0kB")  # fmt: skip
    told.err(at + 1, "RuntimeError: DataLoader worker (pid 31001) is killed by signal: Killed.", told.rank(told.bad))
    told.aborted(told.watchdogs(at + 1, missing=told.bad), told.bad)
    told.truth(
        "memory-limit",
        told.bad,
        ["Out of memory", "oom-kill", "oom-killer"],
        "the node ran out; the loader's words are the consequence",
    )


def kernel_panic(told: Incident) -> None:
    at = told.at
    told.kernel(told.bad, at, "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]", level="emerg")
    told.kernel(
        told.bad,
        at + 30,
        "Kernel panic - not syncing: softlockup: hung tasks",
        "CPU: 18 PID: 2254956 Comm: python3 Tainted: P           OEL    5.15.0-1073-azure #82-Ubuntu",
        level="emerg",
    )
    told.lost_by_slurm(at + 30, told.bad)
    told.watchdogs(at + 30, missing=told.bad, timeout=250)
    told.truth("node-crash", told.bad, ["soft lockup", "Kernel panic"], "panic; Slurm and NCCL tell of it later")


def fatal_pcie_error(told: Incident) -> None:
    at = told.at
    told.kernel(told.bad, at, "pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:16:01.0",
                "pcieport 0000:16:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
                "Kernel panic - not syncing: Fatal machine check")  # fmt: skip
    told.lost_by_slurm(at, told.bad)
    told.truth("node-crash", told.bad, ["Uncorrected (Fatal)", "Kernel panic"], "PCIe")


def unexpected_reboot(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at + 150,
        "Linux version 5.15.0-1073-azure (buildd@lcy02) (gcc 11.4.0) #82-Ubuntu SMP",
        "Command line: BOOT_IMAGE=/boot/vmlinuz-5.15.0-1073-azure root=UUID=1 ro console=ttyS0",
        level="notice",
    )
    told.slurmctld(
        at + 200,
        f"error: Node {told.bad} unexpectedly rebooted boot_time={int(told.stamp('', at + 140).timestamp())} last response={int(told.stamp('', at - 20).timestamp())}",
    )
    told.slurmctld(at + 200.1, f"Killing JobId={told.job} on failed node {told.bad}")
    told.err(at + 201, f"srun: error: Node failure on {told.bad}")
    told.watchdogs(at, missing=told.bad, timeout=180)
    told.state, told.end = "NODE_FAIL", at + 205
    told.truth("node-crash", told.bad, ["unexpectedly rebooted"], "it rebooted and nothing says why")


def node_silent(told: Incident) -> None:
    at = told.at
    told.lost_by_slurm(at, told.bad)
    told.slurmctld(
        at + 130, f"error: slurm_receive_msgs: [[{told.bad}]:6818] failed: Socket timed out on send/recv operation"
    )
    told.watchdogs(at, missing=told.bad, timeout=240)
    told.truth("node-lost", told.bad, ["not responding"], "nothing tells why")


def node_silent_requeued(told: Incident) -> None:
    at = told.at
    told.slurmctld(at + 300, f"error: Nodes {told.bad} not responding, setting DOWN")
    told.slurmctld(at + 300.1, f"requeue job JobId={told.job} due to failure of node {told.bad}")
    told.slurmctld(at + 300.2, f"Requeuing JobId={told.job}")
    told.err(
        at + 300.4,
        f"slurmstepd: error: *** JOB {told.job} ON {told.others[0]} CANCELLED AT {told.stamp('', at + 300):%Y-%m-%dT%H:%M:%S} DUE TO JOB REQUEUE ***",
    )
    told.state, told.end = "REQUEUED", at + 301
    told.truth("node-lost", told.bad, ["not responding", "failure of node"], "requeued")


def disk_full_while_saving(told: Incident) -> None:
    at, rank = told.at, told.rank(told.bad)
    told.err(at, "Traceback (most recent call last):", rank)
    told.err(at, '  File "/usr/lib/python3/site-packages/torch/serialization.py", line 850, in save', rank)
    told.err(at, "    _save(obj, opened_zipfile, pickle_module, pickle_protocol)", rank)
    told.err(at, "OSError: [Errno 28] No space left on device: '/local/ckpt/step_4000.tmp'", rank)
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth("disk-full", [told.bad, ""], "No space left", "checkpoint on the local disk")


def quota(told: Incident) -> None:
    at = told.at
    told.err(at, "Traceback (most recent call last):", 0)
    told.err(at, "OSError: [Errno 122] Disk quota exceeded: '/shared/ckpt/step_4000/rank0.pt'", 0)
    told.aborted(at + 4, told.nodes[0])
    told.truth("disk-full", [told.nodes[0], ""], "quota exceeded", "quota of the user")


def spool_full(told: Incident) -> None:
    told.at = at = 100.0
    told.slurmd(
        told.bad,
        at,
        f"error: unable to create file `/var/spool/slurmd/job{told.job}/slurm_script': No space left on device",
    )
    told.slurmd(
        told.bad, at + 0.1, f"error: _step_setup: no job returned, StepId={told.job}.0 (No space left on device)"
    )
    told.slurmctld(at + 1, f"error: Prolog launch failure, JobId={told.job}")
    told.finished(at + 3, "WEXITSTATUS 1")
    told.truth(["disk-full", "prolog"], told.bad, "No space left", "slurmd's spool")


def disk_dies(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at,
        "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (I/O Cmd) QID 3 timeout, reset controller",
        level="warning",
    )
    told.kernel(told.bad, at + 60, "nvme nvme4: Disabling device after reset failure: -19", "blk_update_request: I/O error, dev nvme4n1, sector 6442712256 op 0x1:(WRITE) flags 0x0 phys_seg 8 prio class 0",
                "md/raid0md0: Disk failure on nvme4n1p1 detected, failing array.", "XFS (md0): log I/O error -5", "XFS (md0): Filesystem has been shut down due to log error (0x2).")  # fmt: skip
    rank = told.rank(told.bad, 2)
    told.err(at + 61, "Traceback (most recent call last):", rank)
    told.err(at + 61, "OSError: [Errno 5] Input/output error: '/mnt/nvme/cache/shard-00017.tar'", rank)
    told.aborted(told.watchdogs(at + 61, missing=told.bad), told.bad)
    told.truth("disk", told.bad, ["nvme4", "XFS (md0)", "md/raid0md0"], "local scratch")


def read_only(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at,
        "EXT4-fs error (device sda1): ext4_journal_check_start:83: comm python3: Detected aborted journal",
        "EXT4-fs (sda1): Remounting filesystem read-only",
    )
    rank = told.rank(told.bad, 1)
    told.err(at + 5, "Traceback (most recent call last):", rank)
    told.err(at + 5, "OSError: [Errno 30] Read-only file system: '/tmp/torchinductor/cache.lock'", rank)
    told.aborted(told.watchdogs(at + 5, missing=told.bad), told.bad)
    told.truth("disk", told.bad, ["EXT4-fs"], "root disk went read-only")


def nfs_hangs(told: Incident) -> None:
    at = told.at
    for node in told.nodes:
        told.kernel(
            node, at + told.chance.random(), "nfs: server 10.1.0.5 not responding, still trying", level="warning"
        )
        told.kernel(node, at + 121, "INFO: task python3:20104 blocked for more than 120 seconds.", "      Tainted: P           OE     5.15.0-1073-azure #82-Ubuntu",
                    "Call Trace:", " <TASK>", " nfs_wb_all+0x28/0x120 [nfs]", " nfs4_file_flush+0x6f/0xb0 [nfsv4]")  # fmt: skip
    told.aborted(told.watchdogs(at), told.nodes[0])
    told.truth(
        "storage-stall",
        "",
        ["not responding, still trying", "blocked for more than"],
        "the server hangs for all nodes alike",
        victims=[],
    )


def lustre_evicts_one(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at,
        "Lustre: lustre-OST000f-osc-ffff8b: Connection to lustre-OST000f (at 10.2.0.15@tcp) was lost; in progress operations using this service will wait for recovery to complete",
        level="warning",
    )
    told.kernel(
        told.bad,
        at + 100,
        "LustreError: 167-0: lustre-OST000f-osc-ffff8b: This client was evicted by lustre-OST000f; in progress operations using this service will fail.",
    )
    rank = told.rank(told.bad, 6)
    told.err(at + 101, "Traceback (most recent call last):", rank)
    told.err(
        at + 101, "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/data/shard-4.tar'", rank
    )
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth("storage-stall", told.bad, ["Connection to", "evicted"], "one client evicted")


def gpfs_stall(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at + 121,
        "INFO: task python3:20104 blocked for more than 120 seconds.",
        "Call Trace:",
        " mmfs_write+0x1/0x20 [mmfslinux]",
        " gpfs_f_rdwr+0x1/0x20 [mmfslinux]",
    )
    told.aborted(told.watchdogs(at, missing=told.bad), told.others[0])
    told.truth("storage-stall", told.bad, ["blocked for more than"], "GPFS on one node")


SYSTEM = (
    oom_of_the_job, oom_of_the_job_old_words, data_loader_killed, kernel_panic, fatal_pcie_error, unexpected_reboot,
    node_silent, node_silent_requeued, disk_full_while_saving, quota, spool_full, disk_dies, read_only, nfs_hangs,
    lustre_evicts_one, gpfs_stall,
)  # fmt: skip
