"""The gate on NVIDIA GPUs of this machine, through the command itself: what it says, how long, what it measured.

    python bench/preflight_gpu.py [FOLDER]        # keeps the run folders in FOLDER

One node with all its GPUs; then several nodes that share the first GPU, so that NCCL really runs between "hosts": a
host identity for each (NCCL_HOSTID) makes NCCL take them for machines and speak through sockets, which is slow and
says nothing of a network, but everything of what is read from NCCL, CUDA and torch, and of who is blamed. Then faults:
a node whose GPU is hidden, a rank that is stopped, a rank that is killed. Prints one JSON line a case, then a table.
Needs an NVIDIA GPU and a CUDA build of torch in this Python; without them it says so and measures nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 150
SRC = Path(__file__).parents[1] / "src"
HIDE = '[ "$FAIRLEAD_NODE" = g1 ] && export CUDA_VISIBLE_DEVICES='


def cluster_file(folder: Path, *, nodes: str, gpus: int, first: str = "") -> Path:
    """Nodes that are all this machine; their Python gives each a host identity of its own."""
    python, file = folder / "python", folder / "cluster.toml"
    python.write_text(f'#!/bin/sh\nexport NCCL_HOSTID="$FAIRLEAD_NODE"\n{first}\nexec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    file.write_text(
        f'schema = 1\n[cluster]\nname = "gpu"\n[access]\nvia = "local"\n[[pool]]\nname = "here"\nsize = "other"\n'
        f'nodes = "{nodes}"\nports = 0\ngpus = {gpus}\npython = "{python}"\n'
        '[fabric]\nlink = "ethernet"\nrdma = "none"\n'
    )
    return file


def ranks_of(node: str) -> list[int]:
    """Processes of a node's ranks: those with a GPU open."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"FAIRLEAD_NODE={node}\0".encode() in (entry / "environ").read_bytes() and any(
                "nvidia" in str(fd.readlink()) for fd in (entry / "fd").iterdir()
            ):
                found.append(int(entry.name))
    return found


def hit(node: str, sign: signal.Signals, after_s: float) -> Callable[[], None]:
    """Send a signal to a node's ranks, some time after they have opened the GPU."""

    def work() -> None:
        deadline = time.monotonic() + LIMIT_S
        while not ranks_of(node) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(after_s)
        for pid in ranks_of(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    return work


def gate(name: str, file: Path, runs: Path, meanwhile: Callable[[], None] | None = None) -> dict[str, object]:
    """One run of preflight, and what it said."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (str(SRC), os.environ.get("PYTHONPATH", "")))))
    helper = threading.Thread(target=meanwhile, daemon=True) if meanwhile else None
    started = time.monotonic()
    if helper:
        helper.start()
    argv = [sys.executable, "-m", "fairlead", "preflight", "-f", str(file), "--runs", str(runs), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=LIMIT_S, check=False)
    wall_s = round(time.monotonic() - started, 2)
    for node in (f"g{i}" for i in range(8)):
        for pid in ranks_of(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return {"case": name, "wall_s": wall_s, "rc": done.returncode, "error": (done.stdout + done.stderr)[-800:]}
    kept = runs / (said.get("run") or "-") / "ranks.json"
    lines = json.loads(kept.read_text())["lines"] if kept.is_file() else []
    return {
        "case": name,
        "wall_s": wall_s,
        "rc": done.returncode,
        "took_s": said.get("took_s"),
        "alarms": [
            f"{f['verdict']} {f['code']} {','.join(f['subject'].get('nodes', ()))}: {f['message']}"
            for f in said.get("findings", ())
            if f["verdict"] in ("fail", "warn", "unknown")
        ],
        "cards": [line for line in lines if line.get("say") == "card"],
    }


def main() -> None:
    """Every case, one after the other."""
    try:
        import torch

        num = torch.cuda.device_count()
    except ImportError:
        num = 0
    if not num:
        print("not measured: no NVIDIA GPU that this Python's torch reaches")
        return
    print(json.dumps({"torch": torch.__version__, "nccl": torch.cuda.nccl.version(), "gpus": num}))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else place)
        folder.mkdir(parents=True, exist_ok=True)
        cases = [
            ("one node, all its GPUs", "g0", num, "", None),
            *((f"{n} nodes, one GPU", f"g[0-{n - 1}]", 1, "", None) for n in (2, 4, 8)),
            ("its GPU is hidden on g1", "g[0-3]", 1, HIDE, None),
            ("a rank of g2 is stopped", "g[0-3]", 1, "", hit("g2", signal.SIGSTOP, 2.0)),
            ("a rank of g1 is killed", "g[0-3]", 1, "", hit("g1", signal.SIGKILL, 2.0)),
        ]
        rows = []
        for name, nodes, gpus, first, meanwhile in cases:
            file = cluster_file(folder, nodes=nodes, gpus=gpus, first=first)
            with contextlib.suppress(subprocess.TimeoutExpired):
                rows.append(gate(name, file, folder / "runs", meanwhile))
                print(json.dumps(rows[-1]), flush=True)
        print("\n| case | wall | verdict | said |\n|---|---|---|---|")
        for row in rows:
            print(f"| {row['case']} | {row['wall_s']} s | {row['rc']} | {'; '.join(row.get('alarms', ())) or '-'} |")


if __name__ == "__main__":
    main()
