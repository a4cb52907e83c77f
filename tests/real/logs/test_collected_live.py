"""A collector and an owner as programs of their own: files rotate, either is killed, the spool is full, strangers come.

What must come out is counted from what was written: each line once, in the order of its file.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from fairlead.logs.onnode.agent import token_for
from support.depth import cases
from support.wrecks import fallen_gpu, spread

pytestmark = [pytest.mark.real, pytest.mark.requires("chdb")]
FAIRLEAD = [sys.executable, "-m", "fairlead"]
LIMIT_S = 30.0


class Site:
    """An owner and a collector over folders of their own."""

    def __init__(self, place: Path, *, spool_mib: int = 64) -> None:
        self.store, self.logs, self.spool = place / "store", place / "logs", place / "spool"
        self.logs.mkdir()
        self.spool_mib, self.port, self.running = spool_mib, 0, {}
        self.num = 0
        self.written: dict[str, list[str]] = {}

    def begin(self, what: str, *more: str) -> None:
        words = {
            "serve": ["serve", "--store", self.store, "--listen", f"127.0.0.1:{self.port}"],
            "collect": ["collect", "--server", f"http://127.0.0.1:{self.port}", "--token-file",
                        self.store / "serve.token", "--folder", self.spool, "--node", "gpu05",
                        "--spool-mib", self.spool_mib, self.logs / "*.log", self.logs / "*.out",
                        self.logs / "*/var/log/*", self.logs / "*/shared/*.out", *more],
        }[what]  # fmt: skip
        env = os.environ | {"FAIRLEAD_RUNS": str(self.store.parent / "runs")}
        child = subprocess.Popen([*FAIRLEAD, "logs", *map(str, words)], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, env=env)  # fmt: skip
        self.running[what] = child
        if what == "serve":
            line = child.stderr.readline().decode()
            assert line.startswith("http://127.0.0.1:"), line + child.stderr.read().decode()
            self.port = int(line.split()[0].rpartition(":")[2])

    def end(self, what: str, number: int = signal.SIGTERM) -> None:
        child = self.running.pop(what)
        child.send_signal(number)
        child.wait(LIMIT_S)
        child.stderr.close()

    def lose_power(self, chance: random.Random) -> None:
        """What nobody had synced is gone: of what waits, a part at the end or all of it."""
        for part in self.spool.glob("*.seg"):
            if chance.random() < 0.5:
                os.truncate(part, chance.randrange(part.stat().st_size + 1))
            else:
                part.unlink()

    def close(self) -> None:
        for what in list(self.running):
            self.end(what, signal.SIGKILL)

    def write(self, name: str, num: int = 1, *, pad: int = 0) -> None:
        """Lines that say which they are."""
        made = []
        for _ in range(num):
            self.num += 1
            made.append(f"2026-11-20T10:00:00Z line {self.num} of {name}{'.' * pad}")
        self.written.setdefault(name, []).extend(made)
        with (self.logs / name).open("a") as file:
            file.write("".join(line + "\n" for line in made))

    def fairlead(self, *words: object) -> dict:
        """What a verb of `fairlead logs` says."""
        env = os.environ | {"FAIRLEAD_RUNS": str(self.store.parent / "runs")}
        found = subprocess.run([*FAIRLEAD, "logs", *map(str, words), "--json"], capture_output=True, text=True,
                               timeout=LIMIT_S, env=env)  # fmt: skip
        return json.loads(found.stdout)

    def ask(self, kql: str) -> list[list]:
        said = self.fairlead("query", "--store", self.store, kql)
        assert "rows" in said, said
        return said["rows"]

    def post(self, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        said = {"Authorization": f"Bearer {self.token}"} | {name.replace("_", "-"): v for name, v in headers.items()}
        connection.request("POST", path, body, said)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    @property
    def token(self) -> str:
        return (self.store / "serve.token").read_text().strip()

    def num_there(self) -> int:
        """How many lines the store has, but for what the collector says of itself."""
        body = json.dumps({"query": "Logs | where FilePath !endswith 'fairlead-collect' | count"}).encode()
        status, said = self.post("/v1/query", body)
        assert status == 200, said
        return json.loads(said)["document"]["rows"][0][0]

    def arrived(self) -> None:
        """Wait until as many lines are there as were written, then compare them one by one."""
        want = sum(map(len, self.written.values()))
        deadline = time.monotonic() + LIMIT_S
        while True:
            num = self.num_there()
            for child in self.running.values():
                assert child.poll() is None, child.stderr.read().decode()
            if num >= want:
                break
            if time.monotonic() > deadline:
                break  # the lines that lack are named below
            time.sleep(0.2)
        rows = self.ask("Logs | where FilePath !endswith 'fairlead-collect' | project FilePath, RawData, Computer")
        assert {row[2] for row in rows} == {"gpu05"}
        assert sorted(row[1] for row in rows) == sorted(line for lines in self.written.values() for line in lines)

    def now(self, what: str) -> object:
        """What the collector says of itself."""
        path = self.spool / "now.json"
        return json.loads(path.read_bytes())[what] if path.exists() else None

    def read(self, name: str) -> None:
        """Wait until the collector has read all of a file."""
        size, deadline = (self.logs / name).stat().st_size, time.monotonic() + LIMIT_S
        while True:
            state = [json.loads(path.read_bytes()) | {"number": path.stem} for path in self.spool.glob("[0-9]*.json")]
            for each in state:
                parts = self.spool.glob(f"{each['number']}.*.seg")
                ends = [int(part.name.split(".")[1]) + part.stat().st_size for part in parts]
                if each["path"].endswith(name) and max([each["acked"], *ends]) >= size:
                    return
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path):
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_each_line_is_there_once_however_files_are_rotated(site: Site):
    site.write("a.log", 100)
    site.begin("serve")
    site.begin("collect")
    site.arrived()
    # rename and create, with a writer that is slow to follow
    old = (site.logs / "a.log").open("a")
    (site.logs / "a.log").rename(site.logs / "a.log.1")
    site.write("a.log", 50)
    site.written["a.log"].append("2026-11-20T10:00:00Z a late line")
    old.write("2026-11-20T10:00:00Z a late line\n")
    old.close()
    # compressed at once
    site.write("b.log", 300, pad=50)
    site.read("b.log")
    site.write("b.log", 10)
    with (site.logs / "b.log").open("rb") as source, gzip.open(site.logs / "b.log.1.gz", "wb") as packed:
        shutil.copyfileobj(source, packed)
    (site.logs / "b.log").unlink()
    # copied and truncated, by a writer that appends
    site.write("c.log", 100)
    site.read("c.log")
    site.write("c.log", 20)
    shutil.copy(site.logs / "c.log", site.logs / "c.log.1")
    os.truncate(site.logs / "c.log", 0)
    site.write("c.log", 5)
    # a line without an end, and one that is continued later
    with (site.logs / "d.out").open("w") as job:
        job.write("2026-11-20T10:00:00Z half a")
        job.flush()
        time.sleep(0.5)
        job.write(" line\n")
    site.written["d.out"] = ["2026-11-20T10:00:00Z half a line"]
    site.arrived()
    assert site.ask("collect_CL | where RawData has 'lost' | count") == [[0]]
    # what was collected is not imported again
    site.end("collect")
    site.end("serve")
    found = subprocess.run([*FAIRLEAD, "logs", "import", "--store", str(site.store), "--node", "gpu05", "--json",
                            str(site.logs / "b.log.1.gz")], capture_output=True, text=True)  # fmt: skip
    assert json.loads(found.stdout)["records"] == 0, found.stdout + found.stderr


def _killed(site: Site, num: int, seed: int, *, loses_power: bool = False) -> None:
    """Writers go on, files are rotated, and either side is killed at any time, or both, or the machine loses power."""
    chance = random.Random(seed)
    site.begin("serve")
    site.begin("collect")
    deadline = time.monotonic() + LIMIT_S
    while not site.now("looked_ns"):  # what was rotated before a collector ever looked is no business of it
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for turn in range(num):
        for _ in range(chance.randrange(1, 8)):
            name = chance.choice(["a.log", "b.log", "job1.out"])
            site.write(name, chance.randrange(1, 400), pad=chance.randrange(0, 300))
            time.sleep(chance.random() * 0.2)
        if turn % 3 == 2:
            (site.logs / "a.log").exists() and (site.logs / "a.log").rename(site.logs / f"a.log.{turn}")
        whom = chance.choice([["serve"], ["collect"], ["serve", "collect"]])
        for what in whom:
            site.end(what, signal.SIGKILL)
        if loses_power and len(whom) == 2:
            site.lose_power(chance)
        for what in ("serve", "collect"):
            if what in whom:
                site.begin(what)
    site.arrived()


@pytest.mark.slow
def test_a_kill_of_either_side_loses_and_repeats_nothing(site: Site):
    _killed(site, 4, seed=14)


@pytest.mark.slow
def test_a_machine_without_power_loses_and_repeats_nothing(site: Site):
    """What was sent and not synced here is read again, and is not there twice."""
    site.begin("serve")
    site.begin("collect")
    for turn in range(3):
        site.write("a.log", 300, pad=100)
        site.arrived()
        site.write("a.log", 300, pad=100)
        site.read("a.log")
        (site.logs / "a.log").rename(site.logs / f"a.log.{turn}")
        site.write("a.log", 20)
        for what in ("serve", "collect"):
            site.end(what, signal.SIGKILL)
        site.lose_power(random.Random(turn))
        for what in ("serve", "collect"):
            site.begin(what)
    site.arrived()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_kills_lose_and_repeat_nothing(site: Site):
    _killed(site, 20 * cases(1) if cases(1) > 1 else 100, seed=int(time.time()))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_kills_of_which_some_take_the_power_lose_and_repeat_nothing(site: Site):
    _killed(site, 100, seed=int(time.time()), loses_power=True)


@pytest.mark.slow
def test_without_an_owner_the_spool_fills_and_then_nothing_is_read(tmp_path: Path):
    site = Site(tmp_path, spool_mib=4)
    try:
        site.begin("serve")
        site.end("serve")
        site.begin("collect")
        for _ in range(8):
            site.write("a.log", 1000, pad=1000)
        deadline = time.monotonic() + LIMIT_S
        while site.now("disk") != "the spool is full":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert sum(part.stat().st_size for part in site.spool.glob("*.seg")) <= 4 << 20
        site.begin("serve")
        site.arrived()
    finally:
        site.close()


@pytest.mark.slow
def test_what_is_thrown_away_beyond_the_bound_is_counted(tmp_path: Path):
    site = Site(tmp_path, spool_mib=4)
    try:
        site.begin("serve")
        site.end("serve")
        for _ in range(8):
            site.write("a.log", 1000, pad=1000)
        site.begin("collect")
        deadline = time.monotonic() + LIMIT_S
        while site.now("disk") != "the spool is full":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        size = (site.logs / "a.log").stat().st_size
        os.truncate(site.logs / "a.log", 0)
        kept = sum(part.stat().st_size for part in site.spool.glob("*.seg"))
        time.sleep(0.5)
        site.begin("serve")
        deadline = time.monotonic() + LIMIT_S * 1.5
        while not (rows := site.ask("collect_CL | where isnotempty(tostring(Fields.LostBytes)) "
                                    "| project tolong(Fields.LostBytes)")):  # fmt: skip
            assert time.monotonic() < deadline, (site.spool / "now.json").read_text()
            time.sleep(0.5)
        assert abs(rows[0][0] - (size - kept)) < 4096, (rows, size, kept)
    finally:
        site.close()


def test_strangers_and_junk_are_refused(site: Site):
    site.begin("serve")
    query = json.dumps({"query": "print 1"}).encode()
    assert site.post("/v1/query", query)[0] == 200
    assert site.post("/v1/query", query, Authorization="Bearer x")[0] == 401
    assert site.post("/v1/query", query, Host="evil.example:80")[0] == 403
    assert site.post("/v1/query", query, Origin="http://127.0.0.1")[0] == 403
    node = token_for(site.token.encode(), "gpu07").decode()
    of_node = {"Authorization": f"Bearer {node}", "X_Fairlead_Node": "gpu07"}
    assert site.post("/v1/query", query, **of_node)[0] == 401  # a node sends, it does not ask
    head = {
        "node": "gpu07",
        "sources": [{"id": 7, "path": "/x.log", "start": 0, "end": 6, "size": 6, "head": "", "settled": True}],
    }

    def packed(header: dict, data: bytes) -> bytes:
        return zlib.compress(json.dumps(header).encode() + b"\n" + data)

    status, said = site.post("/v1/batch", packed(head, b"hello\n"), **of_node)
    assert (status, json.loads(said)) == (200, {"ends": {}, "unknown": [7]})
    head["sources"][0]["head"] = "aGVsbG8K"
    for _ in range(2):  # sent again, kept once
        status, said = site.post("/v1/batch", packed(head, b"hello\n"), **of_node)
        assert (status, json.loads(said)["ends"]) == (200, {"7": 6})
    assert site.post("/v1/batch", packed(head | {"node": "gpu08"}, b"hello\n"), **of_node)[0] == 403
    for junk in (b"", b"junk", zlib.compress(b"junk"), zlib.compress(bytes(64 << 20)), packed(head, b"too long"),
                 packed(head, b"hello\n")[:-4]):  # fmt: skip
        assert site.post("/v1/batch", junk)[0] == 400
    assert site.post("/v1/batch", bytes(9 << 20))[0] == 413
    status, said = site.post("/v1/query", json.dumps({"query": "SELECT * FROM Logs"}).encode())
    assert json.loads(said)["problems"][0]["code"].startswith("kql/")
    status, said = site.post("/v1/query", json.dumps({"query": "Logs | project RawData, Computer"}).encode())
    assert json.loads(said)["document"]["rows"] == [["hello", "gpu07"]]
    # a node that names sources without end is asked to wait, and no other node is
    one = head["sources"][0] | {"end": 0, "size": 0}
    for batch, wanted in ((0, 200), (1, 200), (2, 503)):
        many = [one | {"id": 10 + batch * 4000 + i} for i in range(4000)]
        assert site.post("/v1/batch", packed({"node": "gpu07", "sources": many}, b""), **of_node)[0] == wanted
    assert site.post("/v1/batch", packed(head, b"hello\n"), **of_node)[0] == 200, "what is known goes on"
    assert site.post("/v1/batch", packed(head | {"node": "gpu08"}, b"hello\n"))[0] == 200


def test_only_a_central_log_host_sends_lines_of_others(site: Site):
    """With a node's own token a line that names another host is that node's."""
    site.begin("serve")
    lines = b"Nov 23 10:00:01 gpu02 kernel: NVRM: Xid (PCI:0001:00:00): 79, pid=1, GPU has fallen off the bus.\n" * 2
    computers = {}
    for central in (False, True):
        by = {"Authorization": f"Bearer {token_for(site.token.encode(), 'gpu07', central).decode()}",
              "X_Fairlead_Node": "gpu07"}  # fmt: skip
        source = {"id": 7 + central, "path": f"/var/log/{central}/syslog", "start": 0, "end": len(lines),
                  "size": len(lines), "head": base64.b64encode(lines).decode(), "settled": True}  # fmt: skip
        body = zlib.compress(json.dumps({"node": "gpu07", "sources": [source]}).encode() + b"\n" + lines)
        assert site.post("/v1/batch", body, **by)[0] == 200
        assert site.post("/v1/batch", body, **by | {"X_Fairlead_Node": "gpu08"})[0] == 401
        assert site.post("/v1/query", b'{"query": "print 1"}', **by)[0] == 401
        asked = f"Logs | where FilePath contains '{central}/syslog' | project Computer, tostring(Fields.SaidHost)"
        computers[central] = site.ask(asked)
    assert computers == {False: [["gpu07", "gpu02"]] * 2, True: [["gpu02", ""]] * 2}


def test_a_job_is_diagnosed_while_the_owner_serves(site: Site):
    """The same answer as from the same files, imported."""
    spread(fallen_gpu(), site.logs.parent)
    site.begin("serve")
    site.begin("collect", "--central")  # a folder that the logs of all nodes reach
    want = sum(path.read_bytes().count(b"\n") for path in site.logs.rglob("*") if path.is_file())
    deadline = time.monotonic() + LIMIT_S
    while site.num_there() < want:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    beside = site.logs.parent / "imported"
    assert site.fairlead("import", "--store", beside, "--by-folder", site.logs)["exit"] == 0
    live, imported = (site.fairlead("diagnose", 4711, "--store", store) for store in (site.store, beside))
    assert (live["exit"], live["diagnosis"]["what"], live["diagnosis"]["nodes"]) == (3, "gpu-bus", ["gpu02"])
    assert without_paths(live["diagnosis"]) == without_paths(imported["diagnosis"])
    assert json.loads(site.post("/v1/diagnose", b'{"job": 99}')[1])["error"]["code"] == "logs/no-job"
    dumps = [{"rank": rank, "groups": {"0": dict.fromkeys(map(str, range(9999)), "allreduce" * 5)}, "members": {}}
             for rank in range(20)]  # fmt: skip
    whole = json.dumps({"job": 4711, "dumps": dumps}).encode()
    assert len(whole) > 9 << 20
    assert site.post("/v1/diagnose", whole)[0] == 200
    assert site.post("/v1/diagnose", b'{"job": "4711 OR 1"}')[0] == 400


def without_paths(said: object) -> object:
    """A diagnosis, but for where its lines stood: on which machine a file was read that names none."""
    if isinstance(said, dict):
        return {name: without_paths(value) for name, value in said.items() if name not in {"path", "node"}}
    return [without_paths(each) for each in said] if isinstance(said, list) else said


@pytest.mark.slow
def test_long_lines_and_tracebacks_are_one_record_each(site: Site):
    long = b"2026-11-20T10:00:00Z " + b"x" * (10 << 20)
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\nValueError: no'
    (site.logs / "slurm-9.out").write_bytes(long + b"\n" + trace.encode() + b"\nafter\n")
    site.begin("serve")
    site.begin("collect")
    deadline = time.monotonic() + LIMIT_S
    while len(rows := site.ask("Logs | sort by Offset asc | project RawData, Cut, strlen(RawData)")) < 3:
        assert time.monotonic() < deadline, rows
        time.sleep(0.3)
    assert [row[1] for row in rows] == [len(long) - (1 << 20), 0, 0]
    assert [row[0] for row in rows[1:]] == [trace, "after"]
