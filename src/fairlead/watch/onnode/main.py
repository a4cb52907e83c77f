"""The program on a node: looks every period, judges, records, tells. One a node and user; ends on SIGTERM.

    python3 watch.py SETTINGS          a file of JSON, or the JSON itself

It goes on through whatever it meets: a part that cannot be read is a hole, a full disk is a finding.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time

from fairlead.base.trust import own_folder, private_opener, read_file
from fairlead.checks.vmname import concerns
from fairlead.probe.readers.imds import read_events, read_name
from fairlead.probe.readers.tree import Tree
from fairlead.watch.onnode.chain import Chain
from fairlead.watch.onnode.judge import Judge
from fairlead.watch.onnode.metrics import metrics_text
from fairlead.watch.onnode.rates import WORD
from fairlead.watch.onnode.sample import Machine
from fairlead.watch.onnode.serve import BadEndpoint, Endpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTINGS_BYTES = 1 << 16
NOW, STATE, LOCK = "now.json", "state.json", "lock"
MAX_WAITING = 1000
"""Records that wait for a disk that is full; more are counted and lost."""
LOCK_WAIT_S = 10.0
EVENTS_EVERY_S = 30.0


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
    """Where audit records and the picture of now lie."""
    if said:
        return said
    own = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join("/var/lib" if os.geteuid() == 0 else own, "fairlead", "watch", node)


class Events(threading.Thread):
    """Asks the platform what it has scheduled, beside the looks: an answer may take its time."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(name="events", daemon=True)
        self.tree = Tree(tree.root or "/")
        self.found: Any = []
        self.name = ""
        """The VM's, once the platform has told it; it stays the same."""

    def run(self) -> None:
        """For ever; where this is no machine of Azure's, once."""
        while True:
            self.found = self._ours(read_events(self.tree))
            if isinstance(self.found, dict) and "expected" in self.found:
                return
            time.sleep(EVENTS_EVERY_S)

    def _ours(self, events: Any) -> Any:
        """Without those of other VMs; `mine` is None where nobody can tell."""
        if not isinstance(events, list) or not events:
            return events
        self.name = self.name or read_name(self.tree)
        host = self.tree.attr("/proc/sys/kernel/hostname")
        told = [{**event, "mine": concerns(event, self.name, host)} for event in events]
        return [event for event in told if event["mine"] is not False]


class Watch:
    """The program."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Raises OSError where its folder cannot be had, BadEndpoint."""
        self.settings = settings
        self.node = settings.get("node") or node_called()
        self.folder = own_folder(folder_of(settings.get("folder", ""), self.node))
        self.lock = _alone(os.path.join(self.folder, LOCK))
        self.chain = Chain(self.folder)
        self.tree = Tree(settings.get("root", "/"))
        self.judge = Judge(settings)
        self.machine = Machine(self.tree, [r["counter"] for r in settings["counters"] if r["where"] == "hw_counters"])
        self.events = Events(self.tree)
        self.endpoint = None
        self.waiting: list[dict[str, Any]] = []
        self.num_lost = 0
        self.disk = ""
        """Why records could not be written the last time."""
        self.text = ""
        self.stopped = threading.Event()
        if settings.get("listen"):
            self.endpoint = Endpoint(settings["listen"], settings["token_file"], lambda: self.text)

    def run(self) -> None:
        """Until somebody stops it."""
        self.begin()
        self.events.start()
        if self.endpoint:
            self.endpoint.start()
        period, glance_s = self.settings["period_s"], self.settings["glance_s"]
        due = time.monotonic()
        while not self.stopped.is_set():
            self.once()
            due = max(due + period, time.monotonic() + period / 10)
            while not self.stopped.is_set():
                left_s = due - time.monotonic()
                if left_s <= 0 or self.stopped.wait(min(left_s, glance_s)):
                    break
                if due - time.monotonic() > glance_s / 2:
                    self.machine.glance()
        self.record([{"kind": "stop", "t": time.time_ns(), "lost": self.num_lost}])

    def begin(self) -> None:
        """Go on from the last time, and say so."""
        boot = _boot_id()
        last = _json_of(os.path.join(self.folder, STATE))
        if last.get("boot") == boot:
            self.judge.restore(last.get("memory"))
        start = {"kind": "start", "t": time.time_ns(), "node": self.node, "boot": boot, "pid": os.getpid(),
                 "program": globals().get("PROGRAM_DIGEST", ""), "period_s": self.settings["period_s"]}  # fmt: skip
        if self.chain.torn:
            start["torn"] = self.chain.torn
        self.record([start])

    def once(self) -> None:
        """One look, from the machine to the disk."""
        sample = self.machine.look()
        sample["events"] = self.events.found
        if self.disk:
            sample["audit"] = {"unread": self.disk, "source": self.folder}
        if self.judge.suspects(sample):
            self.machine.look_closer(sample)
        self.record(self.judge.step(sample))
        now = self.judge.now
        for name, port in now["ports"].items():
            counters = sample["ports"][name].get("counters", {})
            for key, counter in (("rx_total", "port_rcv_data"), ("tx_total", "port_xmit_data")):
                value = counters.get(counter)
                port[key] = value * WORD if type(value) is int else None
        now.update(node=self.node, head=list(self.chain.head), period_s=self.settings["period_s"], lost=self.num_lost)
        now["self"] = {"cpu_s": round(time.process_time(), 3), "rss_bytes": _resident(), "pid": os.getpid()}
        self.text = metrics_text(now)
        with contextlib.suppress(OSError):
            _write_whole(os.path.join(self.folder, NOW), json.dumps(now, separators=(",", ":")).encode(), 0o600)
            state = {"boot": _boot_id(), "memory": self.judge.remembered()}
            _write_whole(os.path.join(self.folder, STATE), json.dumps(state).encode(), 0o600)
        if self.settings.get("textfile"):
            with contextlib.suppress(OSError):  # the collector's folder may come later
                _write_whole(self.settings["textfile"], self.text.encode(), 0o644)

    def record(self, records: list[dict[str, Any]]) -> None:
        """Add to the audit; what the disk does not take now waits, as much of it as may."""
        self.waiting += records
        self.num_lost += max(0, len(self.waiting) - MAX_WAITING)
        self.waiting = self.waiting[-MAX_WAITING:]
        try:
            self.chain.append(self.waiting)
        except OSError as error:
            self.disk = error.strerror or str(error)
        else:
            self.waiting, self.disk = [], ""

    def stop(self, *_: object) -> None:
        """End after this look."""
        self.stopped.set()


def _alone(path: str) -> int:
    """Hold a lock for as long as we live. Raises OSError where another watch does."""
    handle = private_opener(path, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(handle)
                raise
            time.sleep(0.1)
        else:
            return handle


def _write_whole(path: str, data: bytes, mode: int) -> None:
    """Whole or not at all; a link in the place of the new file is not followed."""
    fresh = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        while data:
            data = data[os.write(handle, data) :]
        os.fchmod(handle, mode)
    finally:
        os.close(handle)
    os.replace(fresh, path)


def _json_of(path: str) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path, 1 << 20, ours=True))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _boot_id() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def _resident() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def watch_main(words: list[str]) -> int:
    """Run; the exit status. 2: the settings are none, or the folder or the address cannot be had."""
    os.umask(0o077)
    try:
        watch = Watch(settings_of(words[0]))
    except BlockingIOError:
        return _refuse("another watch runs here")
    except (OSError, ValueError, KeyError, IndexError) as error:
        return _refuse(str(error) if isinstance(error, (BadEndpoint, OSError)) else "bad settings: %r" % error)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, watch.stop)
    watch.run()
    return 0


def _refuse(why: str) -> int:
    sys.stderr.write("fairlead-watch: %s\n" % why)
    return 2
