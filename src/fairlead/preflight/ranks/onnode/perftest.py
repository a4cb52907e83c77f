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
from collections import Counter

from fairlead.launch.onnode.me import Me
from fairlead.launch.onnode.place import source_towards
from fairlead.preflight.ranks.onnode.rails import Rails, turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

FIRST_PORT = 18515
"""perftest's own default; each rail has one more."""
READY_S, RUN_S = 3.0, 10.0
IPV6 = ("--ipv6-addr",)
"""By which the programs meet over IPv6; without it, and in versions that do not have it, they look for IPv4 alone
(src/perftest_communication.c, ai_family)."""
ROUNDS = (
    # 1 MiB messages for one second, in Gb/s; without a look at the CPU's clock
    ("ib_write_bw", ("-F", "--report_gbits", "-s", "1048576", "-D", "1")),
    ("ib_write_lat", ("-F", "-s", "8", "-n", "1000")),
)
LISTEN = "0A"
"""State of a socket in /proc/net/tcp that waits for connections."""
DEVICES = "/sys/class/infiniband"
NOWHERE = "0.0.0.0"  # noqa: S104 - in no address book, and never dialled


class Perftest:
    """The rounds of one rank. Rail k is the k-th device of every node; a rank has each `per_node`-th of them."""

    def __init__(self, me: Me, rails: Rails, devices: Sequence[str], known: Sequence[str]) -> None:
        """`known`: the addresses in the address book. What a rank says of itself is no reason to send to others."""
        self.me, self.rails = me, rails
        self.mine = {rail: name for rail, name in enumerate(devices) if rail % rails.per_node == me.local}
        self.num_rails = len(devices)
        self.known = {ipaddress.ip_address(address.split("%")[0]) for address in known}
        host = me.config.get("address") or source_towards(me.config["host"]) or NOWHERE
        self.own = ipaddress.ip_address(host.split("%")[0])
        self.words: tuple[str, ...] = ()

    def run(self) -> None:
        """All of it, or say why not."""
        addresses, why = self.prepare()
        if why:
            self.me.say("perf_skipped", why=why)
            return
        rails = self.rails
        for program, words in ROUNDS:
            for first in range(0, self.num_rails, rails.per_node):
                for pairs in turns(rails.num_nodes, 1):
                    rails.in_step()
                    mine = next((pair for pair in pairs if rails.here in pair), None)
                    self.turn(program, words, first + self.me.local, mine, addresses)

    def turn(
        self, program: str, words: Sequence[str], rail: int, pair: tuple[int, int] | None, addresses: Sequence[str]
    ) -> None:
        """This rank's part in one turn: the server, the client or neither."""
        rails, device, port = self.rails, self.mine.get(rail), FIRST_PORT + rail
        command = (program, "-d", str(device), "-p", str(port), *words, *self.words)
        is_part = pair is not None and device is not None
        server = start_server(command, port) if is_part and pair and rails.here == pair[1] else None
        rails.in_step()  # every server is ready, or has said why not
        if is_part and pair and rails.here == pair[0]:
            dst = pair[1] * rails.per_node + self.me.local
            out, error = measure((*command, addresses[dst]))
            named = {"device": device, "program": program}
            self.me.say("perf", dst=dst, rail=rail, **named, out=out[-8000:], error=error[-400:])
        rails.in_step()
        if server is not None:
            stop_server(server)

    def prepare(self) -> tuple[list[str], str]:
        """(where each rank is reached, why nothing can be measured: the same on all ranks)."""
        programs = all(shutil.which(program) for program, _ in ROUNDS)
        devices = all(os.path.exists(f"{DEVICES}/{name}") for name in self.mine.values())
        can_meet = programs and (self.own.version == 4 or knows(ROUNDS[0][0], IPV6[0]))
        addresses = self.addresses()
        wrong = self.wrong_addresses(addresses)
        agreed = self.rails.agreed([programs, devices, can_meet, not wrong])
        reasons = (
            "ib_write_bw and ib_write_lat are not on every node",
            "not every node has all devices that count",
            f"perftest is older than its option {IPV6[0]}, and these nodes meet by IPv6",
            wrong or "other ranks were given other addresses",
        )
        if self.own.version == 6:
            self.words += IPV6
        index = os.environ.get("NCCL_IB_GID_INDEX", "")
        if index.isdecimal():  # the entry of the GID table that the job itself will use
            self.words += ("-x", index)
        return [str(a) for a in addresses], next((why for i, why in enumerate(reasons) if not agreed[i]), "")

    def addresses(self) -> list[Address]:
        """Where each rank says it is reached by TCP, by which the programs find each other."""
        rails, torch, own = self.rails, self.rails.torch, self.own
        packed = (own if own.version == 6 else ipaddress.ip_address(f"::ffff:{own}")).packed
        mine = torch.tensor(list(packed), dtype=torch.uint8, device=rails.device)
        everybody = [torch.empty_like(mine) for _ in range(self.me.world)]
        rails.dist.all_gather(everybody, mine)
        found = [ipaddress.IPv6Address(bytes(each.tolist())) for each in everybody]
        return [address.ipv4_mapped or address for address in found]

    def wrong_addresses(self, found: Sequence[Address]) -> str:
        """Why these are not dialled: each node has one of its own, and the address book has it."""
        if strangers := sorted({str(a) for a in found if a not in self.known}):
            return f"the address book does not have {', '.join(strangers)[:200]}"
        each = self.rails.per_node
        nodes = [set(found[i : i + each]) for i in range(0, len(found), each)]
        if any(len(node) > 1 for node in nodes) or len(set().union(*nodes)) < len(nodes):
            twice = [str(a) for a, num in Counter(a for node in nodes for a in node).items() if num > 1]
            return (
                f"two nodes call one address theirs: {', '.join(twice)[:200]}" if twice else "a node has two addresses"
            )
        return ""


def knows(program: str, option: str) -> bool:
    """Whether a program's help names an option."""
    out, _ = measure((program, "--help"))
    return option in out


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
