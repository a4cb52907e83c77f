"""Runs preflight in a lab with faults, where it cannot see them, and scores what it said.

The truth is a file of mode 600 in a directory that is empty for preflight, which runs in a mount namespace of its own;
the lab's record is shown to it without the list of faults in force.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fairlead.cluster.enter import folder, into_host, running
from support.injector import FAIRLEAD, Drawn, Kind, Undo, World, are_independent, in_order
from support.scorer import Trial, Truth, score

JOB_FILE = "/etc/fairlead-job.toml"


@contextlib.contextmanager
def world(*, hosts: int = 4, gpus: int = 2, rate_mbps: int = 250, planes: int = 4) -> Iterator[World]:
    """A lab of that shape with a real Slurm, up while the block runs, with its cluster file and a place for truths."""
    name = f"fm{os.getpid()}-{time.monotonic_ns() % 100000}"
    with tempfile.TemporaryDirectory(prefix="fairlead-matrix-") as place, tempfile.TemporaryDirectory() as secret:
        file = Path(place) / "cluster.toml"
        file.write_text(
            f'schema = 1\n[cluster]\nname = "{name}"\n[access]\nvia = "lab"\n'
            f'[[pool]]\nname = "lab"\nsize = "lab"\nnodes = "n[0-{hosts - 1}]"\ngpus = {gpus}\n'
            f'[fabric]\nlink = "ethernet"\nrdma = "mrc"\nplanes = {planes}\nt0 = 2\nt1 = 2\n'
            f"[lab]\nrate_mbps = {rate_mbps}\n[slurm]\nlab = true\n"
        )
        made = World(name, file, [f"n{i}" for i in range(hosts)], planes, gpus, rate_mbps, Path(secret))
        try:
            up = subprocess.run([*FAIRLEAD, "lab", "up", "-f", str(file)], capture_output=True, text=True)
            assert up.returncode == 0, up.stderr
            yield made
        finally:
            subprocess.run([*FAIRLEAD, "lab", "down", "-n", name], capture_output=True, check=True)


def draw(world_: World, kinds: Sequence[Kind], rng: random.Random) -> list[Drawn]:
    """Faults of these kinds at places that let each of them be seen."""
    while True:
        drawn = [kind.draw(world_, rng) for kind in kinds]
        if len(drawn) < 2 or are_independent(kinds[0], drawn[0][0], kinds[1], drawn[1][0]):
            return in_order(drawn)


def trial(world_: World, drawn: Sequence[Drawn], *, suite: str, name: str, seed: int) -> Trial:
    """Inject, preflight, undo, wait until all is calm, score."""
    truths = [truth for truth, _ in drawn]
    truth_file = world_.truth_dir / "truth.json"
    at, load = dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), os.getloadavg()[0]
    undo: list[Undo] = []
    try:
        _write(truth_file, truths)
        undo += [inject() for _, inject in drawn]
        tasks = truths[0].target.split()[0] if truths and truths[0].kind == "count" else ""
        wall_s, out = run_inside(world_, tasks) if tasks else _run(world_)
        _write(truth_file, truths)
    finally:
        for step in reversed(undo):
            step()
        world_.calm()
    done = Trial(
        suite=suite,
        name=name,
        seed=seed,
        hosts=len(world_.nodes),
        gpus=world_.per_node,
        rate_mbps=int(world_.rate_mbps),
        truths=msgspec.json.decode(truth_file.read_bytes(), type=list[Truth]),
        wall_s=round(wall_s, 2),
        verdict="",
        first="",
        named=[],
        is_first=False,
        accused=[],
        at=at,
        load=round(load, 1),
    )
    try:
        return score(done, json.loads(out))
    except ValueError:
        return score(done, {"error": {"message": f"no document: {out[:200]}"}})


def _write(path: Path, truths: list[Truth]) -> None:
    path.write_bytes(msgspec.json.encode(truths))
    path.chmod(0o600)


def _run(world_: World) -> tuple[float, str]:
    """Preflight, in a mount namespace where neither the truth nor the lab's list of faults can be read."""
    record = folder(world_.name) / "state.json"
    shown = world_.file.parent / "state.json"
    shown.write_text(json.dumps(json.loads(record.read_bytes()) | {"faults": []}))
    hide = f'mount -t tmpfs none {world_.truth_dir}; mount --bind {shown} {record}; exec "$@"'
    command = [*FAIRLEAD, "preflight", "-f", str(world_.file), "--json", "--runs", str(world_.file.parent / "runs")]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as state:  # one trial is no mark against a node in the next
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", hide, "sh", *command],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "XDG_STATE_HOME": state},
        )
    return time.monotonic() - started, done.stdout


def run_inside(world_: World, tasks: str) -> tuple[float, str]:
    """`srun fairlead preflight --inside` in a job of a given shape, on the lab's own Slurm.

    What a lab host has no room for is waived; hosts see neither the truth nor the lab's record.
    """
    state = running(world_.name)
    head = state.host("head")
    assert head is not None
    text = (
        f'schema = 1\n[cluster]\nname = "job"\n[access]\nvia = "slurm"\n[[pool]]\nname = "job"\nsize = "other"\n'
        f'nodes = "n[0-{len(world_.nodes) - 1}]"\ngpus = {world_.per_node}\npython = "{sys.executable}"\n'
        '[preflight]\nranks_on = "cpus"\n'
    ) + "".join(
        f'[[waiver]]\ncode = "{code}"\nnodes = "all"\nreason = "a lab host"\nexpires = 2100-01-01\n'
        for code in ("host/shm", "host/kernel-faults", "gpu/xid")
    )
    for node in world_.nodes:
        world_.sh(node, f"cat >{JOB_FILE} <<'END'\n{text}END")
    words = [
        "srun", f"--nodes={len(world_.nodes)}", f"--ntasks={tasks}", f"--gres=gpu:{world_.per_node}",
        f"--ntasks-per-node={-(-int(tasks) // len(world_.nodes))}",
        f"--partition={state.slurm.partition}", "--mpi=none", "--chdir=/tmp", "--",
        *FAIRLEAD, "preflight", "--inside", "-f", JOB_FILE, "--json", "--runs", "/tmp/runs",
    ]  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(into_host(state, head, words), capture_output=True, text=True, timeout=300)
    return time.monotonic() - started, done.stdout
