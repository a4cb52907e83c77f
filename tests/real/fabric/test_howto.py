"""The script of docs/howto/mrc-sockets.md, as it stands there, by torchrun on two ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead

pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]
PAGE = Path(fairlead.__file__).parents[2] / "docs/howto/mrc-sockets.md"


def test_the_script_of_the_page_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "example.py"]
    env = {**os.environ, "FAIRLEAD_MRC_ADDRESSES": "::1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 is done", "rank 1 of 2 is done"]
