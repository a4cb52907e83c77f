"""The program on a node: reads what is new into the spool, and sends it. One a folder; ends on SIGTERM.

    python3 agent.py SETTINGS          a file of JSON, or the JSON itself

It goes on through whatever it meets: without an owner the spool fills, with a full spool or disk nothing more is read,
and what its writers then throw away is counted and said.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import signal
import socket
import sys
import threading
import time

from fairlead.base.trust import own_folder, private_opener, read_file
from fairlead.logs.onnode.follow import Follower
from fairlead.logs.onnode.ship import Refused, Shipper, batch, clock_s, next_wait, settle
from fairlead.logs.onnode.sources import Sources, write_whole
from fairlead.logs.onnode.streams import Journal, Kmsg

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTINGS_BYTES, TOKEN_BYTES = 1 << 16, 4096
NOW, LOCK = "now.json", "lock"
POLL_S, SCAN_S, TELL_S, TIDY_S, IDLE_S = 0.25, 1.0, 5.0, 10.0, 30.0
LOCK_WAIT_S = 10.0


def settings_of(word: str) -> dict[str, Any]:
    """The settings: JSON, or a file of it that nobody else could have written. Raises OSError or ValueError."""
    text = word.encode() if word.lstrip().startswith("{") else read_file(word, SETTINGS_BYTES, ours=True)
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("settings are an object")  # noqa: TRY004 - it is what was read, not what was called
    return found


def node_called() -> str:
    """This node's name as the cluster knows it: of the service's folder, of who asks, or its own."""
    service = os.environ.get("FAIRLEAD_SERVICE", "").rstrip("/")
    name = os.path.basename(os.path.dirname(service)) if service else os.environ.get("FAIRLEAD_NODE", "")
    return name or socket.gethostname()


def folder_of(said: str, node: str) -> str:
    """Where the spool lies."""
    if said:
        return said
    own = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join("/var/lib" if os.geteuid() == 0 else own, "fairlead", "collect", node)


def token_for(secret: bytes, node: str, central: bool = False) -> bytes:  # noqa: FBT001, FBT002
    """The token with which a node may send what is its own, and nothing else: it says nothing of the secret.

    That of a central log host says more: its lines are of the hosts that they name.
    """
    what = b"fairlead-collect-central:" if central else b"fairlead-collect:"
    return hmac.new(secret, what + node.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest().encode()


def token_of(settings: dict[str, Any], node: str) -> bytes:
    """The token to send with. Raises OSError or ValueError."""
    if settings.get("token"):
        return str(settings["token"]).encode("ascii")
    path = settings.get("token_file") or os.path.join(folder_of(settings.get("folder", ""), node), "token")
    found: bytes = read_file(path, TOKEN_BYTES, ours=True).strip()
    if os.stat(path).st_mode & 0o077:
        raise ValueError("%s can be read by others: chmod 600 %s" % (path, path))
    if settings.get("is_secret"):
        found = token_for(found, node, bool(settings.get("central")))
    return found


class Agent:
    """The program."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Raises OSError where its folder cannot be had, ValueError, KeyError."""
        self.node = settings.get("node") or node_called()
        self.shipper = Shipper(settings["server"], token_of(settings, self.node), self.node,
                               settings.get("authority", ""))  # fmt: skip
        self.folder = own_folder(folder_of(settings.get("folder", ""), self.node))
        self.held = _alone(os.path.join(self.folder, LOCK))
        self.sources = Sources(self.folder, int(settings["spool_bytes"]))
        self.files = Follower(self.sources, list(settings["files"]))
        self.files.looked_ns = _looked_ns(self.folder)
        self.streams: list[Any] = []
        self.hole = ""
        """Why something is not collected."""
        if settings.get("journal"):
            self.streams.append(Journal(self.sources, ["journalctl", *settings.get("journal_words", ())]))
        if settings.get("kmsg"):
            try:
                self.streams.append(Kmsg(self.sources, "/dev/kmsg", _boot()))
            except OSError as error:
                self.hole = "/dev/kmsg: %s" % error.strerror
                self.sources.say("error", "cannot read " + self.hole)
        self.lock = threading.Lock()
        self.news = threading.Event()
        self.stopped = threading.Event()
        self.num_sent = 0
        self.disk = self.owner = ""
        """Why our own disk, or the owner, takes nothing; empty where it does."""

    def run(self) -> None:
        """Until somebody stops it."""
        sender = threading.Thread(target=self.send, name="sender", daemon=True)
        sender.start()
        scan = tell = tidy = 0.0
        while not self.stopped.is_set():
            now = clock_s()
            with self.lock:
                if now >= scan:
                    self._try(self.files.scan)
                    scan = clock_s() + SCAN_S
                any_read = self._read()
                if now >= tidy:
                    self.sources.tidy(IDLE_S, self.files.matched)
                    tidy = now + TIDY_S
            if now >= tell:
                self.tell()
                tell = now + TELL_S
            if any_read:
                self.news.set()
            self.stopped.wait(POLL_S)
        self.news.set()
        sender.join(5)
        self.tell()
        for stream in self.streams:
            stream.close()
        self.files.close()

    def _read(self) -> bool:
        polls = [self.files.poll, *(stream.poll for stream in self.streams)]
        before = self.disk
        self.disk = ""
        any_read = any([self._try(poll) for poll in polls])  # noqa: C419 - each of them has its turn
        if not self.disk and not self.sources.spool.has_room(1 << 18):
            self.disk = "the spool is full"
        if self.disk != before and not self.disk:
            self.sources.say("warning", "reads again")
        return any_read

    def _try(self, step: Any) -> bool:
        try:
            return bool(step())
        except OSError as error:
            self.disk = "%s: %s" % (error.filename or self.folder, error.strerror or error)
            return False

    def send(self) -> None:
        """Send what waits, for as long as the program runs."""
        wait_s = 0.0
        while not self.stopped.is_set():
            self.news.wait(0.5)
            self.news.clear()
            try:
                while self._send_one() and not self.stopped.is_set():
                    wait_s = 0.0
            except Refused as refused:
                self.owner = str(refused)
                wait_s = next_wait(wait_s, refused.after_s)
                self.stopped.wait(wait_s)
                self.news.set()
            except OSError as error:
                self.disk = str(error)
                self.stopped.wait(1.0)

    def _send_one(self) -> bool:
        """Send a batch; whether that brought anything on."""
        with self.lock:
            made = batch(self.sources, clock_s())
        if not made:
            return False
        answer = self.shipper.once(made, self.sources.lost_bytes)
        self.owner = ""
        with self.lock:
            num_bytes = settle(self.sources, made, answer)
        self.num_sent += num_bytes
        return num_bytes > 0 or bool(answer.get("unknown"))

    def tell(self) -> None:
        """How it is, for who looks: `now.json` in the folder."""
        with self.lock:
            said = {
                "t": time.time_ns(), "node": self.node, "pid": os.getpid(), "sources": len(self.sources.all),
                "open": len(self.files.open), "spooled_bytes": self.sources.spool.size,
                "waiting_bytes": sum(each.pos - each.acked for each in self.sources.waiting()),
                "received_bytes": self.num_sent, "lost_bytes": self.sources.lost_bytes, "disk": self.disk,
                "owner": self.owner, "hole": self.hole, "left_out": self.files.left_out,
                "looked_ns": self.files.looked_ns,
                "cpu_s": round(time.process_time(), 3),
            }  # fmt: skip
        with contextlib.suppress(OSError):
            write_whole(os.path.join(self.folder, NOW), json.dumps(said).encode())

    def stop(self, *_: object) -> None:
        """End soon; what was not sent stays for the next time."""
        self.stopped.set()


def _alone(path: str) -> int:
    """Hold a lock for as long as we live. Raises OSError where another does."""
    handle = private_opener(path, os.O_RDWR | os.O_CREAT)
    deadline = clock_s() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock_s() > deadline:
                os.close(handle)
                raise
            time.sleep(0.1)
        else:
            return handle


def _looked_ns(folder: str) -> int:
    """When the collector before us last looked at all files; 0 where there was none."""
    try:
        return int(json.loads(read_file(os.path.join(folder, NOW), SETTINGS_BYTES, ours=True))["looked_ns"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0


def _boot() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def agent_main(words: list[str]) -> int:
    """Run; the exit status. 2: the settings are none, or the folder cannot be had."""
    os.umask(0o077)
    try:
        agent = Agent(settings_of(words[0]))
    except BlockingIOError:
        return _refuse("another collector runs here")
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return _refuse(str(error) if isinstance(error, (OSError, ValueError)) else "bad settings: %r" % error)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, agent.stop)
    agent.run()
    return 0


def _refuse(why: str) -> int:
    sys.stderr.write("fairlead-collect: %s\n" % why)
    return 2
