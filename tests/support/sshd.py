"""A private OpenSSH server on a high port of the loopback, with its own keys; gone without a trace at the end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from fairlead.cluster.ssh import SshBackend
from support.ports import Ports
from support.processes import DIES_WITH_US

_PATIENCE = {"connect_timeout_s": 60, "login_timeout_s": 60}
"""Seconds. Both ends and all that else runs here share this machine's processors; a test of a limit sets its own."""

_CONF = """
Port {port}
ListenAddress 127.0.0.1
HostKey {root}/host_key
AuthorizedKeysFile {root}/user_key.pub
PidFile {root}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 300:30:300
MaxSessions 50
LogLevel VERBOSE
"""


class PrivateSshd:
    """One server that answers for every node name."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="fl-sshd-", dir="/tmp"))
        self.ports = Ports()
        self.port = self.ports.first
        self.closed_port = self.port + 1
        self.user = pwd.getpwuid(os.getuid()).pw_name
        for name in ("host_key", "user_key", "stranger_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.root / name)], check=True, timeout=30
            )
        (self.root / "sshd_config").write_text(_CONF.format(port=self.port, root=self.root))
        self.trust("host_key")
        self.daemon: subprocess.Popen[bytes] | None = None

    def trust(self, key: str | None, file: str = "known_hosts") -> None:
        """Write a known_hosts file that names this key, or none."""
        public = (self.root / f"{key}.pub").read_text() if key else ""
        (self.root / file).write_text(f"fairlead-test {public}" if public else "")

    def options(self, **changes: str) -> list[str]:
        """The ssh settings that reach this server; changes replace some."""
        settings = {
            "HostName": "127.0.0.1",
            "Port": str(self.port),
            "IdentityFile": str(self.root / "user_key"),
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": str(self.root / "known_hosts"),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": "fairlead-test",
            "StrictHostKeyChecking": "yes",
            "CheckHostIP": "no",
        } | changes
        return [f"{name}={value}" for name, value in settings.items()]

    def backend(self, **changes: str) -> SshBackend:
        """A backend whose nodes are all this server."""
        return SshBackend(user=self.user, **_PATIENCE, options=self.options(**changes))

    def source(self) -> str:
        """Python for the same."""
        return (
            "from fairlead.cluster.ssh import SshBackend\n"
            f"backend = SshBackend(user={self.user!r}, **{_PATIENCE!r}, options={self.options()!r})"
        )

    def start(self) -> None:
        """Until it accepts connections."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        sshd = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
        assert sshd
        with (self.root / "log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [*DIES_WITH_US, sshd, "-D", "-e", "-f", str(self.root / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < deadline, (self.root / "log").read_text()
                time.sleep(0.02)
            else:
                return

    def sessions(self) -> list[int]:
        """The server's processes for open connections."""
        assert self.daemon
        children = Path(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    def processes(self) -> list[int]:
        """What is left of it."""
        if self.daemon is None or self.daemon.poll() is not None:
            return []
        return [self.daemon.pid, *self.sessions()]

    def stop(self) -> None:
        """End it and its sessions."""
        if self.daemon:
            for pid in [*self.sessions(), self.daemon.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.daemon.wait()
        shutil.rmtree(self.root)
        self.ports.close()
