"""What is asked of many rows: a term, the last hour, a substring, three hops of events within five minutes each.

    python bench/logs_query.py [--rows 100000000] [--turns 3]

Asked in KQL of the embedded store, from the text of the query to the rows of its answer; beside it DuckDB with the
same rows in a table of its own, and ripgrep over the same lines in a file, where they are installed. Three kinds of
rare lines follow each other on a host, one of each in 300,000 lines. CPU of ripgrep is its own, not counted here.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fairlead.logs.kql.evaluate import answer
from fairlead.logs.kql.relation import Limits
from fairlead.logs.kql.sql.relation import StoreTables
from fairlead.logs.store import Store

FIRST, PER_S = 1_772_400_000, 1000
_WORD = """multiIf(number % 300000 = 7, 'ib0: Lost carrier',
number % 300000 = 60007, 'NCCL WARN NET/IB: Got completion',
number % 300000 = 120007, 'slurmstepd: error: Detected failure',
number % 3 = 0, 'session closed for user ', 'handled ping of ')"""
TEXT = f"""concat(formatDateTime(toDateTime({FIRST} + intDiv(number, {PER_S}), 'UTC'), '%FT%T'), '+00:00 gpu',
toString(intDiv(number, 300000) % 512), ' daemon[', toString(cityHash64(number) % 30000), ']: ', {_WORD}, ' ',
hex(cityHash64(number, 1)))"""
HOPS = """let a = Logs | where RawData has 'carrier' | project Computer, t = TimeGenerated;
let b = Logs | where RawData has 'completion' | project Computer, u = TimeGenerated;
let c = Logs | where RawData has 'failure' | project Computer, v = TimeGenerated;
a | join kind=inner b on Computer | where u between (t .. t + 5m) | join kind=inner c on Computer
| where v between (u .. u + 5m) | count"""


def kql(rows: int) -> dict[str, str]:
    """The questions."""
    hour = f"datetime(1970-01-01) + {FIRST + rows // PER_S - 3600}s"
    return {
        "term": "Logs | where RawData has 'carrier' | count",
        "last hour": f"Logs | where TimeGenerated > {hour} | count",
        "substring": "Logs | where RawData contains 'ost carr' | count",
        "three hops": HOPS,
    }


def duck(rows: int) -> dict[str, str]:
    """The same in SQL of DuckDB."""
    hit = "SELECT Computer, TimeGenerated AS t FROM logs WHERE contains(lower(RawData), '{}')"
    parts = [hit.format(word) for word in ("carrier", "completion", "failure")]
    return {
        "term": r"SELECT count(*) FROM logs WHERE regexp_matches(RawData, '\bcarrier\b', 'i')",
        "last hour": f"SELECT count(*) FROM logs WHERE TimeGenerated > to_timestamp({FIRST + rows // PER_S - 3600})",
        "substring": "SELECT count(*) FROM logs WHERE contains(lower(RawData), 'ost carr')",
        "three hops": f"SELECT count(*) FROM ({parts[0]}) a JOIN ({parts[1]}) b USING (Computer) JOIN ({parts[2]}) c "
        "USING (Computer) WHERE b.t BETWEEN a.t AND a.t + INTERVAL 5 MINUTE "
        "AND c.t BETWEEN b.t AND b.t + INTERVAL 5 MINUTE",
    }


def filled(store: Store, rows: int) -> None:
    """So many rows, a million a block."""
    for first in range(0, rows, 1_000_000):
        store.session.query(
            "INSERT INTO Logs (TimeGenerated, RawData, Computer, SourceTable, IngestTime, FileId, Offset, End) SELECT "
            f"toDateTime64({FIRST}, 9) + number / {PER_S}, {TEXT}, "
            "concat('gpu', toString(intDiv(number, 300000) % 512)), 'syslog_raw_CL', "
            f"toDateTime64({FIRST}, 3), 7, number * 100, number * 100 + 100 "
            f"FROM numbers({first}, {min(1_000_000, rows - first)})"
        )


def timed(ask: Callable[[], object], turns: int) -> tuple[float, float, object]:
    """Milliseconds of the wall and of all processors, medians, and the answer."""
    wall, cpu = [], []
    for _ in range(turns):
        began, worked = time.perf_counter(), time.process_time()
        said = ask()
        wall.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - worked) * 1000)
    return statistics.median(wall), statistics.median(cpu), said


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    print("| who | question | wall ms | CPU ms | answer |\n|---|---|---:|---:|---:|")

    def say(who: str, what: str, ask: Callable[[], object]) -> None:
        wall, cpu, said = timed(ask, args.turns)
        print(f"| {who} | {what} | {wall:,.0f} | {cpu:,.0f} | {said} |", flush=True)

    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Store(Path(folder) / "store")) as store:
        filled(store, args.rows)
        store.session.query("SET use_query_condition_cache = 0")  # it remembers where a question found nothing
        tables, limits = StoreTables(store.engine), Limits()
        for what, text in kql(args.rows).items():
            say("this store", what, lambda text=text: answer(text, tables, limits=limits).rows[0][0])
        with contextlib.suppress(ImportError):
            import duckdb

            file = Path(folder) / "logs.parquet"
            with file.open("wb") as out:
                store.write("SELECT TimeGenerated, RawData, Computer FROM Logs ORDER BY TimeGenerated", out)
            there = duckdb.connect(str(Path(folder) / "duck.db"))
            there.execute(
                f"CREATE TABLE logs AS SELECT * REPLACE (TimeGenerated::TIMESTAMPTZ AS TimeGenerated) FROM '{file}'"
            )
            for what, text in duck(args.rows).items():
                say("DuckDB", what, lambda text=text: there.execute(text).fetchone()[0])
            there.close()
        if shutil.which("rg"):
            lines = Path(folder) / "lines"
            path = str(lines).replace("'", "''")
            store.session.query(f"INSERT INTO FUNCTION file('{path}', 'TSVRaw') SELECT RawData FROM Logs")
            for what, words in {"term": ["-wi", "carrier"], "substring": ["-iF", "ost carr"]}.items():
                say("ripgrep", what, lambda words=words: int(
                    subprocess.run(["rg", "-c", *words, lines], capture_output=True, text=True, check=True).stdout
                ))  # fmt: skip


if __name__ == "__main__":
    main()
