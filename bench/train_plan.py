"""What `train estimate --time` says before a run, and what the run takes then: peak of host memory, seconds of a step.

    python bench/train_plan.py                         seven shapes, about four minutes on two cores
    python bench/train_plan.py --only mistral,gpt2     some of them
    python bench/train_plan.py --known                 the shapes by which the planner's constants were found
    python bench/train_plan.py --write                 also into docs/benchmarks/train.md

Every shape has three processes of its own, one after the other: plan, run, plan. The plan measures the machine's own
limits for some seconds each time, before and after the run, as a shared machine is not the same one a minute later;
what it says of time is the mean of both, and both are told. A run trains something small first, so that what libraries
load once is there; the peak is what the process holds at most beyond what it held before (VmHWM), and the step the
median of those after the first, which has no update to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import page

from fairlead.base.table import table
from fairlead.train.config import load
from fairlead.train.planning import estimate
from fairlead.train.session import Session
from support.families import FAMILIES, config
from support.train_peak import SHAPES, TEXT, status

HERE = Path(__file__).resolve().parent
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}


def usual(vocabulary: int, hidden: int, inner: int, layers: int, **more: object) -> dict[str, object]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        **HEADS,
        "head_dim": hidden // 8,
        "max_position_embeddings": 1024,
        **more,
    }


UNSEEN = {
    "mistral": ("mistral", usual(6144, 512, 1408, 8, sliding_window=128), (3, 256, 1, 0, "auto"), "fp32", "disk"),
    "gpt_neox": ("gpt_neox", usual(8192, 576, 2304, 5), (2, 256, 3, 0, "auto"), "fp32", "disk"),
    "gpt2": (
        "gpt2",
        {"vocab_size": 16384, "n_embd": 512, "n_layer": 6, "n_head": 8, "n_positions": 1024},
        (4, 256, 1, 0, "auto"),
        "bf16",
        "disk",
    ),
    "qwen2": ("qwen2", usual(12288, 448, 1792, 7), (2, 512, 2, 0, "auto"), "bf16", "memory"),
    "gemma2": ("gemma2", usual(24576, 448, 1792, 4, sliding_window=256), (2, 384, 2, 256, "auto"), "fp32", "memory"),
    "mixtral": ("mixtral", usual(8192, 384, 768, 4), (2, 256, 2, 0, "auto"), "fp32", "disk"),
    "stablelm": ("stablelm", usual(20480, 384, 1024, 12), (1, 512, 6, 0, "auto"), "bf16", "disk"),
}
"""Family; sizes; rows, length, accumulation, head_tokens, ends; compute, keep.
None of the planner's constants comes from them."""
KNOWN = {name: (family, usual(*sizes), words, "fp32", "disk") for name, (family, sizes, *words) in SHAPES.items()}
STEPS = 5


def prepare(name: str, folder: Path, *, small: bool) -> Path:
    """A model directory, tokens and a configuration."""
    family, sizes, (rows, length, accumulation, head, ends), compute, keep = {**UNSEEN, **KNOWN}[name]
    shape = config(family)
    if small:
        rows, length, accumulation, head = 1, 32, 1, 0
    else:
        shape = type(shape)(**{**FAMILIES[family][1], **sizes})
    folder.mkdir(parents=True, exist_ok=True)
    shape.save_pretrained(folder / "model")
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(3, 60, (64, length)))
    text = TEXT.format(rows=rows, accumulation=accumulation, head=head, ends=ends)
    text = text.replace('compute = "fp32"', f'compute = "{compute}"').replace("steps = 2", f"steps = {STEPS}")
    (folder / "train.toml").write_text(text.replace("[memory]", f'keep = "{keep}"\n[memory]'))
    return folder


def planned(name: str, base: Path) -> dict[str, object]:
    folder = prepare(name, base / "large", small=False)
    plan = estimate(load(folder / "train.toml"), folder, timed=True)
    assert plan.pace is not None, plan.need.guessed
    assert plan.rates is not None
    return {
        "peak": plan.need.total("host"),
        "seconds": plan.pace.seconds,
        "binding": plan.pace.binding,
        "busy": dict(plan.pace.bounds),
        "limits": {
            "products, GFLOP/s": plan.rates.flops / 1e9,
            "elements, GB/s": plan.rates.moved_bytes_s / 1e9,
            "updates, million parameters/s": 1e-6 / plan.rates.update_s,
            "loads, million parameters/s": 1e-6 / plan.rates.load_s,
        },
    }


def trained(name: str, base: Path) -> dict[str, object]:
    for small in (True, False):
        folder = prepare(name, base / ("small" if small else "large"), small=small)
        loaded = load(folder / "train.toml")
        estimate(loaded, folder)
        Path("/proc/self/clear_refs").write_text("5")  # begin the peak anew
        before = status("VmRSS")
        with Session.open(loaded, folder) as run:
            steps = [progress.seconds for progress in run.train()]
    return {"peak": status("VmHWM") - before, "seconds": statistics.median(steps[1:]), "steps": steps}


def fresh(what: str, name: str) -> dict:
    """In a process of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="fairlead-plan-") as folder:
        command = [sys.executable, __file__, "--child", what, "--only", name, "--folder", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{what} {name}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compared(name: str) -> dict:
    before, run, after = fresh("plan", name), fresh("run", name), fresh("plan", name)
    said = [before["seconds"], after["seconds"]]
    return {
        "shape": name,
        "planned_peak": before["peak"],
        "measured_peak": run["peak"],
        "peak_ratio": before["peak"] / run["peak"],
        "planned_s": statistics.mean(said),
        "said_s": said,
        "measured_s": run["seconds"],
        "steps_s": run["steps"],
        "time_ratio": statistics.mean(said) / run["seconds"],
        "binding": before["binding"],
        "busy_s": before["busy"],
        "limits": before["limits"],
    }


def row(found: dict) -> list[str]:
    _, sizes, (rows, length, accumulation, head, _), compute, keep = {**UNSEEN, **KNOWN}[found["shape"]]
    hidden = sizes.get("hidden_size", sizes.get("n_embd"))
    layers = sizes.get("num_hidden_layers", sizes.get("n_layer"))
    pieces = f", head in pieces of {head}" if head else ""
    batches = f"{accumulation} × " if accumulation > 1 else ""
    return [
        f"{found['shape']}, {layers} layers of {hidden}, vocabulary {sizes['vocab_size']:,}{pieces}",
        f"{batches}{rows * length:,} tokens, {compute}, {keep}",
        f"{found['planned_peak'] / 2**20:.0f} / {found['measured_peak'] / 2**20:.0f} MiB",
        f"{found['peak_ratio']:.2f}",
        f"{found['said_s'][0]:.2f}, {found['said_s'][1]:.2f} / {found['measured_s']:.2f} s",
        f"{found['time_ratio']:.2f}",
    ]


COLUMNS = ["model", "a step", "peak, planned / measured", "", "seconds, planned before, after / measured", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--known", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", choices=["plan", "run"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.child:
        print(json.dumps({"plan": planned, "run": trained}[args.child](args.only, args.folder)))
        return
    results = []
    for name in args.only.split(",") if args.only else KNOWN if args.known else UNSEEN:
        results.append(compared(name))
        print(json.dumps(results[-1]), flush=True)
    rows = [row(found) for found in results]
    print("\n" + table([column.upper() for column in COLUMNS], rows))
    near = [abs(found["peak_ratio"] - 1) <= 0.10 for found in results]
    soon = [abs(found["time_ratio"] - 1) <= 0.25 for found in results]
    said = f"Peaks within 10 %: {sum(near)} of {len(near)}; times within 25 %: {sum(soon)} of {len(soon)}."
    print(f"\n{said}")
    if args.write:
        lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
        made = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        what = "the known shapes" if args.known else "shapes the planner has not seen"
        target = HERE.parent / "docs" / "benchmarks" / "train.md"
        page.write(
            target, "Training by streaming", f"Planned and measured: {what}", f"{page.preface()}\n\n{made}\n\n{said}"
        )


if __name__ == "__main__":
    main()
