"""`fairlead logs query` from the command line: documents, files of queries, faces; and what it costs a bare machine."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fairlead.cli.app import run
from fairlead.logs.kql.script import parted


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = run(["logs", "query", *words])
    out = capsys.readouterr()
    return status, out.out, out.err


def test_a_document_has_columns_with_types_and_rows_in_kustos_text(capsys: pytest.CaptureFixture[str]) -> None:
    query = """print b = true, i = int(7), l = 9223372036854775807, r = 0.5, n = real(nan), d = decimal(1.10), s = "x",
        t = datetime(2020-01-02 03:04:05.678), p = -1d - 90m, g = guid(AAAAAAAA-0000-0000-0000-000000000001),
        o = dynamic({"a": [1, null, "x"]}), z = long(null), e = "" """
    status, out, _ = asked(capsys, "--json", query)
    found = json.loads(out)
    kinds = "bool int long real real decimal string datetime timespan guid dynamic long string"
    assert (status, found["schema"], found["verdict"]) == (0, "fairlead.query/1", "pass")
    assert " ".join(column["type"] for column in found["columns"]) == kinds
    assert found["rows"] == [
        [
            True, 7, 9223372036854775807, 0.5, "NaN", "1.10", "x", "2020-01-02T03:04:05.6780000Z", "-1.01:30:00",
            "aaaaaaaa-0000-0000-0000-000000000001", '{"a":[1,null,"x"]}', None, "",
        ]
    ]  # fmt: skip


def test_a_mistake_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = asked(capsys, "--json", "print strlne(1)")
    problem = json.loads(out)["error"]["problems"][0]
    assert (status, problem["code"], problem["line"], problem["column"]) == (2, "kql/unknown-name", 1, 7)
    assert "strlen" in problem["hint"]


def test_a_mistake_for_people_has_a_caret(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = asked(capsys, "print 1 | tak 2")
    assert (status, out) == (2, "")
    assert "query:1: no operator `tak`\n    1 | print 1 | tak 2\n      |           ^^^ did you mean `take`?" in err


def test_a_file_of_queries_is_one_process_and_one_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "many.kql"
    file.write_text(
        "// first\nprint a = 1\n\nlet n = 2;\n\nprint b = n\n| extend c = b * 2\n\nprint oops(\n\nprint 'x\ty'\n"
    )
    status, out, _ = asked(capsys, "--json", "--file", str(file))
    found = json.loads(out)["results"]
    assert status == 2
    assert [r.get("rows") for r in found[:2]] == [[[1]], [[2, 4]]]
    assert len(found) == 3  # an open bracket goes on to the end
    assert found[2]["error"]["code"] == "kql/syntax"


@pytest.mark.parametrize("name", ["q.json", "q.jsonl"])
def test_a_file_of_json(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    items: list[object] = ["print 1", {"id": "two", "query": "print\n\n2"}]
    text = json.dumps(items) if name == "q.json" else "\n".join(map(json.dumps, items))
    (tmp_path / name).write_text(text)
    status, out, _ = asked(capsys, "--json", "--file", str(tmp_path / name))
    found = json.loads(out)["results"]
    assert (status, [r["rows"] for r in found], found[1]["id"]) == (0, [[[1]], [[2]]], "two")


def test_one_query_in_a_file_answers_as_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "one.kql").write_text("print 1")
    _, out, _ = asked(capsys, "--json", "--file", str(tmp_path / "one.kql"))
    assert json.loads(out)["rows"] == [[1]]


def test_where_blank_lines_part_queries() -> None:
    assert parted("print 1\n\n\nprint 2\n") == ["print 1", "print 2"]
    assert parted("print 1\n\n| take 1") == ["print 1\n\n| take 1"]
    assert parted("let a = 1;\n\nprint a\n\n// only a remark\n") == ["let a = 1;\n\nprint a"]
    assert parted("datatable(a:string)[\n\n'x'\n\n]\n\nprint 2") == ["datatable(a:string)[\n\n'x'\n\n]", "print 2"]
    assert parted("print ```a\n\nb```\n\nprint 2") == ["print ```a\n\nb```", "print 2"]


def test_csv_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = asked(capsys, "--format", "csv", """print a = 'x,"y"', b = 1h, c = long(null)""")
    assert list(csv.reader(io.StringIO(out))) == [["a", "b", "c"], ['x,"y"', "01:00:00", ""]]


def test_a_chart_for_a_terminal_and_as_svg(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    query = (
        "range t from datetime(2020-01-01) to datetime(2020-01-02) step 1h | extend y = hourofday(t) | render timechart"
    )
    _, out, _ = asked(capsys, query)
    assert "█" in out
    assert "2020-01-01T00:00:00 to 2020-01-02T00:00:00" in out
    status, out, _ = asked(capsys, "--format", "svg", "--out", str(tmp_path / "a.svg"), query)
    assert (status, out) == (0, f"25 rows in {tmp_path / 'a.svg'}\n")
    assert ET.fromstring((tmp_path / "a.svg").read_text()).tag.endswith("svg")
    assert asked(capsys, "--format", "svg", "print 1")[0] == 2


def test_bars_of_groups(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = asked(capsys, 'datatable(n:string, x:long)["n1", 30, "n2", 15] | render barchart')
    bars = [line.count("█") for line in out.splitlines() if "█" in line]
    assert bars[0] == 2 * bars[1] > 0


@pytest.mark.requires("chdb")
def test_parquet_reads_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    file = tmp_path / "a.parquet"
    query = "print t = datetime(2020-01-01), p = 1h, l = 5, s = 'x', d = dynamic([1]), z = real(null)"
    assert asked(capsys, "--format", "parquet", "--out", str(file), query)[0] == 0
    (row,) = pq.read_table(file).to_pylist()
    assert (row["t"].isoformat(), row["p"].total_seconds()) == ("2020-01-01T00:00:00+00:00", 3600)
    assert (row["l"], row["s"], row["d"], row["z"]) == (5, "x", "[1]", None)
    assert asked(capsys, "--format", "parquet", query)[0] == 2


def test_a_text_from_outside_cannot_move_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = asked(capsys, r"print x = '\u001b[2Jowned\u202e'")
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "owned" in out


def test_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    query = "declare query_parameters(node:string); print node"
    _, out, _ = asked(capsys, "--json", "--param", "node=n1' | take 0 //", query)
    assert json.loads(out)["rows"] == [["n1' | take 0 //"]]
    assert asked(capsys, "--param", "node", query)[0] == 2


def test_a_bare_machine_needs_no_extra() -> None:
    """No engine, no array library: neither is imported, so neither is needed."""
    code = (
        "import sys\nfor m in ('chdb', 'pyarrow', 'numpy', 'pandas', 'torch'): sys.modules[m] = None\n"
        "from fairlead.cli.app import run\nsys.exit(run(['logs', 'query', '--json', 'print 1 | summarize count()']))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (out.returncode, json.loads(out.stdout)["rows"]) == (0, [[1]])
