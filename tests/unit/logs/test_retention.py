"""What goes from a store by its limits: whole days, the oldest first, said once, and never read again."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path

import pytest

from fairlead.cli.app import run
from fairlead.logs import schema
from fairlead.logs.kql.evaluate import answer
from fairlead.logs.kql.sql import words
from fairlead.logs.kql.sql.relation import StoreTables
from fairlead.logs.receive import Receiver
from fairlead.logs.retention import plan, trim
from fairlead.logs.store import Day, Store
from fairlead.logs.table import Logs

TODAY = dt.date(2026, 3, 10)
GIB = 1 << 30
DAYS = [Day(f"2026-03-{n:02}", f"202603{n:02}", 100, GIB) for n in (1, 5, 9, 10)]


@pytest.mark.parametrize(
    ("keep", "dropped", "over"),
    [
        (Logs(), [], 0),
        (Logs(keep_days=9), [], 0),
        (Logs(keep_days=8), [1], 0),
        (Logs(keep_days=1), [1, 5], 0),
        (Logs(max_gib=4), [], 0),
        (Logs(max_gib=3.9), [1], 0),
        (Logs(max_gib=1), [1, 5, 9], 0),
        (Logs(max_gib=0.5), [1, 5, 9], GIB // 2),
        (Logs(keep_days=8, max_gib=2), [1, 5], 0),
    ],
)
def test_the_oldest_days_go_and_the_current_one_stays(keep: Logs, dropped: list[int], over: int) -> None:
    found = plan(DAYS[::-1], keep, TODAY)
    assert [day.date for day, _ in found.drop] == [f"2026-03-{n:02}" for n in dropped]
    assert found.over_bytes == over


def test_a_clock_that_was_set_back_drops_nothing() -> None:
    assert plan(DAYS, Logs(keep_days=1, max_gib=0.1), dt.date(2026, 2, 1)).drop == []


class Shelf:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store, self.logs, self.capsys = folder / "store", folder / "syslog", capsys
        self.spec = folder / "cluster.toml"

    def say(self, keep: str) -> None:
        self.spec.write_text(
            f'schema = 1\n[access]\nvia = "local"\n[[pool]]\nname = "a"\nsize = "other"\nnodes = "n1"\n[logs]\n{keep}\n'
        )

    def put(self) -> dict:
        return self.call("import", "-f", self.spec, self.logs)

    def call(self, verb: str, *words: object) -> dict:
        run(["logs", verb, "--store", str(self.store), "--json", *map(str, words)])
        return json.loads(self.capsys.readouterr().out)

    def ask(self, kql: str) -> list[list]:
        return self.call("query", kql)["rows"]

    def grow(self, first: int, num: int) -> None:
        with self.logs.open("a") as file:
            file.writelines(f"2026-02-01T10:00:00Z n1 app: line {first + n}\n" for n in range(num))


@pytest.fixture
def shelf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shelf:
    return Shelf(tmp_path, capsys)


@pytest.mark.requires("chdb")
def test_what_was_dropped_is_said_once_and_not_read_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    days_ago = 40.0
    monkeypatch.setattr(time, "time", lambda: now - days_ago * 86_400)
    shelf.say("keep_days = 30")
    shelf.grow(0, 100)
    assert shelf.put()["records"] == 100
    days_ago = 5.0
    shelf.grow(100, 20)
    found = shelf.put()
    assert found["records"] == 20
    assert [each["records"] for each in found["kept"]["dropped"]] == [100]
    assert "older than keep_days = 30" in found["kept"]["dropped"][0]["why"]
    assert shelf.ask("syslog_raw_CL | summarize count(), min(RawData)") == [
        [20, "2026-02-01T10:00:00Z n1 app: line 100"]
    ]
    said = shelf.ask("collect_CL | project tolong(Fields.DroppedRecords), Level, RawData")
    assert said[0][:2] == [100, "warning"]
    assert "keep_days" in said[0][2]
    found = shelf.put()
    assert (found["records"], found["kept"]["dropped"]) == (0, [])
    # also where all of a file has gone and nothing but the store knows how far it was read
    days_ago = -60.0
    assert [each["records"] for each in shelf.put()["kept"]["dropped"]] == [21]
    store = Store(shelf.store)
    try:
        store.session.query("TRUNCATE TABLE _files")
        assert [each.end for number, each in store.progress().items() if number > 1] == [shelf.logs.stat().st_size]
    finally:
        store.close()


@pytest.mark.requires("chdb")
def test_a_drop_that_was_broken_off_is_done_again_and_said_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    shelf.say("")
    shelf.grow(0, 10)
    shelf.put()
    store = Store(shelf.store)
    try:
        later = now + 3 * 86_400
        monkeypatch.setattr(time, "time", lambda: later)
        asked = store.session.query

        def killed(sql: str, *more: object) -> object:
            if "DROP PARTITION" in sql:
                raise KeyboardInterrupt
            return asked(sql, *more)

        monkeypatch.setattr(store.session, "query", killed)
        with pytest.raises(KeyboardInterrupt):
            trim(store, Logs(keep_days=1))
        monkeypatch.undo()
        monkeypatch.setattr(time, "time", lambda: later)
        assert [each.records for each in trim(store, Logs(max_gib=1e-9)).dropped] == [10]
        assert next(store.engine.rows("SELECT count(), countIf(SourceTable = 'collect_CL') FROM Logs")) == [1, 1]
        kept = trim(store, Logs(max_gib=1e-9))
        assert kept.over_bytes > 0
        assert "is kept" in kept.says
        later += 3 * 86_400  # and while an owner serves
        monkeypatch.setattr("fairlead.logs.receive.TRIM_S", 0.2)
        receiver = Receiver(store, keep=Logs())
        assert receiver.kept.dropped == []
        receiver.keep = Logs(keep_days=1)
        deadline = time.monotonic() + 30
        while not receiver.kept.dropped:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        receiver.close()
    finally:
        store.close()


BEFORE = """CREATE TABLE Logs (
TimeGenerated DateTime64(9, 'UTC'), RawData String, Computer LowCardinality(String), FilePath LowCardinality(String),
Level LowCardinality(String), Component LowCardinality(String), Pid Nullable(Int64), JobId Nullable(Int64),
Fields Map(LowCardinality(String), String), TimeFrom LowCardinality(String), Cut Int64,
IngestTime DateTime64(3, 'UTC'), SourceTable LowCardinality(String), FileId Int64, Offset Int64, End Int64)
ENGINE = MergeTree ORDER BY (SourceTable, TimeGenerated)"""
"""The table as it was before it was parted by days."""


@pytest.mark.requires("chdb")
def test_a_store_from_before_is_parted_by_its_days(tmp_path: Path) -> None:
    from chdb import session

    from fairlead.logs.home import owned

    with owned(tmp_path / "store"):
        old = session.Session(str(tmp_path / "store" / "engine"))
        old.query(BEFORE)
        old.query("INSERT INTO Logs (RawData, IngestTime, FileId, End, SourceTable) SELECT toString(number), "
                  "toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + toIntervalDay(number % 101), 7, number, "
                  "'syslog_raw_CL' FROM numbers(1000)")  # fmt: skip
        old.close()
    store = Store(tmp_path / "store")
    try:
        assert len(store.days()) == 101  # more than the engine takes in one INSERT, unless it is told
        assert sum(day.records for day in store.days()) == 1000
        assert store.progress()[7].end == 999
        assert next(store.engine.rows("SELECT count() FROM syslog_raw_CL")) == [1000]
        assert next(store.engine.rows(words.MADE)) == [1]
    finally:
        store.close()


@pytest.mark.requires("chdb")
def test_a_store_from_before_gets_an_index_of_its_words(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.session.query("DROP TABLE Logs")
    store.session.query(schema.local("Logs", indexed=False))
    store.session.query("INSERT INTO Logs (RawData, IngestTime, FileId, Offset, End, SourceTable) SELECT "
                        "if(number = 777, 'Lost carrier', 'closed'), now64(3), 7, number, number + 1, 'syslog_raw_CL' "
                        "FROM numbers(100000)")  # fmt: skip
    counted = "Logs | where RawData has 'carrier' | count"
    assert answer(counted, StoreTables(store.engine)).rows == [(1,)]
    store.close()
    store = Store(tmp_path / "store")
    try:
        assert next(store.engine.rows(words.MADE)) == [1]
        deadline = time.monotonic() + 30
        while not next(store.engine.rows(words.THERE))[0]:
            assert time.monotonic() < deadline
        tables = StoreTables(store.engine)
        assert answer(counted, tables).rows == [(1,)]
        assert words.NAME in store.session.query(f"EXPLAIN indexes = 1 {tables.asked[-1]}", "TSV").bytes().decode()
    finally:
        store.close()
