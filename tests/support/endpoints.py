"""`fairlead serve run` as a process of its own, as users start it, and what a test asks of it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

SMALL = ("--cb-num-blocks", "64", "--cb-max-batch-tokens", "512")
"""Memory for batches of `transformers serve`, which else takes most of what is free."""


class Running:
    """An endpoint from its start until `stop`."""

    def __init__(self, model: Path, runs: Path, *words: str, engine=SMALL) -> None:
        self.runs = runs
        runs.mkdir(parents=True, exist_ok=True)
        self.said = runs / "said"
        command = [sys.executable, "-m", "fairlead", "serve", "run", str(model), "--port", "0", "--runs", str(runs)]
        with self.said.open("wb") as out:
            self.process = subprocess.Popen([*command, *words, "--", *engine], stdout=out, stderr=out)
        found = self.wait(lambda: re.search(r"(http://\S+) listens", self.said.read_text()), 60)
        self.url = found[1]

    def wait(self, what, limit_s=120.0):
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if found := what():
                return found
            assert self.process.poll() is None, self.said.read_text()
            time.sleep(0.1)
        logs = [path.read_text()[-1500:] for path in self.runs.glob("*/engine.log")]
        raise AssertionError(f"not within {limit_s} s\n{self.said.read_text()}\n{logs}")

    def ready(self):
        self.wait(lambda: self.get("/health")[0] == 200, 500)
        return self

    def get(self, path, body=None, **headers):
        """(status, JSON or text, headers)."""
        if body is not None:
            headers = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(self.url + path, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, raw, got = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                status, raw, got = error.code, error.read(), error.headers
        return status, json.loads(raw) if "json" in got.get("Content-Type", "") else raw.decode(), got

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else 0.0

    def engine_pid(self):
        """Of the process that leads the engine's group."""
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def stop(self, limit_s=60):
        """Its exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
