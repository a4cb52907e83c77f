"""The two ways to keep a service running on a node: by our own supervisor, and by systemd. Either begins it, renews its
lease, looks at it and ends it; which one it is, service.py decides.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

from fairlead.launch.onnode.supervisor import boot_id, end_marked, now_s, read_json, start_ticks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOCK_S = 30.0
"""How long one request waits for another."""
SETTLE_S = 10.0
"""How long a service may take to be seen running."""
WORDS = 8
"""Lines of its output that go with an answer."""


class Refused(Exception):
    """Why a request cannot be done here, in one sentence; and what to do."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


def tell(pid: int, number: int) -> bool:
    """Signal a process; False where it has ended meanwhile. A zombie takes signals, too, and does nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return start_ticks(pid) >= 0


class Supervised:
    """By our own supervisor, where there is no service manager: until stopped, or until the lease ends."""

    name = "supervisor"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def running(self) -> dict[str, Any]:
        """What the supervisor says of itself; empty where it does not live."""
        state = read_json(os.path.join(self.folder, "state.json"))
        alive = state.get("boot") == boot_id() and start_ticks(state.get("pid", 0)) == state.get("start", -2)
        return state if alive and state.get("phase") != "ended" else {}

    def apply(self, spec: dict[str, Any]) -> None:
        """Have this spec run: told to a supervisor that lives, else with a new one."""
        state = self.running()
        if state.get("supervisor") != spec["supervisor"] or not tell(state["pid"], signal.SIGHUP):
            self.end()
            self.begin()

    def renew(self) -> None:
        """The lease has changed."""
        state = self.running()
        if state:
            tell(state["pid"], signal.SIGHUP)

    def begin(self) -> None:
        """Start a supervisor that belongs to nobody."""
        words = [sys.executable, "-I", "-S", os.path.join(self.folder, "supervisor.py"), self.folder]
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SSH_", "FAIRLEAD_SERVICE"))}
        if os.fork():
            os.wait()
            return
        try:
            os.setsid()
            if os.fork() == 0:
                null = os.open(os.devnull, os.O_RDWR)
                log = os.open(os.path.join(self.folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                for target, fd in enumerate((null, log, log)):
                    os.dup2(fd, target)
                os.closerange(3, 256)
                os.chdir("/")
                os.execve(words[0], words, keep)  # noqa: S606
        finally:
            os._exit(0)

    def end(self) -> None:
        """End the supervisor and all of the service."""
        state = self.running()
        if state and tell(state["pid"], signal.SIGTERM):
            deadline = time.monotonic() + SETTLE_S
            while time.monotonic() < deadline and start_ticks(state["pid"]) == state["start"]:
                time.sleep(0.02)
            if start_ticks(state["pid"]) == state["start"]:
                tell(state["pid"], signal.SIGKILL)
        end_marked(self.folder)

    def look(self) -> dict[str, Any]:
        """How it is."""
        state = read_json(os.path.join(self.folder, "state.json"))
        spec, lease = (read_json(os.path.join(self.folder, n + ".json")) for n in ("spec", "lease"))
        alive = self.running()
        is_up = bool(alive) and start_ticks(alive["child"]) == alive["child_start"] and alive["child"] > 0
        word = "running" if is_up else "waiting" if alive else "dead"
        why = state.get("last_exit", "")
        if not alive and state.get("phase") != "ended":
            why = "the node was booted since" if state.get("boot") != boot_id() else "its supervisor was killed"
        return {
            "state": word,
            "pid": alive.get("child", 0) if is_up else 0,
            "up_s": round(now_s() - alive["began"], 1) if is_up else 0.0,
            "restarts": state.get("restarts", 0),
            "last_exit": why,
            "digest": state.get("digest", "") if alive else spec.get("digest", ""),
            "lease_s": round(lease.get("until", 0.0) - now_s(), 1) if alive else 0.0,
            "log": last_lines(os.path.join(self.folder, "log")),
        }


class Systemd:
    """By systemd: the system's own for root, which starts it after a boot, too; else the user's."""

    name = "systemd"

    def __init__(self, folder: str, service: str) -> None:
        self.folder, self.unit = folder, f"fairlead-{service}.service"
        self.is_root = os.geteuid() == 0
        # a home directory may be shared by nodes that shall not all run this: a user's unit is this node's alone
        place = "/etc/systemd/system" if self.is_root else f"/run/user/{os.geteuid()}/systemd/user"
        self.path = os.path.join(place, self.unit)

    @staticmethod
    def is_there() -> bool:
        """Whether a systemd runs here that would take a unit of ours."""
        if not shutil.which("systemctl"):
            return False
        user = f"/run/user/{os.geteuid()}/systemd/private"
        return os.path.isdir("/run/systemd/system") if os.geteuid() == 0 else os.path.exists(user)

    def ctl(self, *words: str, must: bool = True) -> str:
        """Systemctl. Raises Refused with its own words."""
        argv = ["systemctl", *([] if self.is_root else ["--user"]), "--no-ask-password", *words]
        env = dict(os.environ, SYSTEMD_PAGER="", **({} if self.is_root else self.user_env()))
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LOCK_S, check=False)
        if must and done.returncode:
            said = " ".join(done.stderr.split()) or f"status {done.returncode}"
            raise Refused(f"{' '.join(argv[:1] + list(words))}: {said}", f"journalctl -u {self.unit}")
        return done.stdout

    @staticmethod
    def user_env() -> dict[str, str]:
        """What a user's systemctl needs and a bare connection does not set."""
        return {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}

    def apply(self, spec: dict[str, Any]) -> None:
        """Write the unit, have it run, also after a boot."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        text = unit_text(self.folder, spec, wanted_by="multi-user.target" if self.is_root else "default.target")
        with open(self.path + ".new", "w") as file:
            file.write(text)
        os.chmod(self.path + ".new", 0o644)
        os.replace(self.path + ".new", self.path)
        self.ctl("daemon-reload")
        if self.is_root:
            self.ctl("enable", self.unit)
        else:
            with contextlib.suppress(OSError, subprocess.SubprocessError):  # else it ends when the user logs out
                subprocess.run(["loginctl", "enable-linger"], capture_output=True, timeout=10, check=False)
        self.ctl("reset-failed", self.unit, must=False)
        self.ctl("restart", self.unit)

    def renew(self) -> None:
        """Systemd needs no lease."""

    def end(self) -> None:
        """Stop it, and take its unit away."""
        self.ctl("disable", "--now", self.unit, must=False)
        self.ctl("stop", self.unit, must=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.ctl("daemon-reload")
        self.ctl("reset-failed", self.unit, must=False)
        end_marked(self.folder)

    def look(self) -> dict[str, Any]:
        """How it is."""
        names = "ActiveState,SubState,MainPID,NRestarts,Result,ActiveEnterTimestampMonotonic"
        said = dict(
            line.partition("=")[::2] for line in self.ctl("show", self.unit, f"--property={names}").splitlines()
        )
        is_up = said.get("SubState") == "running"
        since_s = int(said.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
        restarting = said.get("SubState") == "auto-restart"
        return {
            "state": "running" if is_up else "waiting" if restarting else "dead",
            "pid": int(said.get("MainPID") or 0),
            "up_s": round(time.clock_gettime(time.CLOCK_MONOTONIC) - since_s, 1) if is_up else 0.0,
            "restarts": int(said.get("NRestarts") or 0),
            "last_exit": "" if said.get("Result") in ("success", None) else said["Result"],
            "digest": read_json(os.path.join(self.folder, "spec.json")).get("digest", ""),
            "lease_s": 0.0,
            "log": self.last_words(),
        }

    def last_words(self) -> list[str]:
        """The end of its output, which the journal keeps."""
        argv = ["journalctl", *([] if self.is_root else ["--user"]), "-u", self.unit, "-n", str(WORDS), "-o", "cat"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=LOCK_S, check=False)
            return done.stdout.splitlines()[-WORDS:]
        return []


def unit_text(folder: str, spec: dict[str, Any], *, wanted_by: str) -> str:
    """The unit. Arguments and environment stay in spec.json, which is ours alone; a unit file can be read by all."""
    python, program = spec["manager_python"], os.path.join(folder, "supervisor.py")
    words = " ".join(quoted(word) for word in (python, "-I", "-S", program, folder, "exec"))
    return (
        "# Written by fairlead; `fairlead service stop` removes it.\n"
        "[Unit]\n"
        f"Description=fairlead service {spec['name']}\n"
        "StartLimitIntervalSec=0\n\n"
        "[Service]\n"
        "Type=simple\n"
        f"ExecStart={words}\n"
        "Restart=always\n"
        "RestartSec=1\n"
        "UMask=0077\n\n"
        "[Install]\n"
        f"WantedBy={wanted_by}\n"
    )


def quoted(word: str) -> str:
    """A word of a command line as systemd reads it (systemd.service(5), COMMAND LINES; specifiers)."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"'


def last_lines(path: str) -> list[str]:
    """The end of its output."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 4096))
        return file.read().decode("utf-8", "replace").splitlines()[-WORDS:]
    return []
