"""Where compiled kernels are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.fabric.mrc import compile as mrc_compile


def test_the_digest_follows_every_law_source_and_the_callers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = mrc_compile.digest()
    own = tmp_path / "engine.py"
    own.write_text("x = 1\n")
    with_own = mrc_compile.digest([own])
    own.write_text("x = 2\n")
    assert len({base, with_own, mrc_compile.digest([own])}) == 3
    sources = mrc_compile.law_sources()
    assert {path.stem for path in sources} == {
        "rows", "layout", "bits", "evs", "rotation", "paths", "congestion", "window", "losses", "timers", "sending",
        "responder", "hearing", "comparators", "law", "ways",
    }  # fmt: skip
    for i, path in enumerate(sources):
        copy = tmp_path / path.name
        copy.write_text(path.read_text() + "# edited\n")
        changed = (*sources[:i], copy, *sources[i + 1 :])
        monkeypatch.setattr(mrc_compile, "law_sources", lambda changed=changed: changed)
        assert mrc_compile.digest() != base
    monkeypatch.undo()
    monkeypatch.setattr(mrc_compile, "__file__", str(own))  # how they are compiled counts too
    assert mrc_compile.digest() != base


def test_the_cache_keeps_a_few_digests_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for i in range(12):
        (mrc_compile.cache_folder() / f"{i:024x}").mkdir(parents=True)
        os.utime(mrc_compile.cache_folder() / f"{i:024x}", (i, i))
    mrc_compile.kernel(lambda: 1)
    kept = {path.name for path in mrc_compile.cache_folder().iterdir()}
    assert mrc_compile.digest() in kept
    assert len(kept) == mrc_compile.KEPT_FOLDERS
    assert f"{11:024x}" in kept


def test_without_a_writable_cache_kernels_are_still_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fairlead").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def double(x: int) -> int:
        return 2 * x

    assert mrc_compile.kernel(double, nogil=True)(21) == 42
