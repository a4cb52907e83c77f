"""The watch as files of an image: its program, its settings and a unit of systemd. For who builds images (`plan`).

Where nodes are reached, `fairlead watch start` needs none of this. Pure: text out, nothing written.
"""

from __future__ import annotations

import json
import posixpath

from fairlead.spec.model import Spec
from fairlead.watch.program import watch_source
from fairlead.watch.settings import settings_for

PROGRAM = "/usr/local/lib/fairlead/watch.py"
SETTINGS = "/etc/fairlead/watch.json"
UNIT = "/etc/systemd/system/fairlead-watch.service"
STATE = "/var/lib/fairlead"
MODES = {PROGRAM: 0o644, SETTINGS: 0o600, UNIT: 0o644}

CPU_QUOTA, MEMORY_MAX = "10%", "256M"
"""What it may use at most; docs/benchmarks/watch.md says what it does use."""


def unit_files(spec: Spec, *, python: str = "/usr/bin/python3") -> dict[str, str]:
    """Path on the node -> content; `MODES` has their modes."""
    told = settings_for(spec)
    return {
        PROGRAM: watch_source(),
        SETTINGS: json.dumps(told, indent=2, sort_keys=True) + "\n",
        UNIT: unit_text(python=python, folder=told["folder"], textfile=told["textfile"]),
    }


def unit_text(*, python: str = "/usr/bin/python3", folder: str = "", textfile: str = "") -> str:
    """The unit (systemd.service, systemd.exec, systemd.resource-control).

    It keeps the rights that reading needs: other users' /proc entries (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH) and the
    kernel's log (CAP_SYSLOG); it writes nowhere but into its own folder and the text file's.
    """
    places = " ".join(dict.fromkeys(filter(None, ["-" + STATE, folder, textfile and posixpath.dirname(textfile)])))
    return (
        "# The guest-side auditor of fairlead: who uses this node's ports, and what becomes of them.\n"
        "[Unit]\n"
        "Description=fairlead watch\n"
        "After=network.target\n"
        "StartLimitIntervalSec=0\n\n"
        "[Service]\n"
        "Type=simple\n"
        f'ExecStart="{python}" "-I" "-S" "-u" "{PROGRAM}" "{SETTINGS}"\n'
        "Restart=always\n"
        "RestartSec=5\n"
        "UMask=0077\n"
        "StateDirectory=fairlead\n"
        f"CPUQuota={CPU_QUOTA}\n"
        f"MemoryMax={MEMORY_MAX}\n"
        "Nice=5\n"
        "CapabilityBoundingSet=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SYSLOG\n"
        "NoNewPrivileges=yes\n"
        "ProtectSystem=strict\n"
        f"ReadWritePaths={places}\n"
        "ProtectHome=read-only\n"
        "PrivateTmp=yes\n"
        "ProtectKernelModules=yes\n"
        "ProtectControlGroups=yes\n"
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK\n"
        "RestrictNamespaces=yes\n"
        "LockPersonality=yes\n"
        "MemoryDenyWriteExecute=yes\n\n"
        "[Install]\n"
        "WantedBy=multi-user.target\n"
    )
