"""The index of words: with it and without it, a query has the same answer; what it skips is not read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.logs.kql.evaluate import answer
from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.sql import words
from fairlead.logs.kql.sql.functions import EXACT
from fairlead.logs.kql.sql.relation import StoreTables
from fairlead.logs.kql.sql.text import quoted
from fairlead.logs.kql.typed import Col, Const
from fairlead.logs.store import Store
from support.depth import cases

pytestmark = pytest.mark.requires("chdb")
_COLUMNS = "TimeGenerated, RawData, Computer, SourceTable, IngestTime, FileId, Offset, End"


def fill(store: Store, texts: list[str]) -> None:
    """Rows of these texts, in their order."""
    rows = ", ".join(
        f"(toDateTime64(1772400000 + {num}, 9), {quoted(text)}, 'gpu01', 'syslog_raw_CL', "
        f"toDateTime64(1772400000, 3), 7, {num}, {num + 1})"
        for num, text in enumerate(texts)
    )
    store.session.query(f"INSERT INTO Logs ({_COLUMNS}) VALUES {rows}")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path_factory.mktemp("words") / "store")
    yield made
    made.close()


PIECES = [
    "carrier", "Carrier", "xid", "XID", "deadbeef", "deadbee", "face12book", "0x55d1a0c0ffee", "a3f09c12", "gpu0417",
    "gpu",     "79", "4711", "facade", "ost", "carr", "k", "\u212a", "\u017f", "diſk", "disk", "é", "–", "٣", "ß", "x",
    "failed", "0", "zz", "İ", "\x00", "\ufffd", "abcdef0", "2026-11-24T10:00:00.123456Z", "mlx5_core",
]  # fmt: skip
BETWEEN = ["", " ", "_", "-", ":", ".", "\n", "%", "/", "'", "\\"]
TEXTS = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(BETWEEN)), max_size=5).map(
    lambda parts: "".join(piece + between for piece, between in parts)
)
SIGNS = ["contains", "contains_cs", "has", "has_cs", "hasprefix", "hasprefix_cs", "hassuffix", "hassuffix_cs"]


@given(st.lists(TEXTS, min_size=4, max_size=12), st.lists(TEXTS.filter(bool), min_size=2, max_size=4))
@settings(max_examples=cases(40))
def test_an_index_changes_no_answer(store: Store, texts: list[str], needles: list[str]) -> None:
    store.session.query("TRUNCATE TABLE Logs")
    fill(store, texts)
    shown = []
    for sign in SIGNS:
        for needle in needles:
            typed = [Col(0, Kind.STRING, "RawData"), Const(needle, Kind.STRING)]
            for sql in ("`RawData`", words.Searched("`RawData`")):
                test = EXACT[sign]([sql, ""], typed)
                shown.append(f"(SELECT groupArray(Offset) FROM (SELECT Offset FROM Logs WHERE {test} ORDER BY Offset))")
    (found,) = store.engine.rows(f"SELECT {', '.join(shown)}")
    assert found[::2] == found[1::2], [
        (sign, needle, plain, indexed)
        for (sign, needle), plain, indexed in zip(
            [(sign, needle) for sign in SIGNS for needle in needles], found[::2], found[1::2], strict=True
        )
        if plain != indexed
    ]


def _skipped(store: Store, query: str) -> tuple[object, str]:
    """The first value of the answer, and how the engine would find it."""
    tables = StoreTables(store.engine)
    said = answer(query, tables).rows[0][0]
    plan = store.session.query(f"EXPLAIN indexes = 1 {tables.asked[-1]}", "TSV").bytes().decode()
    return said, plan


@pytest.mark.parametrize(
    ("test", "num"),
    [
        ("RawData has 'carrier'", 1), ("RawData has 'CARRIER'", 1), ("RawData contains 'ost Carr'", 1),
        ("RawData has 'ib0: Lost'", 1), ("RawData hasprefix 'carri'", 1), ("RawData has 'gpu0417'", 1),
        ("RawData has 'carrier' or RawData has 'zzyzx'", 1), ("RawData contains 'arrie'", 1),
    ],
)  # fmt: skip
def test_what_the_index_rules_out_is_not_read(store: Store, test: str, num: int) -> None:
    store.session.query("TRUNCATE TABLE Logs")
    fill(store, [f"session {line} closed" for line in range(30_000)] + ["gpu0417 ib0: Lost carrier"])
    said, plan = _skipped(store, f"Logs | where {test} | count")
    assert said == num
    if "Trivial count from text index" not in plan:
        assert f"Name: {words.NAME}" in plan
        assert "Granules: 1/" in plan.split(f"Name: {words.NAME}", 1)[1], plan


@pytest.mark.parametrize(
    "test", ["RawData has '79'", "RawData has 'dead'", "RawData contains 'rr'", "Computer has 'gpu01'"]
)
def test_what_the_index_does_not_know_is_looked_for_without_it(store: Store, test: str) -> None:
    store.session.query("TRUNCATE TABLE Logs")
    fill(store, ["Xid 79, dead, no carrier"])
    said, plan = _skipped(store, f"Logs | where {test} | count")
    assert said == 1
    assert words.NAME not in plan
