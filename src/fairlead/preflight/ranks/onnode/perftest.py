"""Each rail by RDMA itself, with the programs of linux-rdma/perftest, where every node has them: a round of ib_write_bw
and one of ib_write_lat between equal local ranks of neighbours.

The receiver runs the server, the sender the client, which prints the result; both end after it. What they print is kept
as it is.
"""

# ruff: noqa: PTH110, PTH123

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import subprocess
import time

from fairlead.launch.onnode.me import Me
from fairlead.launch.onnode.place import source_towards
from fairlead.preflight.ranks.onnode.rails import Rails, turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

FIRST_PORT = 18515
"""perftest's own default; each rail has one more."""
READY_S, RUN_S = 3.0, 10.0
ROUNDS = (
    # 1 MiB messages for one second, in Gb/s; without a look at the CPU's clock
    ("ib_write_bw", ("-F", "--report_gbits", "-s", "1048576", "-D", "1")),
    ("ib_write_lat", ("-F", "-s", "8", "-n", "1000")),
)
LISTEN = "0A"
"""State of a socket in /proc/net/tcp that waits for connections."""


class Perftest:
    """The rounds of one rank."""

    def __init__(self, me: Me, rails: Rails, devices: Sequence[str], known: Sequence[str]) -> None:
        """`known`: the addresses in the address book. What a rank says of itself is no reason to send to others."""
        self.me, self.rails = me, rails
        self.device = devices[me.local] if me.local < len(devices) else ""
        self.known = set(known)
        self.port = FIRST_PORT + me.local

    def run(self) -> None:
        """All of it, or say why not."""
        rails = self.rails
        has_all = all(shutil.which(program) for program, _ in ROUNDS)
        here = bool(self.device) and os.path.exists(f"/sys/class/infiniband/{self.device}")
        if not rails.agreed([has_all and here])[0]:
            why = "ib_write_bw and ib_write_lat are not on every node" if not has_all else "not every rank has a device"
            self.me.say("perf_skipped", why=why)
            return
        addresses = self.addresses()
        if strangers := sorted(set(addresses) - self.known):
            self.me.say("perf_skipped", why=f"the address book does not have {', '.join(strangers)[:200]}")
            return
        for program, words in ROUNDS:
            for pairs in turns(rails.num_nodes, 1):
                rails.in_step()
                mine = next((pair for pair in pairs if rails.here in pair), None)
                is_server = mine is not None and rails.here == mine[1]
                command = (program, "-d", self.device, "-p", str(self.port), *words)
                server = start_server(command, self.port) if is_server else None
                rails.in_step()  # every server is ready, or has said why not
                if mine is not None and not is_server:
                    dst = mine[1] * rails.per_node + self.me.local
                    out, error = measure((*command, addresses[dst]))
                    named = {"device": self.device, "program": program}
                    self.me.say("perf", dst=dst, rail=self.me.local, **named, out=out[-8000:], error=error[-400:])
                rails.in_step()
                if server is not None:
                    stop_server(server)

    def addresses(self) -> list[str]:
        """Where each rank is reached by TCP, by which the programs find each other."""
        rails, torch = self.rails, self.rails.torch
        own = ipaddress.ip_address(source_towards(self.me.config["host"]).split("%")[0])
        packed = (own if own.version == 6 else ipaddress.ip_address(f"::ffff:{own}")).packed
        mine = torch.tensor(list(packed), dtype=torch.uint8, device=rails.device)
        everybody = [torch.empty_like(mine) for _ in range(self.me.world)]
        rails.dist.all_gather(everybody, mine)
        found = [ipaddress.IPv6Address(bytes(each.tolist())) for each in everybody]
        return [str(address.ipv4_mapped or address) for address in found]


def start_server(command: Sequence[str], port: int) -> subprocess.Popen[bytes]:
    """A server that listens, or has ended."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + READY_S
    while server.poll() is None and not listens(port) and time.monotonic() < until:
        time.sleep(0.02)
    return server


def listens(port: int) -> bool:
    """Whether a process of this node waits for connections at a port."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(path) as file:
            rows = (line.split() for line in file)
            if any(row[3] == LISTEN and row[1].endswith(f":{port:04X}") for row in rows):
                return True
    return False


def measure(command: Sequence[str]) -> tuple[str, str]:
    """(what the client prints, what went wrong)."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    said = done.stdout.decode(errors="replace")
    return said, "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.decode(errors='replace')}"


def stop_server(server: Any) -> None:
    """End a server that may still wait."""
    with contextlib.suppress(OSError):
        server.kill()
    server.wait()
