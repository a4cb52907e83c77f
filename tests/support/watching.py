"""What tests of the watch share: its settings, samples, trees of sysfs as the kernel writes them, and a running one."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from fairlead.cli.common import spec_of_size
from fairlead.watch.program import watch_source
from fairlead.watch.settings import settings_for

ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"
NDR = "400 Gb/sec (4X NDR)"


def settings(**more) -> dict:
    """The defaults, as nodes are told."""
    made = copy.deepcopy(settings_for(spec_of_size("other")))
    made["limits"].update(more.pop("limits", {}))
    return {**made, **more}


def port(state=ACTIVE, rate=NDR, data=0, guid="b83f:d203:0001:0001", **counters) -> dict:
    """A port of a sample; `data`: bytes, both ways alike."""
    counters = {"port_rcv_data": data // 8, "port_xmit_data": data // 8, "link_downed": 0, **counters}
    hw = {name: counters.pop(name) for name in list(counters) if name.endswith(("timeout_err", "retry_err"))}
    phys = "5: LinkUp" if state == ACTIVE else "3: Disabled"
    return {"state": state, "phys_state": phys, "rate": rate, "guid": guid, "counters": counters, "hw": hw}


def sample(at_s: float, ports=None, **parts) -> dict:
    """A sample at a second of the machine's clock, ten thousand after its boot."""
    made = {
        "wall_ns": int((1_795_000_000 + at_s) * 1e9),
        "boot_s": 10_000.0 + at_s,
        "log_s": 10_000.0 + at_s,
        "ports": ports or {},
        "links": {},
        "vf": {},
        "qps": [],
        "cm_ids": [],
        "ctxs": [],
        "mrs": {},
        "owners": {},
        "glanced": {},
        "kernel": [],
        "events": [],
    }
    return {**made, **parts}


def qp(pid=700, dev="mlx5_0", num=17, **more) -> dict:
    """A queue pair of a process."""
    return {"dev": dev, "port": 1, "lqpn": num, "rqpn": num + 1, "type": "RC", "state": "RTS", "pid": pid, **more}


def hca(root: Path, name: str, **values) -> None:
    """An HCA of one port in a tree, every file as the kernel writes it (linux: sysfs-class-infiniband)."""
    base = root / "sys/class/infiniband" / name
    one = base / "ports/1"
    texts = {"state": ACTIVE, "phys_state": "5: LinkUp", "rate": NDR, "link_layer": "InfiniBand", **values}
    (one / "counters").mkdir(parents=True, exist_ok=True)
    (one / "hw_counters").mkdir(exist_ok=True)
    (base / "node_guid").write_text("b83f:d203:00ab:%04x\n" % (sum(name.encode()) & 0xFFFF))
    counters = (
        "port_rcv_data",
        "port_xmit_data",
        "port_rcv_packets",
        "port_xmit_packets",
        "link_downed",
        "symbol_error",
    )
    for counter in counters:
        (one / "counters" / counter).write_text(f"{texts.pop(counter, 0)}\n")
    for counter in ("local_ack_timeout_err", "rnr_nak_retry_err", "lifespan"):
        (one / "hw_counters" / counter).write_text(f"{texts.pop(counter, 0)}\n")
    for key, text in texts.items():
        (one / key).write_text(f"{text}\n")


class Running:
    """The watch as it runs on a node: its own process, its own folder."""

    def __init__(self, place: Path, **more) -> None:
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o700)
        self.folder = place / "watch"
        self.program = place / "watch.py"
        self.program.write_text(watch_source())
        told = settings(**{"period_s": 0.2, "glance_s": 0.1, "folder": str(self.folder), "node": "n0", **more})
        self.words = [sys.executable, "-I", "-S", "-u", str(self.program), json.dumps(told)]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        self.process = subprocess.Popen(self.words, stderr=subprocess.PIPE, text=True)
        return self

    def now(self) -> dict:
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self.folder / "now.json").read_text())
        return {}

    def until(self, told, limit_s: float = 30.0) -> dict:
        """What it shows once that is as `told` says."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            assert self.process is None or self.process.poll() is None, self.process.stderr.read()
            now = self.now()
            if now and told(now):
                return now
            time.sleep(0.05)
        raise AssertionError(f"it never came: {json.dumps(self.now())[:2000]}")

    def after(self, seconds: float = 0.0) -> dict:
        """What it shows at a look that began after this call."""
        began = time.time_ns() + int(seconds * 1e9)
        return self.until(lambda now: now["t"] > began)

    def records(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(20)
        self.process.stderr.close()
        self.process = None
        return status

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.end(signal.SIGKILL)


def is_root() -> bool:
    return os.geteuid() == 0
