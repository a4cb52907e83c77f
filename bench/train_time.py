"""How long a step takes: what `train estimate --time` says before, and what it takes then, on shapes of five families.

    python bench/train_time.py                  five shapes, state on disk, three steps after the first each
    python bench/train_time.py --keep memory --only llama

Prints one JSON line per shape: predicted and measured seconds, their ratio, what binds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np

from fairlead.train.config import load
from fairlead.train.session import Session, estimate
from support.families import FAMILIES, config
from support.train_peak import SHAPES, TEXT


def measured(name: str, keep: str, steps: int, base: Path) -> dict:
    family, larger, rows, length, accumulation, head = SHAPES[name]
    _, values = FAMILIES[family]
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": larger[1] // 8}
    more = {**dict(zip(names, larger, strict=True)), **heads, "max_position_embeddings": 1024}
    type(config(family))(**{**values, **more}).save_pretrained(base / "model")
    np.save(base / "tokens.npy", np.random.default_rng(0).integers(3, 60, (64, length)))
    text = TEXT.format(rows=rows, accumulation=accumulation, head=head).replace("steps = 2", f"steps = {steps}")
    (base / "train.toml").write_text(text.replace("[memory]", f'keep = "{keep}"\n[memory]'))
    loaded = load(base / "train.toml")
    said = estimate(loaded, base, timed=True).pace
    with Session.open(loaded, base) as run:
        taken = [progress.seconds for progress in run.train()]
    took = statistics.median(taken[1:])  # the first one has no update to do
    return {
        "shape": name,
        "keep": keep,
        "predicted_s": round(said.seconds, 3),
        "measured_s": round(took, 3),
        "steps_s": [round(one, 3) for one in taken],
        "ratio": round(said.seconds / took, 3),
        "binding": said.binding,
        "busy_s": {key: round(value, 3) for key, value in said.bounds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", choices=["disk", "memory"], default="disk")
    parser.add_argument("--only", default=",".join(SHAPES))
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="fairlead-time-") as folder:
            print(json.dumps(measured(name, args.keep, args.steps, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
