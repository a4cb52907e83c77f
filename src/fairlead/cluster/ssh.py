"""Nodes reached by OpenSSH: the user's own ssh, configuration, keys and known hosts; it never asks for anything.

Whatever ~/.ssh/config says about a host holds here too: jump hosts, ports, identities, ControlMaster, known hosts. Only
forwarding never does: no agent, no tickets, no ports (sshforms.py).
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.backend import Backend, last_line
from fairlead.cluster.protocol import Refusal, State
from fairlead.cluster.sshforms import ALWAYS, wrong_option
from fairlead.errors import MissingTool, UsageError

_ALIVE_INTERVAL_S, _ALIVE_COUNT = 5, 3
"""A connection that carries nothing for 15 s, not even an answer, is lost."""

_FAULTS: tuple[tuple[str, str, str], ...] = (
    (r"Could not resolve hostname", "its name does not resolve", "getent hosts NODE"),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed", "ssh-keygen -R NODE, if you know why"),
    (r"No .*host key is known for|Host key verification failed", "its host key is not known", "ssh NODE"),
    (r"Permission denied \(", "it does not let you in: no key was accepted", "ssh-add -l; ssh NODE"),
    (r"Permission denied, please try again|read_passphrase", "it asks for a password", "ssh-copy-id NODE"),
    (r"Too many authentication failures", "it refused after too many keys", "ssh -o IdentitiesOnly=yes NODE"),
    (r"Connection refused", "it refuses connections: no SSH server listens", "nc -vz NODE 22"),
    (r"No route to host|Network is unreachable", "there is no route to it", "ip route get $(getent hosts NODE)"),
    (r"Connection timed out|Operation timed out", "it does not answer", "ping NODE"),
    (r"Timeout, server .* not responding", "the connection fell silent", "ping NODE"),
    (r"kex_exchange_identification|Exceeded MaxStartups|Connection (?:closed|reset) by", "its SSH server hung up",
     "ssh NODE; or a smaller fan-out, if its MaxStartups is low"),
    (r"Bad configuration option|Bad owner or permissions|terminating, \d+ bad configuration",
     "your ssh configuration is wrong", "ssh -G NODE"),
    (r"This account is currently not available|nologin", "its account has no login shell", "ssh NODE"),
)  # fmt: skip
"""What ssh prints, what it means, what to type next. The first that fits."""


class SshBackend(Backend):
    """One ssh process a node."""

    name = "ssh"

    def __init__(
        self,
        *,
        user: str = "",
        connect_timeout_s: float = 10.0,
        login_timeout_s: float = 20.0,
        options: Sequence[str] = (),
    ) -> None:
        """`options` are ssh_config settings such as `Port=2222`. Raises UsageError (`cluster/ssh-setting`)."""
        settings = [
            "BatchMode=yes",
            f"ConnectTimeout={max(1, round(connect_timeout_s))}",
            f"ServerAliveInterval={_ALIVE_INTERVAL_S}",
            f"ServerAliveCountMax={_ALIVE_COUNT}",
            "PermitLocalCommand=no",
            "RemoteCommand=none",
        ]
        for option in options:
            if wrong := wrong_option(option):
                # the cluster file was checked; who makes a backend of their own is told the same
                raise UsageError("cluster/ssh-setting", wrong[0], hint=wrong[1])
        self.reach_s = connect_timeout_s + login_timeout_s  # ssh's own limit ends with the key exchange
        # ssh takes the first value it meets for each setting: the caller's go before ours, but for what always holds
        flags = [flag for setting in (*ALWAYS, *options, *settings) for flag in ("-o", setting)]
        self._argv = ["ssh", "-T", *flags, *(("-l", user) if user else ())]

    def wrap(self, node: str, argv: Sequence[str]) -> list[str]:
        """A login shell there parses the words again, hence the quotes."""
        return [*self._argv, "--", node, shlex.join(argv)]

    async def ready(self, nodes: NodeSet) -> Mapping[str, Refusal]:
        """Nothing to prepare."""
        if not shutil.which("ssh"):
            raise MissingTool("cluster/no-tool", "there is no ssh on this machine", hint="apt install openssh-client")
        return {}

    def explain(self, node: str, rc: int | None, said: str) -> Refusal:
        """From ssh's own words; 255 is ssh's own status, any other came from the node."""
        for pattern, meaning, hint in _FAULTS:
            if re.search(pattern, said):
                return Refusal(State.UNREACHABLE, meaning, hint)
        if rc not in (None, 255):
            return self.explain_python(rc, said) or Refusal(
                State.FAILED, f"its login shell ended with status {rc}: {last_line(said) or 'no word'}", "ssh NODE"
            )
        return Refusal(State.UNREACHABLE, last_line(said) or "ssh failed without a word", "ssh -v NODE")
