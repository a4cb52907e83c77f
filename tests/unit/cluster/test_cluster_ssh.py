"""What ssh is told, and what its complaints mean."""

from __future__ import annotations

import shlex
from itertools import pairwise

import pytest

from fairlead.cluster.protocol import State
from fairlead.cluster.ssh import SshBackend
from fairlead.cluster.talk import guard


def test_the_login_shell_gets_back_the_same_words():
    argv = guard().words("/opt/my python/bin/python3")
    *_, node, line = SshBackend().wrap("n1", argv)
    assert node == "n1"
    assert tuple(shlex.split(line)) == argv


def test_a_node_name_is_never_an_option():
    argv = SshBackend().wrap("-oProxyCommand=x", ["true"])
    assert argv[argv.index("-oProxyCommand=x") - 1] == "--"


def test_the_callers_settings_come_first_as_ssh_takes_the_first():
    argv = SshBackend(user="azureuser", options=["Port=2222", "ConnectTimeout=3"]).wrap("n1", ["true"])
    settings = [b for a, b in pairwise(argv) if a == "-o"]
    assert settings[:2] == ["Port=2222", "ConnectTimeout=3"]
    assert "BatchMode=yes" in settings
    assert argv[argv.index("-l") + 1] == "azureuser"


@pytest.mark.parametrize(
    ("rc", "said", "state", "error"),
    [
        (255, "ssh: Could not resolve hostname n1: Name or service not known", "unreachable", "does not resolve"),
        (255, "ssh: connect to host n1 port 22: Connection refused", "unreachable", "it refuses connections"),
        (255, "ssh: connect to host n1 port 22: No route to host", "unreachable", "no route"),
        (255, "ssh: connect to host n1 port 22: Connection timed out", "unreachable", "it does not answer"),
        (255, "No ED25519 host key is known for n1.\nHost key verification failed.", "unreachable", "is not known"),
        (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
         "unreachable", "its host key has changed"),
        (255, "root@n1: Permission denied (publickey,password).", "unreachable", "no key was accepted"),
        (255, "kex_exchange_identification: Connection closed by remote host", "unreachable", "hung up"),
        (255, "Timeout, server n1 not responding.", "unreachable", "fell silent"),
        (255, "/home/u/.ssh/config: line 3: Bad configuration option: foo", "unreachable", "configuration is wrong"),
        (127, "bash: line 1: python3.12: command not found", "failed", "no Python to run there"),
        (126, "bash: line 1: /opt/python3: Permission denied", "failed", "no Python to run there"),
        (1, "fairlead needs Python 3.9 or newer, this is 3.6.8", "failed", "this is 3.6.8"),
        (1, "This account is currently not available.", "unreachable", "no login shell"),
        (2, "csh: syntax error", "failed", "login shell ended with status 2: csh: syntax error"),
        (255, "a message of a version to come", "unreachable", "a message of a version to come"),
        (255, "", "unreachable", "without a word"),
    ],
)  # fmt: skip
def test_what_ssh_says_becomes_one_sentence(rc, said, state, error):
    refusal = SshBackend().explain("n1", rc, said)
    assert refusal.state is State(state)
    assert error in refusal.error
    assert "\n" not in refusal.error
    assert refusal.hint
