"""The prompt: what it completes, when a line goes on, what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.logs.kql.complete import candidates


def test_operators_behind_a_bar() -> None:
    assert candidates("T | mv-") == ["mv-apply", "mv-expand"]
    assert "where" in candidates("T\n| ")


def test_tables_where_a_query_begins() -> None:
    assert candidates("Sys", ["Syslog", "slurmd_raw_CL"]) == ["Syslog"]
    assert candidates("let a = 1; pri") == ["print"]


def test_functions_inside() -> None:
    assert candidates("T | where strl") == ["strlen"]
    assert "count_distinct" in candidates("T | summarize count")


def test_charts_plugins_and_kinds_of_joins() -> None:
    assert candidates("T | render time") == ["timechart"]
    assert candidates("T | evaluate bag") == ["bag_unpack"]
    assert candidates("T | join kind=leftse") == ["leftsemi"]


@pytest.mark.requires("chdb")
def test_lines_go_on_while_something_is_open(tmp_path: Path) -> None:
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    from fairlead.logs.kql.prompt import ask

    found: list[str] = []
    history = tmp_path / "state" / "kql-history"
    with create_pipe_input() as keys:
        keys.send_text("print 1\rdatatable(a:long)[\r1] |\rcount\r\x04")
        ask(found.append, history, input=keys, output=DummyOutput())
    assert found == ["print 1", "datatable(a:long)[\n1] |\ncount"]
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+print 1" in history.read_text()
