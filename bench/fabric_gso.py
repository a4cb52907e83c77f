"""What segmentation offload is worth over a link: MRC by batches and by single packets, between two namespaces.

sudo python bench/fabric_gso.py [--rounds 1] [--seconds 2]

A veth pair with an MTU of 9000. Batches cross it whole; or the sender's side cuts them and the receiver's merges (GRO),
with and without offload of checksums; and either with 1 % of what comes dropped by nftables: packets, or whole batches.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time

from fairlead.fabric.transport.context import Context, remote_of

TOKEN, PORT, MESSAGE, DEPTH = b"a token of this benchmark", 7777, 1 << 20, 16
HERE, THERE = "fd77::1", "fd77::2"
DATA = bytes(range(256)) * (MESSAGE // 256)
CUT = ("ethtool -K v0 tx-udp-segmentation off", "ethtool -K v1 gro on")
CASES = {
    "whole": (),
    "cut": CUT,
    "cut, no checksum offload": (*CUT, "ethtool -K v0 tx off"),
    "whole, 1 % dropped": ("nft",),
    "cut, 1 % dropped": (*CUT, "nft"),
}
DROP = """
table netdev t {
  chain c {
    type filter hook ingress device v1 priority 0; policy accept;
    meta length > 3000 numgen random mod 1000 < 10 counter drop
  }
}
"""


def target(gso: bool) -> None:
    with Context(addresses=[THERE], gso=gso) as context:
        queue, memory = context.completion_queue(), bytearray(MESSAGE)
        with context.listen(THERE, TOKEN, PORT) as listener:
            print("listens", flush=True)
            listener.accept(queue, queue, private=remote_of(context.register(memory)), limit_s=60)
        sys.stdin.readline()
        print("intact" if memory == DATA else "BYTES DIFFER", flush=True)


def source(gso: bool, seconds: float) -> None:
    with Context(addresses=[HERE], gso=gso) as context:
        queue = context.completion_queue()
        qp = context.connect(THERE, PORT, TOKEN, queue, queue)
        num = waiting = 0
        begin = time.monotonic()
        while time.monotonic() < begin + seconds or waiting:
            while waiting < DEPTH and time.monotonic() < begin + seconds:
                qp.post_write(DATA, qp.remote, wr_id=num)
                waiting += 1
            done = queue.wait(10)
            assert done, qp.error
            assert all(c.status.name == "SUCCESS" for c in done), qp.error
            num, waiting = num + len(done), waiting - len(done)
        rate = num * MESSAGE * 8 / (time.monotonic() - begin) / 1e9
        counts = qp.counters()
        print(rate, counts["new"], counts["resent"], counts["timeouts"], flush=True)


def once(case: str, gso: bool, seconds: float) -> list[float]:
    """Gb/s, packets new and sent again, timeouts."""
    command = [
        "unshare",
        "-n",
        sys.executable,
        __file__,
        "--seconds",
        str(seconds),
        *(["--gso"] if gso else []),
        "--end",
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([*command, "source"], **pipes) as here,
        subprocess.Popen([*command, "target"], **pipes) as there,
    ):
        try:
            for end in (here, there):
                assert end.stdout.readline() == "here\n"
            link = f"ip link add v0 mtu 9000 netns {here.pid} type veth peer name v1 mtu 9000 netns {there.pid}"
            subprocess.run(link.split(), check=True)
            for i, (end, address) in enumerate(((here, HERE), (there, THERE))):
                own = [words for words in CASES[case] if f" v{i} " in words or (i and words == "nft")]
                base = ("ip link set lo up", f"ip addr add {address}/64 dev v{i} nodad", f"ip link set v{i} up")
                for words in (*base, *own):
                    line = "nft -f -" if words == "nft" else words
                    enter = ["nsenter", "-t", str(end.pid), "-n", *line.split()]
                    subprocess.run(enter, check=True, input=DROP, text=True, stdout=subprocess.DEVNULL)
            for end in (there, here):
                end.stdin.write("go\n")
                end.stdin.flush()
                if end is there:
                    assert end.stdout.readline() == "listens\n"
            found = [float(word) for word in here.stdout.readline().split()]
            there.stdin.write("end\n")
            there.stdin.flush()
            assert there.stdout.readline() == "intact\n"
            return found
        finally:
            here.kill()
            there.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--gso", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--end", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.end:
        print("here", flush=True)
        sys.stdin.readline()
        return target(asked.gso) if asked.end == "target" else source(asked.gso, asked.seconds)
    Context(addresses=["::1"]).close()  # compiles, the first time
    seen: dict[tuple[str, bool], list[list[float]]] = {(case, gso): [] for case in CASES for gso in (True, False)}
    for _ in range(asked.rounds):
        for (case, gso), runs in seen.items():
            runs.append(once(case, gso, asked.seconds))
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}\n")
    print("| | batches: Gb/s | sent again | timeouts | single packets: Gb/s | sent again | timeouts |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for case in CASES:
        cells = []
        for gso in (True, False):
            rate, again, late = ([run[i] for run in seen[case, gso]] for i in (0, 2, 3))
            new = sum(run[1] for run in seen[case, gso])
            cells += [f"{statistics.median(rate):.1f}", f"{100 * sum(again) / new:.2f} %", f"{sum(late):.0f}"]
        print(f"| {case} | " + " | ".join(cells) + " |")
    return None


if __name__ == "__main__":
    main()
