"""Archives of logs: what is in them as files of their names, and nothing of what else an archive can say."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from fairlead.cli.app import run
from fairlead.logs import archive, reading

LINE = b"2025-09-08T10:00:00+00:00 gpu05 app[7]: line %d\n"
PACKED = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}  # fmt: skip


def tar(*members: tuple[str, bytes] | tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member[0])
            data = b"" if isinstance(member, tarfile.TarInfo) else member[1]
            info.size, info.mtime = len(data), 1757325600
            made.addfile(info, io.BytesIO(data))
    return out.getvalue()


def link(name: str, to: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def taken(folder: Path, data: bytes) -> tuple[dict[str, bytes], list[str]]:
    """What an archive holds, and what is said of it; all of it below the folder."""
    path, inside = folder / "a.tar", folder / "inside"
    path.write_bytes(data)
    inside.mkdir(exist_ok=True)
    problems: list[str] = []
    found = {str(each.path.relative_to(path)): each.at.read_bytes() for each in archive.members(path, inside, problems)}
    assert {each.name for each in folder.iterdir()} == {"a.tar", "inside"}
    for each in inside.iterdir():
        each.unlink()
    return found, problems


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_files_whatever_packs_them(tmp_path: Path, suffix: str, form: int) -> None:
    sizes = {"var/log/syslog": (1 << 20) + 700, "empty": 0, "block": 512, "/n" + "x" * 90: 1, "two": 1024}
    data = {name: os.urandom(size) for name, size in sizes.items()}
    found, problems = taken(tmp_path, PACKED[suffix](tar(*data.items(), form=form)))
    assert found == {name.lstrip("/"): value for name, value in data.items()}
    assert not problems


def test_names_that_climb_links_and_devices_stay_out(tmp_path: Path) -> None:
    (tmp_path.parent / "outside").unlink(missing_ok=True)
    found, problems = taken(
        tmp_path,
        tar(
            ("ok", b"1"), ("../outside", b"2"), ("a/../../outside", b"3"), link("l", "/etc/passwd", tarfile.SYMTYPE),
            link("h", "ok", tarfile.LNKTYPE), link("d", "", tarfile.CHRTYPE), link("p", "", tarfile.FIFOTYPE),
            ("l", b"4"), ("ok", b"5"),
        ),
    )  # fmt: skip
    assert found == {"ok": b"5", "l": b"4"}
    assert problems == ["6 members are no plain files, or have names that climb: left out"]
    assert not (tmp_path.parent / "outside").exists()


def test_bombs_end_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FREE", 4 << 20)
    bomb = bz2.compress(tar(("a", b"line\n"), ("b", bytes(40 << 20))))
    found, problems = taken(tmp_path, bomb)
    assert found == {"a": b"line\n"}
    assert problems == ["it unpacks to more than 1,000 times its length"]
    header = bytearray(tar(("a", b"")))
    header[156:157] = b"x"  # attributes of a gigabyte
    header[124:136] = b"%011o\0" % (1 << 30)
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))
    found, problems = taken(tmp_path, bytes(header) + bytes(1 << 20))
    assert not found
    assert problems == ["a header in it is too long"]
    monkeypatch.setattr(archive, "MEMBERS", 3)
    found, problems = taken(tmp_path, tar(*((str(n), b"x") for n in range(9))))
    assert len(found) == 3
    assert problems == ["it has more than 3 members"]


def test_what_is_cut_or_damaged_says_so_and_gives_what_is_whole(tmp_path: Path) -> None:
    plain = tar(*((str(n), os.urandom(30_000)) for n in range(8)))
    for suffix, pack in PACKED.items():
        data = pack(plain)
        found, problems = taken(tmp_path, data[: len(data) // 2])
        assert len(found) < 8
        assert problems, suffix
        for at in range(0, len(data), len(data) // 7):
            taken(tmp_path, data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])


@pytest.mark.requires("chdb")
def test_an_archive_is_imported_once_and_again_when_it_has_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def put(*words: object, status: int = 0) -> dict:
        run(["logs", "import", "--store", str(tmp_path / "store"), "--json", *map(str, words)])
        found = json.loads(capsys.readouterr().out)
        assert found["exit"] == status, found
        return found

    def lines(*numbers: int) -> bytes:
        return b"".join(LINE % n for n in range(*numbers))

    logs = tmp_path / "logs"
    logs.mkdir()
    path = logs / "site.tar.gz"
    path.write_bytes(
        gzip.compress(tar(("gpu05/var/log/syslog", lines(90)), ("gpu06/x.out.zst", PACKED[".zst"](b"hi\n"))))
    )
    (logs / "plain.zst").write_bytes(PACKED[".zst"](lines(5)))
    assert put("--by-folder", logs / "site.tar.gz", logs)["records"] == 96
    assert put("--by-folder", logs / "site.tar.gz", logs)["records"] == 0
    path.write_bytes(gzip.compress(tar(("gpu05/var/log/syslog", lines(120)), ("../x", b"no\n"))))
    found = put("--by-folder", path, status=4)
    assert found["records"] == 30
    assert [each["note"] for each in found["files"] if each["note"]] == [
        "1 members are no plain files, or have names that climb: left out"
    ]
    run(["logs", "query", "--store", str(tmp_path / "store"), "--json",
         "Logs | where FilePath endswith 'syslog' | summarize count() by FilePath, SourceTable"])  # fmt: skip
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows == [[f"{path}/gpu05/var/log/syslog", "syslog_raw_CL", 120]]


def test_an_odd_time_of_one_member_costs_none_of_the_others(tmp_path: Path) -> None:
    packed = tmp_path / "a.tar"
    with tarfile.open(packed, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, when in (("a.log", "1"), ("b.log", "nan"), ("c.log", "-inf"), ("d.log", "inf"), ("e.log", "1")):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = 2, {"mtime": when}
            tar.addfile(info, io.BytesIO(b"x\n"))
    (tmp_path / "out").mkdir()
    problems: list[str] = []
    found = list(archive.members(packed, tmp_path / "out", problems))
    assert ([member.path.name[0] for member in found], problems) == (list("abcde"), [])
