"""What grows with depth and with vocabulary, measured on this machine's CPU: the peak of memory of steps from disk.

    python bench/train_memory.py depth                   4 and 32 layers of one width: 2.2 B parameters, 35 GB of disk
    python bench/train_memory.py vocabulary              262,144 words, more logits than memory is taken for
    python bench/train_memory.py depth --smoke

Each shape in a process of its own: two steps, fp32, AdamW, clipping, two micro-batches, embedding and head streamed.
Told are what the plan says of steps, and what they took beyond what the process held before the engine was made (VmHWM
after first weights). The second step has the updates of the first. Prints JSON lines, then a line for people.
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
from train_wide import GROUPS, anew, status
from transformers import LlamaConfig

from fairlead.train import AdamW, Engine, Settings, random_values, skeleton, take_apart
from fairlead.train.activations import play
from fairlead.train.memory import give_back_at_once
from fairlead.train.plan import need

CPU, MICRO, STEPS = torch.device("cpu"), 2, 2
DEPTHS = (4, 32)
MANY = 262_144
FILLING = "first weights"


def train(folder: Path, shape: dict[str, int], tokens: int, head_tokens: int) -> dict[str, float]:
    """Bytes that were planned and taken of a run."""
    give_back_at_once()
    config = LlamaConfig(**shape, tie_word_embeddings=False, max_position_embeddings=max(64, tokens))
    parts = take_apart(skeleton(config, torch.float32), GROUPS, ends=True)
    settings = Settings(CPU, accumulation=MICRO, clip=1.0, rule=AdamW(), store=folder, head_tokens=head_tokens)
    found = play(parts, torch.float32, 1, tokens, head_tokens, MICRO)
    said = need(parts.blocks, settings, found, tokens=MICRO * tokens, active=1, threads=torch.get_num_threads())
    planned = said.total("host") - sum(term.bytes for term in said.terms if FILLING in term.what)
    shutil.rmtree(folder, ignore_errors=True)
    ids = torch.randint(0, config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(1))
    base = anew()
    engine = Engine(parts, settings)
    try:
        engine.fill(random_values(parts, 1, CPU))
        anew()
        begin = time.perf_counter()
        losses = [engine.step([{"input_ids": ids, "labels": ids}] * MICRO, lr=1e-3).loss for _ in range(STEPS)]
        engine.flush()
        seconds = (time.perf_counter() - begin) / STEPS
        taken = status("VmHWM") - base
    finally:
        engine.close()
        shutil.rmtree(folder, ignore_errors=True)
    params = sum(param.numel for block in parts.blocks for param in block.params)
    logits = 4 * MICRO * tokens * config.vocab_size
    return {
        "params": params,
        "tokens": MICRO * tokens,
        "planned": planned,
        "taken": taken,
        "logits": logits,
        "step_s": round(seconds, 1),
        "loss": losses[-1],
    }


def shapes(part: str, smoke: bool) -> list[tuple[dict[str, int], int, int]]:
    """Of a part: the model, tokens of a micro-batch, head_tokens."""
    width = 128 if smoke else 2048
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": width, "intermediate_size": 4 * width}
    if part == "depth":
        return [({**heads, "num_hidden_layers": depth, "vocab_size": 4 * width}, 16, 0) for depth in DEPTHS]
    narrow = {**heads, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}
    words, tokens = (8192, 256) if smoke else (MANY, 2048)
    return [({**narrow, "vocab_size": words}, tokens, 64)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("depth", "vocabulary"))
    parser.add_argument("--store", type=Path, default=Path("/var/tmp/fairlead-train-memory"))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    asked = shapes(args.part, args.smoke)
    if args.child is not None:
        shape, tokens, head_tokens = asked[args.child]
        print(json.dumps({**shape, **train(args.store, shape, tokens, head_tokens)}), flush=True)
        return
    told = []
    for place in range(len(asked)):
        words = [args.part, "--store", str(args.store), "--child", str(place), *(["--smoke"] if args.smoke else [])]
        done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True)
        told.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(told[-1]), flush=True)
    first, last = told[0], told[-1]
    if args.part == "depth":
        grown = last["taken"] / first["taken"] - 1
        layers = f"from {first['num_hidden_layers']} to {last['num_hidden_layers']} layers"
        print(f"{layers}: {grown:+.1%} of memory, planned {last['planned'] / first['planned'] - 1:+.1%}")
    else:
        print(f"{last['taken'] / 2**20:,.0f} MiB taken, {last['logits'] / 2**20:,.0f} MiB of logits in fp32 a step")


if __name__ == "__main__":
    main()
