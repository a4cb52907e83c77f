"""The script that measures a GPU breaks nowhere: on the day that one is lent there is no time to mend it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPT = Path(__file__).parents[3] / "bench" / "train_gpu.py"


@pytest.mark.parametrize(
    "sections",
    [
        "depth,wide,seven,thirteen",
        pytest.param("limits,exact,sweep", marks=pytest.mark.slow),
        pytest.param("disk,three,peers", marks=pytest.mark.slow),
    ],
)
def test_every_section_is_played_on_the_cpu(sections) -> None:
    command = [sys.executable, SCRIPT, "--smoke", "--sections", sections]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert {line["section"] for line in told} == {*sections.split(","), "end"}
    assert told[-1] == {"section": "end", "at_s": told[-1]["at_s"], "failed": []}
    assert not [line for line in told if "error" in line and not line.get("is_known")]
