"""The client against two real replicas: Debian's servers of ClickHouse (18.16, of 2018) and its ZooKeeper.

They are too old for the tables of the store; what is tried is what those stand on: a block is acknowledged when both
have it, is one when it is sent again, and is refused or of unknown state while a replica is away.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairlead.errors import FairleadError
from fairlead.logs.server import Refused, Server, Session, is_unsettled
from support.ports import Ports

pytestmark = [pytest.mark.slow, pytest.mark.requires("clickhouse")]
KEEPER = Path("/usr/share/java/zookeeper.jar")
CONFIG = """<yandex><logger><level>error</level><console>1</console></logger><http_port>{http}</http_port>
<tcp_port>{tcp}</tcp_port><interserver_http_port>{inner}</interserver_http_port>
<interserver_http_host>127.0.0.1</interserver_http_host><listen_host>127.0.0.1</listen_host><path>{place}/data/</path>
<tmp_path>{place}/tmp/</tmp_path><users_config>users.xml</users_config><default_profile>default</default_profile>
<default_database>default</default_database><mark_cache_size>5368709</mark_cache_size><macros><replica>{name}</replica>
</macros><zookeeper><node><host>127.0.0.1</host><port>{keeper}</port></node>
<session_timeout_ms>4000</session_timeout_ms></zookeeper></yandex>"""
USERS = """<yandex><profiles><default/></profiles><users><default><password></password><networks><ip>127.0.0.1</ip>
</networks><profile>default</profile><quota>default</quota></default></users><quotas><default/></quotas></yandex>"""
QUORUM = {"insert_quorum": "2", "insert_quorum_timeout": "2000", "select_sequential_consistency": "1"}
LIMIT_S = 60.0


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Replica:
    def __init__(self, place: Path, number: int, first: int) -> None:
        self.place = place / f"r{number}"
        self.place.mkdir()
        http = first + 3 * number
        said = {"http": http, "tcp": http + 1, "inner": http + 2, "keeper": first, "name": f"r{number}"}
        (self.place / "config.xml").write_text(CONFIG.format(place=self.place, **said))
        (self.place / "users.xml").write_text(USERS)
        server = Server(f"http://127.0.0.1:{http}", "default", "default", "", "")
        self.session, self.plain = Session(server, QUORUM), Session(server, {})
        self.begin()

    def begin(self) -> None:
        words = ["/usr/sbin/clickhouse-server", f"--config-file={self.place}/config.xml"]
        self.process = subprocess.Popen(words, cwd=self.place, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until(self.answers)

    def answers(self) -> bool:
        try:
            return self.plain.query("SELECT 1").bytes() == b"1\n"
        except FairleadError:
            assert self.process.poll() is None
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def num(self) -> int:
        """How many rows this one has."""
        return int(self.plain.query("SELECT count() FROM t").bytes())

    def seen(self) -> int:
        """How many of them are at both, as far as it knows."""
        return int(Session(self.session.server, QUORUM).query("SELECT count() FROM t").bytes())


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    if not KEEPER.exists() or not shutil.which("java"):
        pytest.skip("no ZooKeeper: apt-get install zookeeper")
    ports = Ports()
    (tmp_path / "zoo.cfg").write_text(
        f"tickTime=1000\ndataDir={tmp_path}/keeper\nclientPort={ports.first}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\n"
    )
    words = ["java", "-Xmx128m", "-cp", str(KEEPER), "org.apache.zookeeper.server.quorum.QuorumPeerMain"]
    with subprocess.Popen(
        [*words, str(tmp_path / "zoo.cfg")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as keeper:
        made: list[Replica] = []
        try:
            for number in (1, 2):
                made.append(Replica(tmp_path, number, ports.first))
                create = (
                    "CREATE TABLE t (Day Date, x Int64) ENGINE = ReplicatedMergeTree('/t', '{replica}', Day, x, 8192)"
                )

                def there(one: Replica = made[-1], create: str = create) -> bool:
                    try:
                        one.plain.query(create)
                    except Refused as error:  # the keeper is not there yet
                        if error.code not in {225, 999}:
                            raise
                        return False
                    return True

                until(there)
            yield made[0], made[1]
        finally:
            for one in made:
                one.kill()
            keeper.kill()
            ports.close()


def lines(first: int) -> str:
    return "INSERT INTO t FORMAT TabSeparated\n" + "".join(f"2025-09-08\t{first + num}\n" for num in range(100))


def test_a_block_is_at_both_however_often_it_is_sent_and_whoever_is_killed_meanwhile(
    replicas: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = replicas
    for _ in range(2):
        one.session.query(lines(0))
    assert (one.num(), two.num()) == (100, 100), "acknowledged is at both"
    two.kill()  # the keeper believes for some seconds that it is there
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(one.session.query, lines(100))
        until(lambda: one.num() == 200)
        assert one.seen() == 100, "kept by one is not seen yet"
        assert is_unsettled(one.plain, "/t")
        two.begin()
        sent.result(LIMIT_S)
    assert (one.num(), two.num(), one.seen()) == (200, 200, 200)
    # too few are up and nobody comes back: whoever writes ends, and what it wrote is seen later, once
    two.kill()
    monkeypatch.setattr("fairlead.logs.server._RETRY_S", 3.0)
    for _ in range(2):
        with pytest.raises(FairleadError, match="are up to keep a block"):
            one.session.query(lines(200))
    fresh = Session(one.session.server, QUORUM)
    until(lambda: refusal(fresh) == 285)
    two.begin()
    until(lambda: not is_unsettled(one.plain, "/t"))
    fresh.query(lines(200))
    assert (one.num(), two.num(), one.seen()) == (300, 300, 300)


def refusal(session: Session) -> int:
    """The code by which a block is refused of which nothing may be kept."""
    try:
        Session(session.server, QUORUM).query(lines(900))
    except Refused as error:
        return error.code
    except FairleadError:  # an earlier block comes first
        return 0
    raise AssertionError
