"""What an application may give as memory: anything with the buffer protocol, and torch's CPU tensors. No copies."""

from __future__ import annotations

import sys
from typing import Any

from fairlead.errors import LocalProtocolError


def view_of(memory: Any) -> memoryview:
    """The bytes of bytes, bytearray, array, mmap, shared memory, a numpy array or a torch CPU tensor, where they lie.

    LocalProtocolError for what has no bytes in one piece here, such as a strided view or a tensor on a GPU.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(memory, torch.Tensor):
        memory = _of_tensor(torch, memory)
    try:
        view = memoryview(memory)
    except TypeError as exc:
        raise _refused(f"{type(memory).__name__} has no bytes that can be sent", "give a buffer or an array") from exc
    if not view.c_contiguous:
        raise _refused("the memory does not lie in one piece", "give a contiguous array")
    if view.nbytes == 0:
        return memoryview(b"") if view.readonly else memoryview(bytearray())
    return view.cast("B")


def _of_tensor(torch: Any, tensor: Any) -> Any:
    if tensor.device.type != "cpu":
        raise _refused(f"the tensor is on {tensor.device}", "give a tensor on the CPU: tensor.cpu()")
    if not tensor.is_contiguous():
        raise _refused("the tensor does not lie in one piece", "give tensor.contiguous()")
    return tensor.detach().view(-1).view(torch.uint8).numpy()  # numpy has no bfloat16


def _refused(message: str, hint: str) -> LocalProtocolError:
    return LocalProtocolError("fabric/bad-memory", message, hint=hint)
