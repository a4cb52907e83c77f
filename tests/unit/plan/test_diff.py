"""A plan is shown before it is written, and what a person changed is not written over without a word."""

from __future__ import annotations

import os
import subprocess

import pytest

from fairlead.errors import FairleadError, NotPermitted, UsageError
from fairlead.plan.diff import STATE, apply, compare
from fairlead.plan.wanted import Planned


def planned(**texts):
    return [Planned(path=name.replace("__", "/"), text=text, about=name) for name, text in texts.items()]


def states(changes):
    return {c.path: c.state for c in changes}


def test_new_same_changed_and_by_hand(tmp_path):
    first = planned(a__x="one\n", a__y="one\n", a__z="one\n")
    assert states(compare(tmp_path / "p", first)) == {"a/x": "new", "a/y": "new", "a/z": "new"}
    assert not (tmp_path / "p").exists()
    apply(tmp_path / "p", first)
    assert states(compare(tmp_path / "p", first)) == {"a/x": "same", "a/y": "same", "a/z": "same"}
    (tmp_path / "p/a/z").write_text("mine\n")
    second = planned(a__x="one\n", a__y="two\n", a__z="two\n")
    assert states(compare(tmp_path / "p", second)) == {"a/x": "same", "a/y": "changed", "a/z": "by hand"}
    assert states(apply(tmp_path / "p", second)) == {"a/x": "same", "a/y": "changed", "a/z": "by hand"}
    assert (tmp_path / "p/a/y").read_text() == "two\n"
    assert (tmp_path / "p/a/z").read_text() == "mine\n"
    # it stays by hand until somebody says otherwise
    assert states(apply(tmp_path / "p", second))["a/z"] == "by hand"
    apply(tmp_path / "p", second, force=True)
    assert (tmp_path / "p/a/z").read_text() == "two\n"
    assert states(compare(tmp_path / "p", second))["a/z"] == "same"


def test_a_file_that_was_there_before_is_somebodys(tmp_path):
    (tmp_path / "x").write_text("theirs\n")
    (change,) = apply(tmp_path, planned(x="ours\n"))
    assert (change.state, change.why) == ("by hand", "there before, and not written by a plan")
    assert (tmp_path / "x").read_text() == "theirs\n"


def test_one_that_is_the_same_by_chance_is_taken_over(tmp_path):
    (tmp_path / "x").write_text("ours\n")
    apply(tmp_path, planned(x="ours\n"))
    assert states(compare(tmp_path, planned(x="new\n"))) == {"x": "changed"}


def test_the_difference_is_one_that_patch_takes(tmp_path):
    old, new = planned(x="a\nb\nc\n"), planned(x="a\nB\nc\nd\n")
    apply(tmp_path, old)
    (change,) = compare(tmp_path, new)
    assert (change.added, change.removed) == (2, 1)
    subprocess.run(["patch", "-p1"], cwd=tmp_path, input=change.diff, text=True, check=True, capture_output=True)
    assert (tmp_path / "x").read_text() == "a\nB\nc\nd\n"


def test_links_and_folders_in_the_way_are_refused_and_nothing_outside_is_written(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("precious\n")
    place = tmp_path / "p"
    place.mkdir()
    (place / "x").symlink_to(outside)
    with pytest.raises(UsageError, match="in the way"):
        apply(place, planned(x="ours\n"), force=True)
    (place / "x").unlink()
    (place / "d").symlink_to(tmp_path)
    with pytest.raises(FairleadError):
        apply(place, planned(d__outside="ours\n"), force=True)
    (place / "d").unlink()
    (place / "y").mkdir()
    with pytest.raises(UsageError, match="in the way"):
        compare(place, planned(y="ours\n"))
    os.mkfifo(place / "f")
    with pytest.raises(UsageError, match="in the way"):
        compare(place, planned(f="ours\n"))
    assert outside.read_text() == "precious\n"


def test_a_state_that_cannot_be_read_makes_everything_somebodys(tmp_path):
    apply(tmp_path, planned(x="one\n"))
    (tmp_path / STATE).write_bytes(b"\xff{")
    assert states(compare(tmp_path, planned(x="two\n"))) == {"x": "by hand"}


def test_bytes_that_are_no_text_are_shown_and_kept(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\n")
    (change,) = compare(tmp_path, planned(x="ours\n"))
    assert change.state == "by hand"
    assert "\\xff" in change.diff


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((UsageError, NotPermitted)):
        apply(tmp_path / "file", planned(x="one\n"))


def test_scripts_can_be_run(tmp_path):
    apply(tmp_path, [Planned(path="s.sh", text="#!/bin/sh\n", about="", executable=True), *planned(t="x\n")])
    assert os.access(tmp_path / "s.sh", os.X_OK)
    assert (tmp_path / "t").stat().st_mode & 0o111 == 0


def test_nobody_else_may_write_to_what_root_will_run(tmp_path):
    """With a umask of 0, as in some containers and jobs: the folders, the files, the scripts, the state."""
    old = os.umask(0)
    try:
        apply(
            tmp_path / "p", [Planned(path="a/b.sh", text="#!/bin/sh\n", about="b", executable=True), *planned(c="c\n")]
        )
    finally:
        os.umask(old)
    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o7777
        for path in (tmp_path / "p", *(tmp_path / "p").rglob("*"))
    }
    assert modes == {"p": 0o755, "p/a": 0o755, "p/a/b.sh": 0o755, "p/c": 0o644, f"p/{STATE}": 0o644}
