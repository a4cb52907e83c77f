"""Host memory for arenas: touched once, on huge pages where the kernel gives them, registered with the device once.

torch's own pinned allocator rounds sizes up to powers of two; an arena of 20 GB would take 32. So memory is mapped here
and registered as it is.

Must not know: what lies in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any

import torch

from fairlead.errors import TrainError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)


def arena(numel: int, dtype: torch.dtype, device: torch.device, *, pinned: bool = False) -> torch.Tensor:
    """A zeroed flat tensor; on the host it is page-aligned, and registered for direct copies if `pinned`."""
    if device.type != "cpu":
        return torch.zeros(numel, dtype=dtype, device=device)
    if not numel:
        return torch.empty(0, dtype=dtype)
    pages = mmap.mmap(-1, numel * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _MADV_HUGEPAGE is not None:
        pages.madvise(_MADV_HUGEPAGE)
    flat = torch.frombuffer(pages, dtype=dtype, count=numel)
    if pinned:
        flat.zero_()
        _register(flat)
    return flat


def _register(flat: torch.Tensor) -> None:
    """cudaHostRegister, in one piece: a copy must not cross from one registration to the next."""
    status = int(_runtime().cudaHostRegister(flat.data_ptr(), flat.numel() * flat.element_size(), 0))
    if status:
        raise TrainError(
            "train/pin-refused",
            f"the driver does not register {flat.numel() * flat.element_size() / 1e9:.1f} GB of host memory ({status})",
            hint="raise the limit of locked memory, or give a smaller memory_budget",
        )


def give_back_at_once() -> None:
    """Let freed memory of more than 64 KiB go back to the system, so that what is held is what is used.

    glibc learns to keep what is often asked for; blocks of tensors then lie about at twice of what a plan says,
    also those of some hundred KiB where layers and micro-batches are many. Each new tensor costs page faults
    instead. Elsewhere than with glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 16)
        mallopt(_M_TRIM_THRESHOLD, 1 << 20)


def release(flat: torch.Tensor) -> None:
    """Take back the registration, before the memory goes."""
    if flat.device.type == "cpu" and flat.numel():
        _runtime().cudaHostUnregister(flat.data_ptr())


def _runtime() -> Any:
    return torch.cuda.cudart()
