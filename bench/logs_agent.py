"""A collector on a node: how much of a core and of memory does it take, and how soon is a line found?

    python bench/logs_agent.py [SECONDS] [LINES A SECOND]

Owner and collector are programs of their own on this machine. A writer appends lines of 120 bytes to ten files,
evenly; now and then one of them has a mark, and the owner is asked for it until it is found: written to answered.
Processor time (user and system) and memory are the collector's own: the machine need not be quiet for them, but for the
latency it should be. Prints one Markdown row; docs/benchmarks/logs.md keeps dated ones.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

FILES, TURN_S, ASK_S = 10, 0.05, 0.02
GOAL_PERCENT, GOAL_S = 2.0, 2.0
FAIRLEAD = [sys.executable, "-m", "fairlead", "logs"]
TICK = os.sysconf("SC_CLK_TCK")


def used_s(pid: int) -> float:
    """Processor time of a process."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / TICK


def memory_mib(pid: int) -> float:
    """The most memory it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


class Writer(threading.Thread):
    """Appends lines, as many a second as are wanted; says when it wrote a mark."""

    def __init__(self, place: Path, rate: int) -> None:
        super().__init__(daemon=True)
        self.files = [(place / f"app{n}.log").open("a", buffering=1 << 16) for n in range(FILES)]
        self.rate, self.num, self.mark, self.marked = rate, 0, "", threading.Event()
        self.at = 0.0
        self.stopped = threading.Event()

    def run(self) -> None:
        begun = time.monotonic()
        while not self.stopped.wait(TURN_S):
            due = int((time.monotonic() - begun) * self.rate)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            mark, self.mark = self.mark, ""
            for number in range(self.num, due):
                said = mark if mark and number == due - 1 else f"request {number:>9} served"
                self.files[number % FILES].write(f"{stamp} gpu05 trainer[4120]: {said}".ljust(119, ".") + "\n")
            for file in self.files:
                file.flush()
            if mark and due > self.num:
                self.at = time.monotonic()
                self.marked.set()
            self.num = due


def ask(port: int, token: str, kql: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/query", json.dumps({"query": kql}), {"Authorization": f"Bearer {token}"})
    found = json.loads(connection.getresponse().read())
    connection.close()
    return int(found["document"]["rows"][0][0])


def main() -> None:
    seconds, rate = (int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((1, 60), (2, 1000)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        env = os.environ | {"FAIRLEAD_RUNS": str(place / "runs")}
        (place / "logs").mkdir()
        store = place / "store"
        owner = subprocess.Popen([*FAIRLEAD, "serve", "--store", store, "--listen", "127.0.0.1:0"], env=env,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        assert owner.stderr is not None
        url = owner.stderr.readline().split()[0]
        port, token = int(url.rpartition(":")[2]), (store / "serve.token").read_text().strip()
        words = ["--server", url, "--token-file", store / "serve.token", "--node", "gpu05", "--folder", place / "spool"]
        agent = subprocess.Popen([*FAIRLEAD, "collect", *map(str, words), place / "logs" / "*.log"], env=env,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        writer = Writer(place / "logs", rate)
        writer.start()
        time.sleep(3)
        assert json.loads((place / "spool" / "now.json").read_bytes())["pid"] == agent.pid
        before, began, lines, owner_before = used_s(agent.pid), time.monotonic(), writer.num, used_s(owner.pid)
        took: list[float] = []
        while time.monotonic() - began < seconds:
            writer.marked.clear()
            mark = writer.mark = f"mark{len(took)}mark"
            writer.marked.wait(10)
            while not ask(port, token, f"Logs | where RawData has '{mark}' | count"):
                time.sleep(ASK_S)
            took.append(time.monotonic() - writer.at)
        spent_s = time.monotonic() - began
        share, held = 100 * (used_s(agent.pid) - before) / spent_s, memory_mib(agent.pid)
        of_owner = 100 * (used_s(owner.pid) - owner_before) / spent_s
        per_s = (writer.num - lines) / spent_s
        writer.stopped.set()
        writer.join()
        for child in (agent, owner):
            child.terminate()
            child.wait(30)
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    load = os.getloadavg()[0]
    print(
        "| lines a second | s | collector: % of a core | MiB | owner, with questions: % | marks | p50, p99 s | load |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    print(f"| {per_s:,.0f} | {spent_s:.0f} | {share:.2f} | {held:.0f} | {of_owner:.0f} | {len(took)} "
          f"| {cuts[49]:.2f}, {cuts[98]:.2f} | {load:.1f} |")  # fmt: skip
    print(f"aims: {GOAL_PERCENT} % of a core: {'held' if share < GOAL_PERCENT else 'missed'}; {GOAL_S} s: "
          f"{'held' if cuts[98] <= GOAL_S else 'missed'}")  # fmt: skip


if __name__ == "__main__":
    main()
