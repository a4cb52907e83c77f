# ruff: noqa: E501 - one line a message, as the kernel prints it
"""Kernel messages as drivers, kernels and reports of others print them, in each way the log reaches a reader.

Written from format strings and published logs, named beside each line; labels follow the source, not the rules.
Framing: /dev/kmsg by linux Documentation/ABI/testing/dev-kmsg (a line break within a message is `\\x0a`), `dmesg --raw` by
util-linux (dmesg.1: the format of syslog(2), one prefix a line), the journal by systemd's
JOURNAL_EXPORT_FORMATS, whose text keeps line breaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fairlead.checks import Expect
from fairlead.records.verdict import Verdict
from support import trees
from support.judging import SMALL, expect, judged, small
from support.trees import Machine

FAIL, WARN = Verdict.FAIL, Verdict.WARN
UP_S = 89_990
"""Seconds after boot at which the messages stand: ten before the tree was taken."""

Message = tuple[int, str]
Found = set[tuple[str, Verdict]]


def kmsg(message: Message, at: int) -> str:
    level, text = message
    text = text.replace("\n", "\\x0a")
    return f"{level},{5000 + at},{(UP_S + at) * 1_000_000},-,caller=T{1900 + at};{text}\n"


def raw(message: Message, at: int) -> str:
    level, text = message
    return "".join(f"<{level}>[{UP_S + at:5d}.000000] {line}\n" for line in text.split("\n"))


def journal(message: Message, at: int) -> str:
    level, text = message
    said: dict[str, object] = {
        "MESSAGE": text,
        "PRIORITY": str(level),
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "_TRANSPORT": "kernel",
        "_SOURCE_MONOTONIC_TIMESTAMP": str((UP_S + at) * 1_000_000),
    }
    return json.dumps(said) + "\n"


def put_kmsg(m: Machine, text: str) -> None:
    m.put("/dev/kmsg", m.text("/dev/kmsg") + text)


def refused(m: Machine) -> None:
    m.remove("/dev/kmsg")
    m.put("/refused", "/dev/kmsg\toperation not permitted\n")


def put_raw(m: Machine, text: str) -> None:
    refused(m)
    m.cmd(["dmesg", "--raw"], "<6>[    1.000000] Linux version 5.15.0-1110-azure\n" + text)


def put_journal(m: Machine, text: str) -> None:
    from fairlead.probe.readers.kernel_log import JOURNAL

    refused(m)
    m.cmd(JOURNAL, journal((6, "Linux version 5.15.0-1110-azure"), -UP_S + 1) + text)


FRAMES: dict[str, tuple[Callable[[Message, int], str], Callable[[Machine, str], None]]] = {
    "kmsg": (kmsg, put_kmsg),
    "dmesg --raw": (raw, put_raw),
    "journal": (journal, put_journal),
}


def found(machine: Machine, messages: list[Message], frame: str, expected: Expect = SMALL) -> Found:
    write, put = FRAMES[frame]
    put(machine, "".join(write(message, at) for at, message in enumerate(messages)))
    return {(f.code, f.verdict) for f in judged(machine, expected) if f.verdict not in (Verdict.PASS, Verdict.SKIP)}


XID_FAIL: Found = {("gpu/xid", FAIL)}
XID_WARN: Found = {("gpu/xid", WARN)}
HOST_FAIL: Found = {("host/kernel-faults", FAIL)}
HOST_WARN: Found = {("host/kernel-faults", WARN)}
IB_FAIL: Found = {("ib/kernel-messages", FAIL)}
IB_WARN: Found = {("ib/kernel-messages", WARN)}

FAULTS: dict[str, tuple[list[Message], Found]] = {
    # ---- NVIDIA's driver: open-gpu-kernel-modules (nvErrorLog, kernel-open/nvidia/nv-pci.c), docs.nvidia.com/deploy/xid-errors
    "xid 79 of a driver of today": ([(3, "NVRM: Xid (PCI:0001:00:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), (3, "NVRM: GPU 0001:00:00.0: GPU has fallen off the bus.")], XID_FAIL),
    "xid 79 of a driver that names no PCI": ([(4, "NVRM: Xid (0001:00:00): 79, GPU has fallen off the bus.")], XID_FAIL),
    # NVIDIA/NVSentinel issue 155: seen without any Xid
    "a GPU that did not answer when the driver was loaded": ([(3, "NVRM: The NVIDIA GPU 0001:00:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands."), (4, "nvidia: probe of 0001:00:00.0 failed with error -1"), (4, "NVRM: The NVIDIA probe routine failed for 1 device(s).")], XID_FAIL),
    "a GPU that left without an Xid": ([(3, "NVRM: GPU 0002:00:00.0: GPU has fallen off the bus.")], XID_FAIL),
    "xid 48": ([(3, "NVRM: Xid (PCI:0001:00:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x6b0000000 partition 5, subpartition 1.")], XID_FAIL),
    "xid 94 of a slice": ([(3, "NVRM: Xid (PCI:0001:00:00 GPU-I:03): 94, pid=7194, name=python3, Contained: SM (0x1). RST: No, D-RST: No")], XID_WARN),
    "xid 95": ([(3, "NVRM: Xid (PCI:0001:00:00): 95, pid=5171, name=pt_main_thread, Uncontained: FBHUB. RST: Yes, D-RST: No")], XID_FAIL),
    "xid 64": ([(3, "NVRM: Xid (PCI:0001:00:00): 64, pid='<unknown>', name=<unknown>, Row Remapper Error: (0x00000000a1b2c000) - All reserved rows for bank are remapped")], XID_FAIL),
    "xid 119 and what it prints behind": ([(3, "NVRM: Xid (PCI:0001:00:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080014b 0x5)."), (3, "NVRM: GPU0 GSP RPC buffer contains function 4099 (POST_EVENT) and data 0x0000000000000000 0x0000000000000000.")], XID_FAIL),
    "xid 74": ([(3, "NVRM: Xid (PCI:0002:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)")], XID_FAIL),
    "xid 145": ([(3, "NVRM: Xid (PCI:0001:00:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link -1 (0x00000006 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)")], XID_WARN),
    # leptonai/gpud, tests of its Xid matcher; a fatal one takes the GPU out of the fabric, and 154 follows
    "xid 149, fatal": ([(3, "NVRM: Xid (PCI:0001:00:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)")], XID_FAIL),
    "xid 149, fatal, before 575": ([(3, "NVRM: Xid (PCI:0001:00:00): 149, pid=4711, name=python3, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]")], XID_FAIL),
    "xid 149, fatal once and then not": ([(3, f"NVRM: Xid (PCI:0001:00:00): 149, NETIR_LINK_EVT {word} XC0 i0 Link 01 (0x021425c6 0x00000000)") for word in ("Fatal", "Nonfatal")], XID_FAIL),
    "xid 146, not fatal": ([(3, "NVRM: Xid (PCI:0001:00:00): 146, TLW_RX_PIPE1 Nonfatal XC1 i0 Link 03 (0x00000006 0x00000000)")], XID_WARN),
    # where NVIDIA's catalogue asks for a reset
    "xid 109": ([(3, "NVRM: Xid (PCI:0001:00:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005")], XID_FAIL),
    "xid 155": ([(3, "NVRM: Xid (PCI:0001:00:00): 155, NVLINK: SW Defined Error")], XID_FAIL),
    "xid 121, which nobody knows": ([(3, "NVRM: Xid (PCI:0001:00:00): 121, C2C Link corrected error threshold exceeded")], XID_WARN),
    "xid 154, reboot": ([(4, "NVRM: Xid (PCI:0001:00:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")], XID_FAIL),
    "xid 154 in newer words": ([(4, "NVRM: Xid (PCI:0001:00:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)")], XID_FAIL),
    "xid 154, asked for again after a reset": ([(4, f"NVRM: Xid (PCI:0001:00:00): 154, GPU recovery action changed from {old} to {new}") for old, new in (("0x0 (None)", "0x1 (PF FLR)"), ("0x1 (PF FLR)", "0x0 (None)"), ("0x0 (None)", "0x4 (Drain and Reset)"))], XID_FAIL),
    # NVIDIA's catalogue: 63 is to be ignored (the next reset remaps), 69 is the application's, 92 counts what was corrected
    "xid 63 of a slice of a slice": ([(3, "NVRM: Xid (PCI:0001:00:00 GPU-I:05 GPU-CI:00): 63, pid=1896, name=python3, Row Remapper: New row (0x00000005d28c03a0) marked for remapping, reset gpu to activate.")], XID_WARN),
    "xid 69": ([(3, "NVRM: Xid (PCI:0001:00:00): 69, pid=1310987, name=train.3, Class Error: ChId 0008, Class 0000cbc0, Offset 0000, Data 00000000, ErrorCode 00000004")], XID_WARN),
    "xid 92": ([(3, "NVRM: Xid (PCI:0001:00:00): 92, pid='<unknown>', name=<unknown>, High single-bit ECC error rate")], XID_WARN),
    # what no reset cures stays: spare rows that are used up
    "xid 64, and a reset": ([(3, "NVRM: Xid (PCI:0001:00:00): 64, pid='<unknown>', name=<unknown>, Row Remapper Error: (0x00000000a1b2c000) - All reserved rows for bank are remapped"), (4, "NVRM: Xid (PCI:0001:00:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")], XID_FAIL),
    "xid 95, and a reset of another GPU": ([(3, "NVRM: Xid (PCI:0001:00:00): 95, pid=5171, name=pt_main_thread, Uncontained: FBHUB. RST: Yes, D-RST: No"), (4, "NVRM: Xid (PCI:0002:00:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")], XID_FAIL),
    "xid 95 after a reset": ([(4, "NVRM: Xid (PCI:0001:00:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"), (3, "NVRM: Xid (PCI:0001:00:00): 95, pid=5171, name=pt_main_thread, Uncontained: FBHUB. RST: Yes, D-RST: No")], XID_FAIL),
    # Fabric Manager User Guide, "SXid errors": a fatal one ends the jobs of the partition and asks for a reset
    "sxid, fatal": ([(3, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"), (3, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00"), (3, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Data {0x50610002, 0x10100030, 0x00000000, 0x10100030, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000}")], XID_FAIL),
    # ---- mlx5: linux drivers/net/ethernet/mellanox/mlx5/core/{health,events,cmd}.c
    "mlx5, missed its health counter": ([(3, "mlx5_core 0101:00:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count")], IB_FAIL),
    "mlx5, firmware error": ([(3, "mlx5_core 0101:00:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:"), (3, "mlx5_core 0101:00:00.0: print_health_info:435:(pid 0): assert_var[0] 0x00000001"), (3, "mlx5_core 0101:00:00.0: print_health_info:448:(pid 0): synd 0x1: firmware internal error")], IB_FAIL),
    # Documentation/networking/devlink/mlx5.rst: the level of the dump is the severity the firmware gives
    "mlx5, hot, by the firmware a warning": ([(4, "mlx5_core 0101:00:00.0: print_health_info:431:(pid 0): Health issue observed, High temperature, severity(4) WARNING:"), (4, "mlx5_core 0101:00:00.0: print_health_info:435:(pid 0): assert_var[0] 0x00000000"), (4, "mlx5_core 0101:00:00.0: print_health_info:448:(pid 0): synd 0x10: High temperature")], IB_WARN),
    "mlx5, slot gone": ([(3, "mlx5_core 0101:00:00.0: print_health_info:424:(pid 0): PCI slot is unavailable")], IB_FAIL),
    "mlx5, command timed out, 5.15 and later": ([(4, "mlx5_core 0101:00:00.0: wait_func_handle_exec_timeout:1128:(pid 185911): cmd[3]: CREATE_QP(0x500) No done completion"), (4, "mlx5_core 0101:00:00.0: wait_func:1195:(pid 185911): CREATE_QP(0x500) timeout. Will cause a leak of a command resource")], IB_FAIL),
    "mlx5, hot, older word": ([(4, "mlx5_core 0101:00:00.0: temp_warn:189:(pid 0): High temperature on sensors with bit set 0 1")], IB_WARN),
    "mlx5, cable unplugged": ([(6, "mlx5_core 0101:00:00.0: Port module event: module 0, Cable unplugged")], IB_WARN),
    "mlx5, module error": ([(3, "mlx5_core 0101:00:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)")], IB_WARN),
    # ---- PCIe: linux drivers/pci/pcie/aer.c, before and since 6.8
    "AER, fatal": ([(3, "pcieport 0000:c0:01.1: AER: Uncorrected (Fatal) error received: 0000:c1:00.0"), (3, "pcieport 0000:c0:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)"), (3, "pcieport 0000:c0:01.1:   device [1022:1483] error status/mask=00004000/07a10000"), (3, "pcieport 0000:c0:01.1:    [14] CmpltTO                (First)")], HOST_FAIL),
    "AER, fatal, since 6.8": ([(3, "pcieport 0000:c0:01.1: AER: Uncorrectable (Fatal) error message received from 0000:c1:00.0"), (3, "nvme 0000:c1:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Completer ID)")], HOST_FAIL),
    "AER, not fatal": ([(3, "igb 0000:09:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)")], HOST_WARN),
    # ---- memory: linux drivers/edac/edac_mc.c, arch/x86/kernel/cpu/mce/core.c, drivers/firmware/efi/cper.c, mm/memory-failure.c
    "EDAC, uncorrected": ([(0, "EDAC MC3: 1 UE memory scrubbing error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x4c1f3cf offset:0x80 grain:32 -  err_code:0x00c0:0x0090)")], HOST_FAIL),
    "EDAC, a dozen corrected": ([(4, f"EDAC MC3: 1 CE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x4c1f{i:02x}f offset:0x80 grain:32 syndrome:0x0)") for i in range(12)], HOST_WARN),
    "EDAC, many in one line": ([(4, "EDAC MC0: 15 CE single-symbol chipkill ECC on P0_Node0_Channel0_Dimm0 (card:0 module:0 rank:0 page:0x1f3cf offset:0x0 grain:1 syndrome:0x0)")], HOST_WARN),
    "machine check, not corrected": ([(0, "mce: [Hardware Error]: CPU 24: Machine Check Exception: 5 Bank 17: be00000000800400"), (0, "mce: [Hardware Error]: RIP !INEXACT! 10:<ffffffffa1a00000> {intel_idle+0x84/0x90}")], HOST_FAIL),
    "poisoned page": ([(3, "mce: Uncorrected hardware memory error in user-access at 3f28b20200"), (3, "Memory failure: 0x3f28b20: Sending SIGBUS to pt_main_thread:8812 due to hardware memory corruption")], HOST_FAIL),
    "firmware's record, Grace": ([(4, "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1"), (4, "{1}[Hardware Error]: event severity: recoverable"), (4, "{1}[Hardware Error]:  Error 0, type: recoverable"), (4, "{1}[Hardware Error]:   section_type: memory error")], HOST_FAIL),
    # ---- out of memory: linux mm/oom_kill.c, 3.10 to 6.x
    "OOM, 4.19 and later": ([(4, "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0"), (6, "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/system.slice/slurmstepd.scope,task=python3,pid=4242,uid=1000"), (3, "Out of memory: Killed process 4242 (python3) total-vm:1948484872kB, anon-rss:1848484872kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:123kB oom_score_adj:0")], HOST_WARN),
    "OOM, 3.10 to 4.18": ([(3, "Out of memory: Kill process 4242 (python) score 947 or sacrifice child"), (3, "Killed process 4242 (python), UID 1000, total-vm:248484872kB, anon-rss:238484872kB, file-rss:0kB, shmem-rss:0kB")], HOST_WARN),
    "OOM of one NUMA node": ([(6, "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=1,cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/user.slice/user-0.slice/session-3.scope,task=a.out,pid=13135,uid=0"), (3, "Out of memory: Killed process 13135 (a.out) total-vm:3148072kB, anon-rss:2697304kB, file-rss:1360kB, shmem-rss:0kB, UID:0 pgtables:5360kB oom_score_adj:0")], HOST_WARN),
    # ---- the kernel itself: kernel/{hung_task,watchdog}.c, kernel/watchdog_buddy.c, kernel/rcu/tree_stall.h
    "hung task": ([(3, "INFO: task pt_main_thread:881 blocked for more than 122 seconds."), (3, "      Tainted: P           OE      6.8.0-1031-azure #36-Ubuntu"), (3, '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.')], HOST_WARN),
    "hung task in I/O, since 6.17": ([(3, "INFO: task jbd2/nvme1n1p4-:923 blocked in I/O wait for more than 122 seconds.")], HOST_WARN),
    "soft lockup": ([(0, "watchdog: BUG: soft lockup - CPU#72 stuck for 23s! [pt_main_thread:12345]")], HOST_FAIL),
    "hard lockup seen by another processor, since 6.6": ([(0, "watchdog: CPU12: Watchdog detected hard LOCKUP on cpu 13")], HOST_FAIL),
    "RCU stall": ([(3, "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"), (3, "rcu: \t12-....: (14999 ticks this GP) idle=0e2c/1/0x4000000000000000 softirq=31/31 fqs=7499")], HOST_FAIL),
    # ---- disks and file systems: block/blk-core.c, drivers/nvme/host/{core,pci}.c, drivers/md/raid0.c, fs/ext4/super.c, fs/xfs
    "NVMe, since 6.4": ([(4, "nvme nvme0: I/O tag 22 (2016) opcode 0x2 (I/O Cmd) QID 5 timeout, reset controller"), (3, "nvme nvme0: Device not ready; aborting reset, CSTS=0x1"), (4, "nvme nvme0: Disabling device after reset failure: -19")], HOST_FAIL),
    "NVMe, only its last word": ([(4, "nvme nvme0: Disabling device after reset failure: -19")], HOST_FAIL),
    "NVMe, controller gone": ([(4, "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS read failed (134)")], HOST_FAIL),
    "disk, 6.x": ([(3, "I/O error, dev nvme1n1, sector 499204104 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 2")], HOST_FAIL),
    "disk, 5.x": ([(3, "blk_update_request: critical medium error, dev sdc, sector 6442712256 op 0x0:(READ) flags 0x80700 phys_seg 4 prio class 0")], HOST_FAIL),
    "striped disks": ([(2, "md/raid0:md0: Disk failure on nvme0n1p1 detected, failing array.")], HOST_FAIL),
    "ext4": ([(2, "EXT4-fs error (device sda1): ext4_lookup:1855: inode #262402: comm python3: deleted inode referenced: 267151"), (2, "EXT4-fs (sda1): Remounting filesystem read-only")], HOST_FAIL),
    "ext4 whose journal was aborted": ([(2, "EXT4-fs error (device sda1): ext4_journal_check_start:83: comm kworker/u192:1: Detected aborted journal")], HOST_FAIL),
    "xfs, log": ([(1, "XFS (md127): log I/O error -5"), (1, "XFS (md127): Log I/O Error (0x2) detected at xlog_ioend_work+0x6e/0x70 [xfs] (fs/xfs/xfs_log.c:1378).  Shutting down filesystem."), (1, "XFS (md127): Please unmount the filesystem and rectify the problem(s)")], HOST_FAIL),
    "xfs, in memory": ([(1, "XFS (md0): Corruption of in-memory data (0x8) detected at xfs_defer_finish_noroll+0x3e7/0x620 [xfs] (fs/xfs/libxfs/xfs_defer.c:573).  Shutting down filesystem.")], HOST_FAIL),
    "xfs, metadata": ([(1, 'XFS (dm-0): metadata I/O error in "xfs_imap_to_bp+0x5c/0xa0 [xfs]" at daddr 0x1d3f2c0 len 32 error 5'), (1, "XFS (dm-0): Metadata I/O Error (0x1) detected at xfs_trans_read_buf_map+0x1aa/0x310 [xfs] (fs/xfs/xfs_trans_buf.c:296).  Shutting down filesystem.")], HOST_FAIL),
}  # fmt: skip

HEALTHY: dict[str, list[Message]] = {
    "mlx5 at every boot": [(6, "mlx5_core 0101:00:00.0: firmware version: 28.42.1000"), (6, "mlx5_core 0101:00:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)"), (6, "mlx5_core 0101:00:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 195312Mbps"), (6, "mlx5_core 0101:00:00.0: Port module event: module 0, Cable plugged"), (6, "mlx5_core 0101:00:00.0: mlx5_pcie_event:304:(pid 521): PCIe slot advertised sufficient power (27W).")],
    "mlx5, a lost interrupt made up for": [(4, "mlx5_core 0101:00:00.0: mlx5_cmd_eq_recover:247:(pid 3122): Recovered 1 EQEs on cmd_eq"), (4, "mlx5_core 0101:00:00.0: wait_func_handle_exec_timeout:1113:(pid 3122): cmd[0]: CREATE_CQ(0x400) recovered after timeout")],
    "mlx5, one refused register": [(3, "mlx5_core 0101:00:00.0: mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x305684), err(-22)")],
    "links of a front end": [(6, "mlx5_core 0001:00:02.0 enP1s1: Link up"), (6, "mlx5_core 0101:00:00.0 mlx5_ib0: Port: 1 Link ACTIVE"), (6, "IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready"), (6, "workqueue: ib_cache_event_task [ib_core] hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND")],
    # learn.microsoft.com, accelerated networking: the function is taken for maintenance and comes back
    "accelerated port taken and given back": [(6, "hv_netvsc 000d3a00-0001-000d-3a00-0001000d3a00 eth0: Data path switched from VF: enP1s1"), (6, "hv_netvsc 000d3a00-0001-000d-3a00-0001000d3a00 eth0: VF unregistering: enP1s1"), (6, "hv_netvsc 000d3a00-0001-000d-3a00-0001000d3a00 eth0: VF slot 1 removed"), (6, "hv_netvsc 000d3a00-0001-000d-3a00-0001000d3a00 eth0: VF slot 1 added"), (6, "hv_netvsc 000d3a00-0001-000d-3a00-0001000d3a00 eth0: VF registering: enP1s1"), (6, "hv_netvsc 000d3a00-0001-000d-3a00-0001000d3a00 eth0: Data path switched to VF: enP1s1")],
    "MANA at boot": [(6, "mana 7870:00:00.0: Microsoft Azure Network Adapter protocol version: 0.1.1"), (6, "mana 7870:00:00.0 eth1: Configured vPort 0 PD 18 DB 16")],
    "the driver at load": [(5, "nvidia: loading out-of-tree module taints kernel."), (6, "nvidia 0001:00:00.0: enabling device (0140 -> 0142)"), (4, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3-AM02-24-3)  Tue Sep 23 10:11:16 UTC 2025"), (6, "nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  580.95.05  Release Build")],
    "xids of applications": [(3, "NVRM: Xid (PCI:0001:00:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Out Of Range Address"), (3, "NVRM: Xid (PCI:0001:00:00): 31, pid=1942, name=pt_main_thread, channel 0x00000002, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC6 GPCCLIENT_T1_0 faulted @ 0x7f3a_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"), (3, "NVRM: Xid (PCI:0001:00:00): 43, pid=2924364, name=pt_main_thread, Ch 00000008"), (3, "NVRM: Xid (PCI:0001:00:00): 45, pid=1818990, name=python3, Ch 00000001")],
    "xid 95 before a reset": [(3, "NVRM: Xid (PCI:0001:00:00): 95, pid=5171, name=pt_main_thread, Uncontained: FBHUB. RST: Yes, D-RST: No"), (4, "NVRM: Xid (PCI:0001:00:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"), (4, "NVRM: Xid (PCI:0001:00:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")],
    "xid 154 taken back by a reset": [(4, "NVRM: Xid (PCI:0002:00:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"), (4, "NVRM: Xid (PCI:0002:00:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")],
    # Fabric Manager User Guide: non-fatal SXids are for observation and disturb no job
    "sxid, not fatal": [(3, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"), (3, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00"), (6, "nvidia-nvswitch3: Open successful.")],
    "AER, corrected": [(4, "pcieport 0000:00:1d.0: AER: Multiple Corrected error received: 0000:00:1d.0"), (4, "pcieport 0000:00:1d.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"), (4, "pcieport 0000:07:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)"), (4, "pcieport 0000:00:1d.0:    [12] Timeout")],
    "memory, one corrected": [(6, "mce: [Hardware Error]: Machine check events logged"), (4, "EDAC MC3: 1 CE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x4c1f3cf offset:0x80 grain:32 syndrome:0x0)"), (6, "{1}[Hardware Error]: event severity: corrected")],
    "EDAC and firmware at boot": [(6, "EDAC MC: Ver: 3.0.0"), (6, "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0: DEV 0000:7e:0c.0 (INTERRUPT)"), (6, "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC."), (6, "mce: CPU supports 32 MCE banks")],
    # AMD64 APM 2: nobody has consumed it, and the kernel says so
    "memory, deferred": [(6, "[Hardware Error]: Deferred error, no action required.")],
    "OOM of a job's own cgroup": [(4, "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"), (6, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/system.slice/slurmstepd.scope/job_42,task_memcg=/system.slice/slurmstepd.scope/job_42/step_0/user/task_0,task=python3,pid=4242,uid=1000"), (3, "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:194848kB, anon-rss:184848kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:123kB oom_score_adj:0"), (6, "oom_reaper: reaped process 4242 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB")],
    "OOM of a cgroup, 3.10 to 4.18": [(3, "Memory cgroup out of memory: Kill process 4242 (python) score 1003 or sacrifice child"), (3, "Killed process 4242 (python) total-vm:248484872kB, anon-rss:238484872kB, file-rss:0kB, shmem-rss:0kB")],
    "no disk in the drive": [(3, "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0"), (6, "floppy: error 10 while reading block 0"), (3, "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2"), (3, "Buffer I/O error on dev fd0, logical block 0, async page read"), (3, "critical target error, dev nvme0n1, sector 0 op 0x3:(DISCARD) flags 0x0 phys_seg 1 prio class 2")],
    "file systems at mount": [(6, "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: discard. Quota mode: none."), (6, "EXT4-fs (md127p3): re-mounted 0f3cd65a-338b-4574-bba3-ecef214e1917 r/w. Quota mode: none."), (5, "XFS (md0): Mounting V5 Filesystem 5f1c2a34-0000-4000-8000-000000000001"), (6, "XFS (md0): Ending clean mount"), (4, "XFS (md0): Unmounting Filesystem 5f1c2a34-0000-4000-8000-000000000001")],
    "a file server that came back": [(5, "nfs: server 10.1.0.4 not responding, still trying"), (5, "nfs: server 10.1.0.4 OK")],
    "NVMe at boot": [(6, "nvme nvme0: pci function c05b:00:00.0"), (6, "nvme nvme0: Shutdown timeout set to 10 seconds"), (6, "nvme nvme0: 16/0/0 default/read/poll queues"), (6, "nvme nvme0: Ignoring bogus Namespace Identifiers")],
    "heat the processor dealt with": [(2, "mce: CPU0: Package temperature is above threshold, cpu clock is throttled (total events = 1)"), (6, "mce: CPU0: Package temperature/speed normal")],
}  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_published_fault_is_told_and_nothing_else(name: str, frame: str) -> None:
    messages, label = FAULTS[name]
    assert found(small(), messages, frame) == label


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_published_line_without_a_fault_is_not_told(name: str, frame: str) -> None:
    assert found(small(), HEALTHY[name], frame) == set()


def test_a_second_port_that_has_no_cable_says_so_at_every_boot() -> None:
    """NVIDIA/NVSentinel, tests of its handler for NIC drivers: seen nine seconds after boot."""
    at_boot = "6,812,8951695,-;mlx5_core 0101:00:00.1: Port module event: module 1, Cable unplugged\n"
    m = small()
    put_kmsg(m, at_boot)
    assert judged(m) == judged(small())


# ---- MI300X: linux drivers/gpu/drm/amd/amdgpu/{amdgpu_ras,amdgpu_mca,amdgpu_aca}.c, and ROCm's issue 4021 --------------

AMD: dict[str, tuple[list[Message], Found]] = {
    "RAS, 6.5 to 6.9": ([(6, "amdgpu 0003:00:00.0: amdgpu: socket: 2, die: 0, 1 new uncorrectable hardware errors detected in umc block"), (6, "amdgpu 0003:00:00.0: amdgpu: socket: 2, die: 0, 1 uncorrectable hardware errors detected in total in umc block")], HOST_FAIL),
    "RAS with the number of its event": ([(6, "amdgpu 0003:00:00.0: amdgpu: {1}socket: 2, die: 0, 1 new uncorrectable hardware errors detected in umc block"), (6, "amdgpu 0003:00:00.0: amdgpu: {1}socket: 2, die: 0, 1 uncorrectable hardware errors detected in total in umc block")], HOST_FAIL),
    "RAS, the driver's name once": ([(6, "amdgpu 0003:00:00.0: {9} socket: 2, die: 0, 3 new uncorrectable hardware errors detected in gfx block")], HOST_FAIL),
    "the bus interrupt of an error": ([(6, "amdgpu 0003:00:00.0: amdgpu: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!")], HOST_FAIL),
    "corrected": ([(6, "amdgpu 0003:00:00.0: amdgpu: {1}socket: 2, die: 0, 4 new correctable hardware errors detected in umc block, no user action is needed"), (6, "amdgpu 0003:00:00.0: {1}[Hardware Error]: Accelerator Check Architecture events logged"), (6, "amdgpu 0003:00:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000")], set()),
    "none": ([(6, "amdgpu 0003:00:00.0: amdgpu: socket: 2, die: 0, 0 uncorrectable hardware errors detected in total in gfx block"), (6, "amdgpu: Topology: Add GPU node [0x1002:0x74b5]"), (6, "[drm] Initialized amdgpu 3.59.0 for 0003:00:00.0 on minor 3")], set()),
}  # fmt: skip


@pytest.mark.parametrize("name", AMD)
def test_what_amdgpu_prints(name: str) -> None:
    messages, label = AMD[name]
    assert found(trees.nd_mi300x_v5(), messages, "kmsg", expect("Standard_ND96isr_MI300X_v5")) == label
