"""Switches, ports and links fail under load: goodput over time, by MRC and by its peers, as pictures.

sudo python bench/fabric_switches.py [--kinds mrc,mptcp,tcp,quic] [--cases t1-down,...] [--planes 8] [--rate 50]

Two hosts of a lab below different T0s, all planes under load; each case is done to each transport in turn:

    t1-down       a T1 of one plane loses all its ports; the plane has another
    t0-down       the sender's T0 of one plane does: that plane is gone
    flapping      half of the sender's ports go down and come back, again and again
    links         every T0-T1 link of the way loses its carrier, one after another (up to 20)

Payload at the receiver in bins of 50 ms: of MRC packets placed, by the kernel's timestamps (tcpdump); of the others
bytes that recv() returned, or QUIC's stream, in order. With `--pictures FOLDER` each case is written there as SVG.
QUIC is aioquic (pip install aioquic; plain Python, so that it fills no plane); TCP and QUIC take one plane, the first
that the kernel's routes give.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fabric_faults import Came, mrc, of_lines, stream
from fabric_transport import HERE, THERE, a_lab, on, open_mptcp

from fairlead.cluster.enter import running
from fairlead.lab.faults.apply import heal, inject
from fairlead.report.charts import Axis, Level, Mark, Series, lines

BIN_NS = 50_000_000
BEFORE_S, FAULT_S, AFTER_S = 2.0, 5.0, 3.0
SETTLE_NS = 500_000_000
LINKS = 20
NAMES = {"mrc": "MRC", "mptcp": "MPTCP", "tcp": "TCP, one plane", "quic": "QUIC (aioquic), one plane"}
PAYLOAD_SHARE = 4096 / (4096 + 44 + 48 + 14)

Done = list[tuple[int, str]]
"""When something was done, and what."""


def _held(lab: str, fault: str, targets: list[str], settings: dict[str, str]) -> Done:
    begin = time.time_ns()
    for target in targets:
        inject(lab, fault, target, settings)
    time.sleep(FAULT_S)
    done = [(begin, fault), (time.time_ns(), "healed")]
    heal(lab, "all")
    return done


def _in_turn(lab: str, planes: int) -> Done:
    links = [f"p{p}/t0-{t0}/t1-{t1}" for t0 in range(2) for t1 in range(2) for p in range(planes)][:LINKS]
    begin = time.time_ns()
    for link in links:
        one = inject(lab, "link-down", link, {})
        time.sleep(FAULT_S / len(links))
        heal(lab, str(one.id))
    return [(begin, f"{len(links)} links in turn"), (time.time_ns(), "all healed")]


CASES: dict[str, tuple[str, Callable[[int], float], Callable[[str, int], Done]]] = {
    "t1-down": (
        "A T1 switch down",
        lambda _: 1.0,
        lambda lab, _: _held(lab, "switch-down", ["p0/t1-0"], {}),
    ),
    "t0-down": (
        "A T0 switch down",
        lambda planes: (planes - 1) / planes,
        lambda lab, _: _held(lab, "switch-down", ["p0/t0-0"], {}),
    ),
    "flapping": (
        "Half of the ports flapping",
        lambda planes: (planes - planes // 2) / planes,
        lambda lab, planes: _held(
            lab, "flap", [f"p{p}/{HERE}" for p in range(planes // 2)], {"down_s": "0.3", "up_s": "0.3"}
        ),
    ),
    "links": ("Links between switches down, one after another", lambda _: 1.0, _in_turn),
}
"""Title, the share of the goodput before that the links left allow, what is done."""


@contextmanager
def quic(lab: str, seconds: float) -> Iterator[Callable[[], Came]]:
    """Traffic by one QUIC connection."""
    to, program = str(running(lab).host(THERE).fabric), str(Path(__file__).with_name("fabric_quic.py"))
    there = on(lab, THERE, sys.executable, program, "serve", "::", str(seconds + 3))
    with subprocess.Popen(there, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        here = on(lab, HERE, sys.executable, program, "send", "::", str(seconds), to)
        with subprocess.Popen(here, stderr=subprocess.DEVNULL) as sender:

            def result() -> Came:
                sender.wait(seconds + 60)
                return of_lines(receiver.communicate(timeout=seconds + 60)[0])

            try:
                yield result
            finally:
                for one in (sender, receiver):
                    one.kill()


def bins(came: Came, begin_ns: int, end_ns: int) -> list[tuple[float, float]]:
    """Middle of each bin in seconds, and b/s."""
    edges = range(begin_ns, end_ns - BIN_NS, BIN_NS)
    return [((t + BIN_NS / 2 - begin_ns) / 1e9, 8e9 * came.rate(came.placed, t, t + BIN_NS)) for t in edges]


def one_run(
    lab: str, file: Path, kind: str, case: str, planes: int
) -> tuple[list[tuple[float, float]], Done, list[float]]:
    """The curve, what was done (seconds are the curve's), and b/s before, steadily in the fault, and after."""
    seconds = BEFORE_S + FAULT_S + AFTER_S + 4
    if kind == "mrc":
        traffic = mrc(lab, file, seconds, file.parent)
    else:
        traffic = quic(lab, seconds) if kind == "quic" else stream(kind, lab, seconds)
    with traffic as result:
        time.sleep(1.0)
        begin = time.time_ns()
        time.sleep(BEFORE_S)
        done = CASES[case][2](lab, planes)
        time.sleep(AFTER_S)
        end = time.time_ns()
        came = result()
    spans = ((begin, done[0][0]), (done[0][0] + SETTLE_NS, done[1][0]), (end - int(1e9 * AFTER_S / 2), end))
    means = [8e9 * came.rate(came.placed, a, b) for a, b in spans]
    return bins(came, begin, end), [(t - begin, what) for t, what in done], means


def picture(
    case: str, curves: dict[str, list[tuple[float, float]]], done: Done, *, planes: int, rate: int, command: str
) -> str:
    title, allows, _ = CASES[case]
    most = planes * rate * 1e6 * PAYLOAD_SHARE
    levels = [Level(most, "all planes")]
    if allows(planes) < 1:
        levels.append(Level(most * allows(planes), "planes that are left"))
    figure = lines(
        title,
        f"Two hosts of a lab, {planes} planes of {rate} Mb/s: payload received, in bins of {BIN_NS / 1e6:.0f} ms.",
        [
            Series(NAMES[kind], points, "accent" if kind == "mrc" else i)
            for i, (kind, points) in enumerate(curves.items())
        ],
        x=Axis("time", "s"),
        y=Axis("goodput", "b/s", lo=0),
        marks=[Mark(t / 1e9, what, role) for (t, what), role in zip(done, ("fail", "pass"), strict=True)],
        levels=levels,
        names="above",
        command=command,
    )
    return figure.svg()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="mrc,mptcp", help="of mrc, mptcp, tcp, quic")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--planes", type=int, default=8)
    parser.add_argument("--rate", type=int, default=50, help="Mb/s of each link")
    parser.add_argument("--pictures", type=Path, help="a folder for SVG files")
    parser.add_argument("--rows", type=Path, help="write each curve there, a line of JSON")
    asked = parser.parse_args()
    pictures, rows = (one and one.resolve() for one in (asked.pictures, asked.rows))
    name, table = f"fw{os.getpid()}", []
    command = f"python bench/fabric_switches.py --kinds {asked.kinds} --planes {asked.planes} --rate {asked.rate}"
    with a_lab(name, asked.planes, asked.rate) as file:
        open_mptcp(name, asked.planes)
        for case in asked.cases.split(","):
            curves, marks = {}, {}
            for kind in asked.kinds.split(","):
                curves[kind], marks[kind], means = one_run(name, file, kind, case, asked.planes)
                before, during, after = means
                dip = min(y for _, y in curves[kind])
                load = os.getloadavg()[0]
                cells = [f"{v / 1e6:.0f}" for v in (before, during, after, dip)]
                aim = CASES[case][1](asked.planes)
                share = f"{during / before:.1%}" if before else "none came"
                table.append(f"| {case} | {kind} | {' | '.join(cells)} | {share} | {aim:.1%} |")
                print(
                    f"{case:9} {kind:6} before, during, after, least {' '.join(cells)} Mb/s   load {load:.1f}",
                    flush=True,
                )
                if rows:
                    with rows.open("a") as out:
                        row = {"case": case, "kind": kind, "done": marks[kind], "curve": curves[kind]}
                        out.write(json.dumps(row) + "\n")
            if pictures:
                pictures.mkdir(parents=True, exist_ok=True)
                first = next(iter(marks.values()))
                text = picture(case, curves, first, planes=asked.planes, rate=asked.rate, command=command)
                (pictures / f"sockets-{case}.svg").write_text(text)
    print(f"\n{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Linux {platform.release()}")
    print(f"{asked.planes} planes of {asked.rate} Mb/s\n")
    print("| case | | Mb/s before | in the fault | after | least 50 ms | in the fault, of before | links allow |")
    print(f"|---|---|{'---:|' * 6}")
    print(*table, sep="\n")


if __name__ == "__main__":
    main()
