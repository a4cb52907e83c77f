# ruff: noqa: E501 - one line a message, as it is printed
"""Signatures: their samples are their tests; lines of real systems that mean nothing; who may say what."""

from __future__ import annotations

import pytest

from fairlead.logs.diagnose.model import Job, Line
from fairlead.logs.diagnose.places import Places
from fairlead.logs.diagnose.signatures import literals, read, signatures
from fairlead.logs.diagnose.table import table
from fairlead.records.codes import explanations

HEADS = {
    "kernel": ("syslog_raw_CL", "kernel", "Dec  6 19:25:33 gpu01 kernel: [171.167] "),
    "networkd": ("syslog_raw_CL", "systemd-networkd", "Dec  6 19:25:33 gpu01 systemd-networkd[12]: "),
    "syslog": ("syslog_raw_CL", "mmfs", "Dec  6 19:25:33 gpu01 mmfs: "),
    "slurmctld": ("slurmctld_raw_CL", "", "[2025-09-08T21:11:35.869] "),
    "slurmd": ("slurmd_raw_CL", "", "[2025-09-08T21:11:35.869] "),
    "prolog": ("prolog_CL", "", "2025-09-10T21:42:32Z INFO prolog.sh:51 "),
    "fabricmanager": ("fabricmanager_CL", "", ""),
    "job": ("slurmjobs_raw_CL", "", ""),
}
"""How a line of each speaker begins, in the forms of logs/formats."""


def line(speaker: str, text: str) -> Line:
    table_, component, head = HEADS[speaker]
    return Line("gpu01", 0, head + text, table_, component=component)


SAMPLES = [(each.id, who, text) for each in signatures() for who in each.by for text in each.samples]


@pytest.mark.parametrize(("name", "who", "text"), SAMPLES)
def test_a_sample_is_read_as_its_signature(name: str, who: str, text: str) -> None:
    found = read(line(who, text))
    assert found is not None
    assert found.signature.id == name
    assert any(word in text for word in found.signature.has)


def test_every_signature_of_the_files_has_a_sample_and_a_known_class() -> None:
    known = set(table().cls) | set(table().symptom)
    ids = {each.id for each in signatures()}
    assert len(ids) == len(signatures())
    for each in signatures():
        assert each.samples or each.id.startswith(("xid-", "kernel-")), each.id
        assert each.role in {"cause", "may", "symptom", "end", "learn"}
        assert (each.cls in known) if each.role in {"cause", "may", "symptom"} else not each.cls, each.id
        assert (each.cls in table().symptom) == (each.role == "symptom"), each.id
        assert set(each.ends) <= ids
    assert len(literals()) < 240, "the engine takes 255 at once, and clocks need some"


def test_classes_name_classes_and_have_words() -> None:
    known = set(table().cls) | set(table().symptom)
    for name, each in table().cls.items():
        assert each.brings | each.brings_anywhere | each.symptoms <= known, name
        assert f"diagnose/{name}" in explanations()
    assert set(table().finding.values()) <= set(table().cls)
    assert set(table().finding) <= set(explanations())


# each with where it stands in public; none of them ends a job
BENIGN = [
    # leptonai/gpud, NVSentinel docs/nic-health-monitor: noise of ConnectX drivers
    ("kernel", "mlx5_core 0000:41:00.0: mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3)"),
    ("kernel", "mlx5_core 0000:5c:00.0: mlx5_pcie_event:304:(pid 7): Detected insufficient power on the PCIe slot (27W)."),
    ("kernel", "IPv6: ADDRCONF(NETDEV_UP): ib0: link is not ready"),
    # drivers/pci/pcie/aer.c, drivers/edac: corrected
    ("kernel", "pcieport 0000:00:01.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"),
    ("kernel", "mce: [Hardware Error]: Machine check events logged"),
    ("kernel", "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1 offset:0x0)"),
    # boot
    ("kernel", "nvidia-nvlink: Nvlink Core is being initialized, major device number 237"),
    ("kernel", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15"),
    ("kernel", "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"),
    ("kernel", "NVRM: Xid (PCI:0000:29:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
    ("kernel", "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: (null)"),
    ("kernel", "EXT4-fs (sda1): re-mounted. Opts: errors=remount-ro"),
    ("kernel", "XFS (nvme0n1): Mounting V5 Filesystem"),
    ("kernel", "nvme nvme0: 16/0/0 default/read/poll queues"),
    # NCCL at NCCL_DEBUG=INFO, and warnings that are no failures
    ("job", "gpu01:4120:4377 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10.0.0.4<0>"),
    ("job", "gpu01:4120:4377 [0] NCCL INFO Channel 00/16 : 0 1 2 3"),
    ("job", "gpu01:4120:4377 [0] init.cc:2003 NCCL WARN MSCCL++: Cannot open shared library libmscclpp-nccl.so"),
    ("job", "gpu01:4120:4120 [0] NCCL INFO cudaDriverVersion 12040"),
    ("job", "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."),
    ("job", "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"),
    ("job", "step 400 | lm loss: 2.31 | grad norm: 0.41 | number of nan iterations: 0"),
    ("job", "UserWarning: TypedStorage is deprecated. It will be removed in the future"),
    ("job", "[W1218 20:27:21.426415540 socket.cpp:697] [c10d] The client socket has failed to connect to [gpu01]:29500 (errno: 97 - Address family not supported by protocol)."),
    ("job", "srun: Job 4711 step creation temporarily disabled, retrying (Requested nodes are busy)"),
    # Slurm's chatter
    ("slurmctld", "debug:  sched/backfill: _attempt_backfill: no jobs to backfill"),
    ("slurmctld", "_job_complete: JobId=4711 WEXITSTATUS 0"),
    ("slurmctld", "error: _slurm_rpc_complete_job_allocation: JobId=4711 error Job/step already completing or completed"),
    ("slurmd", "error: Waiting for JobId=7 REQUEST_KILL_JOB"),
    ("slurmd", "launch task StepId=4711.0 request from UID:1000 GID:1000 HOST:10.0.0.1 PORT:55512"),
    ("networkd", "eth0: Gained IPv6LL"),
]  # fmt: skip


@pytest.mark.parametrize(("who", "text"), BENIGN)
def test_noise_of_real_systems_is_no_cause(who: str, text: str) -> None:
    found = read(line(who, text))
    assert found is None or found.signature.role not in {"cause", "may"} or not found.signature.cls, found


def test_words_of_the_kernel_in_the_output_of_a_job_are_none() -> None:
    text = "NVRM: Xid (PCI:0000:29:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert read(line("kernel", text)) is not None
    assert read(line("job", text)) is None
    assert read(line("slurmd", "Kernel panic - not syncing: x")) is None


# leptonai/gpud xid/kmsg_test.go, NVIDIA/open-gpu-kernel-modules issues 461, 1030, 1150: framings of the wild
XIDS = [
    ("NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "gpu-bus"),
    ("NVRM: Xid (0000:03:00): 48, Graphics", "gpu-memory"),
    ("NVRM: Xid (PCI:0000:05:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0 0x0)", "gpu-nvlink"),
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7062, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        "gpu-memory",
    ),
    (
        "NVRM: Xid (PCI:0000:97:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response",
        "gpu-firmware",
    ),
]


@pytest.mark.parametrize(("text", "cls"), XIDS)
def test_xids_are_of_the_class_that_node_checks_give_them(text: str, cls: str) -> None:
    for head in ("", "[  171.167] ", "[  130.456250] [ T1946] "):
        found = read(
            Line("gpu01", 0, f"Dec  6 19:25:33 gpu01 kernel: {head}{text}", "syslog_raw_CL", component="kernel")
        )
        assert found is not None
        assert found.signature.cls == cls
        assert found.groups["dev"].startswith("0000:")
    dmesg = Line("gpu01", 0, f"[Sun Feb 23 16:24:18 2025] {text}", "dmesg_raw_CL")
    journal = Line(
        "gpu01", 0, '{"SYSLOG_IDENTIFIER":"kernel","MESSAGE":"' + text + '"}', "journald_CL", component="kernel"
    )
    kmsg = Line("gpu01", 0, f"3,1234,45678901,-;{text}", "dmesg_raw_CL")
    for each in (dmesg, journal, kmsg):
        assert (found := read(each)) is not None
        assert found.signature.cls == cls


def test_a_traceback_is_read_by_its_last_line_unless_one_says_more() -> None:
    head = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
    said = {
        "ValueError: no such shard": "exception",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered": "cuda-ecc",
        "OSError: [Errno 28] No space left on device: '/scratch/x'": "disk-full-job",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited": "nccl-error",
        "KeyboardInterrupt": "told-to-end",
    }
    for last, name in said.items():
        found = read(line("job", head + last))
        assert found is not None
        assert found.signature.id == name
    chained = (
        head
        + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n\nThe above exception was\n"
        + head
    )
    found = read(line("job", chained + "RuntimeError: step failed"))
    assert found is not None
    assert found.signature.id == "cuda-program"


@pytest.mark.parametrize("text", ["gpu01 gpu02", '"gpu01", "gpu02"', "'gpu01','gpu02'", "gpu[01-02]", "gpu01,gpu02,"])
def test_nodes_in_a_line_however_they_are_listed(text: str):
    job = Job(id=1, nodes=("gpu01", "gpu02"), num_tasks=2, start_ns=0, end_ns=None)
    assert Places(job, ()).named(text) == ("gpu01", "gpu02")
