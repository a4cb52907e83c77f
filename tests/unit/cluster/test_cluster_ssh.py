"""What ssh is told, and what its complaints mean."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import shutil
import subprocess
from itertools import pairwise

import pytest

from fairlead.cluster.protocol import State
from fairlead.cluster.ssh import SshBackend
from fairlead.cluster.talk import guard
from fairlead.errors import SpecError, UsageError
from fairlead.spec.decode import decode_text
from fairlead.spec.rules import rules
from fairlead.spec.tables import spec_type


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
    assert settings.index("ConnectTimeout=3") < settings.index("ConnectTimeout=10")
    assert "Port=2222" in settings
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


# ---- what a node must not get, and who may pass for it ---------------------------------------------------------------

CARELESS = """\
Host *
  ForwardAgent yes
  GSSAPIAuthentication yes
  GSSAPIDelegateCredentials yes
  ForwardX11 yes
  ForwardX11Trusted yes
  LocalForward 9999 localhost:22
  RemoteForward 9998 localhost:22
  DynamicForward 9997
  Tunnel yes
  PermitLocalCommand yes
  LocalCommand touch ran
  StrictHostKeyChecking ask
  UserKnownHostsFile ~/.ssh/mine
"""


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh")
def test_ssh_itself_forwards_nothing_whatever_the_users_configuration_says(tmp_path):
    (tmp_path / "config").write_text(CARELESS)
    argv = SshBackend(options=["Port=2222"]).wrap("n1", ["true"])
    asked = [argv[0], "-F", str(tmp_path / "config"), "-G", *argv[1 : argv.index("--")], "n1"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.lower().splitlines()
    found = dict(line.split(" ", 1) for line in said if " " in line)
    assert found["port"] == "2222"
    for name in ("forwardagent", "gssapidelegatecredentials", "forwardx11", "permitlocalcommand"):
        assert found[name] == "no", name
    assert found["clearallforwardings"] == "yes"
    assert found["tunnel"] in ("no", "false")
    assert not [line for line in said if line.startswith(("localforward", "remoteforward", "dynamicforward"))]
    assert found["stricthostkeychecking"] == "ask", "the user's own"
    assert found["userknownhostsfile"].endswith("/.ssh/mine")


@pytest.mark.parametrize(
    "option",
    [
        "StrictHostKeyChecking=no", "stricthostkeychecking off", 'StrictHostKeyChecking = "accept-new"',
        "VerifyHostKeyDNS=yes",
        "NoHostAuthenticationForLocalhost yes", "ForwardAgent=yes", "ForwardAgent=no", "GSSAPIDelegateCredentials=yes",
        "RemoteForward=9999 localhost:22", "Tunnel=yes", "Include=/tmp/x", "Match=all", "IgnoreUnknown=*",
        "Port=22\nStrictHostKeyChecking=no", "Port=22\r", "Port", "", "=", "-oPort=22", "Port=", "Port 22\x00",
    ],
)  # fmt: skip
def test_a_setting_that_lowers_a_guard_is_refused_in_the_file_and_in_code(option):
    with pytest.raises(UsageError) as caught:
        SshBackend(options=[option])
    assert caught.value.code == "cluster/ssh-setting"
    assert "\n" not in caught.value.message
    pool = '[[pool]]\nname = "h"\nsize = "other"\nnodes = "h1"\n'
    text = f'schema = 1\n{pool}[access]\nvia = "ssh"\nssh_options = [{json.dumps(option)}]\n'
    with pytest.raises(SpecError) as refused:
        decode_text(text, spec_type(), file="f", checks=rules(dt.date(2026, 1, 1)))
    assert {p.code for p in refused.value.problems} & {"cluster/ssh-setting", "spec/bad-text"}


@pytest.mark.parametrize(
    "option",
    [
        "Port=2222", "ProxyJump login1", "StrictHostKeyChecking=yes", "ControlPath=~/.ssh/%C", "HostKeyAlias=x",
        "ProxyCommand=nc -X 5 %h %p", "IdentityFile=/x/y", "UserKnownHostsFile=/etc/hosts.known",
    ],
)  # fmt: skip
def test_other_settings_are_the_users(option):
    assert option in SshBackend(options=[option]).wrap("n1", ["true"])
