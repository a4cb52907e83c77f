"""Runs that ended well, with everything in their logs that a search for "error" would stumble over."""

from __future__ import annotations

from support.incidents.machine import Incident

_ALARMING = (
    lambda told, node: told.kernel(node, -7200, "NVRM: Xid (PCI:0002:00:00): 31, pid=1942, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"),
    lambda told, node: told.kernel(node, told.end + 90, "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"),
    lambda told, node: told.kernel(node, 300, "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"),
    lambda told, node: told.kernel(node, 400, "mce: [Hardware Error]: Machine check events logged", level="info"),
    lambda told, node: told.kernel(node, 500, "pcieport 0000:00:01.0: AER: Corrected error message received from 0000:01:00.0", level="warning"),
    lambda told, node: told.kernel(node, 600, "mlx5_core 0105:00:00.0 eth5: Link down", "mlx5_core 0105:00:00.0 eth5: Link up", level="info"),
    lambda told, node: told.kernel(node, 700, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"),
    lambda told, node: told.err(800, "[W302 20:27:21.426415540 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.", 0),
    lambda told, node: told.err(801, "retrying download of shard 00012 after ConnectionResetError(104, 'Connection reset by peer'), attempt 1 of 5", 3),
    lambda told, node: told.out(802, "loss scale: overflow detected, skipping step 412, reducing to 32768.0", 0),
    lambda told, node: told.syslog(node, 803, "kernel", "[ 1234.567890] nfs: server 10.1.0.5 not responding, still trying"),
    lambda told, node: told.syslog(node, 804, "kernel", "[ 1235.567890] nfs: server 10.1.0.5 OK"),
    lambda told, node: told.slurmctld(805, f"error: Nodes {told.idle[0]} not responding, setting DOWN"),
    lambda told, node: told.slurmctld(806, f"error: Nodes {node} not responding"),
    lambda told, node: told.slurmctld(816, f"Node {node} now responding"),
    lambda told, node: told.kernel(told.idle[0], 500, "NVRM: Xid (PCI:0003:00:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    lambda told, node: told.kernel(told.idle[1], 510, "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:901kB, anon-rss:880kB, file-rss:0kB"),
    lambda told, node: told.slurmctld(820, f"_job_complete: JobId={int(told.job) + 7} OOM failure"),
    lambda told, node: told.slurmctld(821, f"Time limit exhausted for JobId={int(told.job) + 9}"),
    lambda told, node: told.kernel(node, 830, "EXT4-fs (nvme1n1p1): warning: mounting fs with errors, running e2fsck is recommended", level="warning"),
    lambda told, node: told.kernel(node, 840, "python3 invoked the profiler: blocked for more than 1 ms in user code", level="info"),
    lambda told, node: told.out(850, "evaluating prompt: 'RuntimeError: CUDA out of memory. Tried to allocate' -> completion ok", 0),
    lambda told, node: told.err(851, "Traceback (most recent call last):", 1),
    lambda told, node: told.healthagent(node, 860, "WARNING", "gpu clocks throttled: SW power cap, within limits"),
)  # fmt: skip


def healthy(seed: int) -> Incident:
    """A job that is COMPLETED, four to nine alarming lines beside the usual noise."""
    told = Incident(seed + 100_000)
    told.state, told.exit = "COMPLETED", "0:0"
    told.end = told.at + 30
    for say in told.chance.sample(_ALARMING, told.chance.randrange(4, 10)):
        say(told, told.bad)
    told.err(851.1, '  File "data.py", line 12, in fetch', 1)
    told.err(851.2, "TimeoutError: shard server did not answer; using the mirror", 1)
    told.out(told.at + 5, "training done, final checkpoint saved", 0)
    told.finished(told.end, "WEXITSTATUS 0")
    told.truth([], "", "", "a healthy run; alarming lines are of others, of earlier, or known to be harmless")
    return told
