"""The bench of a thousand nodes, small: scripted nodes are launched, heard and asked as real ones are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
BENCH = Path(__file__).parents[3] / "bench/cluster_scale.py"


@pytest.mark.parametrize(("kind", "per_node"), [("agents", 1), ("ranks", 4), ("tasks", 4)])
def test_every_word_of_every_scripted_node_is_heard(kind, per_node):
    words = [sys.executable, str(BENCH), "row", kind, "24", str(per_node), "3"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("|") == 3
