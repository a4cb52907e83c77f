"""Puts a service on a node, looks after it, takes it away: run there for one request, which comes as a line of JSON.

    deploy    write its files, have it run: by systemd where that is there for us, else by supervisor.py
    status    every service of this user on this node, or one
    renew     a supervisor's lease
    stop      end it and everything it started, and remove its files

Answers with one line of JSON. Two at once take turns: each service has a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time

from fairlead.base.trust import NotOurs, open_folder
from fairlead.launch.onnode.keeping import LOCK_S, SETTLE_S, Refused, Supervised, Systemd
from fairlead.launch.onnode.supervisor import now_s, read_json, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

STEADY_S = 1.0
"""How long a service must have been up to count as running: one that cannot even begin ends sooner."""


def node_name() -> str:
    """This node, as it was called by whoever asks."""
    return os.environ.get("FAIRLEAD_NODE") or socket.gethostname()


def base() -> str:
    """Where services of this user on this node have their files. A home directory may be shared by many nodes."""
    own = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    top = os.environ.get("FAIRLEAD_SERVICES") or ("/var/lib" if os.geteuid() == 0 else own)
    return os.path.join(top, "fairlead", "services", node_name())


def private(path: str) -> str:
    """A directory that is ours alone, made if it is not there. Raises Refused where somebody else can write there."""
    try:
        found = open_folder(path, make=True)
    except (NotOurs, NotADirectoryError) as error:
        why = f"{error.filename}: {error.strerror}"
        raise Refused(f"{path} is not a directory of our own: {why}", f"ls -ld {error.filename}") from None
    try:
        if os.fstat(found).st_mode & 0o077:
            os.fchmod(found, 0o700)
    finally:
        os.close(found)
    return path


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Alone with this service. Raises Refused where another request does not end."""
    path, deadline = folder + ".lock", time.monotonic() + LOCK_S
    while True:
        private(os.path.dirname(folder))
        try:
            file = open(path, "a")  # noqa: SIM115
        except FileNotFoundError:
            continue  # the last request about another service took the empty directory away
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:  # else its holder removed it with the service
                break
        file.close()
        if time.monotonic() > deadline:
            raise Refused(f"another request about this service takes longer than {LOCK_S:g} s")
        time.sleep(0.05)
    with file:
        try:
            yield
        finally:
            if not os.path.isdir(folder):
                os.unlink(path)
                with contextlib.suppress(OSError):  # of this node, services, fairlead: as far as they are empty
                    for _ in range(3):
                        folder = os.path.dirname(folder)
                        os.rmdir(folder)


# ---- requests --------------------------------------------------------------------------------------------------------


def manager_for(folder: str, name: str, wanted: str = "auto") -> Supervised | Systemd:
    """How it is kept: as it was begun; a new one by systemd where that is there. Raises Refused where it cannot be."""
    begun = read_json(os.path.join(folder, "spec.json")).get("manager", "")
    kind = begun or (wanted if wanted != "auto" else "systemd" if Systemd.is_there() else "supervisor")
    if kind == "systemd" and not Systemd.is_there():
        raise Refused("there is no systemd here that would take a unit of ours", "leave `manager` out")
    if kind == "supervisor" and not begun and os.environ.get("SLURM_JOB_ID"):
        raise Refused(
            f"this is a step of Slurm job {os.environ['SLURM_JOB_ID']}, which ends what it started, and no systemd is "
            "here to keep it",
            'reach the nodes with via = "ssh", or start it from the prolog',
        )
    return Systemd(folder, name) if kind == "systemd" else Supervised(folder)


def deploy(folder: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Have it run as asked; does nothing where it does so already, but renew the lease."""
    before = read_json(os.path.join(folder, "spec.json"))
    manager = manager_for(folder, asked["name"], asked.get("manager", "auto"))
    private(folder)
    supervisor = hashlib.sha256(asked["supervisor"].encode()).hexdigest()[:12]
    spec = {key: asked[key] for key in ("name", "python", "args", "env")}
    content = json.dumps([spec, asked["source"], supervisor], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    spec.update(
        digest=digest,
        program=f"program-{digest}.py",
        supervisor=supervisor,
        manager=manager.name,
        manager_python=sys.executable,
        lease_s=asked["lease_s"],
    )
    write_json(os.path.join(folder, "lease.json"), {"until": now_s() + asked["lease_s"]})
    if before.get("digest") == digest and manager.look()["state"] == "running":
        manager.renew()
        return {"did": "unchanged"}
    for name, text in (("supervisor.py", asked["supervisor"]), (spec["program"], asked["source"])):
        path = os.path.join(folder, name)
        with open(path + ".new", "w") as file:
            file.write(text)
        os.replace(path + ".new", path)
    write_json(os.path.join(folder, "spec.json"), spec)
    manager.apply(spec)
    settle(manager, digest)
    for name in os.listdir(folder):
        if name.startswith("program-") and name != spec["program"]:
            os.unlink(os.path.join(folder, name))
    return {"did": "upgraded" if before else "started"}


def settle(manager: Supervised | Systemd, digest: str) -> None:
    """Wait until what was asked for has been up for a moment, or has failed at its first try."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        found = manager.look()
        if found["digest"] == digest and (found["up_s"] >= STEADY_S or found["restarts"]):
            return
        time.sleep(0.05)


def status(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """One service, or all."""
    names = [asked["name"]] if asked.get("name") else []
    with contextlib.suppress(FileNotFoundError):
        names = names or sorted(n for n in os.listdir(base()) if not n.endswith(".lock"))
    return [look(name) for name in names]


def look(name: str) -> dict[str, Any]:
    """How a service is."""
    folder = os.path.join(base(), name)
    spec = read_json(os.path.join(folder, "spec.json"))
    if not spec:
        return {"name": name, "state": "absent"}
    try:
        manager = manager_for(folder, name)
        return {"name": name, "manager": manager.name, **manager.look()}
    except (Refused, OSError, subprocess.SubprocessError) as why:
        return {"name": name, "state": "unknown", "error": str(why)}


def renew(folder: str, name: str, lease_s: float) -> None:
    """A longer lease."""
    if read_json(os.path.join(folder, "spec.json")):
        write_json(os.path.join(folder, "lease.json"), {"until": now_s() + lease_s})
        manager_for(folder, name).renew()


def stop(folder: str, name: str) -> dict[str, Any]:
    """End it, and remove all it had."""
    if not os.path.isdir(folder):
        return {"did": "nothing"}
    manager_for(folder, name).end()
    shutil.rmtree(folder)
    return {"did": "stopped"}


def serve(asked: dict[str, Any]) -> dict[str, Any]:
    """One request."""
    if asked["do"] == "status":
        return {"services": status(asked)}
    folder = os.path.join(base(), asked["name"])
    with locked(folder):
        done: dict[str, Any] = {}
        if asked["do"] == "deploy":
            done = deploy(folder, asked)
        elif asked["do"] == "renew":
            renew(folder, asked["name"], asked["lease_s"])
        elif asked["do"] == "stop":
            done = stop(folder, asked["name"])
        return {**done, "services": [look(asked["name"])]}


def answer() -> None:
    """The request on standard input, the answer on standard output."""
    os.umask(0o077)
    asked = json.loads(sys.stdin.readline())
    try:
        said = serve(asked)
    except Refused as why:
        said = {"error": str(why), "hint": why.hint}
    except (OSError, subprocess.SubprocessError) as why:
        said = {"error": f"{getattr(why, 'filename', None) or 'service'}: {getattr(why, 'strerror', None) or why}"}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
