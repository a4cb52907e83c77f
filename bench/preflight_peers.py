"""The faults of the matrix beside what else can be installed here: who notices, who names the culprit, in how long.

    sudo python bench/preflight_peers.py [--cmax /opt/peers/bin/cmax] [--only WORD] [--keep]
    sudo python bench/preflight_peers.py tables

validator   the method of the public cluster validator, written afresh: eight tasks under srun, one DDP step of a small
            model, an all-reduce of one number, a barrier, a line of success. Killed after LIMIT_S.
cmax        `cmax audit --slurm` of clustermax 0.2.1 from PyPI, in an environment of its own that lab hosts can see
            (below /opt, not /tmp): python3 -m venv /opt/peers && /opt/peers/bin/pip install clustermax==0.2.1

A trial that is in the file already, of this commit and seed, is left out, so a run that was stopped may be begun again.

A peer notices a fault if it says anything that it does not say of the healthy lab. It names it if what it says then
holds the name of every guilty node and of no other; for a dead plane or a wrong count the part itself.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from preflight_faults import RESULTS, ROOT, end_on_sigterm

from fairlead.cluster.enter import into_host, running
from support import scorer
from support.injector import KINDS, Kind, World
from support.scorer import Truth
from support.trials import draw, world

OWN_RESULTS = ROOT / "docs/benchmarks/preflight-peers.jsonl"
PAGE = OWN_RESULTS.with_suffix(".md")
LIMIT_S = 90
VALIDATOR = """
import datetime, os, socket
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
open("/proc/self/comm", "w").write("fl-rank-%d" % rank)  # by which the injector finds a rank
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://" + os.environ["MASTER"], rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(42 + rank)
loss = model(torch.randn(20, 10)).square().mean()
loss.backward()
optimizer.step()
total = loss.detach().clone()
dist.all_reduce(total)
dist.barrier()
if rank == 0:
    print("SUCCESS", world, float(total) / world)
"""


class Found(msgspec.Struct, kw_only=True):
    """What one peer said about one fault."""

    peer: str
    fault: str
    target: str
    wall_s: float
    has_noticed: bool = False
    has_named: bool = False
    said: str = ""
    seed: int = 1
    commit: str = ""
    at: str = ""
    load: float = 0.0
    """The machine's load average over the last minute, at the start."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes a trial the same one when it is run again."""
        return self.peer, self.fault, self.seed


def read(path: Path) -> list[Found]:
    """Everything kept; of what was run again the last."""
    return list({f.key: f for f in scorer.lines(path, Found)}.values())


def validator(world_: World, tasks: int) -> tuple[str, float]:
    """(everything it said, seconds)."""
    state = running(world_.name)
    head, first = state.host("head"), state.host(world_.nodes[0])
    assert head is not None
    assert first is not None
    master = f"[{first.fabric}]:{random.randrange(49152, 65536)}"
    words = [
        "srun", f"--nodes={len(world_.nodes)}", f"--ntasks={tasks}", f"--gres=gpu:{world_.per_node}",
        f"--partition={state.slurm.partition}", "--mpi=none", "--chdir=/tmp", "--immediate=10",
        f"--export=ALL,MASTER={master},GLOO_SOCKET_IFNAME=fab0",
        sys.executable, "-X", "fairlead-rank", "-c", VALIDATOR,
    ]  # fmt: skip
    return _run(into_host(state, head, words))


def cmax(world_: World, program: Path) -> tuple[str, float]:
    """The same."""
    state = running(world_.name)
    head = state.host("head")
    assert head is not None
    script = f"rm -rf /tmp/cmax; mkdir /tmp/cmax; cd /tmp/cmax; HOME=/tmp/cmax exec {program} audit --slurm -y -vvv"
    return _run(into_host(state, head, ["sh", "-c", script]))


MARK = "FAIRLEAD_PEER"
KILL_S = 10.0


def _run(argv: Sequence[str], limit_s: float = LIMIT_S) -> tuple[str, float]:
    """What a peer says, into a file: a pipe would stay open for as long as anything it left behind lives."""
    mark = secrets.token_hex(8)
    started = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, MARK: mark})
        try:
            how = f"exit {process.wait(timeout=limit_s)}"
        except subprocess.TimeoutExpired:
            how = f"killed after {limit_s:g} s"
        finally:
            _kill(mark)
            process.wait(KILL_S)
        out.seek(0)
        said = out.read().decode("utf-8", "backslashreplace")
    return f"{said}\n{how}", time.monotonic() - started


def _kill(mark: str) -> None:
    """Kill everything that inherited the mark, in whatever session and on whatever host, until nothing is left."""
    deadline, looks = time.monotonic() + KILL_S, 0
    # nobody twice in a row: while a process turns into another program it has no environment to be found by
    while looks < 2 and time.monotonic() < deadline:
        looks = 0 if (pids := marked(mark)) else looks + 1
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked(mark: str) -> list[int]:
    """Live processes, of all namespaces below this one, with the mark in their environment."""
    found, word = [], f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if word in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def lines_of(said: str) -> set[str]:
    """What was said, without what differs from run to run: times, ports, numbers of jobs and processes."""
    return {re.sub(r"\d+(\.\d+)?|0x[0-9a-f]+", "#", line).strip() if "SUCCESS" in line else line.strip()
            for line in said.splitlines() if line.strip()}  # fmt: skip


TROUBLE = re.compile(r"error|fail|warn|killed|exit [^0]|timed? ?out|drain|down", re.IGNORECASE)


def judge(found: Found, truth: Truth, said: str, healthy: set[str], nodes: list[str]) -> Found:
    """Compare what a peer said with the truth."""
    new = sorted(lines_of(said) - healthy)
    text = "\n".join(new)
    named = {n for n in nodes if re.search(rf"\b{n}\b", text)}
    if truth.nodes:
        is_named = named == set(truth.nodes)
    else:
        is_named = any(part in text for part in truth.part or (truth.target.split()[0],))
    bad = [line for line in new if TROUBLE.search(line)]
    found.has_noticed, found.has_named = bool(bad), bool(bad) and is_named
    found.said = bad[0][:160] if bad else "nothing new"
    return found


def run(args: argparse.Namespace) -> int:
    """Every fault under each peer; returns how many could not be run. Each keeps its result as soon as it has one."""
    peers = [p for p in ("validator", "cmax") if p in args.peer and (p != "cmax" or args.cmax)]
    known = {(*f.key, f.commit) for f in read(args.results)} if args.keep else set()
    kinds = [k for k in KINDS.values() if not k.is_setting and any(word in k.name for word in args.only.split(","))]
    todo = [
        (kind, peer)
        for kind in kinds
        for peer in peers
        # cmax starts no ranks
        if not (peer == "cmax" and (kind.is_job or kind.name.startswith("rank")))
        and (peer, kind.name, args.seed, args.commit) not in known
    ]
    failed = 0
    while todo:
        with world() as world_:
            try:
                healthy = {peer: _healthy(args, world_, peer) for peer in {peer for _, peer in todo}}
                while todo:
                    kind, peer = todo.pop(0)
                    found = _trial(args, world_, kind, peer, healthy[peer])
                    if args.keep:
                        scorer.append(args.results, found)
            except Exception:  # noqa: BLE001 - one that cannot be run must not cost the others, which get a new lab
                traceback.print_exc()
                failed += 1
                if failed > MOST_FAILURES:
                    break
    return failed


MOST_FAILURES = 3


def _ask(args: argparse.Namespace, world_: World, peer: str, tasks: int = 0) -> tuple[str, float]:
    if peer == "cmax":
        return cmax(world_, args.cmax)
    return validator(world_, tasks or len(world_.nodes) * world_.per_node)


def _healthy(args: argparse.Namespace, world_: World, peer: str) -> set[str]:
    """What a peer says of a lab in which nothing is wrong."""
    both = [_ask(args, world_, peer) for _ in range(2)]
    print(f"{peer:10} healthy  {both[-1][1]:.1f} s", flush=True)
    return {line for said, _ in both for line in lines_of(said)}


def _trial(args: argparse.Namespace, world_: World, kind: Kind, peer: str, healthy: set[str]) -> Found:
    """One fault under one peer."""
    [(truth, inject)] = draw(world_, [kind], random.Random(f"{args.seed} {kind.name}"))
    at, load = dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), round(os.getloadavg()[0], 1)
    undo = inject()
    try:
        said, wall_s = _ask(args, world_, peer, int(truth.target.split()[0]) if kind.is_job else 0)
    finally:
        undo()
        world_.sh("head", "scancel -u root")
        world_.calm()
    found = Found(
        peer=peer,
        fault=kind.name,
        target=truth.target,
        wall_s=round(wall_s, 1),
        seed=args.seed,
        commit=args.commit,
        at=at,
        load=load,
    )
    judge(found, truth, said, healthy, world_.nodes)
    print(
        f"{peer:10} {kind.name:20} {truth.target:20} noticed {found.has_noticed!s:5} "
        f"named {found.has_named!s:5} {wall_s:5.1f} s  {found.said[:80]}",
        flush=True,
    )
    return found


def tables(own: Path, matrix: Path, page: Path) -> None:
    """Fill the page from both files of results."""
    lines = read(own)
    found = {(f.peer, f.fault): f for f in lines}
    single = [t for t in scorer.read(matrix) if (t.suite, t.hosts, t.rate_mbps) == ("single", 4, 250)]
    ours = {t.name: t for t in single}
    rows = ["| fault | fairlead preflight | validator's method | cmax 0.2.1 |", "|---|---|---|---|"]
    for name in KINDS:
        mine = ours.get(name)
        cells = [f"named, {mine.wall_s:.0f} s" if mine and mine.is_hit else "not named" if mine else "not run"]
        cells += [_cell(found.get((peer, name))) for peer in ("validator", "cmax")]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    for word, test in (("named", lambda f: f.has_named), ("noticed", lambda f: f.has_noticed)):
        counts = [f"{sum(test(f) for f in lines if f.peer == p)} of {sum(f.peer == p for f in lines)}"
                  for p in ("validator", "cmax")]  # fmt: skip
        hits = f"{sum(t.is_hit if word == 'named' else t.verdict == 'fail' for t in ours.values())} of {len(ours)}"
        rows.append(f"| **{word}** | {hits} | {' | '.join(counts)} |")
    text = "\n".join(rows)
    page.write_text(
        re.sub(r"(<!-- peers -->\n).*?(<!-- end -->)", rf"\g<1>{text}\n\g<2>", page.read_text(), flags=re.DOTALL)
    )


def _cell(found: Found | None) -> str:
    if found is None:
        return "-"
    word = "named" if found.has_named else "noticed" if found.has_noticed else "passes"
    return f"{word}, {found.wall_s:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "tables"], nargs="?", default="run")
    parser.add_argument("--cmax", type=Path)
    parser.add_argument("--peer", default="validator,cmax")
    parser.add_argument("--only", default="", help="kinds with one of these words, divided by commas, in their name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add to the file of results, and leave out what is in it")
    parser.add_argument("--results", type=Path, default=OWN_RESULTS)
    parser.add_argument("--commit", default=scorer.commit_of(ROOT), help="what the results are said to be of")
    args = parser.parse_args()
    if args.what == "tables":
        tables(args.results, RESULTS, PAGE)
        return 0
    end_on_sigterm()
    return min(run(args), 1)


if __name__ == "__main__":
    sys.exit(main())
