"""What the init container of `weights kubernetes --used-by` runs, as a process beside real spreads into its folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.weights.onnode import held_back
from support.injector import FAIRLEAD
from support.origins import serving

pytestmark = pytest.mark.real
SOURCE = Path(held_back.__file__).read_text()


def pull(source: str, dest: Path) -> dict:
    words = [*FAIRLEAD, "weights", "pull", source, str(dest), "--json", "--runs", str(dest.parent / "runs")]
    return json.loads(subprocess.run(words, capture_output=True, text=True, timeout=120).stdout)


def test_it_ends_when_the_spread_has_published_and_not_before(tmp_path):
    dest, served = tmp_path / "dest", tmp_path / "served"
    served.mkdir()
    (served / "a.bin").write_bytes(os.urandom(6 << 20))
    argv = [sys.executable, "-I", "-S", "-c", SOURCE, str(dest)]  # nothing but the standard library
    waits = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        with serving(served, rate=4e6) as origin:
            assert waits.stdout.readline() == f"waits for {dest}: there is no {dest}/.fairlead/record.json\n"
            began = time.monotonic()
            result = pull(f"{origin.url}/a.bin", dest)
            assert result["verdict"] == "pass", result
            assert time.monotonic() - began > 1.0
        assert waits.communicate(timeout=30)[0] == f"the model is there: {dest}\n"
    finally:
        waits.kill()
    assert (waits.returncode, held_back.lacks(str(dest), result["root"])) == (0, "")


def test_what_it_waits_for(tmp_path):
    dest, source = tmp_path / "dest", tmp_path / "source"
    source.mkdir()
    (source / "a.bin").write_bytes(b"one")
    root = pull(str(source), dest)["root"]
    assert held_back.lacks(str(dest)) == held_back.lacks(str(dest), root) == ""
    assert held_back.lacks(str(dest), "b" * 64) == f"another version is there, {root[:16]}"
    (dest / ".fairlead/stage-0").mkdir()
    assert held_back.lacks(str(dest)) == "a spread is under way, or was broken off"
    (dest / ".fairlead/stage-0").rmdir()
    (dest / "a.bin").write_bytes(b"another")
    assert held_back.lacks(str(dest)) == "'a.bin' has changed since it was published"
    (dest / "a.bin").unlink()
    assert held_back.lacks(str(dest)) == f"there is no {dest}/a.bin"
    (dest / ".fairlead/record.json").write_text('{"files": 7}')
    assert held_back.lacks(str(dest)) == "its record cannot be read"
