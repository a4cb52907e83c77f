"""Flip one constant of the protocol law and see who notices.

`flipped` makes a copy of the package in which one named constant has another value; `run` starts a test in a fresh
interpreter that imports this copy. A test that still passes does not look at that constant. The product knows nothing
of this."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import fairlead

PACKAGE = Path(fairlead.__file__).parent
TESTS = Path(__file__).parent.parent


@dataclass(frozen=True)
class Flip:
    """One constant of one module, by default of fabric/mrc, and the expression to put in its place."""

    module: str
    constant: str
    value: str
    room: str = "mrc"

    def __str__(self) -> str:
        return f"{self.module}.{self.constant}={self.value}"


# from every file of rules that has constants; the conversations of mrc_talks.py exercise them. The first are those that
# a run of a few minutes tries; they stand for the flight, trims, the reorder window and both directions of the window.
FLIPS = (
    Flip("responder", "RCVD_UNIT_SHIFT", "9"),
    Flip("layout", "NACK_TRIMMED", "0x02"),
    Flip("losses", "REORDER_STEPS", "0"),
    Flip("congestion", "GAMMA_DEN", "9"),
    Flip("profile", "FI_MSS", "6"),
    Flip("bits", "PSN_HALF", "0x40"),
    Flip("evs", "NIBBLE_MAX", "3"),
    Flip("rotation", "MOVE_WINDOWS", "1"),
    Flip("comparators", "PENALTY_MARKED", "2"),
    Flip("comparators", "PENALTY_TRIMMED", "9"),
    Flip("comparators", "EXPLORE_AFTER_FREEZE", "3"),
    Flip("congestion", "MAX_MD_DIVISOR", "4"),
    Flip("profile", "AVG_DIVISOR", "40"),
    Flip("congestion", "FI_SCALE_BITS", "15"),
    Flip("profile", "ALPHA_MSS", "5"),
    Flip("profile", "ETA_PERCENT", "16"),
    Flip("profile", "QA_TARGETS", "1"),
    Flip("profile", "ADJUST_PACKETS", "9"),
    Flip("profile", "TARGET_QUARTERS", "2"),
    Flip("window", "MAX_TRIES", "0"),
    Flip("timers", "BACKOFF_MAX", "0"),
    Flip("responder", "OOO_MAX", "3"),
    Flip("layout", "NACK_UNEXP_EVENT", "0x01"),
    Flip("layout", "TIMESTAMP_UNIT_NS", "256"),
)
_FAST = "transport/fast"
# what the compiled transport has a form of its own for: headers out, headers in, the ring of answers, the letters
FAST_FLIPS = (
    Flip("packing", "PKEY", "0xFFFE", _FAST),
    Flip("packing", "NACK_CC_TYPE", "3", _FAST),
    Flip("packing", "SIGNED16_LEAST", "0", _FAST),
    Flip("packing", "CONTROL", "0", _FAST),
    Flip("parsing", "ICRC", "0", _FAST),
    Flip("layout", "MAX_ANSWERS", "2", _FAST),
)


def flipped(flip: Flip | None, folder: Path) -> Path:
    """Copy the package into a folder with the flip done (None: unchanged); the folder to put on the module path."""
    target = folder / "fairlead"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    if flip is not None:
        path = target / "fabric" / flip.room / f"{flip.module}.py"
        pattern = re.compile(rf"^({flip.constant}(?:: Final)?) = (.+?)(\s+#.*)?$", re.MULTILINE)
        text, num_changes = pattern.subn(rf"\1 = {flip.value}", path.read_text())
        assert num_changes == 1, f"{flip.constant} is set {num_changes} times in {path.name}"
        assert text != path.read_text(), f"{flip.constant} already is {flip.value}"
        path.write_text(text)
    return folder


def run(folder: Path, *tests: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Run tests (pytest ids below tests/) against the package in a folder."""
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{TESTS}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(TESTS / t) for t in tests)]
    return subprocess.run(command, env=env, cwd=TESTS.parent, capture_output=True, text=True, timeout=timeout_s)
