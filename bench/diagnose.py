"""Diagnosis of labelled incidents: precision, recall, the right node first, causes on healthy runs, seconds.

    python bench/diagnose.py FOLDER [--only NAME] [--blind] [--wrong] [--lines 1000000]

FOLDER holds one folder an incident: `logs/NODE/...` as on the machines, `job.json` with the columns of sacct,
`label.json` with `class`, `node`, `root`, `victims`. Each is imported into a store of its own; the time is that of
the diagnosis. `--lines` adds so many lines of noise to each store. `--blind` hides how the job ended, so that healthy
runs are judged by their lines alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from fairlead.logs import reading
from fairlead.logs.diagnose.asking import gather
from fairlead.logs.diagnose.choose import NOTHING, diagnose
from fairlead.logs.diagnose.facts import job_of
from fairlead.logs.diagnose.findings import told_by
from fairlead.logs.diagnose.flight import read_dumps
from fairlead.logs.diagnose.model import Diagnosis
from fairlead.logs.eventtime import Clock, event_ns
from fairlead.logs.intake import Wish, take_in
from fairlead.logs.store import Store

DAY_NS = 86_400 * 10**9


_NOISE = """INSERT INTO Logs (TimeGenerated, RawData, Computer,
FilePath, Component, SourceTable, TimeFrom, FileId, Offset, End)
SELECT fromUnixTimestamp64Nano(toInt64({first} + number * {step}), 'UTC'),
concat('Dec  6 19:25:33 ', ['{nodes}'][number % {num} + 1], ' systemd[1]: session-', toString(number), '.scope: used ',
toString(cityHash64(number) % 100000), 'ms CPU time, no error'), ['{nodes}'][number % {num} + 1], '/var/log/syslog',
'systemd',
'syslog_raw_CL', 'line', 1, number, number + 1 FROM numbers({lines})"""


def judged(folder: Path, *, blind: bool = False, lines: int = 0) -> tuple[Diagnosis, float]:
    """The diagnosis of one incident, and its seconds."""
    said = json.loads((folder / "job.json").read_text())
    job = job_of(said)
    assert job is not None, f"{folder}: job.json is no job"
    if blind:
        job = dataclasses.replace(job, state="", exit_code="")
    place = Path(tempfile.mkdtemp(prefix="fl-diagnose-"))
    # formats are known by the names of files: an incident called `prolog-fails` must not decide one
    (place / "incident").symlink_to(folder.resolve())
    folder = place / "incident"
    store = Store(place / "store")
    try:
        fill(store, folder, said, (job.end_ns or job.start_ns) + DAY_NS)
        if lines:
            span = (job.end_ns or _last(store)) - job.start_ns
            nodes = "','".join(job.nodes)
            store.session.query(
                _NOISE.format(
                    first=job.start_ns, step=max(1, span // lines), nodes=nodes, num=len(job.nodes), lines=lines
                )
            )
        dumps = [d for d in folder.glob("logs/*/**/flight") if d.is_dir()]
        ranks = tuple(rank for d in dumps for rank in read_dumps(d, job.id)[0])
        findings, _ = told_by(folder / "runs") if (folder / "runs").is_dir() else ((), [])
        began = time.perf_counter()
        now_ns = job.end_ns or _last(store)
        found = diagnose(gather(store.engine, job, now_ns, findings=findings, dumps=ranks), now_ns)
        return found, time.perf_counter() - began
    finally:
        store.close()
        shutil.rmtree(place)


def fill(store: Store, folder: Path, said: dict[str, Any], now_ns: int) -> None:
    """The files of an incident. Times without a year are read as of the job's end."""
    boots = said.get("boot", {})
    for node in sorted((folder / "logs").iterdir()):
        boot = event_ns("iso", boots[node.name], Clock()) if node.name in boots else None
        paths = [p for p in reading.files_below([node]) if p.parent.name != "flight"]
        for path in paths:
            # rotated and touched by whoever made the copy: its time says nothing
            stamp = now_ns / 1e9
            path.chmod(path.stat().st_mode | 0o200)
            os.utime(path, (stamp, stamp))
        for done in take_in(store, paths, Wish(node.name, clock=Clock(zone=dt.UTC, boot_ns=boot, now_ns=now_ns))):
            if done.note:
                print(f"  {done.path}: {done.note}")


def _last(store: Store) -> int:
    sql = "SELECT max(toUnixTimestamp64Nano(TimeGenerated)) FROM Logs WHERE TimeFrom = 'line'"
    return int(next(iter(store.engine.rows(sql)))[0])


def main() -> None:
    """Judge all, and count."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folder", type=Path)
    args.add_argument("--only", default="")
    args.add_argument("--lines", type=int, default=0)
    args.add_argument("--blind", action="store_true")
    args.add_argument("--wrong", action="store_true", help="say what is wrong alone")
    wish = args.parse_args()
    names = "faults claimed right named first root victims healthy alarms absent abstained sure sure_wrong"
    tally = dict.fromkeys(names.split(), 0)
    seconds: list[float] = []
    for place in sorted(p.parent for p in wish.folder.rglob("label.json")):
        if wish.only not in str(place):
            continue
        label = json.loads((place / "label.json").read_text())
        found, took = judged(place, blind=wish.blind, lines=wish.lines)
        seconds.append(took)
        wrong = count(tally, label, found)
        if wrong or not wish.wrong:
            where = ",".join(found.nodes) or found.at
            line = f"{'WRONG' if wrong else 'ok':6}{place.name}: {found.what or 'nothing'} {where} ({found.confidence})"
            print(line + (f"  -- {'; '.join(wrong)}" if wrong else ""), flush=True)
    show(tally, seconds)


def count(tally: dict[str, int], label: dict[str, Any], found: Diagnosis) -> list[str]:
    """Add one, and say what is wrong with it."""
    want, claims = label["class"], found.what not in {"", NOTHING}
    if not want:
        tally["healthy"] += 1
        tally["alarms"] += claims
        return [f"healthy, and it claims: {found.says}"] if claims else []
    if want == [NOTHING]:
        tally["absent"] += 1
        tally["abstained"] += not claims
        tally["claimed"] += claims
        return [f"not in the logs, and it claims: {found.says}"] if claims else []
    wrong = []
    tally["faults"] += 1
    tally["claimed"] += claims
    if NOTHING in want and not claims:
        return []  # allowed, and no claim: it counts against recall, and says no node
    tally["sure"] += found.confidence == "high"
    if found.what in want:
        tally["right"] += 1
    else:
        wrong.append(f"class is {'/'.join(want)}")
        tally["sure_wrong"] += found.confidence == "high"
    if label.get("node"):
        tally["named"] += 1
        first = found.nodes[0] if found.nodes else found.at
        tally["first"] += first in label["node"]
        if first not in label["node"]:
            wrong.append(f"node is {'/'.join(label['node'])}")
    blamed = set(found.nodes) & set(label.get("victims", ()))
    tally["victims"] += bool(blamed)
    if blamed:
        wrong.append(f"blames victims {', '.join(sorted(blamed))}")
    if label.get("root"):
        hit = any(text in root.text for text in label["root"] for root in found.roots)
        tally["root"] += hit
        if not hit and not wrong:
            wrong.append("another root line")
    return wrong


def show(tally: dict[str, int], seconds: list[float]) -> None:
    """The rates."""

    def share(part: str, whole: str) -> str:
        return f"{tally[part]} of {tally[whole]}" + (f" = {tally[part] / tally[whole]:.3f}" if tally[whole] else "")

    print(f"\nprecision of the class    {share('right', 'claimed')}   (goal 0.95)")
    print(f"recall of the class       {share('right', 'faults')}   (goal 0.90)")
    print(f"right node first          {share('first', 'named')}   (goal 0.90)")
    print(f"root line named           {share('root', 'faults')}")
    print(f"victims blamed            {share('victims', 'faults')}")
    print(f"sure and wrong            {share('sure_wrong', 'sure')}   (goal 0.05 at most)")
    print(f"not in the logs, and said {share('abstained', 'absent')}")
    print(f"causes on healthy runs    {share('alarms', 'healthy')}   (goal 0)")
    if seconds:
        seconds.sort()
        print(f"seconds each              median {seconds[len(seconds) // 2]:.2f}, most {seconds[-1]:.2f}   (goal 2)")


if __name__ == "__main__":
    main()
