"""Files into a real store: each record once, whatever rotates, breaks off or is killed in between."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.cli.app import run
from fairlead.errors import FairleadError
from fairlead.logs import intake
from fairlead.logs.format import formats
from fairlead.logs.home import owned
from fairlead.logs.store import Store

pytestmark = pytest.mark.requires("chdb")


class Shelf:
    """A store and a folder of logs, by the command line."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store, self.logs, self.capsys = folder / "store", folder / "logs", capsys
        self.logs.mkdir(parents=True)

    def put(self, *words: object, status: int = 0) -> dict:
        found = self.call("import", *(words or (self.logs,)))
        assert found["exit"] == status, found
        return found

    def ask(self, kql: str) -> list[list]:
        return self.call("query", kql)["rows"]

    def call(self, verb: str, *words: object) -> dict:
        run(["logs", verb, "--store", str(self.store), "--json", *map(str, words)])
        return json.loads(self.capsys.readouterr().out)

    def raw(self) -> list[str]:
        return [row[0] for row in self.ask("Logs | sort by RawData asc | project RawData")]


@pytest.fixture
def shelf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shelf:
    return Shelf(tmp_path, capsys)


def aged(path: Path) -> Path:
    """A file that nobody has written to for an hour."""
    when = time.time() - 3600
    os.utime(path, (when, when))
    return path


def syslog(numbers: range, node: str = "gpu05") -> str:
    return "".join(f"2025-09-08T10:00:{num % 60:02d}.{num:06d}+00:00 {node} app[7]: line {num}\n" for num in numbers)


def test_an_import_again_adds_nothing_and_growth_adds_what_is_new(shelf: Shelf) -> None:
    log = shelf.logs / "syslog"
    log.write_text(syslog(range(100)))
    assert shelf.put()["records"] == 100
    assert shelf.put()["records"] == 0
    with log.open("a") as file:
        file.write(syslog(range(100, 130)) + "2025-09-08T10:00:00+00:00 gpu05 app[7]: half of a l")
    assert shelf.put()["records"] == 30, "a line without an end may still grow"
    with log.open("a") as file:
        file.write("ine\n")
    assert shelf.put()["records"] == 1
    assert shelf.ask("Logs | summarize count(), dcount(RawData)") == [[131, 131]]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_rotation_and_compression_add_nothing(shelf: Shelf, suffix: str, pack: object) -> None:
    log = shelf.logs / "syslog"
    log.write_text(syslog(range(50)))
    shelf.put()
    log.write_text(syslog(range(70)))  # grown between the last import and the rotation
    old = log.rename(shelf.logs / "syslog.1")
    log.write_text(syslog(range(1000, 1010)))
    assert shelf.put()["records"] == 20 + 10
    (shelf.logs / f"syslog.2{suffix}").write_bytes(pack(old.read_bytes()))
    old.unlink()
    log.rename(old)
    assert shelf.put()["records"] == 0
    assert shelf.ask("syslog_raw_CL | summarize count(), dcount(RawData)") == [[80, 80]]


def test_copytruncate_and_a_new_file_of_an_old_name_lose_nothing(shelf: Shelf) -> None:
    log = shelf.logs / "syslog"
    log.write_text(syslog(range(50)))
    shelf.put()
    shutil.copy(log, shelf.logs / "syslog.1")
    log.write_text(syslog(range(500, 505)))
    assert shelf.put()["records"] == 5
    job = aged_text(shelf.logs / "job_1.out", "#!banner\nfirst run\n")
    shelf.put()
    aged_text(job, "#!banner\nrun again, and longer than the first\n")
    assert shelf.put()["records"] == 2, "the same beginning is not the same file"


def aged_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return aged(path)


def test_files_that_say_the_same_are_each_their_own(shelf: Shelf) -> None:
    for node in ("gpu01", "gpu02"):
        for name in ("job_1.out", "job_2.out"):
            place = shelf.logs / node / name
            place.parent.mkdir(exist_ok=True)
            aged_text(place, "no CUDA device\n")
    assert shelf.put("--by-folder", shelf.logs)["records"] == 4
    assert shelf.put("--by-folder", shelf.logs)["records"] == 0
    rows = shelf.ask("slurmjobs_raw_CL | summarize count() by Computer | sort by Computer asc")
    assert rows == [["gpu01", 2], ["gpu02", 2]]


def test_what_a_line_says_is_in_columns(shelf: Shelf) -> None:
    for name, form in formats().items():
        suffix = {"job": "job_1.out", "sacct": "sacct.txt", "journald": "journal.json", "dmesg": "dmesg"}
        text = "\n".join(sample.line for sample in form.sample)
        aged_text(shelf.logs / suffix.get(name, f"{name}.log"), text + "\n")
    shelf.put("--boot", "2026-01-01T00:00:00", shelf.logs)
    ask = "syslog_raw_CL | where isnotempty(tostring(Fields.Xid)) | project Computer, tostring(Fields.Xid), TimeFrom"
    assert shelf.ask(ask) == [["gpu05", "79", "line"]]
    ask = "slurmctld_raw_CL | where JobId == 42 | project TimeGenerated, Level, tostring(Fields.Nodes)"
    assert shelf.ask(ask) == [["2025-09-08T21:11:36.0010000Z", "info", "gpu05"]]
    assert shelf.ask('sacct_CL | where Fields.State == "NODE_FAIL" | project JobId') == [[77]]
    union = "union slurmctld_raw_CL, slurmd_raw_CL, syslog_raw_CL | summarize count() by SourceTable"
    assert len(shelf.ask(union)) == 3
    names = [row[0] for row in shelf.ask("slurmctld_raw_CL | getschema | project ColumnName")]
    assert names[:4] == ["TimeGenerated", "RawData", "Computer", "FilePath"]


def test_hostile_lines_are_kept_and_shown_harmless(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        b"2025-09-08T10:00:00Z n app: '); DROP TABLE Logs; --", b"\x1b[2J\x1b]0;owned\x07", b"\xff\xfe\x00\x01 \xc3",
        b"x" * (10 << 20), b'{"RawData": "}', b"2099-01-01T00:00:00Z n app: later than now",
        b"z" + bytes(range(11, 256)),
    ]  # fmt: skip
    (shelf.logs / "syslog").write_bytes(b"\n".join(lines) + b"\n")
    (shelf.logs / os.fsdecode(b"bad\xff\x1bname.log")).write_bytes(b"hello\n")
    assert shelf.put()["records"] == len(lines) + 1
    assert shelf.put()["records"] == 0
    assert shelf.ask("Logs | where Cut > 0 | project Cut, strlen(RawData)") == [[9 << 20, 1 << 20]]
    assert shelf.ask("Logs | where TimeGenerated > now() | count") == [[0]]
    run(["logs", "query", "--store", str(shelf.store), "Logs | where Cut == 0 | project RawData, FilePath"])
    assert "\x1b" not in capsys.readouterr().out


def test_a_broken_archive_gives_what_it_has_and_says_so(shelf: Shelf) -> None:
    whole = gzip.compress(syslog(range(20_000)).encode())
    (shelf.logs / "syslog.1.gz").write_bytes(whole[: len(whole) // 2])
    (shelf.logs / "zero.gz").write_bytes(b"")
    (shelf.logs / "liar.gz").write_bytes(b"\x1f\x8bno gzip at all")
    os.mkfifo(shelf.logs / "pipe.log")
    found = shelf.put(status=_unknown())
    assert 1000 < found["records"] < 20_000
    assert sorted(Path(each["path"]).name for each in found["files"] if each["note"]) == ["liar.gz", "syslog.1.gz"]
    assert shelf.put(status=_unknown())["records"] == 0


def _unknown() -> int:
    from fairlead.records.verdict import Verdict, exit_of

    return int(exit_of(Verdict.UNKNOWN))


RULE = {
    "type": "Microsoft.Insights/dataCollectionRules",
    "properties": {
        "dataFlows": [{"streams": ["Custom-Text-mine_CL"], "destinations": ["w"], "outputStream": "Custom-mine_CL"}],
        "dataSources": {
            "logFiles": [{"filePatterns": ["/var/log/own/*.txt"], "format": "text", "streams": ["Custom-Text-mine_CL"]}]
        },
    },
}
"""The parts that Microsoft's reference of the resource asks for (dataFlows, dataSources.logFiles)."""


def test_rules_of_azure_say_the_table(shelf: Shelf, tmp_path: Path) -> None:
    place = shelf.logs / "gpu01/var/log/own/a.txt.1"
    place.parent.mkdir(parents=True)
    aged_text(place, "hello\n")
    rules = tmp_path / "rule.json"
    rules.write_text(json.dumps(RULE))
    shelf.put("--by-folder", "--rules", rules, shelf.logs)
    assert shelf.ask("mine_CL | project Computer, RawData") == [["gpu01", "hello"]]
    rules.write_text(
        json.dumps(RULE).replace('"Custom-mine_CL"', '"Custom-mine_CL", "transformKql": "source | take 1"')
    )
    assert shelf.call("import", "--rules", rules, shelf.logs)["error"]["code"] == "logs/rules"
    rules.write_text(json.dumps(RULE).replace("Custom-mine_CL", "Custom-x`; DROP TABLE Logs"))
    assert shelf.call("import", "--rules", rules, shelf.logs)["error"]["code"] == "logs/rules"


def test_one_process_has_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.logs.home._BUSY_S", 0.3)
    with owned(tmp_path / "store"), pytest.raises(FairleadError, match=str(os.getpid())) as busy:
        Store(tmp_path / "store")
    assert busy.value.code == "logs/busy"
    Store(tmp_path / "store").close()


def test_a_killed_import_loses_nothing_and_repeats_nothing(shelf: Shelf, tmp_path: Path) -> None:
    lines = 600_000
    (shelf.logs / "syslog").write_text(syslog(range(lines)))
    aged_text(shelf.logs / "job_1.out", "Traceback (most recent call last):\n  File\nValueError: no\n" * 40_000)
    argv = [sys.executable, "-m", "fairlead", "logs", "import", "--store", str(shelf.store), str(shelf.logs)]
    killed, seen = 0, [0]
    for wait_s in (0.2, 0.3, 0.0, 0.1, 0.05):
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        parts = shelf.store / "engine"
        before, until = _parts(parts), time.monotonic() + 60
        # after the first kill, which may come at any time, each waits until this run named its files and added a block
        while killed and _parts(parts) < before + 2 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(wait_s)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        seen.append(shelf.ask("Logs | count")[0][0] if (shelf.store / "owner.lock").is_file() else 0)
    assert killed >= 2, seen
    assert seen == sorted(seen)
    assert any(0 < num < lines + 40_000 for num in seen), f"a kill came in the middle: {seen}"
    assert shelf.put()["records"] == lines + 40_000 - seen[-1]
    by_table = "Logs | summarize count(), dcount(Offset) by SourceTable | sort by SourceTable asc"
    assert shelf.ask("Logs | summarize n = count() by SourceTable, Offset | where n > 1 | count") == [[0]]
    assert [row[:2] for row in shelf.ask(by_table)] == [["slurmjobs_raw_CL", 40_000], ["syslog_raw_CL", lines]]
    assert shelf.put()["records"] == 0


def _parts(engine: Path) -> int:
    return sum(name.startswith("all_") for _, below, _ in os.walk(engine) for name in below)


def test_a_block_of_the_shortest_lines_is_one_part(tmp_path):
    """What is one INSERT is one part: all of it is there, or nothing, also where a machine fails meanwhile."""
    line = b"Mar  2 10:59:59 a b:\n"
    (tmp_path / "log").write_bytes(line * (intake.BLOCK_BYTES // len(line)) + line * 3)
    store = Store(tmp_path / "store")
    (done,) = intake.take_in(store, [tmp_path / "log"], intake.Wish("node"))
    num = intake.BLOCK_BYTES // len(line)
    assert done.records == num + 3
    rows = str(store.session.query("SELECT rows FROM system.parts WHERE table = 'Logs' AND level = 0 ORDER BY rows"))
    store.close()
    assert max(map(int, rows.split())) >= num - 1
