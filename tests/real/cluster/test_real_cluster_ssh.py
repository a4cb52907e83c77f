"""OpenSSH for real: what a host can refuse, and what a lost connection leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest

from fairlead.cluster import Cluster, State
from fairlead.cluster.engine import Engine
from fairlead.cluster.ssh import SshBackend
from fairlead.cluster.talk import guard
from support.processes import left_after, until_marked

pytestmark = [pytest.mark.real, pytest.mark.requires("ssh", "sshd", "root")]


def run(backend: SshBackend, limit_s: float = 20, python: str = "python3"):
    with Cluster(Engine(backend, python_of=lambda _: python)) as cluster:
        [result] = cluster.run("n1", ["true"], limit_s=limit_s)
    return result


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"HostName": "no-such-host.invalid"}, "its name does not resolve"),
        ({"Port": "closed"}, "it refuses connections: no SSH server listens"),
        ({"IdentityFile": "stranger"}, "it does not let you in: no key was accepted"),
        ({"UserKnownHostsFile": "empty"}, "its host key is not known"),
        ({"UserKnownHostsFile": "wrong"}, "its host key has changed"),
        ({"NoSuchOption": "yes"}, "your ssh configuration is wrong"),
    ],
)
def test_a_refusal_is_one_sentence_and_a_next_step(sshd, changes, error):
    sshd.trust(None, "known_hosts.empty")
    sshd.trust("stranger_key", "known_hosts.wrong")
    real = {
        "closed": str(sshd.closed_port),
        "stranger": str(sshd.root / "stranger_key"),
        "empty": str(sshd.root / "known_hosts.empty"),
        "wrong": str(sshd.root / "known_hosts.wrong"),
    }
    result = run(sshd.backend(**{key: real.get(value, value) for key, value in changes.items()}))
    assert (result.state, result.rc) == (State.UNREACHABLE, None)
    assert result.error == error
    assert result.hint


class InNetwork(SshBackend):
    """ssh inside a network namespace of its own, made for the one command."""

    def __init__(self, route: str) -> None:
        super().__init__(connect_timeout_s=1, options=["HostName=192.0.2.1"])
        self.route = route

    def wrap(self, node, argv):
        script = f'ip link set lo up; ip route add {self.route}; exec "$@"'
        return ["unshare", "--net", "sh", "-c", script, "sh", *super().wrap(node, argv)]


@pytest.mark.requires("netns")
@pytest.mark.parametrize(
    ("route", "limit_s", "error"),
    [
        ("unreachable 192.0.2.0/24", 20, "there is no route to it"),
        ("192.0.2.0/24 dev lo", 20, "it does not answer"),  # nobody there takes the packets: silence
        ("192.0.2.0/24 dev lo", 0.5, "it does not answer"),  # the limit is the command's, not the way's
    ],
)
def test_a_host_out_of_reach(route, limit_s, error):
    result = run(InNetwork(route), limit_s)
    assert (result.state, result.error) == (State.UNREACHABLE, error)


def test_a_login_that_hangs_is_given_up(sshd):
    """A home directory on a file system that does not answer: ssh itself is content."""
    backend = sshd.backend()
    *ssh, line = backend.wrap("n1", guard().words("python3"))
    backend.wrap = lambda _node, _argv: [*ssh, f"sleep 30; {line}"]
    backend.reach_s = 2.0
    result = run(backend, 0.5)
    assert (result.state, result.error) == (State.UNREACHABLE, "no answer within 2 s")


def test_a_node_without_that_python(sshd):
    result = run(sshd.backend(), python="/opt/none/bin/python3")
    assert result.state is State.FAILED
    assert "no Python to run there" in result.error
    assert "python" in result.hint


def test_a_python_that_is_too_old_says_so(sshd, tmp_path):
    old = tmp_path / "python3"
    # a real Python that believes to be 3.8: its version is all that is asked for
    believe = "import sys; sys.version_info = (3, 8); sys.version = '3.8.1 x'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nshift 6\nexec python3 -c "{believe}" "$@"\n')
    old.chmod(0o755)
    result = run(sshd.backend(), python=str(old))
    assert result.state is State.FAILED
    assert "fairlead needs Python 3.9 or newer, this is 3.8.1" in result.error


def test_a_chatty_login_is_no_harm(sshd):
    backend = sshd.backend()
    *ssh, line = backend.wrap("n1", guard().words("python3"))
    backend.wrap = lambda _node, _argv: [*ssh, f"echo Welcome; echo to the cluster >&2; {line}"]
    assert run(backend).ok


def test_a_connection_lost_on_the_way(sshd, mark):
    results = []

    def call() -> None:
        with Cluster(Engine(sshd.backend())) as cluster:
            results.extend(cluster.run("n1", ["sleep", mark], limit_s=60))

    thread = threading.Thread(target=call)
    thread.start()
    until_marked(mark, 1)
    for pid in sshd.sessions():
        with contextlib.suppress(ProcessLookupError):  # one of an earlier test, on its way out
            os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert [r.state for r in results] == [State.UNREACHABLE]
    assert results[0].error.startswith("the connection was lost")
    assert left_after(mark, 20) == {}


def test_connections_may_be_shared(sshd):
    """ControlMaster of the user's configuration: the master outlives the first command and holds its stderr open."""
    backend = sshd.backend(ControlMaster="auto", ControlPath=str(sshd.root / "%C"), ControlPersist="2")
    with Cluster(Engine(backend)) as cluster:
        first = cluster.run("n1", ["sh", "-c", "echo $SSH_CONNECTION"], limit_s=20)
        second = cluster.run("n1", ["sh", "-c", "echo $SSH_CONNECTION"], limit_s=20)
    assert first[0].ok
    assert second[0].stdout.text == first[0].stdout.text, "one connection, one source port"
    assert first[0].duration_s < 18
