"""GPUs, their memory, links and firmware. Kernel lines: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) and lines
that users of the open kernel modules and of gpud published."""

from __future__ import annotations

from support.incidents.machine import Incident


def _cuda(told: Incident, seconds: float, local: int, words: str) -> None:
    """The rank on the bad GPU raises; the others wait for it."""
    rank = told.rank(told.bad, local)
    told.err(seconds, "Traceback (most recent call last):", rank)
    told.err(seconds, '  File "/shared/train.py", line 212, in train_step', rank)
    told.err(seconds, "    loss.backward()", rank)
    told.err(seconds, f"RuntimeError: CUDA error: {words}", rank)
    told.err(seconds, "CUDA kernel errors might be asynchronously reported at some other API call.", rank)
    told.err(seconds, "For debugging consider passing CUDA_LAUNCH_BLOCKING=1", rank)


def gpu_off_the_bus(told: Incident) -> None:
    at, local = told.at, told.chance.randrange(8)
    pci = told.pci(local)
    told.kernel(told.bad, at, f"NVRM: GPU at PCI:{pci}: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77",
                f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                f"NVRM: GPU {pci}.0: GPU has fallen off the bus.")  # fmt: skip
    told.kernel(
        told.bad,
        at + 0.3,
        f"NVRM: Xid (PCI:{pci}): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    )
    _cuda(told, at + 2, local, "unknown error")
    told.aborted(told.watchdogs(at + 1, missing=told.bad), told.bad)
    told.truth("gpu-bus", told.bad, ["fallen off the bus"], "Xid 79 with the driver's own words", device=pci)


def gpu_off_the_bus_without_a_code(told: Incident) -> None:
    at, local = told.at, 4
    told.kernel(told.bad, at, f"NVRM: GPU {told.pci(local)}.0: GPU has fallen off the bus.",
                f"NVRM: GPU {told.pci(local)}.0: GPU serial number is 1654922006009.",
                "NVRM: A GPU crash dump has been created. If possible, please run", "NVRM: nvidia-bug-report.sh as root to collect this data before", "NVRM: the NVIDIA kernel module is unloaded.")  # fmt: skip
    told.lost_by_slurm(told.watchdogs(at + 1, missing=told.bad, timeout=120) - 100, told.bad)
    told.truth(
        "gpu-bus",
        told.bad,
        "fallen off the bus",
        "the form of open-gpu-kernel-modules issue 461, no Xid; the node is lost as well",
    )


def double_bit_error(told: Incident) -> None:
    at, local = told.at, told.chance.randrange(8)
    pci, told.skew[told.others[0]] = told.pci(local), -3.0
    told.kernel(told.bad, at,
                f"NVRM: Xid (PCI:{pci}): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x1a2f3c040 partition 5, subpartition 1.",
                f"NVRM: Xid (PCI:{pci}): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
                f"NVRM: Xid (PCI:{pci}): 94, pid=20104, Contained: CE User Channel (0x9). RST: No, D-RST: No",
                f"NVRM: Xid (PCI:{pci}): 45, pid=20104, name=python3, Ch 00000008")  # fmt: skip
    _cuda(told, at + 0.5, local, "uncorrectable ECC error encountered")
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth(
        "gpu-memory",
        told.bad,
        [": 48, ", ": 94, ", ": 63, "],
        "burst of 48, 63, 94; another node's clock is 3 s behind",
        device=pci,
    )


def uncontained_memory_error(told: Incident) -> None:
    at, local = told.at, 6
    told.kernel(
        told.bad, at, f"NVRM: Xid (PCI:{told.pci(local)}): 95, pid=5171, Uncontained: FBHUB. RST: Yes, D-RST: No"
    )
    for other in range(8):
        told.kernel(
            told.bad,
            at + 0.1 + other / 100,
            f"NVRM: Xid (PCI:{told.pci(other)}): 45, pid={20100 + other}, name=python3, Ch 00000001",
        )
    _cuda(told, at + 1, local, "uncorrectable ECC error encountered")
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth(
        "gpu-memory",
        told.bad,
        ": 95, ",
        "Xid 95 takes the whole GPU; 45 of all others is fallout",
        device=told.pci(local),
    )


def remap_failure(told: Incident) -> None:
    at, local = told.at, 2
    told.kernel(
        told.bad,
        at,
        f"NVRM: Xid (PCI:{told.pci(local)}): 64, pid='<unknown>', name=<unknown>, Row Remapper Error: (0x0000000000a6e100) - All reserved rows for bank are remapped",
        f"NVRM: Xid (PCI:{told.pci(local)}): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0xa6e100 partition 1, subpartition 0.",
    )
    _cuda(told, at + 2, local, "uncorrectable ECC error encountered")
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth("gpu-memory", told.bad, [": 64, ", ": 48, "], "rows used up", device=told.pci(local))


def nvlink_fatal(told: Incident) -> None:
    at, local = told.at, 1
    told.kernel(
        told.bad,
        at,
        f"NVRM: Xid (PCI:{told.pci(local)}): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    )
    for other in (0, 2, 3, 4, 5, 6, 7):
        told.kernel(
            told.bad, at + 0.2, f"NVRM: Xid (PCI:{told.pci(other)}): 45, pid={20100 + other}, name=python3, Ch 00000008"
        )
    _cuda(told, at + 1, local, "Invalid access of peer GPU memory over nvlink or a hardware error")
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth("gpu-nvlink", told.bad, ": 74, ", "Xid 74 on one, 45 on its peers", device=told.pci(local))


def nvlink5_fatal(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at,
        f"NVRM: Xid (PCI:{told.pci(3)}): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    )
    told.kernel(
        told.bad,
        at + 0.1,
        f"NVRM: Xid (PCI:{told.pci(5)}): 145, RLW_SRC_TRACK Nonfatal XC0 i0 Link 02 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    )
    told.kernel(
        told.bad,
        at + 0.2,
        f"NVRM: Xid (PCI:{told.pci(5)}): 45, pid=20105, name=python3, Ch 00000001 caused by previous Xid 149",
    )
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth(
        "gpu-nvlink", told.bad, ": 149, ", "149 fatal first; 145 nonfatal of another GPU is fallout", device=told.pci(3)
    )


def nvswitch_fatal(told: Incident) -> None:
    at = told.at
    told.kernel(told.bad, at, "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    told.syslog(
        told.bad,
        at + 0.4,
        "nv-fabricmanager",
        "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:05:00.0 physical id 3 port 30",
    )
    for local in range(8):
        told.kernel(
            told.bad, at + 0.5, f"NVRM: Xid (PCI:{told.pci(local)}): 45, pid={20100 + local}, name=python3, Ch 00000008"
        )
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth("gpu-nvlink", told.bad, ["20034"], "fatal SXid of a switch")


def gsp_timeout(told: Incident) -> None:
    at, local = told.at, 4
    told.kernel(told.bad, at, f"NVRM: Xid (PCI:{told.pci(local)}): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU{local} GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
                f"NVRM: GPU{local} GSP RPC buffer contains function 76 (GSP_RM_CONTROL) and data 0x0000000020802a02 0x0000000000000004.",
                f"NVRM: GPU{local} RPC history (CPU -> GSP):", "NVRM:     entry function                   data0              data1              ts_start           ts_end             duration actively_polling")  # fmt: skip
    told.kernel(
        told.bad,
        at + 40,
        f"NVRM: Xid (PCI:{told.pci(local)}): 119, pid=20104, name=python3, Timeout after 45s of waiting for RPC response from GPU{local} GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x4).",
    )
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth("gpu-firmware", told.bad, ": 119, ", "GSP no longer answers", device=told.pci(local))


def micro_controller_halt(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at,
        f"NVRM: Xid (PCI:{told.pci(7)}): 62, pid='<unknown>', name=<unknown>, 2027d 0xfffff 0000 0000 0000",
    )
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth("gpu-firmware", told.bad, ": 62, ", "internal micro-controller halt", device=told.pci(7))


def context_switch_timeout(told: Incident) -> None:
    at = told.at
    told.kernel(
        told.bad,
        at,
        f"NVRM: Xid (PCI:{told.pci(0)}): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
    )
    _cuda(told, at + 1, 0, "the launch timed out and was terminated")
    told.aborted(told.watchdogs(at, missing=told.bad), told.bad)
    told.truth(["gpu-firmware", "gpu-program"], told.bad, ": 109, ", "context switch time-out", device=told.pci(0))


def illegal_address(told: Incident) -> None:
    at, local = told.at, 5
    told.kernel(told.bad, at, f"NVRM: Xid (PCI:{told.pci(local)}): 31, pid=20105, name=python3, channel 0x00000002, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC6 GPCCLIENT_T1_3 faulted @ 0x7f21_8000a000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
                f"NVRM: Xid (PCI:{told.pci(local)}): 43, pid=20105, name=python3, Ch 00000008")  # fmt: skip
    _cuda(told, at + 0.5, local, "an illegal memory access was encountered")
    told.aborted(at + 20, told.bad)
    told.truth(
        "gpu-program",
        [told.bad, ""],
        [": 31, ", "illegal memory access"],
        "a kernel of the program read where nothing is",
    )


def device_assert_everywhere(told: Incident) -> None:
    at = told.at
    for node in told.nodes:
        for local in (0, 5):
            rank = told.rank(node, local)
            told.err(
                at,
                "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [120,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
                rank,
            )
            told.err(at + 0.4, "RuntimeError: CUDA error: device-side assert triggered", rank)
        told.kernel(
            node,
            at + 0.1,
            f"NVRM: Xid (PCI:{told.pci(0)}): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
        )
    told.aborted(at + 10, told.nodes[0])
    told.truth(
        "gpu-program",
        "",
        ["Assertion `srcIndex", "device-side assert", ": 13, "],
        "every rank alike: the data, not a machine",
        victims=[],
    )


def gpu_memory_full(told: Incident) -> None:
    at, rank = told.at, told.rank(told.bad, 3)
    told.err(at, "Traceback (most recent call last):", rank)
    told.err(at, '  File "/shared/train.py", line 190, in forward', rank)
    told.err(
        at,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.12 GiB. GPU 3 has a total capacity of 79.11 GiB of which 6.02 GiB is free.",
        rank,
    )
    told.aborted(told.watchdogs(at, missing=told.bad) if told.chance.random() < 0.5 else at + 5, told.bad)
    told.truth("gpu-out-of-memory", [told.bad, ""], "out of memory", "the program asked for more than there is")


def gpu_memory_full_everywhere(told: Incident) -> None:
    at = told.at = 120.0
    for node in told.nodes:
        for local in range(8):
            told.err(
                at,
                "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.11 GiB total capacity; 77.01 GiB already allocated)",
                told.rank(node, local),
            )
    told.aborted(at + 3, told.nodes[0])
    told.truth(
        "gpu-out-of-memory", "", "out of memory", "every rank in the first step: the batch is too large", victims=[]
    )


def ecc_before_an_application_error_elsewhere(told: Incident) -> None:
    """An old, contained error of another GPU that no rank used is not why a program raised."""
    at = told.at
    told.kernel(
        told.others[0],
        -40000,
        f"NVRM: Xid (PCI:{told.pci(7)}): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
    )
    rank = told.rank(told.bad, 0)
    told.err(at, "Traceback (most recent call last):", rank)
    told.err(at, '  File "/shared/data.py", line 44, in __getitem__', rank)
    told.err(at, "KeyError: 'input_ids'", rank)
    told.aborted(at + 5, told.bad)
    told.truth("program-error", [told.bad, ""], "KeyError", "Xid 63 of the day before is not the cause")


HARDWARE = (
    gpu_off_the_bus, gpu_off_the_bus_without_a_code, double_bit_error, uncontained_memory_error, remap_failure, nvlink_fatal,
    nvlink5_fatal, nvswitch_fatal, gsp_timeout, micro_controller_halt, context_switch_timeout, illegal_address,
    device_assert_everywhere, gpu_memory_full, gpu_memory_full_everywhere, ecc_before_an_application_error_elsewhere,
)  # fmt: skip
