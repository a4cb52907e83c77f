"""Services under a real systemd: kept by it, restarted by it, gone with their unit; the unit is one systemd accepts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from fairlead.cluster import Cluster
from fairlead.cluster.engine import Engine
from fairlead.launch import service as services
from fairlead.launch.onnode.keeping import unit_text
from fairlead.launch.service import Service, status, stop
from support.backends import Prefixed
from support.services import TALKER, until
from support.systemd import PrivateSystemd

pytestmark = [pytest.mark.real, pytest.mark.requires("root", "systemd")]


@pytest.fixture(scope="module")
def systemd() -> Iterator[PrivateSystemd]:
    made = PrivateSystemd()
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def cluster(systemd) -> Iterator[Cluster]:
    env = ["env", "FAIRLEAD_SERVICES=/var/lib/fairlead-test"]
    with Cluster(Engine(Prefixed(*systemd.enter(), *env))) as made:
        yield made
        for state in status(made, "n1"):
            stop(made, "n1", state.name)


def talker(**more) -> Service:
    return Service(**({"name": "talk", "source": TALKER % "8640003.25"} | more))


def deploy(cluster, nodes, service):
    return services.deploy(cluster, nodes, service, python=sys.executable, limit_s=60)


def one(states):
    (found,) = states
    return found


def test_systemd_keeps_it_restarts_it_and_lets_it_go(systemd, cluster):
    first = one(deploy(cluster, "n1", talker(args=("a", "100%"), env={"TONE": "$x"})))
    assert (first.did, first.state, first.manager) == ("started", "running", "systemd"), first
    assert systemd.run("systemctl", "is-enabled", "fairlead-talk.service").stdout.strip() == "enabled"
    words = systemd.run("cat", f"/proc/{first.pid}/cmdline").stdout.split("\0")
    assert words[-3:-1] == ["a", "100%"]
    assert "TONE=$x" in systemd.run("cat", f"/proc/{first.pid}/environ").stdout.split("\0")

    systemd.run("kill", "-9", str(first.pid))
    again = until(lambda: (s := one(status(cluster, "n1"))).state == "running" and s.pid != first.pid and s)
    assert again.restarts == 1

    assert one(deploy(cluster, "n1", talker(args=("a", "100%"), env={"TONE": "$x"}))).did == "unchanged"
    other = one(deploy(cluster, "n1", talker(args=("b",))))
    assert (other.did, other.state) == ("upgraded", "running")
    assert other.pid != again.pid

    ended = one(stop(cluster, "n1", "talk"))
    assert (ended.did, ended.state) == ("stopped", "absent")
    assert "0 unit files listed" in systemd.run("systemctl", "list-unit-files", "fairlead-*").stdout
    assert systemd.run("pgrep", "-f", "8640003.25").stdout == ""


def test_one_that_fails_at_once_is_tried_again_for_ever(systemd, cluster):
    deploy(cluster, "n1", talker(source="import sys; sys.exit(3)"))
    until(lambda: (s := one(status(cluster, "n1"))).restarts >= 2 and not s.ok)


def test_the_unit_is_one_that_systemd_accepts(tmp_path):
    spec = {"name": "talk", "manager_python": sys.executable}
    odd = tmp_path / 'a b%n$HOME"q'
    for folder in ("/var/lib/fairlead/services/n1/talk", str(odd)):
        unit = tmp_path / "fairlead-talk.service"
        unit.write_text(unit_text(folder, spec, wanted_by="multi-user.target"))
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
        mine = [line for line in done.stderr.splitlines() if "fairlead-talk" in line]
        assert (done.returncode, mine) == (0, []), done.stderr
