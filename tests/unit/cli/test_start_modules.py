"""What a bare start loads: a module that everybody's start pays for comes in by a decision, not by an accident."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fairlead.spec import loader

HEAVY = {"zipfile", "statistics", "importlib.resources.readers", "ssl", "numpy", "torch", "sqlite3"}
ROOMS = {"audit", "lab", "logs", "plan", "train"}
"""Rooms of which at most the table of the cluster file is loaded."""
RUN = (
    "import sys; sys.argv[0] = 'fairlead'\nfrom fairlead.cli.app import main\n"
    "try: main()\nexcept SystemExit: pass\nprint('\\n'.join(sys.modules), file=sys.stderr)"
)


def loaded(*words: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split("\n"))


@pytest.mark.parametrize("words", [["--help"], ["check", "-f", str(loader._PRESETS / "lab.toml")]])
def test_a_bare_start_loads_no_heavy_module(words):
    found = loaded(*words)
    assert "fairlead.cli.app" in found
    assert not found & HEAVY
    ours = [name.split(".") for name in found if name.startswith("fairlead.")]
    assert not [name for name in ours if name[1] in ROOMS and len(name) > 2 and name[2] not in {"table", "room"}]
    assert not {name for name in found if name.endswith((".limits", ".numbers")) and "preflight" in name}
