"""Starting a proof and taking its record: one warden, ended with this process whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairlead.base.trust import PRIVATE_FILE
from fairlead.errors import FairleadError, NotPermitted, UsageError
from fairlead.serve.proof.record import Record, Setup, Trouble

_MAX_RECORD = 16 << 20
_SPARE_S = 600.0
"""For questions that are answered slowly."""


def prove(
    command: Sequence[str],
    *,
    log: Path,
    url: str = "http://127.0.0.1:8000",
    patience_s: float = 600.0,
    watch_s: float = 60.0,
    grace_s: float = 15.0,
    allowed: Sequence[str] = (),
) -> Record:
    """Run a server where nothing leads outside; what it did. Its output goes to `log`, and
    what it sees as /etc/hosts and /etc/resolv.conf to `etc` beside it; `allowed` are patterns of destinations.

    Raises NotPermitted where this machine gives no namespaces or no filter, UsageError for a command that does not
    start.
    """
    etc = log.absolute().with_name("etc")
    etc.mkdir(exist_ok=True)
    setup = Setup(
        command=tuple(command), allowed=tuple(allowed), url=url, patience_s=patience_s, watch_s=watch_s,
        grace_s=grace_s, scratch=str(etc), log=str(log.absolute()), parent=os.getpid(),
    )  # fmt: skip
    os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE))
    words = (sys.executable, "-m", "fairlead.serve.proof.warden")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as warden:
        try:
            limit_s = patience_s + watch_s + grace_s + _SPARE_S
            raw, _ = warden.communicate(msgspec.json.encode(setup) + b"\n", timeout=limit_s)
        except subprocess.TimeoutExpired:
            text = "the proof did not end in its time"
            raise FairleadError("serve/no-proof", text, hint=f"tail {log}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(warden.pid, signal.SIGKILL)
    if len(raw) > _MAX_RECORD or not raw.strip():
        raise FairleadError("serve/no-proof", "the proof ended without a record", hint=f"tail {log}")
    with contextlib.suppress(ValueError):
        return msgspec.json.decode(raw, type=Record, strict=True) if b'"attempts"' in raw[:12] else _trouble(raw)
    raise FairleadError("serve/no-proof", "the record of the proof does not read", hint=f"tail {log}")


def _trouble(raw: bytes) -> Record:
    said = msgspec.json.decode(raw, type=Trouble)
    if said.step == "start":
        raise UsageError("serve/no-start", f"the command did not start: {said.why}", hint="check it without the proof")
    raise NotPermitted(
        "serve/no-namespace",
        f"this machine does not let a proof be made ({said.step}): {said.why}",
        hint="run as root, or where user namespaces are open: sysctl user.max_user_namespaces; Linux 5.6 or newer",
    )
