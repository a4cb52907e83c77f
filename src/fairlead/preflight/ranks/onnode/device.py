"""One GPU by itself, and why a rank that should have one has none. The same code measures a CPU rank, with small sizes.

    matrix       bf16 products on a GPU, float32 on a CPU: the time of several in a row, the best of a few such runs
    copy         within the device's memory
    h2d, d2h     pinned host memory to the device and back
    node         an all-reduce among the ranks of the node alone

Two seconds at most for all of it. Reads and times; judges nothing.
"""

# ruff: noqa: PTH110, PTH123, PTH207, BLE001

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import time

from fairlead.launch.onnode.meet import pci_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
CARD_S = 1.2
"""Time for one card's own measurements; the all-reduce of the node comes on top."""
RUNS = 5
AGREE = 1.05
"""On a CPU no more runs once the two best are within this ratio. A GPU has all: its clock rises with its load."""
GPU_MATRIX, GPU_COPY, GPU_HOST, GPU_NODE = 8192, 1 << 30, 256 << 20, 256 << 20
CPU_MATRIX, CPU_COPY, CPU_HOST, CPU_NODE = 192, 4 << 20, 1 << 20, 1 << 18
CPU_AT_ONCE = 64
"""Products in a row on a CPU: long enough that the kernel shares the core out several times within them."""


# ---- why there is none -----------------------------------------------------------------------------------------------


def gpu_reach(torch: Any) -> dict[str, Any]:
    """Everything that tells why torch reaches a GPU or not, each thing as read."""
    files = sorted(glob.glob("/dev/nvidia[0-9]*")) or (
        sorted(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else []
    )
    out: dict[str, Any] = {
        "num_devices": 0,
        "driver": kernel_driver(),
        "driver_cuda": driver_cuda(),
        "device_files": len(files),
        "unreadable_files": sum(not os.access(f, os.R_OK | os.W_OK) for f in files),
        "visible": {k: os.environ[k][:400] for k in VISIBLE if k in os.environ},
    }
    with contextlib.suppress(Exception):
        if torch.cuda.is_available():
            out["num_devices"] = torch.cuda.device_count()
            return out
    try:
        torch.cuda.init()
    except Exception as error:  # torch says here, in words, what it missed
        out["why_not"] = " ".join(str(error).split())[:400]
    return out


def kernel_driver() -> str:
    """Version of the GPU driver's kernel module; empty where none is loaded."""
    for path, pattern in (
        # x86: `Kernel Module  550.54.15`; open module and ARM: `Open Kernel Module for aarch64  580.95.05`
        ("/proc/driver/nvidia/version", r"Kernel Module(?: for \S+)?\s+([\d.]+)"),
        ("/sys/module/amdgpu/version", r"(\S+)"),
    ):
        with contextlib.suppress(OSError), open(path) as file:
            found = re.search(pattern, file.read())
            if found:
                return found[1]
    return ""


def driver_cuda() -> str:
    """The newest CUDA that the driver library supports, by its own word; empty without one."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int(0)
        if library.cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
            return f"{number.value // 1000}.{number.value % 1000 // 10}"
    return ""


# ---- what it delivers ------------------------------------------------------------------------------------------------


class Card:
    """Times one device. `sync` waits for it."""

    def __init__(self, torch: Any, device: Any, sync: Callable[[], None], *, is_gpu: bool) -> None:
        self.torch, self.device, self.sync, self.is_gpu = torch, device, sync, is_gpu
        self.until = time.perf_counter() + CARD_S
        self.pci = pci_of(torch.cuda.get_device_properties(device), device.index) if is_gpu else ""

    def measure(self) -> dict[str, Any]:
        """All of it, or as much as there is memory for; `missed`: what was not measured, and what torch said then."""
        started = time.perf_counter()
        out: dict[str, Any] = {}
        missed: dict[str, str] = {}
        for part in (self.matrix, self.copy, self.host):
            try:
                out.update(part())
            except RuntimeError as error:
                missed[part.__name__] = " ".join(str(error).split())[:400]
        out["took_s"] = round(time.perf_counter() - started, 3)
        return {**out, "missed": missed} if missed else out

    def matrix(self) -> dict[str, Any]:
        """Products of square matrices."""
        torch, size = self.torch, GPU_MATRIX if self.is_gpu else CPU_MATRIX
        kind, name = (torch.bfloat16, "bf16") if self.is_gpu else (torch.float32, "float32")
        a = torch.randn(size, size, device=self.device, dtype=kind)
        b = torch.randn(size, size, device=self.device, dtype=kind)
        out = torch.empty_like(a)
        took_s = self.best(lambda: torch.mm(a, b, out=out), 8 if self.is_gpu else CPU_AT_ONCE, 0.45)
        return {"matmul_flops": 2.0 * size**3 / took_s, "matmul": f"{name} {size}"}

    def copy(self) -> dict[str, Any]:
        """Memory to memory on the device: each byte is read and written."""
        num = GPU_COPY if self.is_gpu else CPU_COPY
        a = self.torch.zeros(num, dtype=self.torch.uint8, device=self.device)
        b = self.torch.empty_like(a)
        return {"copy_bytes_s": 2.0 * num / self.best(lambda: b.copy_(a), 4, 0.2)}

    def host(self) -> dict[str, Any]:
        """Pinned host memory to the device, and back; on a CPU rank both are its own memory.

        The memory is the device's own socket's, wherever the scheduler put this process: from the other socket of a
        GB200 a copy has a third of the rate (github.com/pytorch/torchtitan pull 3519, 2026-06).
        """
        torch, num = self.torch, GPU_HOST if self.is_gpu else CPU_HOST
        far = torch.zeros(num, dtype=torch.uint8, device=self.device)
        with beside(self.pci):
            near = torch.zeros(num, dtype=torch.uint8, pin_memory=self.is_gpu)
        down_s = self.best(lambda: far.copy_(near, non_blocking=True), 2, 0.2)
        up_s = self.best(lambda: near.copy_(far, non_blocking=True), 2, 0.2)
        return {"h2d_bytes_s": num / down_s, "d2h_bytes_s": num / up_s}

    def best(self, work: Callable[[], object], at_once: int, limit_s: float) -> float:
        """Seconds for one piece of work: the best of some runs, after one that is not counted."""
        work()
        self.sync()
        until, runs = min(self.until, time.perf_counter() + limit_s), list[float]()
        while not runs or not (has_settled(runs, is_gpu=self.is_gpu) or time.perf_counter() > until):
            started = time.perf_counter()
            for _ in range(at_once):
                work()
            self.sync()
            runs.append((time.perf_counter() - started) / at_once)
        return min(runs)


def has_settled(runs: Sequence[float], *, is_gpu: bool) -> bool:
    """Whether the best of these runs would not become much better by another one."""
    first, second = [*sorted(runs), float("inf")][:2]
    return len(runs) >= RUNS or (not is_gpu and second <= AGREE * first)


@contextlib.contextmanager
def beside(pci: str, devices: str = "/sys/bus/pci/devices") -> Iterator[None]:
    """Run on CPUs near a PCI device, as far as this process may; memory that is had meanwhile is near it, too."""
    before = os.sched_getaffinity(0)
    near = before & cpus_near(f"{devices}/{pci}/local_cpulist") if pci else set()
    if near:
        os.sched_setaffinity(0, near)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpus_near(path: str) -> set[int]:
    """CPUs of a list as the kernel writes it, `0-47,96-143`; none where it cannot be read."""
    out: set[int] = set()
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        for piece in file.read().strip().split(","):
            low, _, high = piece.partition("-")
            out |= set(range(int(low), int(high or low) + 1))
    return out


def node_reduce(torch: Any, dist: Any, group: Any, device: Any, sync: Callable[[], None], *, is_gpu: bool) -> float:
    """Seconds of one all-reduce among the ranks of a node: the best of some, after two that are not counted."""
    data = torch.zeros((GPU_NODE if is_gpu else CPU_NODE) // 4, device=device)
    best = float("inf")
    for turn in range(2 + RUNS):
        sync()
        started = time.perf_counter()
        dist.all_reduce(data, group=group)
        sync()
        if turn > 1:
            best = min(best, time.perf_counter() - started)
    return best
