from __future__ import annotations

import errno
import os
import stat

import pytest

from fairlead.base import files
from fairlead.base.files import check_place, disk_errors, own_place, write_atomic
from fairlead.errors import DiskFull, Exit, NotPermitted


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_written_whole_with_its_parents_and_its_mode(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_atomic(path, "µ\n", mode=0o600)
    assert path.read_bytes() == b"\xc2\xb5\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(path.parent) == ["file"]


def test_an_old_file_is_replaced_not_changed(tmp_path):
    path, link = tmp_path / "file", tmp_path / "hard-link"
    path.write_text("old")
    os.link(path, link)
    write_atomic(path, "new")
    assert (path.read_text(), link.read_text()) == ("new", "old")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_temporary(number, tmp_path):
    with pytest.raises(DiskFull, match="no room left") as caught, disk_errors(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert (caught.value.code, caught.value.exit) == ("disk/full", Exit.RETRY)
    assert f"df -h {tmp_path}" in caught.value.hint


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EISDIR, errno.ENAMETOOLONG, errno.EIO])
def test_any_other_refusal_names_the_file_and_the_reason(number, tmp_path):
    with pytest.raises(NotPermitted, match=os.strerror(number)) as caught, disk_errors(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert caught.value.code == "disk/not-writable"
    assert str(tmp_path / "x") in caught.value.message


def test_failing_half_way_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DiskFull):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_an_interrupt_half_way_leaves_nothing_either(tmp_path, monkeypatch):
    def interrupted(fd):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", "new")
    assert names(tmp_path) == []


def test_a_folder_in_the_way_is_refused_and_kept(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(NotPermitted, match="cannot write"):
        write_atomic(tmp_path / "file", "new")
    assert names(tmp_path) == ["file"]


def test_a_file_where_a_folder_should_be_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(NotPermitted):
        write_atomic(tmp_path / "runs" / "x" / "file", "new")


def test_names_that_are_not_utf8_can_be_written_about(tmp_path):
    write_atomic(tmp_path / "file", "name \udcff")
    assert (tmp_path / "file").read_text() == "name ?"


def test_a_place_that_cannot_be_written_is_refused_beforehand(tmp_path):
    check_place(tmp_path / "new" / "report.html")
    assert list((tmp_path / "new").iterdir()) == [], "nothing is left there"
    for wrong in (tmp_path, tmp_path / "file" / "report.html"):
        (tmp_path / "file").write_text("")
        with pytest.raises(NotPermitted):
            check_place(wrong)


@pytest.mark.parametrize(("umask", "rights"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_callers_umask_is_honoured_and_a_link_is_replaced(tmp_path, umask, rights):
    (tmp_path / "precious").write_text("old")
    (tmp_path / "file").symlink_to(tmp_path / "precious")
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "file", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").lstat().st_mode) == rights
    assert ((tmp_path / "file").read_text(), (tmp_path / "precious").read_text()) == ("new", "old")


def test_what_is_kept_stands_only_where_nobody_else_can_write(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotPermitted, match="no place of your own: everybody may write to it") as caught:
        own_place(tmp_path / "open" / "state", elsewhere="set XDG_STATE_HOME")
    assert caught.value.code == "disk/not-ours"
    assert caught.value.hint == f"set XDG_STATE_HOME, or see who may write: ls -ld {tmp_path / 'open'}"
    assert own_place(tmp_path / "mine") == tmp_path / "mine"
