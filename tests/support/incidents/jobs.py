"""What Slurm or a person ends, and what the program itself does wrong. Lines: Slurm's slurmstepd and slurmctld, Python, PyTorch."""

from __future__ import annotations

from support.incidents.machine import Incident


def _cancelled(told: Incident, seconds: float, why: str, word: str = "STEP") -> None:
    when = told.stamp("", seconds)
    for node in told.nodes:
        name = f"{told.job}.0" if word == "STEP" else told.job
        told.err(
            seconds, f"slurmstepd: error: *** {word} {name} ON {node} CANCELLED AT {when:%Y-%m-%dT%H:%M:%S}{why} ***"
        )
    for node in told.nodes:
        told.err(seconds + 1, f"srun: error: {node}: task {told.rank(node)}: Terminated")
        told.err(
            seconds + 0.5,
            "[rank0]: torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 15",
            told.rank(node),
        )


def time_limit(told: Incident) -> None:
    told.at = at = 7200.0
    told.limit = "02:00:00"
    told.slurmctld(at, f"Time limit exhausted for JobId={told.job}")
    _cancelled(told, at + 1, " DUE TO TIME LIMIT")
    told.state, told.exit, told.end = "TIMEOUT", "0:15", at + 3
    told.truth("time-limit", "", ["TIME LIMIT", "Time limit exhausted"], "two hours were asked for", victims=[])


def time_limit_while_hanging(told: Incident) -> None:
    """The limit came because a node hung; the hang stands in the log, an hour earlier."""
    told.at, told.limit = 3000.0, "02:00:00"
    told.kernel(
        told.bad,
        3000,
        f"NVRM: Xid (PCI:{told.pci(2)}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    )
    told.slurmctld(7200, f"Time limit exhausted for JobId={told.job}")
    _cancelled(told, 7201, " DUE TO TIME LIMIT")
    told.state, told.exit, told.end = "TIMEOUT", "0:15", 7203
    told.truth("gpu-bus", told.bad, "fallen off the bus", "no watchdog; the limit is the consequence")


def preempted(told: Incident) -> None:
    at = told.at
    told.slurmctld(
        at, f"preempted JobId={told.job} has been requeued to reclaim resources for JobId={int(told.job) + 3}"
    )
    _cancelled(told, at + 1, " DUE TO PREEMPTION", "JOB")
    told.state, told.exit, told.end = "PREEMPTED", "0:15", at + 3
    told.truth("preemption", "", ["PREEMPTION", "preempted"], "somebody more important", victims=[])


def cancelled_by_its_user(told: Incident) -> None:
    at = told.at
    told.slurmctld(at, f"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId={told.job} uid 20001")
    _cancelled(told, at + 1, "")
    told.state, told.exit, told.end = "CANCELLED by 20001", "0:15", at + 3
    told.truth("cancelled", "", ["REQUEST_KILL_JOB", "CANCELLED AT"], "scancel", victims=[])


def prolog_fails(told: Incident) -> None:
    told.at = at = 5.0
    told.prolog(told.bad, at, "ERROR", "mount /shared failed: Connection timed out")
    told.slurmd(told.bad, at + 1, "error: prolog failed: rc:1 output:mount /shared failed: Connection timed out")
    told.slurmctld(
        at + 1.1, f"error: validate_node_specs: Prolog or job env setup failure on node {told.bad}, draining the node"
    )
    told.slurmctld(at + 1.2, f"error: Prolog launch failure, JobId={told.job}")
    told.slurmctld(at + 1.3, f"Requeuing JobId={told.job}")
    told.state, told.exit, told.end = "NODE_FAIL", "1:0", at + 3
    told.truth(
        "prolog",
        told.bad,
        ["prolog failed", "Prolog or job env setup failure", "mount /shared failed"],
        "one node cannot mount",
    )


def prolog_fails_on_two(told: Incident) -> None:
    told.at = at = 5.0
    both = [told.nodes[0], told.nodes[-1]]
    for node in both:
        told.slurmd(
            node,
            at,
            "error: prolog failed: rc:1 output:nvidia-smi: Unable to determine the device handle for GPU0001:00:00.0: Unknown Error",
        )
    told.slurmctld(at + 1, f"error: Prolog/Epilog failure on nodes {','.join(both)}, set to state DRAIN")
    told.state, told.exit, told.end = "FAILED", "1:0", at + 3
    told.truth(["prolog", "gpu-bus"], both, ["prolog failed", "Prolog/Epilog failure"], "health check in the prolog")


def exception_on_one_rank(told: Incident) -> None:
    at, rank = told.at, told.rank(told.bad, 5)
    told.err(at, "Traceback (most recent call last):", rank)
    told.err(at, '  File "/shared/train.py", line 88, in <module>', rank)
    told.err(at, "    batch = next(loader)", rank)
    told.err(at, '  File "/shared/data.py", line 31, in decode', rank)
    told.err(at, "ValueError: could not convert string to float: 'n/a'", rank)
    end = told.watchdogs(at, missing=told.bad)
    told.err(end, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", rank)
    told.aborted(end + 1, told.bad)
    told.truth("program-error", [told.bad, ""], ["ValueError"], "one bad record; the others wait ten minutes")


def exception_everywhere(told: Incident) -> None:
    told.at = at = 30.0
    for node in told.nodes:
        for local in range(8):
            told.err(at, "Traceback (most recent call last):", told.rank(node, local))
            told.err(at, '  File "/shared/train.py", line 3, in <module>', told.rank(node, local))
            told.err(at, "ModuleNotFoundError: No module named 'flash_attn'", told.rank(node, local))
    told.aborted(at + 2, told.nodes[0])
    told.truth("program-error", "", "ModuleNotFoundError", "a package is missing in the image", victims=[])


def checkpoint_is_broken(told: Incident) -> None:
    told.at = at = 45.0
    for node in told.nodes:
        rank = told.rank(node)
        told.err(at, "Traceback (most recent call last):", rank)
        told.err(at, '  File "/usr/lib/python3/site-packages/torch/serialization.py", line 1500, in load', rank)
        told.err(at, "EOFError: Ran out of input", rank)
    told.aborted(at + 2, told.nodes[0])
    told.truth("program-error", "", "EOFError", "truncated checkpoint", victims=[])


def segmentation_fault(told: Incident) -> None:
    at, rank = told.at, told.rank(told.bad, 1)
    told.kernel(
        told.bad,
        at,
        "pt_main_thread[20105]: segfault at 7f1c00000018 ip 00007f1d2a3b4c5d sp 00007ffd1e2f3a40 error 4 in libtorch_cpu.so[7f1d20000000+e000000]",
        level="info",
    )
    told.err(at + 0.1, "Fatal Python error: Segmentation fault", rank)
    told.err(at + 1, f"srun: error: {told.bad}: task {rank}: Segmentation fault (core dumped)")
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad, signal="Segmentation fault (core dumped)")
    told.truth("program-error", [told.bad, ""], ["segfault at", "Segmentation fault"], "in the program's own library")


def loss_is_nan(told: Incident) -> None:
    at = told.at
    for step in range(5):
        told.out(at + step * 30, f"step {9000 + step * 10:6d} | loss: nan | grad norm: nan | lr: 3.0e-4 | 5.21 s/it", 0)
    told.err(at + 151, "Traceback (most recent call last):", 0)
    told.err(at + 151, '  File "/shared/train.py", line 240, in check', 0)
    told.err(
        at + 151,
        "RuntimeError: found NaN in local grad norm in backward pass before data-parallel communication collective",
        0,
    )
    told.aborted(at + 155, told.nodes[0])
    told.truth("nan-loss", "", ["loss: nan", "found NaN"], "nothing of the hardware", victims=[])


def nan_after_memory_error(told: Incident) -> None:
    at, local = told.at, 3
    told.kernel(
        told.bad,
        at,
        f"NVRM: Xid (PCI:{told.pci(local)}): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0xff00 partition 2, subpartition 1.",
    )
    told.out(at + 20, "step   9000 | loss: nan | grad norm: nan | lr: 3.0e-4 | 5.21 s/it", 0)
    told.err(
        at + 21,
        "RuntimeError: found NaN in local grad norm in backward pass before data-parallel communication collective",
        0,
    )
    told.aborted(at + 30, told.nodes[0])
    told.truth("gpu-memory", told.bad, ": 48, ", "the NaN is the consequence", device=told.pci(local))


def killed_without_a_word(told: Incident) -> None:
    at = told.at
    told.err(at, "Killed", told.rank(told.bad))
    told.aborted(at + 2, told.bad, signal="Killed")
    told.truth(["not-in-the-logs"], [told.bad, ""], [], "somebody sent SIGKILL and nothing tells who or why")


def ends_with_one(told: Incident) -> None:
    told.finished(told.at + 2, "WEXITSTATUS 1")
    told.truth(["not-in-the-logs"], "", [], "nothing was logged at all", victims=[])


def hang_that_still_runs(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at,
        f"NVRM: Xid (PCI:{told.pci(6)}): 119, pid=20106, name=python3, Timeout after 45s of waiting for RPC response from GPU6 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x4).",
    )
    told.state, told.exit, told.end = "RUNNING", "0:0", at + 4000
    told.truth(
        "gpu-firmware", told.bad, ": 119, ", "the job hangs without a watchdog and is still RUNNING", device=told.pci(6)
    )


def victim_speaks_first(told: Incident) -> None:
    """The clock of the bad node is 40 s ahead, so that others' complaints seem to come before its fault."""
    at = told.at
    told.skew[told.bad] = 40.0
    told.kernel(
        told.bad,
        at,
        "mlx5_core 0101:00:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
    )
    for node in told.others[:3]:
        told.nccl(
            at + 2,
            node,
            0,
            f"transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer {told.ip(told.bad)}<44206> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_ib0",
        )
    told.aborted(told.watchdogs(at), told.others[0])
    told.truth("nic", told.bad, ["health compromised"], "the cause has the later time stamp")


def another_node_died_too(told: Incident) -> None:
    """A node of other people dies in the same minute; it is not in the job."""
    at = told.at
    told.kernel(
        told.idle[0],
        at - 20,
        "NVRM: Xid (PCI:0003:00:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    )
    told.slurmctld(at + 100, f"error: Nodes {told.idle[0]} not responding, setting DOWN")
    rank = told.rank(told.bad)
    told.err(at, "Traceback (most recent call last):", rank)
    told.err(at, '  File "/shared/train.py", line 120, in step', rank)
    told.err(at, "AssertionError: sequence length 8192 exceeds 4096", rank)
    told.aborted(at + 5, told.bad)
    told.truth("program-error", [told.bad, ""], "AssertionError", "the dead node belongs to others")


JOBS = (
    time_limit, time_limit_while_hanging, preempted, cancelled_by_its_user, prolog_fails, prolog_fails_on_two,
    exception_on_one_rank, exception_everywhere, checkpoint_is_broken, segmentation_fault, loss_is_nan,
    nan_after_memory_error, killed_without_a_word, ends_with_one, hang_that_still_runs, victim_speaks_first,
    another_node_died_too,
)  # fmt: skip
