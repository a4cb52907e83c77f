# ruff: noqa: E501 - one line a message, as the kernel prints it
"""Kernel messages: each pattern with lines the kernel prints (the source file is named in messages.toml), and with lines
that only look like them: a program's name, its arguments and its files reach the log too.
"""

from __future__ import annotations

import re

import pytest

from fairlead.checks.messages import Pattern, patterns, xids
from fairlead.records.verdict import Verdict
from support.judging import judged, of, small
from support.trees import Machine

REAL: dict[str, tuple[str, ...]] = {
    "a processor was stuck in the kernel": (
        "watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [python3:4242]",
        "NMI watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [kworker/0:1:55]",
        "BUG: soft lockup - CPU#0 stuck for 67s! [swapper:0]",
        "watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "rcu: INFO: rcu_sched self-detected stall on CPU",
        "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... } 26 jiffies s: 77",
        "INFO: rcu_sched detected stalls on CPUs/tasks: { 1} (detected by 0, t=60002 jiffies)",
    ),
    "the kernel itself failed (BUG, Oops or panic)": (
        "BUG: unable to handle page fault for address: ffffb1b3c0a9d000",
        "BUG: unable to handle kernel NULL pointer dereference at 0000000000000010",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "BUG: Bad page state in process python3  pfn:1234a",
        "kernel BUG at fs/ext4/inode.c:2721!",
        "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000010",
        "Unable to handle kernel paging request at virtual address ffff00080a1b2c3d",
        "Oops: 0000 [#1] SMP NOPTI",
        "Oops: general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] PREEMPT SMP",
        "general protection fault, probably for non-canonical address 0x2f6c69622f363878: 0000 [#1] SMP PTI",
        "invalid opcode: 0000 [#1] SMP",
        "Internal error: Oops: 0000000096000004 [#1] SMP",
        "Kernel panic - not syncing: Fatal exception in interrupt",
    ),
    "a task hung for minutes": ("INFO: task kworker/u256:3:881 blocked for more than 120 seconds.",),
    "the processor or the memory had an error that nothing corrected": (
        "{1}[Hardware Error]: event severity: fatal",
        "{7}[Hardware Error]: event severity: recoverable",
        "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
        "[Hardware Error]: Uncorrected, software restartable error.",
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0)",
        "mce: Uncorrected hardware memory error in user-access at 3f28b20200",
        "Memory failure: 0x1f3cf80: recovery action for dirty LRU page: Recovered",
    ),
    "corrected hardware errors": (
        "{3}[Hardware Error]: event severity: corrected",
        "[Hardware Error]: Corrected error, no action required.",
        "EDAC MC1: 1 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x0)",
    ),
    "a PCIe link had a fatal error": (
        "nvidia 0001:00:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        "pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)",
    ),
    "a PCIe link had an uncorrected error": (
        "mlx5_core 0101:00:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
    ),
    "an AMD GPU had an error that nothing corrected": (
        "amdgpu 0002:00:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        "amdgpu 0002:00:00.0: amdgpu: socket: 1, die: 0, 1 new uncorrectable hardware errors detected in umc block",
    ),
    "the node ran out of memory": (
        "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task=python3,pid=4242,uid=0",
    ),
    "a file system is damaged": (
        "EXT4-fs error (device sda1): ext4_find_entry:1658: inode #2: comm ls: reading directory lblock 0",
        "EXT4-fs (sda1): Remounting filesystem read-only",
        "XFS (md0): Metadata corruption detected at xfs_agi_verify+0x120/0x190 [xfs], xfs_agi block 0x2",
        "XFS (nvme0n1p1): log I/O error -5",
    ),
    "a disk failed to read or write": (
        "I/O error, dev sda, sector 123456 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0",
        "blk_update_request: I/O error, dev nvme3n1, sector 0 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 0",
        "print_req_error: critical medium error, dev sdb, sector 77",
        "nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        "nvme nvme2: Removing after probe failure status: -19",
    ),
    "the firmware of an HCA reports that it is unwell": (
        "mlx5_core 0101:00:00.0: poll_health:942:(pid 0): device's health compromised - reached miss count",
        "mlx5_core 0101:00:00.0: print_health_info:452:(pid 0): assert_var[0] 0x00000001",
    ),
    "the firmware of an HCA reports trouble that it calls no error": (
        "mlx5_core 0101:00:00.0: print_health_info:431:(pid 0): Health issue observed, ICM fetch PCI data poisoned error, severity(4) WARNING:",
    ),
    "a GPU fell off the bus": (
        "NVRM: GPU 0001:00:00.0: GPU has fallen off the bus.",
        "NVRM: fallen off the bus and is not responding to commands.",
    ),
    "an NVSwitch had a fatal error (SXid)": (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    ),
    "a firmware command of an HCA timed out": (
        "mlx5_core 0101:00:00.0: wait_func:1145:(pid 99): MODIFY_QP(0x502) timeout. Will cause a leak of a command resource",
    ),
    "an HCA reports high temperature": (
        "mlx5_core 0101:00:00.0: temp_warn:177:(pid 0): High temperature on sensors with bit set 0 1",
    ),
    "an HCA was told its slot gives little power; harmless on some boards": (
        "mlx5_core 0101:00:00.0: mlx5_pcie_event:326:(pid 3202): Detected insufficient power on the PCIe slot (27W).",
    ),
    "a cable was unplugged or is faulty": ("mlx5_core 0101:00:00.0: Port module event: module 0, Cable unplugged",),
    "reading a register of an HCA is refused again and again; something polls it too eagerly": (
        "mlx5_core 0101:00:00.0: mlx5_cmd_out_err:839:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter",
    ),
}

HARMLESS = (
    "I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",  # every Azure VM of generation 1
    "blk_update_request: I/O error, dev fd0, sector 0",
    "I/O error, dev sr0, sector 8 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0",  # the drive that provisions
    "I/O error, dev loop3, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "I/O error, dev sda, sector 2048 op 0x3:(DISCARD) flags 0x0 phys_seg 1 prio class 0",
    "Buffer I/O error on dev sr0, logical block 1, async page read",
    "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,oom_memcg=/slurm/job_7,task=python3",
    "mce: [Hardware Error]: Machine check events logged",
    "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "amdgpu 0002:00:00.0: amdgpu: 4 correctable hardware errors detected in umc block, no user action is needed.",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: (null)",
    "WARNING: CPU: 3 PID: 99 at kernel/sched/core.c:1 foo+0x1/0x2",
)

COMM = 15
"""The letters of a program's name that the kernel keeps (TASK_COMM_LEN is 16)."""


def forged(line: str) -> tuple[str, ...]:
    """What the log holds once a program that calls itself like the line has crashed or been audited."""
    name = line[:COMM]
    return (
        f"{name}[4242]: segfault at 0 ip 00005581 sp 00007ffc error 4 in {line[COMM:60].replace('/', ' ')}[5581+1000]",
        f"traps: {name}[4242] general protection fault ip:401136 sp:7ffd error:0 in a.out[401000+1000]",
        f'audit: type=1701 audit(1795000000.1:7): auid=0 uid=0 pid=4242 comm="{line}" exe="/tmp/x" sig=11 res=1',
        f"{name}: page allocation failure: order:4, mode:0x40dc0",
        f"usb 1-1: Product: {line}",
        f" {line}",
    )


def find(means: str) -> Pattern:
    return next(p for p in patterns() if p.means == means)


def test_every_pattern_has_real_lines() -> None:
    assert {p.means for p in patterns()} == set(REAL)


@pytest.mark.parametrize(("means", "line"), [(m, line) for m, lines in REAL.items() for line in lines])
def test_a_line_of_the_kernel_is_recognised_and_a_forged_one_is_not(means: str, line: str) -> None:
    assert [p.means for p in patterns() if p.match.match(line)] == [means]
    for false in forged(line):
        assert not [p.means for p in patterns() if p.match.match(false)], false


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_lines(line: str) -> None:
    assert not [p.means for p in patterns() if p.match.match(line)]


def test_no_pattern_could_be_a_programs_name() -> None:
    """Whatever a pattern takes, the first 15 letters of it and what the kernel prints behind a name are not enough."""
    for lines in REAL.values():
        for line in lines:
            for length in range(1, COMM + 1):
                said = f"{line[:length]}[4242]: segfault at 0 ip 0 sp 0 error 4"
                assert not any(p.match.match(said) for p in patterns()), said


def log(m: Machine, *records: str) -> None:
    m.put("/dev/kmsg", m.text("/dev/kmsg") + "".join(f"{record}\n" for record in records))


def test_what_a_program_writes_to_the_log_is_not_the_kernels_word() -> None:
    """/dev/kmsg takes lines from root; their facility is never the kernel's 0 (12 is user, warning)."""
    line = "EXT4-fs error (device sda1): ext4_find_entry:1658: inode #2: comm ls"
    m = small()
    log(m, f"12,2000,89000000000,-;{line}", f"28,2001,89000000000,-;systemd[1]: {line}")
    assert of(judged(m), "host/kernel-faults")[0].verdict is Verdict.PASS
    log(m, f"2,2002,89000000000,-;{line}")
    assert of(judged(m), "host/kernel-faults")[0].verdict is Verdict.FAIL


def test_corrected_errors_are_counted_by_the_day() -> None:
    m = small()
    line = "EDAC MC1: 1 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0"
    log(m, *(f"4,{i},{(89_000 + i) * 1_000_000},-;{line}" for i in range(9)))
    found = of(judged(m), "host/kernel-faults")[0]
    assert (found.verdict, found.message) == (
        Verdict.PASS,
        "none that counts; corrected hardware errors (9 x; 10 within 24 h would count)",
    )
    log(m, f"4,99,{89_100 * 1_000_000},-;{line}")
    assert of(judged(m), "host/kernel-faults")[0].verdict is Verdict.WARN


def test_an_early_fatal_line_does_not_drown_in_a_flood() -> None:
    """Five thousand lines of another kind, each a little different, behind one that says what broke."""
    m = small()
    log(
        m,
        "0,950,13000000,-;kernel BUG at mm/slub.c:305!",
        *(f"4,{i},{14_000_000 + i},-;mlx5_core 0101:00:00.0: cmd {i} failed at 0x{i:x} (pid {i})" for i in range(5000)),
        *(f"4,{i},{24_000_000 + i},-;NVRM: Xid (PCI:0001:00:00): 31, pid={i}, name=python3" for i in range(3000)),
        "4,9999,34000000,-;NVRM: Xid (PCI:0001:00:00): 79, pid=1, GPU has fallen off the bus.",
        *(f"4,{i},{44_000_000 + i},-;NVRM: Xid (PCI:0001:00:00): 31, pid={i}, name=python3" for i in range(3000)),
    )
    findings = judged(m)
    assert "BUG" in of(findings, "host/kernel-faults")[0].message
    assert of(findings, "gpu/xid")[0].message == "Xid 79 (the GPU fell off the bus) on 0001:00:00"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Verdict.FAIL),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", Verdict.PASS),
    ],
)
def test_a_recovery_action_that_is_taken_back(text: str, verdict: Verdict) -> None:
    m = small()
    log(m, f"4,990,44000000,-;NVRM: Xid (PCI:0001:00:00): 154, pid='<unknown>', name=<unknown>, {text}")
    assert of(judged(m), "gpu/xid")[0].verdict is verdict


def test_xids_are_numbers_of_the_table() -> None:
    assert all(re.match(r"[a-z]|NVLink|VGA|the GPU", xid.means) for xid in xids().values())


# ---- who may not read them -----------------------------------------------------------------------------------------


def refused(m: Machine) -> Machine:
    m.remove("/dev/kmsg")
    m.put("/refused", "/dev/kmsg\toperation not permitted\n")
    return m


def test_an_ordinary_user_gets_a_verdict_and_is_told_what_is_missing() -> None:
    findings = judged(refused(small()))
    open_ = [f for f in findings if f.verdict not in (Verdict.PASS, Verdict.SKIP)]
    assert open_ == []
    for code in ("host/kernel-faults", "gpu/xid", "ib/kernel-messages"):
        (found,) = of(findings, code)
        assert found.verdict is Verdict.SKIP
        assert found.message.startswith(
            "not looked at: /dev/kmsg: operation not permitted; it takes root, or membership"
        )
        assert "usermod" in found.remedy


def test_a_log_that_nobody_looked_at_is_still_unknown() -> None:
    m = small()
    m.remove("/dev/kmsg")
    assert of(judged(m), "host/kernel-faults")[0].verdict is Verdict.UNKNOWN


JOURNAL_TEXT = (
    '{"MESSAGE":"hello","PRIORITY":"4","SYSLOG_IDENTIFIER":"systemd","_SOURCE_MONOTONIC_TIMESTAMP":"1"}\n'
    '{"MESSAGE":"kernel BUG at mm/slub.c:305!","PRIORITY":"0","SYSLOG_IDENTIFIER":"kernel",'
    '"_SOURCE_MONOTONIC_TIMESTAMP":"20000000"}\n'
)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["dmesg", "--raw"], "<6>[    1.000000] Linux version 5.15\n<0>[   20.000000] kernel BUG at mm/slub.c:305!\n"),
        (None, JOURNAL_TEXT),
    ],
)
def test_dmesg_and_the_journal_tell_it_too(words: list[str] | None, text: str) -> None:
    from fairlead.probe.readers.kernel_log import JOURNAL

    m = refused(small())
    m.cmd(words or JOURNAL, text)
    (found,) = of(judged(m), "host/kernel-faults")
    assert (found.verdict, found.data["line"]) == (Verdict.FAIL, "kernel BUG at mm/slub.c:305!")


def test_a_container_shares_its_kernel_with_others() -> None:
    """What the kernel says there is said of the machine, and singles out no node on it."""
    m = small()
    m.links["/proc/self/ns/pid"] = "pid:[4026532421]"
    log(m, "0,950,13000000,-;kernel BUG at mm/slub.c:305!")
    (found,) = of(judged(m), "host/kernel-faults")
    assert (found.verdict, "those of the machine under it" in found.message) == (Verdict.SKIP, True)
