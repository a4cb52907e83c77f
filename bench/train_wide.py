"""One decoder layer of 175B shape (12,288 wide, 49,152 inside, 96 heads), trained from disk on this machine's CPU.

    python bench/train_wide.py                         whole, then in pieces: 1.8 B parameters, 22 GB of state
    python bench/train_wide.py --hidden 6144           a quarter of it
    python bench/train_wide.py --only pieces --smoke

Each in a process of its own: two steps, bf16 from fp32 parameters, AdamW, clipping. Told are what the plan says of
memory and what was taken beyond what the process held before (VmHWM): the most of the steps, and of writing first
weights, which are drawn a whole layer at a time. The second step has the update of the first. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from train_disk import io_bytes
from transformers import OPTConfig

from fairlead.train import AdamW, Engine, ParamGroup, Settings, random_values, skeleton, take_apart
from fairlead.train.activations import play
from fairlead.train.memory import give_back_at_once
from fairlead.train.plan import need

CPU, BF16 = torch.device("cpu"), torch.bfloat16
GROUPS = (ParamGroup("*bias", 0.0), ParamGroup("*norm*", 0.0), ParamGroup("*", 0.1))


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def anew() -> int:
    """Begin the peak anew; what is held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def train(way: str, hidden: int, tokens: int, store: Path) -> None:
    give_back_at_once()
    config = OPTConfig(
        vocab_size=512,
        hidden_size=hidden,
        word_embed_proj_dim=hidden,
        ffn_dim=4 * hidden,
        num_hidden_layers=1,
        num_attention_heads=max(1, hidden // 128),
        max_position_embeddings=max(64, tokens),
        dropout=0.0,
        attention_dropout=0.0,
    )
    whole = take_apart(skeleton(config, BF16), GROUPS)
    parts = take_apart(whole.model, GROUPS, 4 * hidden * hidden + 8 * hidden) if way == "pieces" else whole
    settings = Settings(CPU, BF16, clip=1.0, rule=AdamW(), store=store, slots=1)
    layer = max(block.numel for block in whole.blocks)
    said = need(
        parts.blocks,
        settings,
        play(parts, BF16, 1, tokens, 0),
        tokens=tokens,
        active=layer,
        threads=torch.get_num_threads(),
        layer=layer,
    )
    filling = sum(term.bytes for term in said.terms if "first weights" in term.what)
    shutil.rmtree(store, ignore_errors=True)
    params = sum(param.numel for block in parts.blocks for param in block.params)
    found = {"way": way, "hidden": hidden, "tokens": tokens, "params": params, "pieces": len(parts.blocks) - 1}
    found["widest"] = max(block.numel for block in parts.blocks[1:])
    ids = torch.arange(tokens).remainder(512).view(1, tokens)
    base = anew()
    begin = time.perf_counter()
    engine = Engine(parts, settings)
    try:
        engine.fill(random_values(parts, 1, CPU))
        found |= {"fill_s": round(time.perf_counter() - begin, 1), "fill_peak_gib": gib(status("VmHWM") - base)}
        anew()
        steps = []
        for _ in range(2):
            begin, before = time.perf_counter(), io_bytes()
            result = engine.step([{"input_ids": ids, "labels": ids}], lr=1e-4)
            read, written = (after - then for after, then in zip(io_bytes(), before, strict=True))
            took = round(time.perf_counter() - begin, 1)
            steps.append({"loss": result.loss, "s": took, "read_gb": read / 1e9, "written_gb": written / 1e9})
        found |= {"steps": steps, "step_peak_gib": gib(status("VmHWM") - base)}
        found |= {"planned_gib": gib(said.total("host")), "planned_step_gib": gib(said.total("host") - filling)}
        found |= {"disk_gib": gib(said.total("disk")), "planned_read_gb": said.read_bytes / 1e9}
    finally:
        engine.close()
        shutil.rmtree(store, ignore_errors=True)
    print(json.dumps(found), flush=True)


def gib(num: int) -> float:
    return round(num / 2**30, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=12288)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--only", default="whole,pieces")
    parser.add_argument("--store", type=Path, default=Path("/var/tmp/fairlead-train-wide"))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    hidden = 256 if args.smoke else args.hidden
    for way in args.only.split(","):
        if args.child:
            train(way, hidden, args.tokens, args.store)
            continue
        words = ["--only", way, "--hidden", str(hidden), "--tokens", str(args.tokens), "--store", str(args.store)]
        subprocess.run([sys.executable, __file__, "--child", *words], check=True)


if __name__ == "__main__":
    main()
