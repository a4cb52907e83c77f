"""Files of logs that are something else: pipes, bombs, names that change hands between two looks."""

from __future__ import annotations

import bz2
import gzip
import os
import stat

import pytest

from fairlead.logs import reading


@pytest.mark.parametrize("name", ["pipe", "pipe.gz"])
@pytest.mark.timeout(10)
def test_a_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match="not a regular file"):
        reading.look(tmp_path / name)


@pytest.mark.timeout(10)
def test_a_packed_file_is_not_looked_up_twice(tmp_path, monkeypatch):
    """Between the look at the first bytes and the unpacking, somebody puts a pipe, or a link, in its place."""
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a line\n"))
    real = os.fstat

    def exchanged(fd: int) -> os.stat_result:
        found = real(fd)
        if stat.S_ISREG(found.st_mode) and path.is_file():
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "fstat", exchanged)
    with reading.opened(path) as file:
        assert file.read() == b"a line\n"


def test_a_bomb_is_read_to_the_limit_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "FREE", 4 << 20)
    path = tmp_path / "a.bz2"
    path.write_bytes(bz2.compress(bytes(40 << 20)))
    assert path.stat().st_size < 1000
    problems: list[str] = []
    with reading.opened(path) as file:
        lines = list(reading.lines(file, 0, problems, whole=True))
        assert file.tell() <= (4 << 20) + 2 * reading.CHUNK
    assert len(lines) == 1
    assert "times its length" in problems[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link that belongs to another user")
@pytest.mark.parametrize("leads", ["file", "folder"])
def test_a_link_of_a_stranger_is_not_followed_whenever_it_was_laid(tmp_path, leads):
    """Between the walk and the reading a folder's owner puts a link in the place of a file, or of a folder."""
    secret, logs = tmp_path / "secret", tmp_path / "logs"
    secret.mkdir()
    (secret / "a.log").write_text("precious\n")
    (logs / "d").mkdir(parents=True)
    (logs / "d/a.log").write_text("harmless\n")
    (found,) = reading.files_below([logs])
    (logs / "d/a.log").unlink()
    laid, target = (logs / "d/a.log", secret / "a.log") if leads == "file" else (logs / "d", secret)
    if leads == "folder":
        laid.rmdir()
    laid.symlink_to(target)
    os.chown(laid, 65534, 65534, follow_symlinks=False)
    with pytest.raises(PermissionError, match="it is a link that belongs to"):
        reading.look(found)
    with pytest.raises(PermissionError):
        reading.tail(found, 9)
    os.chown(laid, os.geteuid(), -1, follow_symlinks=False)
    assert reading.look(found).head == b"precious\n", "a link of one's own is"
