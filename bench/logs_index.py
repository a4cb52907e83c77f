"""Whether an index of the text pays: size and speed of searches in `Logs` without one and with each the engine has.

    python bench/logs_index.py [--rows 2000000] [--turns 5]

The rows are lines of 512 hosts with many numbers in them; what is searched stands in all, in one of 1,000, in one of
500,000, or nowhere. Searches ignore case, as KQL's `has` and `contains` do; the last ones are asked as KQL asks them.
All kinds are asked in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from chdb import session

from fairlead.logs import schema
from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.sql import words
from fairlead.logs.kql.sql.functions import EXACT
from fairlead.logs.kql.sql.text import named
from fairlead.logs.kql.typed import Col, Const

KINDS = {
    "none": "",
    "ngrambf_v1(4, 4096, 2, 0) GRANULARITY 1": "INDEX i lower(RawData) TYPE ngrambf_v1(4, 4096, 2, 0) GRANULARITY 1",
    "ngrambf_v1(3, 65536, 3, 0) GRANULARITY 4": "INDEX i lower(RawData) TYPE ngrambf_v1(3, 65536, 3, 0) GRANULARITY 4",
    "tokenbf_v1(32768, 3, 0) GRANULARITY 1": "INDEX i lower(RawData) TYPE tokenbf_v1(32768, 3, 0) GRANULARITY 1",
    "the store's own": words.INDEX,
    "text (splitByNonAlpha)": "INDEX i lower(RawData) TYPE text(tokenizer = 'splitByNonAlpha')",
}
ASKED = {
    "term in one of 500,000": "hasToken(lower(RawData), 'nvlinkdown')",
    "term in one of 1,000": "hasToken(lower(RawData), 'xid')",
    "term in all": "hasToken(lower(RawData), 'line')",
    "term nowhere": "hasToken(lower(RawData), 'zzyzx')",
    "substring in one of 500,000": "lower(RawData) LIKE '%vlinkdow%'",
    "substring nowhere": "lower(RawData) LIKE '%oxyzzyo%'",
}
IN_KQL = [("has", "nvlinkdown"), ("contains", "vlinkdow"), ("has", "gpu417"), ("has", "31")]


def as_kql(sign: str, needle: str, *, indexed: bool) -> str:
    """The test that KQL asks, with the store's own index or without one."""
    column = words.Searched(named("RawData")) if indexed else named("RawData")
    return str(EXACT[sign]([column, ""], [Col(Kind.STRING, 0, "RawData"), Const(Kind.STRING, needle)]))


TEXT = """concat('2026-03-02T', formatDateTime(toDateTime(number), '%T'), '+00:00 gpu', toString(number % 512),
' daemon[', toString(cityHash64(number) % 30000), ']: ',
multiIf(number % 500000 = 77, 'NVLinkDown on link ', number % 1000 = 7,
'NVRM: Xid (PCI:0000:1a:00): 31, pid=', number % 3 = 0, 'session closed for user ', 'handled ping of '),
hex(cityHash64(number, 1)), ', line ', toString(number))"""


def made(engine: session.Session, name: str, index: str, rows: int) -> tuple[float, float, float]:
    """A table with an index: bytes a row of it all, bytes a row of the index, CPU seconds to fill it."""
    statement = schema.local("Logs", name, indexed=False)
    if index:
        statement = statement.replace(") ENGINE", f", {index}) ENGINE")
    engine.query(statement)
    began = time.process_time()
    for first in range(0, rows, 500_000):
        engine.query(
            f"INSERT INTO {name} (TimeGenerated, RawData, SourceTable, IngestTime, FileId, Offset, End) SELECT "
            f"toDateTime64(1772400000 + number / 100, 9), {TEXT}, 'syslog_raw_CL', toDateTime64(1772400000, 3), 7, "
            f"number * 100, number * 100 + 100 FROM numbers({first}, {min(500_000, rows - first)})"
        )
    engine.query(f"OPTIMIZE TABLE {name} FINAL")
    spent = time.process_time() - began
    sizes = "sum(bytes_on_disk), sum(secondary_indices_compressed_bytes)"
    sql = f"SELECT {sizes} FROM system.parts WHERE active AND table = '{name}'"
    total, of_index = map(int, engine.query(sql, "TSV").bytes().split())
    return total / rows, of_index / rows, spent


def main() -> None:
    """Fill, ask in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = session.Session(str(Path(folder) / "engine"))
        engine.query("SET use_query_condition_cache = 0")  # it remembers where a question found nothing
        print("| index | bytes a row | of them the index | CPU s to fill and merge |\n|---|---:|---:|---:|", flush=True)
        for at, (kind, index) in enumerate(KINDS.items()):
            total, of_index, spent = made(engine, f"t{at}", index, args.rows)
            print(f"| {kind} | {total:.1f} | {of_index:.1f} | {spent:.1f} |", flush=True)
        print("\n| question | " + " | ".join(KINDS) + " |\n|---|" + "---:|" * len(KINDS), flush=True)
        asked = {what: [test] * len(KINDS) for what, test in ASKED.items()}
        for sign, needle in IN_KQL:
            tests = [as_kql(sign, needle, indexed=index == words.INDEX) for index in KINDS.values()]
            asked[f"{sign} '{needle}' in KQL"] = tests
        for what, tests in asked.items():
            spent: list[list[float]] = [[] for _ in KINDS]
            found = set()
            for _ in range(args.turns):
                for at in range(len(KINDS)):
                    began = time.process_time()
                    found.add(engine.query(f"SELECT count() FROM t{at} WHERE {tests[at]}", "TSV").bytes())
                    spent[at].append((time.process_time() - began) * 1000)
            assert len(found) == 1, (what, found)  # an index changes no answer
            print(f"| {what} | " + " | ".join(f"{statistics.median(each):.0f}" for each in spent) + " |", flush=True)
        engine.close()


if __name__ == "__main__":
    main()
