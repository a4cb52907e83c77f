"""An OpenSSH server on every lab host, and a client configuration that reaches them from outside the lab.

Knows: sshd's and ssh's files and switches. Must not know: how hosts are made.

The lab's management network is reachable from nowhere but the lab. `ssh -F CONFIG n0` still works like on any cluster:
its ProxyCommand opens the connection inside the lab's namespace, hands the open socket to ssh, and is gone (dial.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fairlead.errors import LabError
from fairlead.lab import inside
from fairlead.records.labstate import HostState, LabState, SshState

TOOLS = {"sshd": "openssh-server", "ssh-keygen": "openssh-client"}
PRIVATE = ("run/fairlead/ssh/host_key",)
_ON_HOST = "run/fairlead/ssh"

_SERVER = f"""Port 22
HostKey /{_ON_HOST}/host_key
AuthorizedKeysFile /{_ON_HOST}/authorized_keys
PidFile /run/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PrintMotd no
UseDNS no
MaxStartups 256
Subsystem sftp internal-sftp
"""


def make_keys(folder: Path) -> None:
    """Make the lab's keys: one pair for its hosts, one for its users."""
    place = folder / "ssh"
    place.mkdir(mode=0o700, exist_ok=True)
    for name in ("host_key", "user_key"):
        (place / name).unlink(missing_ok=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"lab {folder.name}", "-f", str(place / name)],
            check=True,
            capture_output=True,
        )


def files(folder: Path) -> dict[str, str]:
    """What a host needs to serve."""
    return {
        f"{_ON_HOST}/host_key": (folder / "ssh/host_key").read_text(),
        f"{_ON_HOST}/authorized_keys": (folder / "ssh/user_key.pub").read_text(),
        f"{_ON_HOST}/sshd_config": _SERVER,
        "run/sshd/": "",
    }


def start_host(state: LabState, host: HostState) -> None:
    """Start the server; it goes into the background by itself once it listens."""
    done = inside.run_on(state, host, ["/usr/sbin/sshd", "-f", f"/{_ON_HOST}/sshd_config", "-E", "/var/log/sshd.log"])
    if done.returncode:
        raise LabError(
            "lab/service", f"sshd does not start on {host.name}: {done.stderr.strip()}", hint="fairlead doctor"
        )


def client(state: LabState, folder: Path) -> SshState:
    """Write what a client needs; returns how to use it."""
    place = folder / "ssh"
    key = " ".join((place / "host_key.pub").read_text().split()[:2])
    (place / "known_hosts").write_text(f"* {key}\n")
    dial = place / "dial"
    package = Path(__file__).resolve().parents[2]
    dial.write_text(
        "#!/bin/sh\n# opens a connection inside the lab and hands it to ssh\n"
        f"export PYTHONPATH={package} FAIRLEAD_LABS={folder.parent}\n"
        f'exec {sys.executable} -P -m fairlead.lab.dial {state.name} "$@"\n'
    )
    dial.chmod(0o700)
    options = (
        "User=root",
        f"IdentityFile={place}/user_key",
        "IdentitiesOnly=yes",
        f"UserKnownHostsFile={place}/known_hosts",
        "StrictHostKeyChecking=yes",
        "BatchMode=yes",
        "LogLevel=ERROR",
        f"ProxyCommand={dial} %h %p",
        "ProxyUseFdpass=yes",
    )
    config = place / "config"
    config.write_text("\n    ".join(["Host *", *(option.replace("=", " ", 1) for option in options)]) + "\n")
    return SshState(config=str(config), options=options)
