"""The client against a server of ClickHouse as Debian has it (18.16, of 2018): what it says of users and of errors.

It is older than the types of the store (DateTime64, Map), so it is refused as one; what HTTP carries can be tried.
"""

from __future__ import annotations

import io
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.errors import FairleadError
from fairlead.logs.server import Refused, Server, Session, reading
from support.ports import Ports

pytestmark = pytest.mark.requires("clickhouse")
CONFIG = """<yandex><logger><level>error</level><console>1</console></logger><http_port>{http}</http_port>
<tcp_port>{tcp}</tcp_port><listen_host>127.0.0.1</listen_host><path>{place}/data/</path><tmp_path>{place}/tmp/</tmp_path>
<users_config>users.xml</users_config><default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>5368709</mark_cache_size></yandex>"""
USERS = """<yandex><profiles><default/></profiles><users><default><password>open</password><networks><ip>127.0.0.1</ip>
</networks><profile>default</profile><quota>default</quota></default></users><quotas><default/></quotas></yandex>"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("clickhouse")
    ports = Ports()
    http, tcp = ports.first, ports.first + 1
    (place / "config.xml").write_text(CONFIG.format(http=http, tcp=tcp, place=place))
    (place / "users.xml").write_text(USERS)
    with subprocess.Popen(
        ["/usr/sbin/clickhouse-server", f"--config-file={place}/config.xml"], cwd=place, stderr=subprocess.DEVNULL
    ) as made:
        try:
            found = Server(f"http://127.0.0.1:{http}", "default", "default", "open", "")
            until = time.monotonic() + 60
            while True:
                try:
                    Session(found, {}).query("SELECT 1")
                    break
                except FairleadError:
                    assert time.monotonic() < until
            yield found
        finally:
            made.kill()
            ports.close()


def test_statements_rows_and_errors_of_a_real_server(server: Server, tmp_path: Path) -> None:
    session = Session(server, {})
    session.query("CREATE TABLE t (Day Date, x Int64, s String) ENGINE = MergeTree(Day, x, 8192)")
    rows = [[n, f"it's \\ é {n}"] for n in range(3000)]
    text = "\n".join(f'{{"Day":"2025-09-08","x":{n},"s":"it\'s \\\\ é {n}"}}' for n, _ in rows)
    session.query(f"INSERT INTO t FORMAT JSONEachRow\n{text}\n")
    lines = [
        line.decode().split("\t") for line in session.lines("SELECT x, s FROM t ORDER BY x FORMAT TabSeparatedRaw")
    ]
    assert [[int(x), s] for x, s in lines] == rows
    file = io.BytesIO()
    session.into("SELECT count() FROM t FORMAT TabSeparated", file)
    assert file.getvalue() == b"3000\n"
    with pytest.raises(Refused, match="Code: 60") as error:
        session.query("SELECT * FROM nothing")
    assert error.value.code == 60
    with pytest.raises(Refused, match="Code: 164"):
        Session(server, {"readonly": "2"}).query("DROP TABLE t")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "is ClickHouse 18.16.1, which is too old"), ({"password": "x"}, "the password is another"),
        ({"user": "nobody"}, "refuses the user nobody"), ({"database": "nowhere"}, "no database nowhere"),
    ],
)  # fmt: skip
def test_what_it_refuses_and_is_refused_for_is_one_sentence(server: Server, change: dict[str, str], why: str) -> None:
    with pytest.raises(FairleadError, match=why):
        reading(server._replace(**change))
