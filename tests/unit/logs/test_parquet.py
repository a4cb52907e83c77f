"""The store as Parquet and back: each record once, and nothing of a file that is not whole and ours."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import compute
from pyarrow.parquet import read_table, write_table

from fairlead.cli.app import run
from fairlead.logs import parquet
from fairlead.logs.store import Store

pytestmark = pytest.mark.requires("chdb")


class Desk:
    """Two stores and a folder, by the command line."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.out = folder / "out"

    def call(self, store: str, verb: str, *words: object, status: int = 0) -> dict:
        run(["logs", verb, "--store", str(self.folder / store), "--json", *map(str, words)])
        found = json.loads(self.capsys.readouterr().out)
        assert found["exit"] == status, found
        return found

    def rows(self, store: str) -> list[list]:
        asked = "Logs | project-away IngestTime | extend Fields = tostring(Fields) | sort by FileId asc, Offset asc"
        return self.call(store, "query", asked)["rows"]


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    """A store with lines of three days, among them one of two lines and one with a job."""
    made = Desk(tmp_path, capsys)
    (tmp_path / "logs").mkdir()
    lines = [f"2025-09-0{1 + n % 3}T10:00:{n:02}.5+00:00 gpu05 app[7]: line {n} é" for n in range(30)]
    (tmp_path / "logs" / "syslog").write_text("\n".join(lines) + "\n")
    (tmp_path / "logs" / "slurmctld.log").write_text(
        "[2025-09-02T10:00:00.123] sched: Allocate JobId=4711 NodeList=gpu05 #CPUs=8 Partition=main\n"
    )
    assert made.call("a", "import", tmp_path / "logs")["records"] == 31
    return made


def test_an_export_is_the_same_store_elsewhere_and_its_files_are_not_read_again(desk: Desk) -> None:
    done = desk.call("a", "export", desk.out)
    assert [Path(each["path"]).name for each in done["files"]] == [
        "logs-2025-09-01.parquet", "logs-2025-09-02.parquet", "logs-2025-09-03.parquet", "files.parquet",
    ]  # fmt: skip
    assert done["records"] == 31
    assert desk.call("b", "import", desk.out)["records"] == 31
    assert desk.rows("b") == desk.rows("a")
    assert desk.call("b", "query", "slurmctld_raw_CL | project JobId, Computer")["rows"][0][0] == 4711
    for store in ("a", "b"):
        assert desk.call(store, "import", desk.out)["records"] == 0
        assert desk.call(store, "import", desk.folder / "logs")["records"] == 0
    with (desk.folder / "logs" / "syslog").open("a") as file:
        file.write("2025-09-05T10:00:00+00:00 gpu05 app[7]: new\n")
    assert desk.call("b", "import", desk.folder / "logs")["records"] == 1
    assert not [path for path in desk.out.iterdir() if path.name.startswith(".")]


def test_some_days_and_what_of_them_is_missing(desk: Desk) -> None:
    done = desk.call("a", "export", desk.out, "--since", "2025-09-02", "--until", "2025-09-02")
    assert (done["records"], len(done["files"])) == (11, 2)
    whole = read_table(desk.out / "logs-2025-09-02.parquet")
    half = desk.folder / "half.parquet"
    write_table(whole.slice(0, 5), half)
    assert desk.call("b", "import", half)["records"] == 5
    found = desk.call("b", "import", desk.out, half)
    assert found["records"] == 6, "what was there already is not added"
    write_table(pa.concat_tables([whole, whole]), half)
    assert desk.call("b", "import", half)["records"] == 0
    desk.call("a", "export", desk.out, "--since", "yesterday", status=2)
    desk.call("a", "export", desk.out, "--since", "2025-09-02", "--until", "2025-09-01", status=2)


def column(name: str, value: object):
    def changed(table: pa.Table) -> pa.Table:
        kind = table.schema.field(name).type
        at = table.schema.get_field_index(name)
        return table.set_column(at, pa.field(name, kind), pa.array([value] * len(table), kind))

    return changed


BAD = {
    "no column End": lambda table: table.drop_columns(["End"]),
    "Offset is string": lambda table: table.set_column(
        table.schema.get_field_index("Offset"), "Offset", compute.cast(table["Offset"], pa.string())
    ),
    "FileId is out of its range": column("FileId", -1),
    "TimeGenerated is out of its range": column("TimeGenerated", -(10**19) // 4),
    "ends before it begins": column("Offset", 1 << 61),
    "RawData is missing": column("RawData", None),
    "no name of a table": column("SourceTable", "Logs` (SELECT 1) --"),
    "unpack to more than": column("RawData", "x" * (48 << 20)),
    "longer than any": column("RawData", "x" * (6 << 20)),
}


def test_a_file_that_is_not_ours_is_refused_whole(desk: Desk) -> None:
    desk.call("a", "export", desk.out, "--since", "2025-09-02", "--until", "2025-09-02")
    table = read_table(desk.out / "logs-2025-09-02.parquet")
    bad = desk.folder / "bad.parquet"
    with contextlib.closing(Store(desk.folder / "empty")) as store:
        for why, changed in BAD.items():
            write_table(changed(table), bad)
            with pytest.raises(parquet.NotOurs, match=why):
                parquet.take(store, bad)
        assert next(store.engine.rows("SELECT count() FROM Logs")) == [0]


def test_junk_and_a_file_that_is_cut_are_one_sentence_and_keep_no_other_out(desk: Desk) -> None:
    desk.call("a", "export", desk.out)
    whole = (desk.out / "logs-2025-09-02.parquet").read_bytes()
    (desk.out / "logs-2025-09-02.parquet").write_bytes(whole[: len(whole) // 2])
    (desk.out / "junk.parquet").write_bytes(b"2025-09-02T10:00:00+00:00 gpu05 app[7]: a log under a wrong name\n")
    found = desk.call("b", "import", desk.out, status=4)
    assert found["records"] == 20
    notes = {Path(each["path"]).name: each["note"] for each in found["files"] if each["note"]}
    assert set(notes) == {"logs-2025-09-02.parquet", "junk.parquet"}
    assert all("no whole file of Parquet" in note and "\n" not in note for note in notes.values())
    with contextlib.closing(Store(desk.folder / "c")) as store:
        for at in range(0, len(whole), len(whole) // 40):
            (desk.out / "junk.parquet").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
            with contextlib.suppress(parquet.NotOurs):
                parquet.take(store, desk.out / "junk.parquet")
