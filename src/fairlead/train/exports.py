"""A folder of exported weights: the new ones or those of an export before, never a mix, and never beside others.

Everything is written beside first; then the file without which nothing loads goes, all others take their places, and it
comes last. Whatever stops that, a folder that loads holds one export.

Must not know: models.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from fairlead.base.files import disk_errors, write_atomic
from fairlead.base.shown import shown
from fairlead.base.trust import read_file
from fairlead.errors import TrainError

LIST = "fairlead-export.json"
"""Names the files of an export."""
_COMING = ".coming"
_WEIGHTS = ("*.safetensors", "*.index.json", "pytorch_model*.bin", "adapter_config.json", "adapter_model.*", "*.gguf")
"""What the libraries would load of a folder."""
_MAX_LIST = 1 << 24
_NUMBER = re.compile(r"os error (\d+)")


class _Listed(msgspec.Struct):
    files: list[str] = []


def save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """A safetensors file of ours, on the disk."""
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as exc:
        found = _NUMBER.search(str(exc))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from exc
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(folder: Path, last: str) -> Iterator[Path]:
    """Where the files of an export are to be written; at the end they are in the folder, `last` after all others.

    Raises TrainError where the folder holds weights that are no export of ours, DiskFull or NotPermitted.
    """
    is_new = not folder.exists()
    coming = folder / _COMING
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        before = _ours(folder)
        shutil.rmtree(coming, ignore_errors=True)  # of one that was killed
        try:
            coming.mkdir()
            yield coming
            _put(folder, coming, before, last)
        finally:
            shutil.rmtree(coming, ignore_errors=True)
            if is_new:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # where nothing came to be in it


def _put(folder: Path, coming: Path, before: list[Path], last: str) -> None:
    names = sorted(path.name for path in coming.iterdir())
    listed = _Listed(sorted({*names, *(path.name for path in before)}))  # until those before are gone
    write_atomic(folder / LIST, msgspec.json.encode(listed))
    (folder / last).unlink(missing_ok=True)
    _sync(folder)
    for path in before:
        if path.name not in names:
            path.unlink(missing_ok=True)
    for name in [*(name for name in names if name != last), last]:
        if name == last:
            _sync(folder)
        (coming / name).replace(folder / name)
    _sync(folder)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _ours(folder: Path) -> list[Path]:
    """Files of weights that an earlier export left. Raises TrainError where there are others."""
    found = sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)})
    try:
        listed = set(msgspec.json.decode(read_file(folder / LIST, _MAX_LIST), type=_Listed).files)
    except (OSError, msgspec.DecodeError):
        listed = set()
    others = [path.name for path in found if path.name not in listed]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise TrainError(
            "train/other-weights",
            f"{folder} holds weights that are no export of fairlead: {', '.join(map(shown, others[:3]))}{more}",
            hint="export into a folder of its own: what is loaded from there would be one or the other",
        )
    return found
