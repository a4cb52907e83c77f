"""Compiled kernels: an edited law never runs from a stale cache, and an unedited one does run from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import lawflip

pytestmark = pytest.mark.real

# a driver kernel in a file of its own, as the simulator's are: prints what the law says and whether it was compiled
DRIVER = """
import sys
import numba
from fairlead.fabric.mrc import bits, compile
from fairlead.fabric.mrc.compile import kernel, register, words
import numpy as np

def scaled(array, psn):
    m = words(array)
    m[0] = bits.unwrap(psn, 0)
    return m[0]

array = np.zeros(2, np.int64)
if sys.argv[1] == "naive":
    register()
    numba.config.CACHE_DIR = sys.argv[2]
    run = numba.njit(cache=True)(scaled)
else:
    run = kernel(scaled)
result = run(array, 0x7FFFFF)
assert result == array[0]
print(result, "hit" if sum(run.stats.cache_hits.values()) else "miss")
"""


def run(folder: Path, cache: Path, *arguments: str) -> str:
    driver = folder / "driver.py"
    if not driver.exists():
        driver.write_text(DRIVER)
    env = {**os.environ, "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(cache)}
    result = subprocess.run(
        [sys.executable, str(driver), *arguments], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "fairlead" / "fabric" / "mrc" / "bits.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_an_edited_law_takes_effect_with_a_warm_cache(tmp_path: Path) -> None:
    folder = lawflip.flipped(None, tmp_path / "copy")
    cache = tmp_path / "cache"
    assert run(folder, cache, "kernel") == f"{0x7FFFFF} miss"
    assert run(folder, cache, "kernel") == f"{0x7FFFFF} hit"
    edit(folder, "PSN_HALF = 0x800000", "PSN_HALF = 0x400000")
    assert run(folder, cache, "kernel") == f"{0x7FFFFF - 0x1000000} miss"
    edit(folder, "PSN_HALF = 0x400000", "PSN_HALF = 0x800000")
    assert run(folder, cache, "kernel") == f"{0x7FFFFF} hit"


def test_without_the_digest_the_cache_would_be_stale(tmp_path: Path) -> None:
    """What the digest is for: numba alone looks at the file of the kernel only."""
    folder = lawflip.flipped(None, tmp_path / "copy")
    assert run(folder, tmp_path, "naive", str(tmp_path / "naive")) == f"{0x7FFFFF} miss"
    edit(folder, "PSN_HALF = 0x800000", "PSN_HALF = 0x400000")
    assert run(folder, tmp_path, "naive", str(tmp_path / "naive")) == f"{0x7FFFFF} hit"  # wrong


def test_a_cache_that_a_neighbour_could_have_filled_is_neither_used_nor_touched(tmp_path: Path) -> None:
    folder = lawflip.flipped(None, tmp_path / "copy")
    for place in ("cache", "cache/fairlead/kernels"):
        cache = tmp_path / place.replace("/", "-") / "cache"
        shared = cache.parent / place
        shared.mkdir(parents=True)
        shared.chmod(0o777)
        assert [run(folder, cache, "kernel") for _ in range(2)] == [f"{0x7FFFFF} miss"] * 2
        assert list(shared.iterdir()) == []
