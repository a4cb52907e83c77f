from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from fairlead.base import trust
from fairlead.base.trust import (
    NotAFile,
    NotOurs,
    TooLarge,
    beneath,
    own_folder,
    read_file,
    search_path,
    trusted_uids,
    why_not_ours,
)

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def stranger(path):
    """Of another user from now on."""
    os.lchown(path, STRANGER, STRANGER)
    return path


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_of_ones_own_is_made_for_oneself_alone(tmp_path):
    before = os.umask(0)
    try:
        own_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)
    assert own_folder(tmp_path / "a" / "b") == str(tmp_path / "a" / "b"), "and is there the second time"


@pytest.mark.parametrize("rights", [0o777, 0o1777, 0o702, 0o775])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, rights):
    (tmp_path / "a").mkdir()
    if rights & 0o020:
        os.chown(tmp_path / "a", -1, STRANGER) if os.geteuid() == 0 else pytest.skip("needs a group of others")
    (tmp_path / "a").chmod(rights)
    with pytest.raises(NotOurs, match="may write to it"):
        own_folder(tmp_path / "a")
    if not rights & stat.S_ISVTX:
        with pytest.raises(NotOurs, match="may write to it") as caught:
            own_folder(tmp_path / "a" / "b")
        assert caught.value.filename == str(tmp_path / "a"), "the step is named"
        assert not (tmp_path / "a" / "b").exists()


def test_in_a_place_such_as_tmp_everybody_keeps_what_is_his_own(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    own_folder(tmp_path / "tmp" / "mine")
    assert why_not_ours(tmp_path / "tmp" / "mine") == ""


@as_root
def test_a_folder_that_another_user_made_first_is_refused(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    stranger_made = tmp_path / "tmp" / "fairlead-0"
    stranger_made.mkdir(mode=0o700)
    stranger(stranger_made)
    for path in (stranger_made, stranger_made / "runs"):
        with pytest.raises(NotOurs, match=f"belongs to user {STRANGER}"):
            own_folder(path)


@as_root
def test_a_folder_of_ours_inside_another_users_is_no_place_of_ours(tmp_path):
    (tmp_path / "home" / "runs").mkdir(parents=True)
    stranger(tmp_path / "home")
    with pytest.raises(NotOurs) as caught:
        own_folder(tmp_path / "home" / "runs")
    assert caught.value.filename == str(tmp_path / "home")


@as_root
def test_another_users_link_leads_nowhere_and_ones_own_does(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "safe").mkdir()
    link = tmp_path / "tmp" / "runs"
    link.symlink_to(tmp_path / "safe")
    own_folder(link)
    assert own_folder(link / "x")
    stranger(link)
    with pytest.raises(NotOurs, match="a link that belongs to"):
        own_folder(link)
    with pytest.raises(NotOurs, match="a link that belongs to"):
        own_folder(link / "new")
    assert not (tmp_path / "safe" / "new").exists()


def test_links_are_followed_as_the_kernel_does(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "far").symlink_to("a/b")
    own_folder(tmp_path / "far" / ".." / "c")
    assert (tmp_path / "a" / "c").is_dir(), "`..` is where the link led, not where it stands"
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match=r"[Ss]ymbolic links"):
        own_folder(tmp_path / "round")


def test_a_file_in_the_way_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(NotADirectoryError):
            own_folder(path)


@as_root
def test_under_sudo_its_caller_counts_and_for_nobody_else(tmp_path, monkeypatch):
    stranger(tmp_path)
    assert why_not_ours(tmp_path)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert why_not_ours(tmp_path) == ""
    monkeypatch.setattr(trust.os, "geteuid", lambda: STRANGER + 1)
    assert STRANGER not in trusted_uids(), "anybody could set the variable"
    for said in ("", "-1", "0x0", "٣", "9" * 5000):
        assert trusted_uids({"SUDO_UID": said}) == trusted_uids({})


# ---- below a folder --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def test_nothing_below_a_folder_leads_out_of_it(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    with opened(root) as fd:
        with beneath(fd, "a/b/name", make=True) as (here, name):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=here))
        assert (root / "a" / "b" / "name").exists()
        with pytest.raises(NotADirectoryError), beneath(fd, "link/name", make=True):
            pass
        for path in ("../outside/name", "a/../../name", "..", "", "/", "a/.."):
            with pytest.raises(ValueError, match="names no place"), beneath(fd, path, make=True):
                pass
    assert list(outside.iterdir()) == []


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_file(path, 100) == b"x" * 100
    with pytest.raises(TooLarge, match="larger than 99 bytes"):
        read_file(path, 99)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", 1)


def test_a_pipe_a_device_or_a_folder_is_no_file_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(NotAFile):
            read_file(path, 1 << 20)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path, 1)


def test_a_file_that_others_could_have_written_is_not_ours(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text("x")
    path.chmod(0o644)
    assert read_file(path, 9, ours=True) == b"x"
    path.chmod(0o646)
    with pytest.raises(NotOurs, match="everybody may write"):
        read_file(path, 9, ours=True)
    assert read_file(path, 9) == b"x"


@as_root
def test_another_users_file_is_not_ours_nor_is_his_link_to_ours(tmp_path):
    mine, his, link = tmp_path / "mine", tmp_path / "his", tmp_path / "link"
    for path in (mine, his):
        path.write_text("x")
    link.symlink_to(mine)
    stranger(his)
    stranger(link)
    for path in (his, link):
        with pytest.raises(NotOurs, match=f"belongs to user {STRANGER}"):
            read_file(path, 9, ours=True)
    with pytest.raises(OSError, match=r"[Ss]ymbolic links"):
        read_file(link, 9, follow=False)


# ---- programs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["", ":", ".", "bin", ":/usr/bin", "/usr/bin:", "/usr/bin::/bin", "./x:../y"])
def test_the_current_directory_is_never_searched(said):
    found = search_path({"PATH": said}, "/sbin").split(":")
    assert all(part.startswith("/") for part in found)
    assert "/sbin" in found
    assert "/usr/bin" in search_path({}).split(":")


def test_folders_that_somebody_removes_meanwhile_are_made_again(tmp_path):
    place, stop = tmp_path / "a" / "b" / "c", threading.Event()

    def remove_empty_ones() -> None:
        while not stop.is_set():
            for path in (place.parent, place.parent.parent):
                with contextlib.suppress(OSError):
                    path.rmdir()
            time.sleep(0.0002)

    other = threading.Thread(target=remove_empty_ones)
    other.start()
    try:
        for _ in range(300):
            own_folder(place)
            place.rmdir()
    finally:
        stop.set()
        other.join()
