"""A store on a server by one URL: the same records, each once, and one sentence where the server cannot have it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fairlead.cli.app import run
from fairlead.errors import FairleadError
from fairlead.logs import parquet, schema
from fairlead.logs.server import Server, Session
from fairlead.logs.store import Store
from fairlead.logs.table import wrong

pytestmark = pytest.mark.requires("chdb")
FRONT = Path(__file__).parents[2] / "support" / "clickhouse_front.py"
PASSWORD = "a b'\\c?&"


@contextlib.contextmanager
def front(folder: Path, version: str = "") -> Iterator[str]:
    folder.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(
        [sys.executable, FRONT, folder, PASSWORD, version], stdout=subprocess.PIPE, text=True
    ) as made:
        try:
            yield f"http://someone@127.0.0.1:{int(made.stdout.readline())}/default"
        finally:
            made.kill()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with front(tmp_path_factory.getbasetemp() / "front") as made:
        yield made


class Desk:
    def __init__(self, folder: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        (folder / "password").write_text(PASSWORD + "\n")
        (folder / "password").chmod(0o600)
        self.spec = folder / "cluster.toml"
        self.say(url)

    def say(self, url: str, **more: str) -> None:
        """The cluster file with this store."""
        said = {"store": url, "password_file": str(self.folder / "password")} | more
        table = "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items() if value)
        self.spec.write_text(
            f'schema = 1\n[access]\nvia = "local"\n[[pool]]\nname = "a"\nsize = "other"\nnodes = "n1"\n[logs]\n{table}'
        )

    def call(self, verb: str, *words: object, status: int = 0) -> dict:
        run(["logs", verb, "--json", *map(str, words)])
        found = json.loads(self.capsys.readouterr().out)
        assert found["exit"] == status, found
        return found

    def served(self, verb: str, *words: object, status: int = 0) -> dict:
        return self.call(verb, "-f", self.spec, *words, status=status)

    def refused(self) -> str:
        found = self.served("query", "Logs | count", status=4)
        return found["error"]["message"]


@pytest.fixture
def desk(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, url, capsys)


def lines(node: str, numbers: range) -> str:
    return "".join(
        f"2025-09-08T10:00:{n % 60:02d}.5+00:00 {node} app[7]: JobId={n} it's \\ a 'line' {n}\n" for n in numbers
    )


ASKED = (
    "Logs | where RawData has 'line' | summarize count(), dcount(RawData) by Computer | sort by Computer asc",
    "Logs | project TimeGenerated, RawData, Computer, Level, Fields, Offset, End, TimeFrom | sort by RawData asc",
    "syslog_raw_CL | where TimeGenerated > datetime(2025-09-08 10:00:55) | count",
)


def test_the_same_records_by_the_same_verbs_whoever_keeps_them(desk: Desk) -> None:
    log = desk.folder / "logs" / "syslog"
    log.parent.mkdir()
    log.write_text(lines("n1", range(200)) + "Traceback (most recent call last):\n  an é odd line\n")
    (desk.folder / "logs" / "x.out").write_text("epoch 1 loss nan\n" * 3)
    (desk.folder / "logs" / "slurmctld.log").write_text(
        "[2025-09-08T10:00:00.123] sched: Allocate JobId=4711 NodeList=n1 #CPUs=8 Partition=main\n"
        "[2025-09-08T10:01:00.123] _job_complete: JobId=4711 WEXITSTATUS 1\n"
    )
    here = ("--store", desk.folder / "store")
    for words in (here, ("-f", desk.spec)):
        before = desk.call("import", *words, log.parent)["records"]
        assert before >= 200
        assert desk.call("import", *words, log.parent)["records"] == 0
    with log.open("a") as file:
        file.write(lines("n1", range(200, 260)))
    assert desk.call("import", *here, log)["records"] == desk.served("import", log)["records"] >= 60
    for kql in ASKED:
        assert desk.served("query", kql)["rows"] == desk.call("query", *here, kql)["rows"]
    assert (
        desk.served("diagnose", 4711, status=4)["diagnosis"]
        == desk.call("diagnose", 4711, *here, status=4)["diagnosis"]
    )
    out = desk.folder / "out"
    assert desk.served("export", out)["records"] == desk.call("export", *here, desk.folder / "o2")["records"]
    other = ("--store", desk.folder / "other")
    desk.call("import", *other, out)
    assert desk.call("query", *other, ASKED[0])["rows"] == desk.served("query", ASKED[0])["rows"]
    assert desk.served("import", out)["records"] == 0
    for words in (here, ("-f", desk.spec)):
        assert "no table `_files`" in desk.call("query", *words, "_files | count", status=2)["error"]["message"]


def test_a_block_whose_answer_is_lost_is_sent_again_and_kept_once(desk: Desk, tmp_path_factory) -> None:
    lose = tmp_path_factory.getbasetemp() / "front" / "lose"
    for name, text in (("syslog", lines("n9", range(500))), ("n9.out", "a line of n9\n" * 7)):
        log = desk.folder / name
        log.write_text(text)
        lose.touch()
        desk.served("import", "--node", "n9", log)
        assert not lose.exists(), "the answer was lost"
    found = desk.served(
        "query", "Logs | where Computer == 'n9' | summarize count(), dcount(strcat(FileId, '-', Offset))"
    )
    assert found["rows"][0][0] == found["rows"][0][1] >= 500


def test_one_process_writes_at_a_time_and_others_ask(desk: Desk, url: str, monkeypatch) -> None:
    server = Server.of(url, str(desk.folder / "password"))
    monkeypatch.setattr("fairlead.logs.server._BUSY_S", 0.0)
    with contextlib.closing(Store(server)) as store:
        with pytest.raises(FairleadError, match=r"another process writes to .*: process"):
            Store(server)
        desk.served("query", "Logs | count")
        store.home._lease._since -= 60  # as after a minute without a word from the server
        with pytest.raises(FairleadError, match="another process may write"):
            store.session.query("SELECT 1")
    Store(server).close()


def test_what_a_server_has_against_it_is_one_sentence(desk: Desk, url: str) -> None:
    bare = url.removesuffix("/default")
    (desk.folder / "wrong").write_text("wrong")
    (desk.folder / "wrong").chmod(0o600)
    for said, more, why in (
        ("http://someone@127.0.0.1:9/default", {}, "does not answer"),
        (url, {"password_file": str(desk.folder / "wrong")}, "refuses the user someone"),
        (f"{bare}/nowhere", {}, "has no database nowhere"),
        (f"{bare}/system", {}, "holds no store of logs"),
        (url, {"cluster": "main"}, "knows no cluster main"),
    ):
        desk.say(said, **more)
        message = desk.refused()
        assert why in message
        assert "\n" not in message
        assert PASSWORD not in message
    desk.say(f"{bare}/other")
    server = Server.of(url, str(desk.folder / "password"))
    session = Session(server, {})
    session.query("CREATE DATABASE other")
    session.query("CREATE TABLE other.Logs (TimeGenerated DateTime, x Int64) ENGINE = Memory")
    assert "is another's: it has TimeGenerated DateTime, not" in desk.refused()
    (desk.folder / "password").chmod(0o644)
    desk.say(url.replace("someone@", "someone:hunter2@"))
    assert "hunter2" not in json.dumps(desk.served("query", "Logs", status=2))


class Odd(BaseHTTPRequestHandler):
    """A server, or what stands before it, that says what no ClickHouse says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        code = self.headers["X-ClickHouse-User"]
        self.close_connection = True
        self.send_response(500 if code not in {"cut", "endless"} else 200)
        self.send_header("Content-Length", "100" if code != "endless" else str(1 << 40))
        if not code.startswith("Code"):
            self.send_header("X-ClickHouse-Exception-Code", code)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            while code == "endless":
                self.wfile.write(bytes(1 << 16))
            self.wfile.write(b"[1]\n[2]\n" if code == "cut" else code.encode().ljust(100))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_answer_that_ends_early_is_none(odd: str, tmp_path: Path) -> None:
    session = Session(Server.of(f"http://cut@{odd}", env={}), {})
    with pytest.raises(FairleadError, match="ended 92 bytes too early"):
        list(session.lines("SELECT 1"))
    with pytest.raises(FairleadError, match="ended 92 bytes too early"):
        parquet._beside(tmp_path / "logs.parquet", lambda file: session.into("SELECT 1", file))
    assert not list(tmp_path.iterdir())


def test_a_row_without_an_end_is_not_read_to_it(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.logs.server._ROW_BYTES", 1 << 18)
    session = Session(Server.of(f"http://endless@{odd}", env={}), {})
    with pytest.raises(FairleadError, match="a row of its answer has 262,144 bytes and no end"):
        list(session.lines("SELECT 1"))


def test_a_server_that_is_gone_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    session = Session(Server.of("http://127.0.0.1:9", env={}), {})
    with pytest.raises(FairleadError, match="does not answer") as caught:
        parquet._beside(tmp_path / "logs.parquet", lambda file: session.into("SELECT 1", file))
    assert caught.value.code == "logs/server"


@pytest.mark.parametrize("said", ["abc", "9" * 5000, "Code: " + "9" * 90])
def test_a_code_that_is_no_number_is_that_of_no_clickhouse(odd: str, said: str) -> None:
    session = Session(Server.of(f"http://{urllib.parse.quote(said)}@{odd}", env={}), {})
    with pytest.raises(FairleadError, match="is no ClickHouse server: 500"):
        session.query("SELECT 1")


def test_an_old_server_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with front(tmp_path / "old", "23.3.1.2823") as url:
        assert "ClickHouse 23.3.1.2823, which is too old" in Desk(tmp_path, url, capsys).refused()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://u:p@h:8123/db", "password"), ("http:///db", "none"), ("ftp://h/db", "none"),
        ("http://h:99999/db", "none"),
        ("http://h/db?password=x", "more than"), ("http://h/a/b", "more than"), ("http://h:8123/db", ""),
    ],
)  # fmt: skip
def test_what_a_url_may_say(url: str, why: str) -> None:
    assert why in wrong(url) if why else not wrong(url)


def test_the_tables_of_a_cluster_are_statements_of_the_engine(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path / "store")) as store:
        made = [*schema.served("l`o'gs", "my-cluster"), schema.view("syslog_raw_CL", "l`o'gs", "my-cluster")]
        assert len(made) == 2 * len(schema.TABLES) + 1
        for statement in made:
            tree = store.session.query(f"EXPLAIN AST {statement}", "TSV").bytes().decode()
            assert tree.startswith("Create")
        replicated = [
            text for text in made if "ReplicatedMergeTree(" in text or "ReplicatedReplacingMergeTree(" in text
        ]
        assert len(replicated) == len(schema.TABLES)
        assert "'{replica}', Version)" in replicated[1]
