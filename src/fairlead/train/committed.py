"""The manifest of a folder of state: whole or not at all, and never lost without a word.

A second copy is written after it. Where the manifest is gone and the copy is not, the state beside it is a run's, and
nothing here takes it for what a killed beginning left.

Must not know: what a manifest says.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TypeVar

from fairlead.base.files import disk_errors
from fairlead.errors import RunError, TrainError
from fairlead.records.stagestate import StageState

T = TypeVar("T")

NAME, COPY = "manifest.json", "manifest.copy.json"


class Committed(StageState[T]):
    """What a folder has committed."""

    def __init__(self, folder: Path, kind: type[T], *, schema: str) -> None:
        super().__init__(folder / NAME, kind, schema=schema)
        self.folder = folder
        self._copy = folder / COPY

    def read(self) -> T | None:
        """As of any state; raises TrainError where it was lost."""
        check(self.folder)
        try:
            return super().read()
        except RunError as error:
            error.hint = _hint(self.folder)
            raise

    def write(self, state: T) -> None:
        """On return it is on the disk."""
        super().write(state)
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        with disk_errors(self._copy):
            self._copy.unlink(missing_ok=True)
            shutil.copy(self.path, self._copy)

    def clear(self) -> None:
        """Of both."""
        with disk_errors(self._copy):
            self._copy.unlink(missing_ok=True)
        super().clear()


def check(folder: Path) -> None:
    """Raise TrainError where there is a copy of a manifest and no manifest."""
    if (folder / COPY).exists() and not (folder / NAME).exists():
        raise TrainError(
            "train/manifest-lost",
            f"{folder} holds the state of a run, and its {NAME} is gone",
            hint=f"{_hint(folder)}; or give the run up: rm -r {folder}",
        )


def _hint(folder: Path) -> str:
    if (folder / COPY).exists():
        return f"put its copy back, and resume: cp {folder / COPY} {folder / NAME}"
    return "go back to a copy of the store, or begin in another"
